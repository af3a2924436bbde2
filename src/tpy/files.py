"""Files and folders of model repositories, as the server reads them.

Who writes a repository is trusted, and makes mistakes: a pipe or a device in place of a file, a link to /proc, links in a circle.
So every file of a repository is opened by `open_regular`, which never waits and takes regular files only, and every folder is
walked by `walk`, which ends. Both follow links; what they refuse they name. Blocking: for threads.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from tpy import limits


class _Formatted(msgspec.Struct, frozen=True):
    """The part that any format of a file of ours has."""

    format: int


_FORMATTED: Final = msgspec.json.Decoder(_Formatted)

_BLOCK_BYTES: Final = 1024 * 1024
_WARNINGS_MAX: Final = 10
_KERNEL_FILE_SYSTEMS: Final = frozenset(
    {
        *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "pstore"),
        *("bpf", "mqueue", "fusectl", "binfmt_misc", "efivarfs", "rpc_pipefs", "nsfs", "selinuxfs"),
    }
)
"""File systems that show the kernel: their folders have no end, and their files no size."""

_kernel_devices: dict[int, str] = {}
"""By device number, the kernel's file system there, "" for an ordinary one. Filled as devices are met."""


class UnusableFile(OSError):
    """A file or folder of a repository that the server does not read, with the reason as its text."""


class FoundFile(msgspec.Struct, frozen=True):
    """A regular file; `path` is relative to where the walk began."""

    path: str
    status: os.stat_result


class Walked(msgspec.Struct, frozen=True):
    """All regular files and folders below a folder, sorted by path. `warnings` name links that
    were not followed."""

    files: tuple[FoundFile, ...]
    folders: tuple[str, ...]
    warnings: tuple[str, ...]


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file, or a link to one, for reading. Raises OSError; UnusableFile for everything else that can have a name:
    a pipe would wait for its writer for ever, a device need not end."""
    _require_regular(path, os.stat(path))  # before it is opened, which can have effects on a device
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _require_regular(path, os.fstat(descriptor))  # another file may have taken the name
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(path: Path) -> None:
    """Raise as `open_regular` for a file that others open, as a library: what would wait or never end."""
    open_regular(path).close()


def read_file(path: Path, *, bytes_max: int) -> bytes:
    """The content of a regular file. Raises OSError; UnusableFile for one of more than `bytes_max`, and as `open_regular`."""
    with open_regular(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        content = stream.read(bytes_max + 1) if size_bytes <= bytes_max else b""
    if size_bytes > bytes_max or len(content) > bytes_max:  # it may have grown meanwhile
        raise UnusableFile(f"{path} has {max(size_bytes, len(content))} bytes; expected at most {bytes_max}")
    return content


def replace_file(file: Path, content: bytes) -> None:
    """Write a file whole or not at all, whenever the machine stops. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def digest_file(path: Path, algorithm: str) -> str:
    """The digest of a regular file of any size, in hex. Raises as `open_regular`."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    for block in read_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def read_blocks(path: Path) -> Iterator[bytes]:
    """The content of a regular file in blocks, as far as it reached when it was opened. Raises as `open_regular`."""
    with open_regular(path) as stream:
        left = os.fstat(stream.fileno()).st_size
        while left > 0 and (block := stream.read(min(left, _BLOCK_BYTES))):
            left -= len(block)
            yield block


def walk(directory: Path, *, skip: Callable[[str], bool], check: Callable[[], None] = lambda: None) -> Walked:
    """Everything below `directory`, without the files and folders whose names `skip` chooses. `check` is called for each folder
    and may raise, to end the walk.

    Links are followed, into other file systems too. Left out: what is neither file nor folder, links that lead nowhere, and what
    vanishes meanwhile. A link to a folder that contains it, or that was walked already below the same top-level folder, is not
    followed, with a warning: there is nothing new behind it.

    Raises OSError for a folder that cannot be read; UnusableFile for a link into one of the kernel's file systems, and beyond
    MODEL_FILES_MAX files and folders, MODEL_FOLDER_LINKS_MAX links to folders, or MODEL_DEPTH_MAX folders in each other.
    """
    return _Walk(directory, skip, check).run()


class _Folder(NamedTuple):
    """A folder still to be looked at. `seen` are the folders met so far below the same top-level folder."""

    path: str
    depth: int
    identity: tuple[int, int]
    seen: set[tuple[int, int]]
    is_link: bool = False


class _Walk:
    """One walk: the folders still to be looked at are a list, not a recursion, and everything that is found is counted."""

    def __init__(self, directory: Path, skip: Callable[[str], bool], check: Callable[[], None]) -> None:
        self._directory = directory
        self._skip = skip
        self._check = check
        self._root = _identity(os.stat(directory))
        self._files: list[FoundFile] = []
        self._folders: list[str] = []
        self._warnings: list[str] = []
        self._links = 0
        self._entries = 0

    def run(self) -> Walked:
        waiting = [_Folder("", 0, self._root, {self._root})]
        linked: deque[_Folder] = deque()  # after the others: a folder is walked under its own name, if it has one here
        while waiting or linked:
            folder = waiting.pop() if waiting else linked.popleft()
            if folder.is_link and not self._follows(folder):
                continue
            for name, is_link, status in self._look(folder.path):
                below = f"{folder.path}{name}"
                if stat.S_ISREG(status.st_mode):
                    self._require_ordinary(below, status)
                    self._files.append(FoundFile(below, status))
                elif stat.S_ISDIR(status.st_mode):
                    self._require_ordinary(below, status)
                    self._folders.append(below)
                    if folder.depth == limits.MODEL_DEPTH_MAX:
                        raise UnusableFile(f"'{self._shown(below)}' is more than {limits.MODEL_DEPTH_MAX} folders deep")
                    seen = folder.seen if folder.path else {self._root}
                    found = _Folder(f"{below}/", folder.depth + 1, _identity(status), seen, is_link)
                    if is_link:
                        linked.append(found)
                    elif found.identity not in seen:
                        seen.add(found.identity)
                        waiting.append(found)
        self._files.sort(key=lambda file: file.path)
        if len(self._warnings) > _WARNINGS_MAX:
            more = len(self._warnings) - _WARNINGS_MAX
            self._warnings[_WARNINGS_MAX:] = [f"{more} more links are not followed"]
        return Walked(tuple(self._files), tuple(sorted(self._folders)), tuple(self._warnings))

    def _follows(self, folder: _Folder) -> bool:
        """Returns True if the target of a link is to be walked."""
        path = folder.path.rstrip("/")
        if folder.identity in folder.seen:
            self._warnings.append(f"link '{path}' is not followed: it leads to a folder that is part of the model already")
            return False
        self._links += 1
        if self._links > limits.MODEL_FOLDER_LINKS_MAX:
            most = limits.MODEL_FOLDER_LINKS_MAX
            raise UnusableFile(f"link '{self._shown(path)}' is one too many: a model has at most {most} links to folders")
        folder.seen.add(folder.identity)
        return True

    def _look(self, path: str) -> list[tuple[str, bool, os.stat_result]]:
        """The entries of a folder by name, whether they are links, and what they are links to."""
        self._check()
        found: list[tuple[str, bool, os.stat_result]] = []
        try:
            with os.scandir(self._directory / path) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > limits.MODEL_FILES_MAX:
                        raise UnusableFile(f"{self._directory} has more than {limits.MODEL_FILES_MAX} files")
                    if not self._skip(entry.name) and (status := self._status(path, entry)) is not None:
                        found.append((entry.name, entry.is_symlink(), status))
        except FileNotFoundError:
            if not path:
                raise
        return sorted(found, key=lambda entry: entry[0])

    def _status(self, path: str, entry: os.DirEntry[str]) -> os.stat_result | None:
        """None for what was removed meanwhile, a link to nowhere, and one to itself."""
        try:
            return entry.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            self._warnings.append(f"link '{path}{entry.name}' is not followed: it leads to itself")
            return None

    def _require_ordinary(self, path: str, status: os.stat_result) -> None:
        if status.st_dev != self._root[0] and (kind := _kernel_file_system(status.st_dev)):
            raise UnusableFile(f"'{self._shown(path)}' leads out of the repository, into the {kind} file system")

    def _shown(self, path: str) -> str:
        shown = str(self._directory / path)
        return shown if len(shown) <= limits.ECHO_CHARACTERS_MAX else f"{shown[: limits.ECHO_CHARACTERS_MAX]}..."


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile(f"{path} is not a regular file")
    if kind := _kernel_file_system(status.st_dev):
        raise UnusableFile(f"{path} leads out of the repository, into the {kind} file system")


def _kernel_file_system(device: int) -> str:
    """The name of the kernel's file system that has this device number; "" for all others."""
    if device not in _kernel_devices:
        _kernel_devices.update(_mounted())
        _kernel_devices.setdefault(device, "")
    return _kernel_devices[device]


def _mounted() -> Iterator[tuple[int, str]]:
    """Every mount of the kernel's file systems, where the system has /proc."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        before, _, after = line.partition(" - ")
        kind = after.split(" ", 1)[0]
        if kind in _KERNEL_FILE_SYSTEMS:
            major, _, minor = before.split(" ")[2].partition(":")
            yield os.makedev(int(major), int(minor)), kind


def format_of(content: bytes) -> int:
    """The number of the format that a file in JSON states, whatever else is in it. Raises msgspec.MsgspecError."""
    return _FORMATTED.decode(content).format
