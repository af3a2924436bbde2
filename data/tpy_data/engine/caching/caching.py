"""Puts the response cache in front of the engines of models that ask for it, and names the owner of what it keeps by a digest
of configuration and files, the same on every server."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tpy.config import ModelConfig
from tpy.files import read_blocks, walk
from tpy.state import DesiredModel, DesiredVersion, ObservedKey
from tpy_data.engine.caching.cache_access import CacheAccess
from tpy_data.engine.loading.loaded_version import LoadedVersion
from tpy_data.engine.requests.model_engine import ModelEngine

if TYPE_CHECKING:
    from tpy_data.engine.caching.cached_engine import CachedEngine

_PASSING = frozenset({"__pycache__"})
"""Compiled Python is left out: it is written while a model is loaded."""


def _content_digest(config: ModelConfig, model_directory: Path, version_directory: Path) -> str:
    """Two versions have the same digest when their configurations are equal and so are the names and bytes of their files: all
    in the version's folder, and in the model's, other versions' folders left out.

    Blocking: reads every byte. Raises OSError.
    """
    digest = hashlib.blake2b(msgspec.json.encode(config), digest_size=20)
    others = {name for name in os.listdir(model_directory) if name.isdigit() and model_directory / name != version_directory}
    for file in walk(model_directory, skip=_PASSING.__contains__).files:
        if file.path.partition("/")[0] in others:
            continue
        digest.update(f"\0{file.path}\0{file.status.st_size}\0".encode())
        for block in read_blocks(model_directory / file.path):
            digest.update(block)
    return digest.hexdigest()


_log = logging.getLogger(__name__)


def with_content(
    loaded: LoadedVersion, model: DesiredModel, version: DesiredVersion, access: CacheAccess | None
) -> LoadedVersion:
    """With the digest that its answers have in a cache which several servers share. Blocking; reads all files of the model."""
    if access is None or not access.cache.shared or not _wanted(loaded.config):
        return loaded
    config = msgspec.structs.replace(loaded.config, instance_group=())  # how many run it changes no answer
    try:
        return msgspec.structs.replace(loaded, content=_content_digest(config, model.directory, version.directory))
    except OSError as error:
        context = {"model": str(model.id), "version": version.version, "reason": str(error)}
        _log.warning("the files of a model cannot be read: its answers are not cached", extra={"context": context})
        return loaded


def with_cache(engine: ModelEngine, key: ObservedKey, loaded: LoadedVersion, access: CacheAccess | None) -> ModelEngine:
    """The engine itself, or behind the response cache when there is one and the model asks for it."""
    if not _wanted(loaded.config) or access is None or (access.cache.shared and not loaded.content):
        if access is None:
            _warn_without_effect(key, loaded.config)
        return engine
    # Where others share the cache, what counts is what the model is; else which load of it this is.
    identity = loaded.content if access.cache.shared else str(key.generation)
    return _cached(engine, key, loaded.config, access, identity=identity, owner=_owner(key))


def forget_cached(key: ObservedKey, access: CacheAccess | None) -> None:
    """This copy of the version is no more."""
    if access is not None:
        access.cache.forget(_owner(key))


def ensemble_with_cache(
    engine: ModelEngine, key: ObservedKey, config: ModelConfig, access: CacheAccess | None, *, change: int
) -> ModelEngine:
    """As `with_cache`, for an ensemble; the key includes how often its members have changed. Its answers depend on them, so an
    answer is valid until they change next, and only in this run of the server."""
    if not _wanted(config) or access is None:
        if access is None:
            _warn_without_effect(key, config)
        return engine
    return _cached(
        engine, key, config, access, identity=f"{access.token}#{key.generation}.{change}", owner=f"{_owner(key)}.{change}"
    )


def forget_ensemble(front: ModelEngine, access: CacheAccess | None) -> None:
    """This engine of an ensemble is no more."""
    if access is None:
        return
    from tpy_data.engine.caching.cached_engine import CachedEngine

    if isinstance(front, CachedEngine):
        access.cache.forget(front.owner)


def _cached(
    engine: ModelEngine, key: ObservedKey, config: ModelConfig, access: CacheAccess, *, identity: str, owner: str
) -> CachedEngine:
    from tpy_data.cache.core.entry import RequestKey
    from tpy_data.engine.caching.cached_engine import CachedEngine  # most servers have no cache

    request_key = RequestKey((key.model.name, key.model.namespace, key.version, identity))
    return CachedEngine(engine, config, key.version, access=access, key=request_key, owner=owner)


def _warn_without_effect(key: ObservedKey, config: ModelConfig) -> None:
    if _wanted(config):
        context = {"model": str(key.model), "version": key.version}
        _log.warning("response_cache has no effect: the server was started without --cache-config", extra={"context": context})


def _owner(key: ObservedKey) -> str:
    return f"{key.model}:{key.version}#{key.generation}"


def _wanted(config: ModelConfig) -> bool:
    return config.response_cache is not None and config.response_cache.enable
