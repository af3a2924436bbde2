"""Model repositories in local directories. All file work runs in threads."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec
import trio
import watchfiles

from tpy import limits
from tpy.errors import Unavailable
from tpy_control.core.picture import (
    CONFIG_FILENAME,
    CONFIGS_FOLDER,
    FileFingerprint,
    Glance,
    ModelLocation,
    ModelPicture,
    assemble,
    glance_of,
    is_passing,
)

_log = logging.getLogger(__name__)

_look = functools.partial(trio.to_thread.run_sync, abandon_on_cancel=True)
"""In a thread that is left behind when cancelled: a file system that hangs must not keep the server from ending."""

BACKENDS_FOLDER = "backends"
"""A repository may bring python-based backends along, as backends/NAME/model.py."""

_WATCH_DEBOUNCE_MS = 400  # groups the events of one copy; the look that follows costs a stat per file
_WATCH_STEP_MS = 50
_READ_BYTES = 1024 * 1024


class _Entry(msgspec.Struct, frozen=True):
    """A file or top-level folder found on a walk; `status` is None for folders."""

    path: str
    status: os.stat_result | None


class _TooManyFiles(OSError):
    """The walk was given up."""


class DiskRepositories:
    """Looks at directories, blocking. `repositories` are used as given: relative ones are relative to the process."""

    def __init__(self, repositories: Sequence[Path]) -> None:
        self._repositories = {str(path): path for path in repositories}
        self._told_unreadable: set[str] = set()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The repositories."""
        return tuple(self._repositories.values())

    def list_models(self) -> Sequence[ModelLocation]:
        """Every directory in a repository, except hidden ones, the folder of backends, and those whose names are not UTF-8, which
        no answer could carry. Raises Unavailable."""
        found: list[ModelLocation] = []
        for repository, path in self._repositories.items():
            try:
                with os.scandir(path) as entries:
                    names = [entry.name for entry in entries if _may_be_model(entry)]
            except OSError as error:
                raise Unavailable(f"failed to stat file {path}: {error.strerror or error}") from None
            found.extend(ModelLocation(repository, name) for name in names if self._is_readable(repository, name))
        return sorted(found)

    def _is_readable(self, repository: str, name: str) -> bool:
        """Whether a folder's name is UTF-8; told once when not."""
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = f"{repository}/{name.encode(errors='backslashreplace').decode()}"
            if shown not in self._told_unreadable:
                self._told_unreadable.add(shown)
                _log.warning("a folder is no model: its name is not UTF-8", extra={"context": {"folder": shown}})
            return False
        return True

    def glance(self, location: ModelLocation) -> Glance | None:
        """One stat per file."""
        try:
            files, folders = _walk(self._directory(location))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return Glance(error=_describe(error))
        return glance_of((_fingerprint(entry) for entry in files), folders)

    def glances(self, locations: Sequence[ModelLocation]) -> list[Glance | None]:
        """The same, of several models."""
        return [self.glance(location) for location in locations]

    def picture(self, location: ModelLocation, config_name: str) -> ModelPicture | None:
        """One stat per file, and reads the configuration and all files up to FINGERPRINT_DIGEST_BYTES_MAX."""
        directory = self._directory(location)
        try:
            files, folders = _walk(directory)
            config_path, config_text = _read_config(directory, config_name)
            fingerprints = [_with_digest(directory, _fingerprint(entry)) for entry in files]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            text = _describe(error)
            return ModelPicture(location=location, directory=directory, glance=Glance(error=text), error=text)
        return assemble(
            location, directory, files=fingerprints, folders=folders, config_path=config_path, config_text=config_text
        )

    def md5(self, location: ModelLocation, path: str) -> str | None:
        """Of a file inside the model's directory; links are followed, ".." is not."""
        relative = PurePosixPath(path)
        if not relative.parts or relative.is_absolute() or ".." in relative.parts:
            return None
        file = self._directory(location) / relative
        try:
            if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for its writer
                return None
            return _digest(file, "md5")
        except OSError:
            return None

    def _directory(self, location: ModelLocation) -> Path:
        return self._repositories[location.repository] / location.name


class DiskSource:
    """`DiskRepositories` in threads, with the operating system's change events."""

    def __init__(self, repositories: Sequence[Path]) -> None:
        self._disk = DiskRepositories(repositories)

    async def list_models(self) -> Sequence[ModelLocation]:
        """As DiskRepositories."""
        return await _look(self._disk.list_models)

    async def glances(self, locations: Sequence[ModelLocation]) -> Sequence[Glance | None]:
        """As DiskRepositories."""
        return await _look(self._disk.glances, locations)

    async def picture(self, location: ModelLocation, *, config_name: str) -> ModelPicture | None:
        """As DiskRepositories."""
        return await _look(self._disk.picture, location, config_name)

    async def md5(self, location: ModelLocation, path: str) -> str | None:
        """As DiskRepositories."""
        return await _look(self._disk.md5, location, path)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Watches all repositories recursively; returns, with a warning, where the system cannot."""
        try:
            await self._watch(changed)
        except* (OSError, RuntimeError) as errors:  # no watches left, a file system without events
            reasons = "; ".join(str(error) for error in errors.exceptions)
            _log.warning("changes are found by looking only, watching failed", extra={"context": {"reason": reasons}})

    async def _watch(self, changed: Callable[[], None]) -> None:
        stopped = trio.Event()

        async def stop_when_cancelled() -> None:
            # awatch waits in a thread that cancellation cannot reach; it looks at the event every _WATCH_STEP_MS.
            try:
                await trio.sleep_forever()
            finally:
                stopped.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_when_cancelled)
            async for _ in watchfiles.awatch(
                *self._disk.paths,
                watch_filter=None,
                debounce=_WATCH_DEBOUNCE_MS,
                step=_WATCH_STEP_MS,
                stop_event=stopped,
                ignore_permission_denied=True,
            ):
                changed()


def _may_be_model(entry: os.DirEntry[str]) -> bool:
    """Hidden folders are none, nor is the folder of backends unless it has what only a model has."""
    if entry.name.startswith(".") or not entry.is_dir():
        return False
    if entry.name != BACKENDS_FOLDER:
        return True
    try:
        inside = os.listdir(entry.path)
    except OSError:
        return True  # told when the model is looked at
    return any(name in (CONFIG_FILENAME, CONFIGS_FOLDER) or name.isdecimal() for name in inside)


def _walk(directory: Path) -> tuple[list[_Entry], list[str]]:
    """All regular files below, links followed, and the names of the top-level folders. Raises OSError; files that vanish
    under the walk are left out."""
    files: list[_Entry] = []
    folders: list[str] = []
    for entry in _entries(directory, "", (_identity(directory),)):
        if entry.status is not None:
            files.append(entry)
        elif "/" not in entry.path:
            folders.append(entry.path)
        if len(files) + len(folders) > limits.MODEL_FILES_MAX:
            raise _TooManyFiles(f"{directory} has more than {limits.MODEL_FILES_MAX} files")
    return files, folders


def _entries(directory: Path, prefix: str, ancestors: tuple[tuple[int, int], ...]) -> Iterator[_Entry]:
    with os.scandir(directory) as entries:
        found = sorted((entry for entry in entries if not is_passing(entry.name)), key=lambda entry: entry.name)
    for entry in found:
        path = f"{prefix}{entry.name}"
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue  # removed meanwhile, or a link to nowhere
        if stat.S_ISREG(status.st_mode):
            yield _Entry(path, status)
        elif stat.S_ISDIR(status.st_mode):
            yield _Entry(path, None)
            identity = (status.st_dev, status.st_ino)
            if identity in ancestors:
                continue  # a link in a circle
            try:
                yield from _entries(Path(entry.path), f"{path}/", (*ancestors, identity))
            except FileNotFoundError:
                continue


def _identity(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_dev, status.st_ino


def _fingerprint(entry: _Entry) -> FileFingerprint:
    status = entry.status
    if status is None:
        raise ValueError(f"{entry.path} is a folder")
    return FileFingerprint(path=entry.path, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)


def _with_digest(directory: Path, fingerprint: FileFingerprint) -> FileFingerprint:
    if fingerprint.size_bytes > limits.FINGERPRINT_DIGEST_BYTES_MAX:
        return fingerprint
    try:
        return msgspec.structs.replace(fingerprint, digest=_digest(directory / fingerprint.path, "blake2b"))
    except FileNotFoundError:
        return fingerprint


def _digest(file: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _read_config(directory: Path, config_name: str) -> tuple[str, str | None]:
    """Path, relative to the directory, and text of the configuration to use; ("", None) without any."""
    paths = [CONFIG_FILENAME]
    if config_name:
        paths.insert(0, f"{CONFIGS_FOLDER}/{config_name}.pbtxt")
    for path in paths:
        file = directory / path
        if not os.path.lexists(file):
            continue
        if not file.is_file():  # a link that leads nowhere, say: without its configuration the model would be another one
            raise OSError(f"{file} is not a file")
        size_bytes = file.stat().st_size
        if size_bytes > limits.CONFIG_BYTES_MAX:
            raise OSError(f"{file} has {size_bytes} bytes; a configuration has at most {limits.CONFIG_BYTES_MAX}")
        try:
            return path, file.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        except UnicodeDecodeError as error:
            raise OSError(f"{file} is not UTF-8 text: byte {error.start} cannot be read") from None
    return "", None


def _describe(error: OSError) -> str:
    if error.strerror:
        return f"cannot read {error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
