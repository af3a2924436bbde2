"""Builds the C library of the host with the machine's compiler, once for each version of its source."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tpy.errors import Internal, Unavailable
from tpy.limits import NATIVE_BUILD_S_MAX

_log = logging.getLogger(__name__)

HERE: Final = Path(__file__).parent
INCLUDE: Final = HERE / "include"
PREBUILT: Final = HERE / "prebuilt"
"""A wheel's build of it."""

HOST_LIBRARY: Final = "libtritonserver.so"
ALIAS_LIBRARY: Final = "alias.so"
ALIAS_NAME: Final = "libtritonserver-" + "x" * 200 + ".so"
"""The soname of an empty library, to be written over: see `library`."""

_FLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread", "-Wall", "-Wextra")
_WITHOUT_COMPILER: Final = (
    "compiled plug-ins of Triton need a small C library of this server, which is built once with a C compiler, and there "
    "is no compiler here: install one (apt-get install gcc libc6-dev), or a wheel of tpy-server that has the library (make wheel)"
)


def library_folder() -> Path:
    """Returns the folder with the built libraries; builds them if this is the first time.

    Raises Unavailable without a compiler, or a folder that may be written to; Internal, with the compiler's words, when it fails.
    """
    built = built_folder()
    if built is not None:
        return built
    cache = _cache() / source_hash()
    with _only_one(cache.with_suffix(".lock")):
        if not cache.is_dir():
            _log.info("compiling the C library for compiled plug-ins, once for this version: it takes some seconds")
            build(cache)
    return cache


def built_folder() -> Path | None:
    """The folder with the libraries, if they came with the wheel or were built before."""
    version = source_hash()
    if (PREBUILT / version).is_dir():
        return PREBUILT / version
    built = _cache() / version  # makes its folder, so only where it is needed
    return built if built.is_dir() else None


def source_hash(machine: str = platform.machine()) -> str:
    """Returns a digest of all that the build for this kind of machine is made of."""
    digest = hashlib.sha256(repr((machine, platform.libc_ver()[0], _FLAGS)).encode())
    for path in sorted([*HERE.glob("src/*.[ch]"), *INCLUDE.rglob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def build(target: Path) -> None:
    """Build into the new folder `target`, which is there whole or not at all. Raises as `library_folder`."""
    command = compiler()
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix="building-"))
    try:
        sources = sorted(map(str, HERE.glob("src/*.c")))
        _run(command, *_FLAGS, f"-I{INCLUDE}", f"-Wl,-soname,{HOST_LIBRARY}", "-o", str(partial / HOST_LIBRARY), *sources)
        empty = ("-shared", "-nostdlib", f"-Wl,-soname,{ALIAS_NAME}", "-x", "c", os.devnull)
        _run(command, "-o", str(partial / ALIAS_LIBRARY), *empty)
        partial.chmod(0o755)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def compile_plugin(source: Path, target: Path, *libraries: str) -> None:
    """Build a plug-in from one C file against the headers that come with this package, and `libraries` (`-lcrypto`). Raises as
    `library_folder`."""
    _run(compiler(), *_FLAGS, "-Wno-unused-parameter", f"-I{INCLUDE}", "-o", str(target), str(source), *libraries)


def compiler() -> str:
    """The C compiler of the machine: CC, or the first that there is. Raises Unavailable without one."""
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise Unavailable(_WITHOUT_COMPILER + (f"; CC names '{wanted}', which is not found" if wanted else ""))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NATIVE_BUILD_S_MAX,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Internal(f"{command[0]} did not end within {NATIVE_BUILD_S_MAX:g} s") from None
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise Internal(f"{command[0]} failed to build the library for compiled plug-ins: {done.stderr.strip()[-2000:]}")


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Holds a lock among processes: workers that start at the same time build once."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache() -> Path:
    """The folder of builds: of this user alone, as it holds code that is run."""
    base: str | Path = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache" if os.environ.get("HOME") else "")
    reasons = []
    for folder in (
        *((Path(base) / "tpy" / "native",) if base else ()),
        Path(tempfile.gettempdir()) / f"tpy-{os.getuid()}" / "native",
    ):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = folder.stat()
            if found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(folder, os.W_OK):
                return Path(folder)
            reasons.append(f"{folder} is not this user's own")
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise Unavailable(f"no folder for the library that compiled plug-ins need: {'; '.join(reasons)}")
