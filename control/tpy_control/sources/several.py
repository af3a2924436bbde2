"""Repositories of several kinds as one source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio

from tpy.clock import Clock
from tpy.telemetry.exposition import MeasuredFamily
from tpy_control.address import CloudAddress, RepositoryAddress
from tpy_control.core.scan import DirectoryFingerprint, ModelLocation, ModelScan
from tpy_control.sources.cloud import CloudOptions
from tpy_control.sources.disk import DiskSource
from tpy_control.sources.protocol import RepositorySource


def open_source(repositories: Sequence[RepositoryAddress], cloud: CloudOptions, clock: Clock) -> RepositorySource:
    """The source of these repositories. Blocks: reads files of credentials. Raises as CloudSource."""
    folders = [one for one in repositories if isinstance(one, Path)]
    addresses = [one for one in repositories if isinstance(one, CloudAddress)]
    if not addresses:
        return DiskSource(folders)
    from tpy_control.sources.cloud.source import CloudSource

    in_the_cloud = CloudSource(addresses, cloud, clock)
    return SeveralSources(DiskSource(folders), in_the_cloud, {str(one) for one in addresses}) if folders else in_the_cloud


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
