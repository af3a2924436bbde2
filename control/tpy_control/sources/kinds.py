"""Kinds of repositories that are not folders, each found by its entry point in the group `tpy.sources`: SCHEME =
module:attribute, the attribute a SourceKind. An address `SCHEME://...` is read by it. The group is looked at for addresses with
a scheme only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from tpy.clock import Clock
from tpy.echo import echo
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.plugins import OLD_INSTALLATION, installed, load, named, not_loaded
from tpy_control.address import RemoteAddress, RepositoryAddress, scheme_of
from tpy_control.sources.protocol import RepositorySource
from tpy_control.sources.remote_options import RemoteOptions

GROUP: Final = "tpy.sources"


class SourceKind(Protocol):
    """An entry of the group. Two schemes with the same one are read by one source."""

    def parse(self, text: str) -> RemoteAddress:
        """The address that the text means. Raises InvalidArgument, with text for the operator."""
        ...

    def open(self, addresses: Sequence[Any], options: RemoteOptions, clock: Clock) -> RepositorySource:
        """The source of these repositories, which calls each by its text and serves from `options.folder_of`. Blocks. Raises
        Unavailable where what it needs is missing, InvalidArgument for credentials that cannot be used."""
        ...


def parse_address(text: str) -> RepositoryAddress:
    """The address that a value of --model-repository means: a path, unless it begins with a scheme. Raises InvalidArgument for
    a scheme that there is not, and an address that its kind refuses; Unavailable for a kind that cannot be loaded."""
    scheme = scheme_of(text)
    if not scheme:
        return Path(text)
    if not named(GROUP, scheme):
        known = ", ".join(f"{each}://" for each in _schemes())
        if not known:
            raise Unavailable(f"--model-repository {echo(text)}: no entry points '{GROUP}': {OLD_INSTALLATION}")
        hint = ""
        if scheme in ("http", "https"):
            hint = f"; an S3 server is s3://{scheme}://HOST:PORT/BUCKET/PATH; archives are not supported: unpack them"
        raise InvalidArgument(f"--model-repository {echo(text)}: expected a folder, or an address that begins with {known}{hint}")
    try:
        return source_kind(scheme).parse(text)
    except TpyError:
        raise
    except Exception as error:  # of a package that may not be ours
        raise Unavailable(f"--model-repository {echo(text)}: {type(error).__name__}: {error}") from error


def source_kind(scheme: str) -> SourceKind:
    """The kind of this scheme, imported. Raises Unavailable for one that cannot be loaded, and that two packages offer."""
    found = load(GROUP, scheme, "repository scheme")
    missing = [each for each in ("parse", "open") if not hasattr(found, each)]
    if missing:
        error = TypeError(f"expected a SourceKind, got {type(found).__name__} without {', '.join(missing)}")
        raise Unavailable(not_loaded(named(GROUP, scheme)[0], "repository scheme", error))
    return cast("SourceKind", found)


def _schemes() -> Sequence[str]:
    return tuple(dict.fromkeys(each.name for each in installed(GROUP)))
