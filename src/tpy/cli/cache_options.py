"""--cache-config: which response cache, and how it is set up."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tpy.cli.parsing import UsageError
from tpy.errors import TpyError
from tpy.plugins import LIBRARIES
from tpy_data.cache.kinds import ChosenCache, cache_kind, cache_names
from tpy_data.cache.options import CacheOptions, LocalCacheOptions, StoreOptions

_SETTING = "[a-zA-Z_][a-zA-Z0-9_.-]*="
USE_LIBRARY: Final = "use-library"
"""The setting by which a library in --cache-directory wins over a cache of this server that has its name."""


def cache_options(
    texts: Sequence[str], byte_size: int, environment: Mapping[str, str], directory: str = ""
) -> CacheOptions | None:
    """The cache of --cache-config and --response-cache-byte-size (0: not given); None without cache. `directory` has the
    libraries. Raises UsageError."""
    if byte_size and texts:
        raise UsageError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the other."
        )
    if byte_size:
        return LocalCacheOptions(size_bytes=byte_size)
    if not texts:
        return None
    caches = cache_names()
    name, settings = _parse(texts, caches)
    wants_library = settings.pop(USE_LIBRARY, "") == "true" or name not in caches
    if name == "local" and not wants_library:
        return _local(settings)
    library = _library(name, directory, caches) if wants_library else None
    try:
        kind = cache_kind(LIBRARIES if wants_library else name)
        options = kind.read(ChosenCache(name=name, settings=settings, environment=environment, library=library))
    except TpyError as error:
        raise UsageError(error.message) from error
    except Exception as error:  # of a package that may not be ours
        raise UsageError(f"--cache-config: cache '{name}': {type(error).__name__}: {error}") from error
    return StoreOptions(name=name, kind=kind, options=options, server_token=secrets.token_hex(16))


def _parse(texts: Sequence[str], caches: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The cache's name and its settings. In the environment variable, commas have separated the pieces before."""
    joined = ",".join(texts)
    known = {*caches, *(text.partition(",")[0] for text in (joined, *texts) if "," in text)}
    names: list[str] = []
    settings: dict[str, str] = {}
    for piece in re.split(f",(?=(?:{'|'.join(map(re.escape, known))})(?:,|$)|{_SETTING})", joined):
        setting, equals, value = piece.partition("=")
        if not equals and piece not in names:
            names.append(piece)
        elif equals and names and value:
            settings[setting] = value
        elif equals:
            raise UsageError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {joined}")
    if len(names) > 1:
        raise UsageError("--cache-config: found multiple cache configurations, but only a single cache is currently supported")
    if not settings or not names[0]:
        raise UsageError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {joined}")
    return names[0], settings


def _library(name: str, directory: str, caches: Sequence[str]) -> Path:
    file = Path(directory) / name / f"libtritoncache_{name}.so"
    if "/" in name or not file.is_file():
        raise UsageError(
            f"--cache-config: unable to find '{file.name}' for cache. Searched: {directory}. The caches without a library are "
            + " and ".join(f"'{known}'" for known in caches)
        )
    return file


def _local(settings: Mapping[str, str]) -> LocalCacheOptions:
    for setting in settings.keys() - {"size"}:
        raise UsageError(f"--cache-config: cache 'local' has no setting '{setting}'; it has size")
    return LocalCacheOptions(size_bytes=_number("size", settings["size"], minimum=1))


def _number(name: str, text: str, *, minimum: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < minimum:
        raise UsageError(f"--cache-config: {name} is a number from {minimum} on, got '{text}'")
    return int(text)


def without_password(text: str) -> str:
    """A value of --cache-config as it may be shown."""
    return re.sub(rf"(password=).*?(?=,{_SETTING}|$)", r"\1***", text)
