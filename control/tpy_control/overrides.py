"""Model directories made of the `file:` parameters of load calls.

Each has its own folder under one scratch directory, as `<number>/<model name>/<version>/<file>`, from the load call
until nothing desired and nothing loaded uses it.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import anyio

from tpy import limits
from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument
from tpy.messages import ModelState
from tpy.scratch import ScratchDirectory
from tpy.state import DesiredModel, ModelStateStore, ObservedKey, Snapshot

_CLEANUP_S_MAX = 10
_ABOUT = "failed to load '{}', failed to poll from model repository: "


class OverrideDirectories:
    """Makes the directories and removes unused ones."""

    def __init__(self, parent: Path | None) -> None:
        """`parent`: where the scratch directory is made, None for the system's place. Nothing is made before it is needed."""
        self._parent = parent
        self._root: ScratchDirectory | None = None
        self._making_root = anyio.Lock()
        self._count = 0
        self._being_loaded: set[Path] = set()
        self._used_by: dict[Path, set[ObservedKey]] = {}

    @asynccontextmanager
    async def create(self, model_name: str, files: Mapping[str, bytes]) -> AsyncIterator[Path]:
        """A repository with one model, made of `files` (`<version>/<path>` to content). It stays while the context is open, and
        afterwards as long as a desired model that was `keep`-ed uses it.

        Raises InvalidArgument for paths that leave the model's directory, clash, or hold too much, Internal for files that cannot
        be written: with a name that is too long, say.
        """
        content = _checked(model_name, files)
        self._count += 1
        repository = await self._scratch() / str(self._count)
        self._used_by[repository] = set()
        self._being_loaded.add(repository)
        try:
            await anyio.to_thread.run_sync(_write, repository / model_name, content)
            yield repository
        except OSError as error:
            text = f"failed to open binary file for write {error.filename}: {error.strerror or error}"
            raise Internal(f"{_ABOUT.format(model_name)}{text}") from None
        finally:
            self._being_loaded.discard(repository)
            if not self._used_by[repository]:  # refused, or the call was cancelled before anything was desired
                del self._used_by[repository]
                await _remove(repository)

    def keep(self, desired: DesiredModel) -> None:
        """Note which generations are loaded from one of the directories."""
        repository = desired.directory.parent
        if repository in self._used_by:
            versions = desired.versions.values()
            self._used_by[repository].update(ObservedKey(desired.id, v.version, v.generation) for v in versions)

    async def remove_unused_forever(self, store: ModelStateStore) -> None:
        """Remove directories soon after their last use; runs until cancelled."""
        async for snapshot in store.watch():
            for repository in self._unused(snapshot):
                del self._used_by[repository]
                await _remove(repository)

    async def aclose(self) -> None:
        """Remove everything, at the end of the server's life."""
        if self._root is not None:
            root, self._root = self._root, None
            await _in_thread(root.remove)

    def _unused(self, snapshot: Snapshot) -> list[Path]:
        desired = {model.directory.parent for model in snapshot.desired.values() if model.versions}
        alive = {key for key, seen in snapshot.observed.items() if seen.state is not ModelState.UNAVAILABLE}
        candidates = self._used_by.keys() - self._being_loaded - desired
        return [repository for repository in candidates if not self._used_by[repository] & alive]

    async def _scratch(self) -> Path:
        async with self._making_root:
            if self._root is None:
                self._root = await anyio.to_thread.run_sync(ScratchDirectory, "tpy-override-", self._parent)
            return self._root.path


def _write(directory: Path, content: Mapping[PurePosixPath, bytes]) -> None:
    for path, data in content.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _checked(model_name: str, files: Mapping[str, bytes]) -> dict[PurePosixPath, bytes]:
    size_bytes = sum(len(data) for data in files.values())
    if size_bytes > limits.LOAD_OVERRIDE_BYTES_MAX:
        most = limits.LOAD_OVERRIDE_BYTES_MAX
        raise _refusal(model_name, f"the files of the override have {size_bytes} bytes; expected at most {most}")
    content: dict[PurePosixPath, bytes] = {}
    for name, data in files.items():
        parts = [part for part in name.split("/") if part not in ("", ".")]  # `/1/m.py` and `./1//m.py` are 1/m.py, as in Triton
        if len(parts) > limits.MODEL_DEPTH_MAX:
            raise _refusal(model_name, f"file override '{echo(name)}' is more than {limits.MODEL_DEPTH_MAX} folders deep")
        if not parts or name.endswith(("/", "/.")) or any(part == ".." or "\0" in part for part in parts):
            raise _refusal(model_name, f"file override '{echo(name)}' is not a path inside the model; expected <version>/<path>")
        content[PurePosixPath(*parts)] = data
    for path in content:
        clash = next((parent for parent in path.parents if parent in content), None)
        if clash is not None:
            raise _refusal(
                model_name,
                f"file override '{echo(str(path))}' needs a folder '{echo(str(clash))}', which is a file in the same override",
            )
    return content


def _refusal(model_name: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"{_ABOUT.format(model_name)}{reason}")


async def _remove(directory: Path) -> None:
    await _in_thread(functools.partial(shutil.rmtree, directory, ignore_errors=True))


async def _in_thread(remove: Callable[[], object]) -> None:
    # Shielded, because it also runs while its caller is cancelled; a disk that hangs may keep the caller no longer than this.
    with anyio.move_on_after(_CLEANUP_S_MAX, shield=True):
        await anyio.to_thread.run_sync(remove, abandon_on_cancel=True)
