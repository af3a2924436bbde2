"""Compiles the native codec into this folder: `python -m tpy.hot.build`. Needs Cython, NumPy's headers and a C++ compiler.

Where one of them is missing, it says so in a line and succeeds: then requests are read and written in Python.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

import numpy as np

from tpy.hot.source import SOURCE, source_hash

HERE: Final = Path(__file__).parent
_COMPILERS: Final = ("g++", "c++", "clang++")
_FLAGS: Final = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wno-deprecated-declarations")
_SECONDS_MAX: Final = 900  # zig makes its C++ library first


class NotBuilt(Exception):
    """The codec was not built; the text says why, and what to install."""


def compiler() -> str | None:
    """The C++ compiler's path: $CXX, or the first that is installed."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _COMPILERS)), None)


def library_name(machine: str) -> str:
    """Returns the name under which this version of Python finds the library on such a machine."""
    return f"_codec{sysconfig.get_config_var('EXT_SUFFIX')}".replace(platform.machine(), machine)


def build(folder: Path, machine: str = platform.machine()) -> Path:
    """Build the library in `folder`, where it is there whole or not at all, with a compiler for this kind of machine. Raises
    NotBuilt."""
    name = library_name(machine)
    command = compiler()
    if command is None:
        raise NotBuilt("no C++ compiler (apt-get install g++)")
    try:
        version = metadata.version("cython")
    except metadata.PackageNotFoundError:
        raise NotBuilt("no Cython (pip install cython)") from None
    with tempfile.TemporaryDirectory(prefix="tpy-codec-") as scratch:
        generated, built = Path(scratch) / "_codec.cpp", Path(scratch) / name
        _run(f"Cython {version}", sys.executable, "-m", "cython", "--cplus", "-3", str(SOURCE), "-o", str(generated))
        includes = (f"-I{sysconfig.get_paths()['include']}", f"-I{np.get_include()}")
        defined = (f'-DTPY_CODEC_SOURCE="{source_hash()}"', "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION")
        same_anywhere = f"-ffile-prefix-map={scratch}=."  # or the folder's name would be in the library
        _run(command, command, *_FLAGS, same_anywhere, *defined, *includes, str(generated), "-o", str(built))
        partial = folder / f".{name}.{os.getpid()}"
        shutil.copy(built, partial)
        partial.replace(folder / name)  # a running server keeps the one that it has
    return folder / name


def _run(name: str, *command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{name} does not run: {error}") from None
    if done.returncode:
        raise NotBuilt(f"{name} failed: {done.stderr.strip() or done.stdout.strip()}")


def main() -> None:
    """Build beside the source."""
    try:
        build(HERE)
    except (NotBuilt, OSError) as error:
        print(f"native codec: not built: {error}; requests are read and written in Python, with less throughput")
    else:
        print("native codec: built")


if __name__ == "__main__":
    main()
