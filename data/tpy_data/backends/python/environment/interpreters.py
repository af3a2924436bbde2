"""Finds the interpreter of a model: the server's own, or that of EXECUTION_ENV_PATH."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import threading
from pathlib import Path

import msgspec

from tpy.archives import Bounds
from tpy.backend import ModelContext
from tpy.config.model_config import EXECUTION_ENVIRONMENT, MODEL_DIRECTORY
from tpy.errors import Internal, InvalidArgument
from tpy.files import open_regular
from tpy.limits import ENVIRONMENT_ENTRIES_MAX
from tpy.scratch import ScratchDirectory


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """`executable` is a python; `bin_directory` goes in front of PATH inside the worker ("" for none)."""

    executable: str
    bin_directory: str = ""


class Environments:
    """Unpacked execution environments, one per archive and time of change, removed by `close`. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._root: ScratchDirectory | None = None
        self._unpacked: dict[tuple[str, int], Path] = {}

    def interpreter(self, context: ModelContext) -> Interpreter:
        """The interpreter that a model asks for. Raises InvalidArgument when the environment is not usable, Internal when it
        cannot be unpacked."""
        path = named = _wanted(context)
        if path is None or named is None:
            return Interpreter(executable=sys.executable)
        if path.is_file():
            path = self._unpack(path, context)
        elif not path.is_dir():
            raise InvalidArgument(f"{EXECUTION_ENVIRONMENT} of model '{context.name}': no directory or archive at '{path}'")
        for name in ("python3", "python"):
            executable = path / "bin" / name
            if executable.is_file() and os.access(executable, os.X_OK):
                return Interpreter(executable=str(executable), bin_directory=str(path / "bin"))
        raise InvalidArgument(
            f"{EXECUTION_ENVIRONMENT} of model '{context.name}': '{named}' has no executable bin/python3 or bin/python"
        )

    def close(self) -> None:
        """Remove what was unpacked. No worker may run from it any more."""
        with self._lock:
            root, self._root = self._root, None
            self._unpacked.clear()
        if root is not None:
            root.remove()

    def _unpack(self, archive: Path, context: ModelContext) -> Path:
        # Under the lock: two models with one archive wait for one unpacking.
        with self._lock:
            key = (str(archive), archive.stat().st_mtime_ns)
            known = self._unpacked.get(key)
            if known is not None:
                return known
            if self._root is None:
                self._root = ScratchDirectory("tpy-python-env-")
            target = self._root.path / str(len(self._unpacked))
            size_mb = archive.stat().st_size / 1e6
            context.log("info", f"unpacking the execution environment '{archive}' ({size_mb:.0f} MB) of model '{context.name}'")
            bounds = Bounds(archive.stat().st_size, entries_max=ENVIRONMENT_ENTRIES_MAX)

            def within(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
                bounds.count(member.size)
                # "tar" keeps entries inside the target and allows absolute links, which packed virtual environments have.
                return tarfile.tar_filter(member, path)

            try:
                with open_regular(archive) as stream, tarfile.open(fileobj=stream) as opened:
                    opened.extractall(target, filter=within)
            except (tarfile.TarError, EOFError, OSError) as error:
                shutil.rmtree(target, ignore_errors=True)
                why = "; ".join(line.strip(" -:") for line in str(error).splitlines())
                raise Internal(f"cannot unpack execution environment '{archive}': {why}") from error
            context.log("info", f"unpacked the execution environment '{archive}'")
            self._unpacked[key] = target
            return target


def _wanted(context: ModelContext) -> Path | None:
    """The path that the configuration names, resolved; None for the server's own interpreter."""
    text = context.config.parameter(EXECUTION_ENVIRONMENT)
    if not text:
        packed = context.model_directory / f"pb_exec_env_{context.config.runtime}.tar.gz"
        return packed if context.config.runtime and packed.is_file() else None
    if MODEL_DIRECTORY not in text:
        return Path(text).resolve()
    root = context.model_directory.resolve()
    path = Path(text.replace(MODEL_DIRECTORY, str(root))).resolve()
    if not path.is_relative_to(root):
        raise InvalidArgument(f"{EXECUTION_ENVIRONMENT} of model '{context.name}': '{text}' leads out of the model's directory")
    return path
