"""Archives of others (zip, tar, compressed tar): read and unpacked within bounds, and never outside the target.

Refused: paths that are absolute or lead out, two entries of one name, links and devices, encryption, and what becomes far larger
than other archives of its size. Nothing is written before all entries have been looked at. Blocking: for threads.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final

from tpy.echo import echo
from tpy.files import open_regular
from tpy.limits import ARCHIVE_BYTES_FREE, ARCHIVE_RATIO_MAX, MODEL_ARCHIVE_ENTRIES_MAX
from tpy.units import MIB

_BLOCK_BYTES: Final = MIB
_HEAD_BYTES_MAX: Final = 4 * MIB
"""Of an entry's head in a tar file: long names and attributes; real ones have some 100 bytes."""

_GZIP: Final = b"\x1f\x8b"
_ERRORS: Final = (
    OSError,
    EOFError,
    ValueError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    NotImplementedError,
    RuntimeError,
)
"""Errors of the libraries for a broken archive; RuntimeError is that of zipfile for an encrypted one."""


class UnusableArchive(OSError):
    """An archive that is not unpacked, with the reason as its text."""


class Bounds:
    """Bounds of what an archive of this size may become."""

    def __init__(self, archive_bytes: int, *, entries_max: int) -> None:
        self._bytes_left = self._bytes_max = max(ARCHIVE_BYTES_FREE, ARCHIVE_RATIO_MAX * archive_bytes)
        self._entries_left = self._entries_max = entries_max

    def count(self, size: int) -> None:
        """One more entry of this size. Raises UnusableArchive."""
        self._bytes_left -= size
        self._entries_left -= 1
        if self._bytes_left < 0:
            raise UnusableArchive(
                f"it unpacks to more than {self._bytes_max} bytes, at most {ARCHIVE_RATIO_MAX} times its size are accepted"
            )
        if self._entries_left < 0:
            raise UnusableArchive(f"it has more than {self._entries_max} entries")


class Archive:
    """An open archive whose entries have been looked at. `sizes` are those of its files in bytes, by path."""

    def __init__(self, sizes: Mapping[str, int], open_file: Callable[[str], IO[bytes]]) -> None:
        self.sizes = sizes
        self._open = open_file

    def read(self, path: str, *, bytes_max: int) -> bytes:
        """The content of a file. Raises UnusableArchive for one of more than `bytes_max`, and for one that is broken."""
        if self.sizes[path] > bytes_max:
            raise UnusableArchive(f"'{echo(path)}' has {self.sizes[path]} bytes, at most {bytes_max} are accepted")
        try:
            with self._open(path) as stream:
                return stream.read(bytes_max)
        except _ERRORS as error:
            raise UnusableArchive(f"'{echo(path)}' cannot be read: {error}") from None

    def unpack(self, target: Path, *, within: str = "") -> None:
        """Write all files below the folder `within` to a new folder. Raises UnusableArchive for a broken one, OSError where they
        cannot be written."""
        for path in self.sizes:
            if not path.startswith(within):
                continue
            file = target / path.removeprefix(within)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as written:
                self._copy(path, written)

    def _copy(self, path: str, written: BinaryIO) -> None:
        left = self.sizes[path]
        try:
            with self._open(path) as stream:
                while block := stream.read(_BLOCK_BYTES):
                    left -= len(block)
                    if left < 0:
                        raise UnusableArchive("it is longer than it says")
                    written.write(block)
        except UnusableArchive:
            raise
        except _ERRORS as error:
            raise UnusableArchive(f"'{echo(path)}' cannot be unpacked: {error}") from None


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open an archive and look at all of its entries. Raises UnusableArchive, OSError for a missing file."""
    with open_regular(path) as stream, ExitStack() as stack:
        try:
            archive = _opened(stream, stack)
        except UnusableArchive:
            raise
        except _ERRORS as error:
            raise UnusableArchive(f"it cannot be read: {error or type(error).__name__}") from None
        yield archive


def _opened(stream: BinaryIO, stack: ExitStack) -> Archive:
    bounds = Bounds(os.fstat(stream.fileno()).st_size, entries_max=MODEL_ARCHIVE_ENTRIES_MAX)
    if zipfile.is_zipfile(stream):
        zipped = stack.enter_context(zipfile.ZipFile(stream))
        return Archive(_files(map(_zip_entry, zipped.infolist()), bounds), zipped.open)
    stream.seek(0)
    plain: BinaryIO = stream
    if stream.read(len(_GZIP)) == _GZIP:
        stream.seek(0)
        plain = stack.enter_context(gzip.GzipFile(fileobj=stream))  # type: ignore[assignment]  # as tarfile itself does
    plain.seek(0)
    tar = stack.enter_context(tarfile.TarFile(fileobj=_ShortReads(plain)))
    members: dict[str, tarfile.TarInfo] = {}

    def open_member(path: str) -> IO[bytes]:
        return tar.extractfile(members[path]) or io.BytesIO()

    return Archive(_files(_tar_entries(tar, members), bounds), open_member)


class _Entry:
    """An entry as both formats have it. `problem` says why it is refused, "" for none."""

    __slots__ = ("is_folder", "path", "problem", "size")

    def __init__(self, path: str, size: int, *, is_folder: bool, problem: str) -> None:
        self.path, self.size, self.is_folder, self.problem = path, size, is_folder, problem


def _zip_entry(info: zipfile.ZipInfo) -> _Entry:
    kind = stat.S_IFMT(info.external_attr >> 16)
    problem = "" if kind in (0, stat.S_IFREG, stat.S_IFDIR) else "a link or a device"
    if info.flag_bits & 1:
        problem = "encrypted"
    return _Entry(info.filename, info.file_size, is_folder=info.is_dir(), problem=problem)


def _tar_entries(tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo]) -> Iterator[_Entry]:
    for member in tar:
        problem = "" if (member.isreg() and not member.issparse()) or member.isdir() else "a link, a device, or a file with holes"
        entry = _Entry(member.name, member.size, is_folder=member.isdir(), problem=problem)
        members[str(PurePosixPath(entry.path))] = member
        yield entry


def _files(entries: Iterator[_Entry], bounds: Bounds) -> dict[str, int]:
    """The sizes of all files by path. Raises UnusableArchive."""
    sizes: dict[str, int] = {}
    folders: set[str] = set()
    for entry in entries:
        bounds.count(entry.size)
        shown = echo(entry.path)
        if entry.problem:
            raise UnusableArchive(f"'{shown}' is refused: {entry.problem}")
        path = PurePosixPath(entry.path)
        if path.is_absolute() or ".." in path.parts or "\\" in entry.path or not entry.path.isprintable():
            raise UnusableArchive(
                f"'{shown}' is refused: its path leads out of the archive, or has characters that no path needs"
            )
        if entry.is_folder:
            folders.add(str(path))
        elif str(path) in sizes:
            raise UnusableArchive(f"'{shown}' is there twice")
        else:
            sizes[str(path)] = entry.size
            folders.update(map(str, path.parents))
    for both in folders & sizes.keys():
        raise UnusableArchive(f"'{echo(both)}' is there twice: a file and a folder")
    return sizes


class _ShortReads(io.RawIOBase):
    """A file of which nobody reads much at once: tarfile reads the head of an entry whole, however long it says it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _HEAD_BYTES_MAX:
            raise UnusableArchive(f"the head of an entry has more than {_HEAD_BYTES_MAX} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()
