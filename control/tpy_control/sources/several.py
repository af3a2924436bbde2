"""Repositories of several kinds as one source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio

from tpy.clock import Clock
from tpy.errors import TpyError, Unavailable
from tpy.telemetry.exposition import MeasuredFamily
from tpy_control.address import RemoteAddress, RepositoryAddress
from tpy_control.core.scan import DirectoryFingerprint, ModelLocation, ModelScan
from tpy_control.sources.disk import DiskSource
from tpy_control.sources.kinds import SourceKind, source_kind
from tpy_control.sources.protocol import RepositorySource
from tpy_control.sources.remote_options import RemoteOptions


def open_source(repositories: Sequence[RepositoryAddress], options: RemoteOptions, clock: Clock) -> RepositorySource:
    """The source of these repositories. Blocks: reads files of credentials. Raises as `SourceKind.open`."""
    folders = [one for one in repositories if isinstance(one, Path)]
    kinds = dict[int, tuple[SourceKind, list[RemoteAddress]]]()
    for one in repositories:
        if isinstance(one, RemoteAddress):
            kind = source_kind(one.scheme)
            kinds.setdefault(id(kind), (kind, []))[1].append(one)
    source: RepositorySource | None = DiskSource(folders) if folders or not kinds else None
    for kind, addresses in kinds.values():
        opened = _opened(kind, addresses, options, clock)
        source = opened if source is None else SeveralSources(source, opened, {str(one) for one in addresses})
    assert source is not None
    return source


def _opened(kind: SourceKind, addresses: Sequence[RemoteAddress], options: RemoteOptions, clock: Clock) -> RepositorySource:
    try:
        return kind.open(addresses, options, clock)
    except TpyError:
        raise
    except Exception as error:  # of a package that may not be ours
        named = ", ".join(map(str, addresses))
        raise Unavailable(f"{named} cannot be opened: {type(error).__name__}: {error}") from error


class SeveralSources(RepositorySource):
    """Two sources: `second` has the repositories of these names, `first` all others."""

    def __init__(self, first: RepositorySource, second: RepositorySource, names: set[str]) -> None:
        self._sources = first, second
        self._names = names

    def _of(self, location: ModelLocation) -> RepositorySource:
        return self._sources[location.repository in self._names]

    async def list_models(self) -> Sequence[ModelLocation]:
        """The models of both."""
        return sorted([location for source in self._sources for location in await source.list_models()])

    async def fingerprints(self, locations: Sequence[ModelLocation]) -> Sequence[DirectoryFingerprint | None]:
        """Of each from its source."""
        found: dict[ModelLocation, DirectoryFingerprint | None] = {}
        for source in self._sources:
            own = [location for location in locations if self._of(location) is source]
            found.update(zip(own, await source.fingerprints(own), strict=True) if own else ())
        return [found[location] for location in locations]

    async def scan(self, location: ModelLocation, *, config_name: str) -> ModelScan | None:
        """From its source."""
        return await self._of(location).scan(location, config_name=config_name)

    async def md5(self, location: ModelLocation, path: str) -> str | None:
        """From its source."""
        return await self._of(location).md5(location, path)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Watches both."""
        async with anyio.create_task_group() as tasks:
            for source in self._sources:
                tasks.start_soon(source.watch, changed)

    async def register(self, path: Path, names: Mapping[str, str]) -> None:
        """Folders are read by the first."""
        await self._sources[0].register(path, names)

    def unregister(self, path: Path) -> None:
        """By the first."""
        self._sources[0].unregister(path)

    async def prefetch(self, locations: Sequence[ModelLocation]) -> None:
        """By each source its own."""
        async with anyio.create_task_group() as tasks:
            for source in self._sources:
                tasks.start_soon(source.prefetch, [location for location in locations if self._of(location) is source])

    def prepared(self, directory: Path, *, is_used: bool) -> None:
        """To both: each knows its own."""
        for source in self._sources:
            source.prepared(directory, is_used=is_used)

    async def retain(self, is_used: Callable[[ModelLocation], bool]) -> None:
        """By both."""
        for source in self._sources:
            await source.retain(is_used)

    def families(self) -> list[MeasuredFamily]:
        """Of both."""
        return [family for source in self._sources for family in source.families()]

    async def aclose(self) -> None:
        """Both."""
        for source in self._sources:
            await source.aclose()
