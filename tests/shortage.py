"""A process without memory, for the length of a block."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LEFT_BYTES = 64 * 1024 * 1024


@contextmanager
def address_space_is_short() -> Iterator[None]:
    """64 MiB are left."""
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _LEFT_BYTES, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


@contextmanager
def threads_cannot_start() -> Iterator[None]:
    """Their stacks are to be larger than any address space."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)
