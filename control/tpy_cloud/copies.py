"""Local copies of models: one folder each, and a manifest that says which objects its files were. Blocking: for threads.

    DIRECTORY/lock                         held by the server that uses the directory
    DIRECTORY/<repository>/models/<name>   the copy, a model directory as on a disk
    DIRECTORY/<repository>/<name>.json     its manifest
    DIRECTORY/<repository>/parts/          downloads that are not complete

A file is downloaded beside the copy, checked, and renamed into it, so what a loaded model has open stays as it was. The manifest
is written before files are touched, without the files that will be touched, and again at the end: after a crash in between, and
where a file is not what its digest says, that file is fetched again. A copy serves only if its manifest says that it is complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tpy.errors import Unavailable
from tpy.files import digest_file, format_of, walk
from tpy_cloud.address import CloudAddress
from tpy_cloud.core.objects import CopyPlan, LocalFile, ModelListing
from tpy_control.address import folder_name, models_folder

_log = logging.getLogger(__name__)
_FORMAT: Final = 1
_DIGEST: Final = "blake2b"


class CopyKey(NamedTuple):
    """The copy of a model: the folder of its repository in the directory, and its name."""

    repository: str
    name: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a copy. `listing` is what it is a copy of, or will be once it is `complete`."""

    format: int = _FORMAT
    address: str
    listing: ModelListing
    files: tuple[LocalFile, ...]
    complete: bool

    @property
    def size_bytes(self) -> int:
        """The bytes of the files."""
        return sum(file.size_bytes for file in self.files)


_decode_manifest = msgspec.json.Decoder(Manifest).decode


class LocalCopies:
    """The copies in one directory. `keep`: they stay when they are not used any more, as long as all of them have no more than
    `bytes_max`; otherwise they are removed then, and the directory at the end."""

    def __init__(self, directory: Path, *, keep: bool, bytes_max: int) -> None:
        self.directory = directory
        self.keep = keep
        self.bytes_max = bytes_max
        self._lock_file: int | None = None
        self._mutex = threading.Lock()
        self._manifests: dict[CopyKey, Manifest] = {}
        self._unverified: set[CopyKey] = set()
        self._last_used: dict[CopyKey, int] = {}
        self._reserved: dict[CopyKey, int] = {}
        self._uses = 0

    def open(self) -> None:
        """Take the directory, and read the manifests in it. Raises Unavailable where that is not possible."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(f"--repository-cache: {self.directory} cannot be used: {error.strerror or error}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            text = f"--repository-cache: {self.directory} is used by another server; each server needs its own directory"
            raise Unavailable(text) from None
        self._lock_file = descriptor
        found: list[tuple[int, CopyKey, Manifest]] = []
        for file in self.directory.glob("*/*.json"):
            manifest = _read_manifest(file)
            if manifest is not None:
                found.append((file.stat().st_mtime_ns, CopyKey(file.parent.name, file.stem), manifest))
        for _, key, manifest in sorted(found, key=lambda one: one[:2]):
            self._manifests[key] = manifest
            self._unverified.add(key)
            self._touch(key)
        for parts in self.directory.glob("*/parts"):
            shutil.rmtree(parts, ignore_errors=True)

    def close(self) -> None:
        """Give the directory back."""
        if not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def root(self, address: CloudAddress) -> Path:
        """The folder that stands for the repository."""
        return models_folder(self.directory, address)

    def names(self, address: CloudAddress) -> list[str]:
        """The models of which there is a complete copy, sorted."""
        repository = folder_name(address)
        return sorted(key.name for key, one in self._manifests.items() if key.repository == repository and one.complete)

    def some_file(self, address: CloudAddress, name: str = "") -> str:
        """The path of a file in the repository, of this model or of any, of which there is a complete copy; "" without one."""
        repository = folder_name(address)
        for key, manifest in list(self._manifests.items()):
            if key.repository == repository and name in ("", key.name) and manifest.complete and manifest.files:
                return f"{key.name}/{manifest.files[0].path}"
        return ""

    def listing(self, address: CloudAddress, name: str) -> ModelListing | None:
        """The listing that the complete copy of a model is of; None without one. A copy of an earlier run of the server is
        verified."""
        key = CopyKey(folder_name(address), name)
        self.have(address, name)
        manifest = self._manifests.get(key)
        return manifest.listing if manifest is not None and manifest.complete else None

    def have(self, address: CloudAddress, name: str) -> Mapping[str, LocalFile]:
        """The files of a copy, by path, as far as they are there: whoever cleans temporary folders may have removed some. Of
        an earlier run, files that are not what their digest says are left out, and what is not in the manifest is removed."""
        key = CopyKey(folder_name(address), name)
        manifest = self._manifests.get(key)
        if manifest is None:
            return {}
        if key in self._unverified:
            found = self._verified(key, manifest)
            self._unverified.discard(key)
        else:
            found = _remaining(self._folder(key), manifest)
        if found is not manifest:
            self._manifests[key] = found
        return {file.path: file for file in found.files}

    def make_room(self, address: CloudAddress, name: str, size_bytes: int, protected: Collection[CopyKey]) -> Sequence[str]:
        """Remove copies that are not `protected`, the longest unused first, until a copy of this size fits; returns their names.
        Raises OSError when it cannot fit."""
        key = CopyKey(folder_name(address), name)
        removed: list[str] = []
        with self._mutex:
            self._reserved[key] = size_bytes
            others = {one: manifest.size_bytes for one, manifest in self._manifests.items() if one not in self._reserved}
            total = sum(others.values()) + sum(self._reserved.values())
            for one in sorted(others, key=lambda one: self._last_used[one]):
                if total <= self.bytes_max:
                    break
                if one not in protected:
                    self._remove(one)
                    removed.append(one.name)
                    total -= others[one]
            if total > self.bytes_max:
                del self._reserved[key]
                raise OSError(
                    f"its {size_bytes} bytes do not fit: served models have {total - size_bytes} of the {self.bytes_max} bytes "
                    f"of {self.directory}; raise --repository-cache-byte-size"
                )
        return removed

    def new_parts(self, address: CloudAddress, name: str) -> Path:
        """A new folder for the downloads of a model, which nothing that is left over from an earlier try writes to."""
        with self._mutex:
            self._uses += 1
            folder = self.directory / folder_name(address) / "parts" / f"{self._uses}"
        try:
            folder.mkdir(parents=True)
        except OSError:
            self.discard_parts(address, name, folder)
            raise
        return folder

    def commit(
        self, address: CloudAddress, name: str, *, listing: ModelListing, plan: CopyPlan, parts: Path, digests: Mapping[str, str]
    ) -> None:
        """Make the copy what the listing says, of downloads that are complete and checked: file N of `plan.fetch` is
        `parts`/N."""
        key = CopyKey(folder_name(address), name)
        folder = self.root(address) / name
        manifest = self._manifests.get(key)
        have = {} if manifest is None else {file.path: file for file in manifest.files}
        kept = [have[path] for path in plan.keep]
        self._write(key, Manifest(address=address.text, listing=listing, files=tuple(kept), complete=False))
        folder.mkdir(parents=True, exist_ok=True)
        for path in plan.remove:
            (folder / path).unlink(missing_ok=True)
        _remove_other_folders(folder, listing)
        for wanted in listing.folders:
            (folder / wanted).mkdir(parents=True, exist_ok=True)
        fetched: list[LocalFile] = []
        for number, file in enumerate(plan.fetch):
            os.replace(parts / str(number), folder / file.path)
            fetched.append(LocalFile(path=file.path, size_bytes=file.size_bytes, etag=file.etag, digest=digests[file.path]))
        files = tuple(sorted([*kept, *fetched], key=lambda file: file.path))
        self._write(key, Manifest(address=address.text, listing=listing, files=files, complete=True))

    def discard_parts(self, address: CloudAddress, name: str, parts: Path) -> None:
        """Remove what was downloaded and not used, and give back the room that was kept for the model."""
        with self._mutex:
            self._reserved.pop(CopyKey(folder_name(address), name), None)
        shutil.rmtree(parts, ignore_errors=True)

    def use(self, address: CloudAddress, name: str) -> None:
        """Note that a copy was used just now."""
        key = CopyKey(folder_name(address), name)
        self._touch(key)
        if self.keep and (manifest := self._manifests.get(key)) is not None:
            try:
                os.utime(self._manifest_file(key))
            except FileNotFoundError:
                self._write(key, manifest)

    def give_back(self, used: Collection[CopyKey], gone: Collection[CopyKey]) -> None:
        """Remove the copies that are not used, unless they are kept for another time: of those only the ones whose models are
        `gone` from their repositories."""
        with self._mutex:
            for key in list(self._manifests):
                if key not in used and key not in self._reserved and (not self.keep or key in gone):
                    self._remove(key)

    def all(self) -> Sequence[CopyKey]:
        """All copies, including incomplete ones."""
        return list(self._manifests)

    def is_copy_of(self, address: CloudAddress, name: str, listing: ModelListing) -> bool:
        """Returns True if there is a complete copy of exactly this listing."""
        manifest = self._manifests.get(CopyKey(folder_name(address), name))
        return manifest is not None and manifest.complete and manifest.listing == listing

    def size_bytes(self) -> int:
        """The bytes of all copies."""
        return sum(manifest.size_bytes for manifest in list(self._manifests.values()))

    def _verified(self, key: CopyKey, manifest: Manifest) -> Manifest:
        folder = self._folder(key)
        sound = tuple(file for file in manifest.files if _is_sound(folder, file))
        listed = {file.path for file in sound}
        try:
            for found in walk(folder, skip=lambda name: False).files:
                if found.path not in listed:
                    (folder / found.path).unlink(missing_ok=True)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            sound = ()
        complete = manifest.complete and len(sound) == len(manifest.files)
        return msgspec.structs.replace(manifest, files=sound, complete=complete)

    def _touch(self, key: CopyKey) -> None:
        self._uses += 1
        self._last_used[key] = self._uses

    def _folder(self, key: CopyKey) -> Path:
        return self.directory / key.repository / "models" / key.name

    def _manifest_file(self, key: CopyKey) -> Path:
        return self.directory / key.repository / f"{key.name}.json"

    def _write(self, key: CopyKey, manifest: Manifest) -> None:
        file = self._manifest_file(key)
        scratch = file.with_suffix(".new")
        scratch.write_bytes(msgspec.json.encode(manifest))
        os.replace(scratch, file)
        self._manifests[key] = manifest
        self._unverified.discard(key)
        self._touch(key)

    def _remove(self, key: CopyKey) -> None:
        """Remove a copy, its manifest first: without one there is no copy."""
        self._manifests.pop(key, None)
        self._last_used.pop(key, None)
        self._unverified.discard(key)
        self._manifest_file(key).unlink(missing_ok=True)
        shutil.rmtree(self._folder(key), ignore_errors=True)


def check_part(part: Path, size_bytes: int) -> tuple[str, str]:
    """MD5 and digest of a download; OSError for one of another size. What is written is on the disk afterwards."""
    found = part.stat().st_size
    if found != size_bytes:
        raise OSError(f"{found} of {size_bytes} bytes came")
    md5, digest = hashlib.md5(usedforsecurity=False), hashlib.new(_DIGEST)
    with part.open("rb") as stream:
        while block := stream.read(1024 * 1024):
            md5.update(block)
            digest.update(block)
        os.fsync(stream.fileno())
    return md5.hexdigest(), digest.hexdigest()


def _read_manifest(file: Path) -> Manifest | None:
    """None for one that cannot be read, or is of another version of this server: there is no copy then."""
    try:
        content = file.read_bytes()
        found = format_of(content)
        if found == _FORMAT:
            return _decode_manifest(content)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    about = {"file": str(file), "found": found, "format": _FORMAT}
    _log.warning("--repository-cache: %(file)s has format %(found)s, expected %(format)s: the model is downloaded anew", about)
    return None


def _is_sound(folder: Path, file: LocalFile) -> bool:
    path = folder / file.path
    try:
        return path.stat().st_size == file.size_bytes and digest_file(path, _DIGEST) == file.digest
    except OSError:
        return False


def _remaining(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest without the files that are not there; not complete where something of it is missing."""
    files = tuple(file for file in manifest.files if _is_there(folder, file))
    complete = manifest.complete and len(files) == len(manifest.files)
    complete = complete and all((folder / wanted).is_dir() for wanted in manifest.listing.folders)
    if complete == manifest.complete and len(files) == len(manifest.files):
        return manifest
    return msgspec.structs.replace(manifest, files=files, complete=complete)


def _is_there(folder: Path, file: LocalFile) -> bool:
    try:
        return (folder / file.path).stat().st_size == file.size_bytes
    except OSError:
        return False


def _remove_other_folders(folder: Path, listing: ModelListing) -> None:
    """Remove folders that the listing does not have, deepest first; what is in the way of a file, too."""
    wanted, files = set(listing.folders), {file.path for file in listing.files}
    for path in reversed(walk(folder, skip=lambda name: False).folders):
        if path not in wanted or path in files:
            shutil.rmtree(folder / path, ignore_errors=True)
    for path in wanted:
        if (folder / path).is_file():
            (folder / path).unlink()
