"""Model repositories in local directories. All file work runs in threads.

Changes are watched by the operating system's events. The folders that scans found are watched one by one, so their number is
bounded. A recursive watch would follow every link, and need not end.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TypeVar

import anyio
import msgspec
from watchfiles import watch

from tpy import limits
from tpy.errors import AlreadyExists, InvalidArgument, Unavailable
from tpy.files import FoundFile, UnusableFile, Walked, digest_file, read_file, walk
from tpy_control.core.scan import (
    CONFIG_FILENAME,
    CONFIGS_FOLDER,
    DirectoryFingerprint,
    FileFingerprint,
    ModelLocation,
    ModelScan,
    assemble,
    fingerprint_of,
    is_ignored,
)
from tpy_control.offload import scan_in_thread
from tpy_control.sources.protocol import RepositorySource

_DEBOUNCE_MS = 400  # groups the events of one copy; the poll that follows costs a stat per file
_STEP_MS = 50
_LOOK_MS = 250
"""The first look that finds nothing says that the watch has begun."""

_GATHER_S = 0.2  # while many folders are found one after the other, as at the start


async def _watch_folders(
    folders: Callable[[], Sequence[str]], changed: Callable[[], None], wait_other_folders: Callable[[], Awaitable[None]]
) -> None:
    """Call `changed` after something in the folders has changed, and when the watch has been restarted: there are no events for
    changes in between. It is restarted after each change, and when `wait_other_folders` returns. Runs until cancelled; raises
    OSError or RuntimeError, in exception groups, where the system cannot watch."""
    while True:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_after_change, wait_other_folders, tasks.cancel_scope)
            await _watch_once(folders(), changed)
            tasks.cancel_scope.cancel()


async def _cancel_after_change(wait_other_folders: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
    await wait_other_folders()
    await anyio.sleep(_GATHER_S)
    scope.cancel()


async def _watch_once(folders: Sequence[str], started: Callable[[], None]) -> None:
    """Watch until something has changed."""
    stopped = threading.Event()  # the thread looks at it every _STEP_MS: cancellation cannot reach it

    def watch_in_thread() -> None:
        present = [folder for folder in folders if os.path.isdir(folder)]
        has_begun = False
        with suppress(FileNotFoundError):  # one was removed just now
            for changes in watch(
                *present,
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                stop_event=stopped,
                rust_timeout=_LOOK_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=False,
                ignore_permission_denied=True,
            ):
                if changes or not has_begun:
                    has_begun = True
                    anyio.from_thread.run_sync(started)
                if changes:
                    return

    try:
        # Not awatch: it asks the system for every folder on the loop, which a network file system that hangs would stop.
        await anyio.to_thread.run_sync(watch_in_thread, abandon_on_cancel=True)
    finally:
        stopped.set()


_log = logging.getLogger(__name__)

_T = TypeVar("_T")

BACKENDS_FOLDER = "backends"
"""A repository may bring python-based backends along, as backends/NAME/model.py."""


class DiskRepositories:
    """Reads directories, blocking. `repositories` are used as given: relative ones are relative to the process. `check` is
    called again and again meanwhile, and may raise."""

    def __init__(self, repositories: Sequence[Path], *, check: Callable[[], None] = lambda: None) -> None:
        self._repositories = {str(path): path for path in repositories}
        self._registered: dict[str, Mapping[str, str]] = {}
        """Of repositories that were registered: the names of models whose folders are called otherwise, by folder."""
        self._check = check
        self._warned_of: set[str] = set()
        self._folders: dict[ModelLocation, tuple[str, ...]] = {}
        self.folder_changes = 0
        """Grows whenever `folders` changes."""

    def register(self, path: Path, names: Mapping[str, str]) -> None:
        """See RepositorySource."""
        repository = str(path)
        if not path.is_dir():
            raise InvalidArgument(f"failed to register '{path}', repository not found")
        if repository in self._repositories:
            raise AlreadyExists(f"model repository '{path}' has already been registered")
        taken = {name for each in self._registered.values() for name in each.values()}
        for name in names.values():
            if name in taken:
                raise AlreadyExists(f"failed to register '{name}', there is a conflicting mapping for '{name}'")
        # Other threads read meanwhile: dictionaries are replaced, not changed.
        self._registered = {**self._registered, repository: dict(names)}
        self._repositories = {**self._repositories, repository: path}

    def unregister(self, path: Path) -> None:
        """See RepositorySource."""
        repository = str(path)
        if repository not in self._registered:
            raise InvalidArgument(f"failed to unregister '{path}', repository not found")
        self._repositories = {name: each for name, each in self._repositories.items() if name != repository}
        self._registered = {name: each for name, each in self._registered.items() if name != repository}

    def folders(self) -> tuple[str, ...]:
        """The folders to watch for changes: the repositories and the folders that the last scans found in them. At most
        WATCHED_FOLDERS_MAX, those of models first."""
        found = dict.fromkeys(self._repositories)
        known = dict(self._folders)  # other threads scan meanwhile
        for location in sorted(known):
            if location.repository in self._repositories:
                found[str(self._directory(location))] = None
        for location, folders in sorted(known.items()):
            if len(found) >= limits.WATCHED_FOLDERS_MAX:
                break
            if location.repository not in self._repositories:
                continue
            found.update(dict.fromkeys(str(self._directory(location) / folder) for folder in folders))
        return tuple(found)[: limits.WATCHED_FOLDERS_MAX]

    def list_models(self) -> Sequence[ModelLocation]:
        """Every directory in a repository, except hidden ones, the folder of backends, and names that are not UTF-8, which no
        answer could carry. Raises Unavailable."""
        found: list[ModelLocation] = []
        for repository, path in self._repositories.items():
            try:
                with os.scandir(path) as entries:
                    names = [entry.name for entry in entries if _may_be_model(entry)]
            except OSError as error:
                raise Unavailable(_unreadable(path, error)) from None
            called = self._registered.get(repository, {})
            found.extend(
                ModelLocation(repository, called.get(name, name)) for name in names if self._has_utf8_name(repository, name)
            )
        # A name that a repository was registered with means its model, whoever else has the name.
        given = {name: repository for repository, called in self._registered.items() for name in called.values()}
        found = [location for location in found if given.get(location.name, location.repository) == location.repository]
        for gone in set(self._folders) - set(found):
            self._folders.pop(gone, None)
            self.folder_changes += 1
        return sorted(found)

    def _has_utf8_name(self, repository: str, name: str) -> bool:
        """Returns True if a folder's name is UTF-8; logs a warning once if not."""
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = f"{repository}/{name.encode(errors='backslashreplace').decode()}"
            if shown not in self._warned_of:
                self._warned_of.add(shown)
                _log.warning("folder ignored: its name is not UTF-8", extra={"context": {"folder": shown}})
            return False
        return True

    def fingerprint(self, location: ModelLocation) -> DirectoryFingerprint | None:
        """The fingerprint of a directory, by one stat per file; None if it does not exist."""
        try:
            walked = self._walk(location)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return DirectoryFingerprint(error=_describe(error))
        return fingerprint_of(map(_fingerprint, walked.files), _top_level(walked))

    def fingerprints(self, locations: Sequence[ModelLocation]) -> list[DirectoryFingerprint | None]:
        """The fingerprints of several directories."""
        return [self.fingerprint(location) for location in locations]

    def scan(self, location: ModelLocation, config_name: str) -> ModelScan | None:
        """Scan a directory; None if it does not exist. Reads the configuration and all files up to
        FINGERPRINT_DIGEST_BYTES_MAX."""
        try:
            directory = self._directory(location)
        except FileNotFoundError:
            return None
        try:
            walked = self._walk(location)
            config_path, config_text = _read_config(directory, config_name)
            fingerprints = [self._with_digest(directory, file) for file in walked.files]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            text = _describe(error)
            return ModelScan(location=location, directory=directory, fingerprint=DirectoryFingerprint(error=text), error=text)
        return assemble(
            location,
            directory,
            files=fingerprints,
            folders=_top_level(walked),
            config_path=config_path,
            config_text=config_text,
            warnings=walked.warnings,
            has_given_name=location.name in self._registered.get(location.repository, {}).values(),
        )

    def md5(self, location: ModelLocation, path: str) -> str | None:
        """The MD5 of a file inside the model's directory; links are followed, ".." is not."""
        relative = PurePosixPath(path)
        if not relative.parts or relative.is_absolute() or ".." in relative.parts:
            return None
        try:
            file = self._directory(location) / relative
            return digest_file(file, "md5")
        except OSError:
            return None

    def _directory(self, location: ModelLocation) -> Path:
        for folder, name in self._registered.get(location.repository, {}).items():
            if name == location.name:
                return self._repositories[location.repository] / folder
        found = self._repositories.get(location.repository)
        if found is None:  # unregistered meanwhile
            raise FileNotFoundError(location.repository)
        return found / location.name

    def _walk(self, location: ModelLocation) -> Walked:
        walked = walk(self._directory(location), skip=is_ignored, check=self._check)
        if self._folders.get(location) != walked.folders:
            self._folders[location] = walked.folders
            self.folder_changes += 1
        return walked

    def _with_digest(self, directory: Path, file: FoundFile) -> FileFingerprint:
        """A fingerprint with a digest, for files that are small enough. A file that is gone, or that the server may not read,
        gets no digest: if the model needs it, its load fails."""
        self._check()
        fingerprint = _fingerprint(file)
        if fingerprint.size_bytes > limits.FINGERPRINT_DIGEST_BYTES_MAX:
            return fingerprint
        try:
            return msgspec.structs.replace(fingerprint, digest=digest_file(directory / fingerprint.path, "blake2b"))
        except (FileNotFoundError, PermissionError):
            return fingerprint


class DiskSource(RepositorySource):
    """`DiskRepositories` in threads, with the operating system's change events."""

    def __init__(self, repositories: Sequence[Path]) -> None:
        self._disk = DiskRepositories(repositories, check=anyio.from_thread.check_cancelled)
        self._scanned = anyio.Event()

    async def list_models(self) -> Sequence[ModelLocation]:
        """As DiskRepositories."""
        return await self._run(self._disk.list_models)

    async def fingerprints(self, locations: Sequence[ModelLocation]) -> Sequence[DirectoryFingerprint | None]:
        """As DiskRepositories."""
        return await self._run(functools.partial(self._disk.fingerprints, locations))

    async def scan(self, location: ModelLocation, *, config_name: str) -> ModelScan | None:
        """As DiskRepositories."""
        return await self._run(functools.partial(self._disk.scan, location, config_name))

    async def md5(self, location: ModelLocation, path: str) -> str | None:
        """As DiskRepositories."""
        return await self._run(functools.partial(self._disk.md5, location, path))

    async def register(self, path: Path, names: Mapping[str, str]) -> None:
        """As DiskRepositories."""
        await self._run(functools.partial(self._disk.register, path, names))

    def unregister(self, path: Path) -> None:
        """As DiskRepositories."""
        self._disk.unregister(path)

    async def _run(self, work: Callable[[], _T]) -> _T:
        """Runs `work` in a thread, and says that something was looked at."""
        try:
            return await scan_in_thread(work)
        finally:
            self._scanned.set()
            self._scanned = anyio.Event()

    async def _wait_other_folders(self) -> None:
        """Wait until scans have found other folders than when this was called."""
        changes = self._disk.folder_changes
        while self._disk.folder_changes == changes:
            await self._scanned.wait()

    async def watch(self, changed: Callable[[], None]) -> None:
        """Watch the folders of all repositories; returns, with a warning, where the system cannot."""
        try:
            await _watch_folders(self._disk.folders, changed, self._wait_other_folders)
        except* (OSError, RuntimeError) as errors:  # no watches left, a file system without events
            reasons = "; ".join(str(error) for error in errors.exceptions)
            _log.warning("no change events, repositories are only polled", extra={"context": {"reason": reasons}})


def _unreadable(path: Path, error: OSError) -> str:
    """The error text for a repository that cannot be listed."""
    return f"failed to stat file {path}: {error.strerror or error}"


def _may_be_model(entry: os.DirEntry[str]) -> bool:
    """Hidden folders are not models, nor is the folder of backends unless it has what only a model has."""
    if entry.name.startswith(".") or not entry.is_dir():
        return False
    if entry.name != BACKENDS_FOLDER:
        return True
    try:
        inside = os.listdir(entry.path)
    except OSError:
        return True  # reported when the model is scanned
    return any(name in (CONFIG_FILENAME, CONFIGS_FOLDER) or name.isdecimal() for name in inside)


def _fingerprint(file: FoundFile) -> FileFingerprint:
    status = file.status
    return FileFingerprint(path=file.path, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, identity=status.st_ino)


def _top_level(walked: Walked) -> list[str]:
    return [folder for folder in walked.folders if "/" not in folder]


def _read_config(directory: Path, config_name: str) -> tuple[str, str | None]:
    """Path, relative to the directory, and text of the configuration to use; ("", None) without any."""
    paths = [CONFIG_FILENAME]
    if config_name:
        paths.insert(0, f"{CONFIGS_FOLDER}/{config_name}.pbtxt")
    for path in paths:
        file = directory / path
        if not os.path.lexists(file):
            continue
        try:
            content = read_file(file, bytes_max=limits.CONFIG_BYTES_MAX)
        except FileNotFoundError:  # a link that leads nowhere: without its configuration the model would be another one
            raise UnusableFile(f"failed to open text file for read {file}: No such file or directory") from None
        try:
            return path, content.decode("utf-8-sig")  # some editors write a byte order mark
        except UnicodeDecodeError as error:
            raise UnusableFile(f"{file} is not UTF-8 text: byte {error.start} cannot be read") from None
    return "", None


def _describe(error: OSError) -> str:
    if error.strerror:
        return f"cannot read {error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
