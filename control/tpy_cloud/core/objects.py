"""Objects of a bucket as the files of a model: reads a listing, and finds what a local copy lacks.

An object is known by its etag: a local file of the same path, size and etag is the same file. A listing becomes files and folders
by the keys alone. Objects of no bytes that stand for folders, as consoles and tools make them, are folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

import msgspec

from tpy import limits
from tpy.echo import echo
from tpy_control.core.scan import DirectoryFingerprint, FileFingerprint, fingerprint_of, is_ignored, version_of

_NAME_BYTES_MAX = 255


class CloudObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a model; `path` is its key behind the model's folder."""

    path: str
    size_bytes: int
    etag: str
    modified_ns: int = 0


class ModelListing(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a model in the cloud at one moment, sorted by path, and all its folders. `error` not "": they cannot be copied
    to a disk, and nothing else means anything."""

    files: tuple[CloudObject, ...] = ()
    folders: tuple[str, ...] = ()
    error: str = ""

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def newest_ns(self) -> int:
        """The time at which the newest file was written."""
        return max((file.modified_ns for file in self.files), default=0)

    @property
    def fingerprint(self) -> DirectoryFingerprint:
        """Changes with each object that is written, added or removed."""
        if self.error:
            return DirectoryFingerprint(error=self.error)
        files = (
            FileFingerprint(path=file.path, size_bytes=file.size_bytes, mtime_ns=file.modified_ns, identity=file.etag)
            for file in self.files
        )
        return fingerprint_of(files, [folder for folder in self.folders if "/" not in folder])


class LocalFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a local copy, with the etag of the object that it was; `digest` is of its content."""

    path: str
    size_bytes: int
    etag: str
    digest: str = ""


class CopyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The way from a local copy to a listing: files to `fetch`, to `keep` as they are, and to `remove`."""

    fetch: tuple[CloudObject, ...]
    keep: tuple[str, ...]
    remove: tuple[str, ...]

    @property
    def fetch_bytes(self) -> int:
        """The bytes to download."""
        return sum(file.size_bytes for file in self.fetch)


def listing_of(objects: Iterable[CloudObject]) -> ModelListing:
    """The files and folders of a model. Ignored names are left out, as on a disk. Keys that a file system cannot hold, and more
    than MODEL_FILES_MAX of them, are an error."""
    found: dict[str, CloudObject] = {}
    folders: set[str] = set()
    for one in objects:
        parts = one.path.rstrip("/").split("/")
        if any(is_ignored(part) for part in parts):
            continue
        if error := _unusable(one.path, parts):
            return ModelListing(error=error)
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
        if _is_folder(one, parts):
            folders.add("/".join(parts))
        else:
            found[one.path] = one
        if len(found) + len(folders) > limits.MODEL_FILES_MAX:
            return ModelListing(error=f"the model has more than {limits.MODEL_FILES_MAX} files")
    for path in sorted(folders & found.keys()):
        if found.pop(path).size_bytes:
            return ModelListing(error=f"'{echo(path)}' is both an object and a folder; a disk can hold only one of them")
    return ModelListing(files=tuple(sorted(found.values(), key=lambda file: file.path)), folders=tuple(sorted(folders)))


def listings_of(objects: Iterable[CloudObject]) -> dict[str, ModelListing]:
    """The listings of the models of a repository, by name; the paths of its objects begin with the names."""
    by_model: dict[str, list[CloudObject]] = {}
    for one in objects:
        name, separator, path = one.path.partition("/")
        if separator:
            by_model.setdefault(name, []).append(msgspec.structs.replace(one, path=path))
    return {name: listing_of(found) for name, found in by_model.items()}


def plan_of(listing: ModelListing, have: Mapping[str, LocalFile]) -> CopyPlan:
    """The plan after which a local copy has what the listing says, and nothing else."""
    fetch: list[CloudObject] = []
    keep: list[str] = []
    for file in listing.files:
        local = have.get(file.path)
        same = local is not None and (local.size_bytes, local.etag) == (file.size_bytes, file.etag)
        if same and file.etag:
            keep.append(file.path)
        else:
            fetch.append(file)
    remove = sorted(have.keys() - {file.path for file in listing.files})
    return CopyPlan(fetch=tuple(fetch), keep=tuple(keep), remove=tuple(remove))


def _unusable(path: str, parts: list[str]) -> str:
    """The reason why a key cannot be the path of a file, "" if it can."""
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return f"the key '{echo(path)}' is not a file path"
    if any(len(part.encode(errors="surrogatepass")) > _NAME_BYTES_MAX for part in parts):
        return f"the key '{echo(path)}' has a name of more than {_NAME_BYTES_MAX} bytes"
    if len(parts) > limits.MODEL_DEPTH_MAX:
        return f"the key '{echo(path)}' is more than {limits.MODEL_DEPTH_MAX} folders deep"
    return ""


def _is_folder(one: CloudObject, parts: list[str]) -> bool:
    """Returns True for an object that stands for a folder: its key ends in "/", which some clients do not show, so an empty one
    that is called like a version is one, too."""
    if one.path.endswith("/"):
        return True
    is_version = len(parts) == 1 and not isinstance(version_of(parts[0]), str)
    return is_version and not one.size_bytes and not PurePosixPath(parts[0]).suffix
