"""The scan of one model directory: its files and configuration at one moment, the input of all decisions.

Sources scan; `assemble` sorts the files into versions, so that every source follows the same rules:

* a version is a folder whose name is a number without leading zero ("0" itself is one);
* `configs`, `warmup` and `initial_state` belong to all versions;
* any other folder is not a version: it gets a warning, and belongs to all versions too. Stricter than Triton, which reads `1abc`
  as version 1 and fails to load it.

Ignored everywhere, because they come and go without the model changing: hidden files and folders, `__pycache__`, and
editors' backup files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

import msgspec

from tpy.config.model_files import rename_advice
from tpy.ids import ModelDirectory, Version

CONFIG_FILENAME: Final = "config.pbtxt"
CONFIGS_FOLDER: Final = "configs"
_SHARED_FOLDERS: Final = frozenset({CONFIGS_FOLDER, "warmup", "initial_state"})
_IGNORED_NAMES: Final = frozenset({"__pycache__"})
_IGNORED_SUFFIXES: Final = ("~", ".swp", ".pyc")
_VERSION_MAX: Final = 2**63 - 1  # versions are signed 64-bit numbers in the protocol


class FileFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a model: `path` relative to the model's directory with "/" between names; `digest` of its content, or ""
    where the file is too large to be read at each scan (then a new time or identity counts as a change). `identity` tells it from
    another file of this name: the inode, or the etag of an object."""

    path: str
    size_bytes: int
    mtime_ns: int
    identity: int | str
    digest: str = ""

    @property
    def content(self) -> tuple[str | int, ...]:
        """Equal for two fingerprints exactly if the model need not be reloaded for this file."""
        if self.digest:
            return (self.path, self.size_bytes, self.digest)
        return (self.path, self.size_bytes, self.mtime_ns, self.identity)

    @property
    def stat_key(self) -> tuple[str | int, ...]:
        """Changes with every write, also with one of the same content."""
        return (self.path, self.size_bytes, self.mtime_ns, self.identity)


class DirectoryFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a directory as far as it shows without opening a file. Equal fingerprints: nothing was touched."""

    stat_keys: tuple[tuple[str | int, ...], ...] = ()
    folders: tuple[str, ...] = ()
    error: str = ""


class ModelLocation(msgspec.Struct, frozen=True, order=True):
    """A directory of a repository that holds a model."""

    repository: str
    name: str


class VersionScan(msgspec.Struct, frozen=True, kw_only=True):
    """A version folder and its files."""

    version: Version
    directory: ModelDirectory
    files: tuple[FileFingerprint, ...]

    @property
    def content(self) -> frozenset[tuple[str | int, ...]]:
        """Equal for two scans exactly if the version need not be reloaded."""
        return frozenset(file.content for file in self.files)

    @property
    def names(self) -> frozenset[str]:
        """The names in the folder itself, those of folders with a "/" at the end."""
        below = (PurePosixPath(file.path).parts[1:] for file in self.files)
        return frozenset(parts[0] if len(parts) == 1 else f"{parts[0]}/" for parts in below)


class ModelScan(msgspec.Struct, frozen=True, kw_only=True):
    """A model directory. `config_text` is None without a configuration file; `config_path` names the file that was read.
    `shared` are the files that belong to all versions (labels, warmup data), configurations excepted. `error` not "": the
    directory could not be read, and nothing else in the scan means anything."""

    location: ModelLocation
    directory: ModelDirectory
    fingerprint: DirectoryFingerprint
    versions: tuple[VersionScan, ...] = ()
    shared: tuple[FileFingerprint, ...] = ()
    config_path: str = ""
    config_text: str | None = None
    warnings: tuple[str, ...] = ()
    error: str = ""
    has_given_name: bool = False
    """True if the repository was registered with the model's name: that in the configuration does not count."""

    @property
    def first_version_names(self) -> frozenset[str] | None:
        """The names in the version folder that sorts first as text; None without any. Backends are guessed from them."""
        if not self.versions:
            return None
        return min(self.versions, key=lambda version: str(version.version)).names

    @property
    def other_names(self) -> frozenset[str]:
        """The names beside the version folders, those of folders with a "/" at the end."""
        versions = {str(version.version) for version in self.versions}
        parts = [PurePosixPath(file.path).parts for file in self.shared]
        files = {part[0] for part in parts if len(part) == 1}
        return frozenset({*files, *(f"{folder}/" for folder in self.fingerprint.folders if folder not in versions)})


def is_ignored(name: str) -> bool:
    """Returns True for names of files and folders that do not belong to the model."""
    return name.startswith(".") or name in _IGNORED_NAMES or name.endswith(_IGNORED_SUFFIXES)


def version_of(folder: str) -> Version | str:
    """The version that a folder of this name holds, or the warning for one that holds none."""
    if not (folder.isascii() and folder.isdigit()):
        advice = rename_advice(folder)
        text = f"ignore version directory '{folder}' which fails to convert to integral number"
        return f"{text}; {advice}" if advice else text
    if len(folder) > 1 and folder.startswith("0"):
        text = f"ignore version directory '{folder}' which contains leading zeros in its directory name"
        return f"{text}; rename it to {folder.lstrip('0')}" if folder.strip("0") else text
    if len(folder) > len(str(_VERSION_MAX)) or int(folder) > _VERSION_MAX:
        return f"ignore version directory '{folder}' which fails to convert to integral number"
    return Version(int(folder))


def fingerprint_of(files: Iterable[FileFingerprint], folders: Iterable[str]) -> DirectoryFingerprint:
    """The fingerprint of these files and top-level folders, in any order."""
    return DirectoryFingerprint(stat_keys=tuple(sorted(file.stat_key for file in files)), folders=tuple(sorted(folders)))


def assemble(
    location: ModelLocation,
    directory: ModelDirectory,
    *,
    files: Iterable[FileFingerprint],
    folders: Iterable[str],
    config_path: str,
    config_text: str | None,
    warnings: Iterable[str] = (),
    has_given_name: bool = False,
) -> ModelScan:
    """Sort the content of a model directory. `folders` are the top-level ones, also empty ones; `files` all files below."""
    files, folders, warnings = tuple(files), tuple(folders), list(warnings)
    version_of_folder: dict[str, Version] = {}
    for folder in sorted(set(folders) - _SHARED_FOLDERS):
        version = version_of(folder)
        if isinstance(version, str):
            warnings.append(version)
        else:
            version_of_folder[folder] = version
    files_of: dict[str, list[FileFingerprint]] = {folder: [] for folder in version_of_folder}
    shared: list[FileFingerprint] = []
    for file in files:
        top = PurePosixPath(file.path).parts[0]
        if file.path in (CONFIG_FILENAME, config_path) or top == CONFIGS_FOLDER:
            continue
        files_of.get(top, shared).append(file)
    versions = [
        VersionScan(version=version, directory=directory / folder, files=tuple(files_of[folder]))
        for folder, version in version_of_folder.items()
    ]
    return ModelScan(
        location=location,
        directory=directory,
        fingerprint=fingerprint_of(files, folders),
        versions=tuple(sorted(versions, key=lambda scan: scan.version)),
        shared=tuple(shared),
        config_path=config_path,
        config_text=config_text,
        warnings=tuple(warnings),
        has_given_name=has_given_name,
    )
