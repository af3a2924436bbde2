"""The resources of this process that a backend could leave behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec

_PROC = Path("/proc/self")


_IDLE_THREAD = "Trio thread "

_LOOKS_MAX = 60
"""Looks and not seconds: on a machine that is slow or busy, threads end later and looks take longer."""

_BETWEEN_LOOKS_S = 0.05


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Counts, and names where there are any. Those read from /proc are zero and empty elsewhere than on Linux."""

    python_threads: tuple[str, ...]
    native_threads: int
    file_descriptors: int
    child_processes: int
    shared_memory: tuple[str, ...]


def measure() -> Resources:
    """The resources held now, after collecting garbage. Idle threads that Trio keeps for later, and ends when it likes, do not
    count."""
    gc.collect()
    names = sorted(thread.name for thread in threading.enumerate())
    busy = tuple(name for name in names if not name.startswith(_IDLE_THREAD))
    return Resources(
        python_threads=busy,
        native_threads=_count("task") - (len(names) - len(busy)),
        file_descriptors=_count("fd"),
        child_processes=_child_processes(),
        shared_memory=_shared_memory(),
    )


def left_since(before: Resources) -> Resources:
    """Returns what is held now and was not `before`: all counts zero and all names gone, unless something is left behind. What is
    about to end, such as a thread that has done its work, has a moment for it."""
    for _ in range(_LOOKS_MAX):
        if (left := _more(measure(), before)) == NOTHING:
            break
        time.sleep(_BETWEEN_LOOKS_S)
    return left


NOTHING = Resources(python_threads=(), native_threads=0, file_descriptors=0, child_processes=0, shared_memory=())


def _more(now: Resources, before: Resources) -> Resources:
    return Resources(
        python_threads=tuple(sorted((Counter(now.python_threads) - Counter(before.python_threads)).elements())),
        native_threads=max(0, now.native_threads - before.native_threads),
        file_descriptors=max(0, now.file_descriptors - before.file_descriptors),
        child_processes=max(0, now.child_processes - before.child_processes),
        shared_memory=tuple(sorted(set(now.shared_memory) - set(before.shared_memory))),
    )


def _count(folder: str) -> int:
    try:
        return len(os.listdir(_PROC / folder))
    except OSError:
        return 0


def _child_processes() -> int:
    """Of all threads of this process. Children of a thread that ends meanwhile are with another one then: it looks again."""
    for _ in range(_LOOKS_MAX):
        with suppress(OSError):
            return sum(len((task / "children").read_text().split()) for task in (_PROC / "task").iterdir())
    return 0


def _shared_memory() -> tuple[str, ...]:
    """Mapped files of /dev/shm."""
    try:
        lines = (_PROC / "maps").read_text().splitlines()
    except OSError:
        return ()
    return tuple(sorted({line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}))
