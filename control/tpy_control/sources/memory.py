"""Model repositories in memory, for simulation and tests: no thread, no file, and changes only when told.

Data planes that read model files cannot use it; simulated backends can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import anyio
import msgspec

from tpy.errors import Unavailable
from tpy_control.core.scan import (
    CONFIG_FILENAME,
    CONFIGS_FOLDER,
    DirectoryFingerprint,
    FileFingerprint,
    ModelLocation,
    ModelScan,
    assemble,
    is_ignored,
)
from tpy_control.sources.protocol import RepositorySource


class _File(msgspec.Struct, frozen=True):
    content: bytes
    written: int


class MemorySource(RepositorySource):
    """Holds the files that `write` and `remove` were told of. Every write has a new time, also one of the same content.

    `broken_repositories` and `unreadable` make reads fail, as disks do.
    """

    def __init__(self, repositories: Sequence[str] = ("memory",)) -> None:
        self.broken_repositories: set[str] = set()
        self.unreadable: dict[ModelLocation, str] = {}
        self._models: dict[ModelLocation, dict[str, _File]] = {}
        self._repositories = tuple(repositories)
        self._writes = 0
        self._changed = anyio.Event()

    def location(self, name: str, repository: str = "") -> ModelLocation:
        """The location of a model of this name, in the first repository unless one is named."""
        return ModelLocation(repository or self._repositories[0], name)

    def write(self, location: ModelLocation, path: str, content: bytes | str = b"") -> None:
        """Write a file, making its model and folders; a path that ends in "/" makes a folder only."""
        self._writes += 1
        data = content.encode() if isinstance(content, str) else content
        self._models.setdefault(location, {})[path] = _File(data, self._writes)
        self._notify()

    def remove(self, location: ModelLocation, path: str = "") -> None:
        """Remove a file, everything below a folder, or ("") the whole model; what is absent is fine."""
        if not path:
            self._models.pop(location, None)
        else:
            files = self._models.get(location, {})
            for known in [name for name in files if name == path or name.startswith(path.rstrip("/") + "/")]:
                del files[known]
        self._notify()

    async def list_models(self) -> Sequence[ModelLocation]:
        """All models, sorted."""
        await anyio.lowlevel.checkpoint()
        for repository in self._repositories:
            if repository in self.broken_repositories:
                raise Unavailable(f"failed to stat file {repository}: made to fail")
        return sorted(self._models)

    async def fingerprints(self, locations: Sequence[ModelLocation]) -> Sequence[DirectoryFingerprint | None]:
        """Those of the scans."""
        scans = [await self.scan(location, config_name="") for location in locations]
        return [None if scan is None else scan.fingerprint for scan in scans]

    async def scan(self, location: ModelLocation, *, config_name: str) -> ModelScan | None:
        """Scans files with digests."""
        await anyio.lowlevel.checkpoint()
        files = self._models.get(location)
        if files is None:
            return None
        directory = Path(location.repository) / location.name
        if location in self.unreadable:
            error = self.unreadable[location]
            return ModelScan(location=location, directory=directory, fingerprint=DirectoryFingerprint(error=error), error=error)
        config_path = next((path for path in (f"{CONFIGS_FOLDER}/{config_name}.pbtxt", CONFIG_FILENAME) if path in files), "")
        kept = {path: file for path, file in files.items() if not any(is_ignored(part) for part in PurePosixPath(path).parts)}
        return assemble(
            location,
            directory,
            files=[_fingerprint(path, file) for path, file in kept.items() if not path.endswith("/")],
            folders={PurePosixPath(path).parts[0] for path in kept if "/" in path},
            config_path=config_path,
            config_text=files[config_path].content.decode() if config_path else None,
        )

    async def md5(self, location: ModelLocation, path: str) -> str | None:
        """The MD5 of the content."""
        await anyio.lowlevel.checkpoint()
        file = self._models.get(location, {}).get(path)
        return None if file is None else hashlib.md5(file.content, usedforsecurity=False).hexdigest()

    async def watch(self, changed: Callable[[], None]) -> None:
        """Calls `changed` after each change, once for all changes of one scheduler turn."""
        while True:
            await self._changed.wait()
            changed()

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


def _fingerprint(path: str, file: _File) -> FileFingerprint:
    digest = hashlib.blake2b(file.content).hexdigest()
    return FileFingerprint(path=path, size_bytes=len(file.content), mtime_ns=file.written, identity=1, digest=digest)
