"""Starts of workers that fail leave nothing behind: no process, no thread, no descriptor."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.backends.python.conftest import Serve
from tests.backends.python.test_workers import COPY
from tpy.errors import Internal
from tpy.testing.resources import NOTHING, left_since, measure

DESCRIPTORS_MAX = 40
"""More than a start takes at once."""


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """No more than so many files can be opened within the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + DESCRIPTORS_MAX + 1, limits[1]))
    held = []
    try:
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_start_without_descriptors_leaves_nothing(make: Serve) -> None:
    served = make(COPY)
    served.output()  # the template of its workers stays
    served.close()
    before = measure()
    failures = []
    for count in range(DESCRIPTORS_MAX):
        with free_descriptors(count):
            try:
                served.run()
            except Internal as error:
                failures.append(error.message)
            else:
                break
            finally:
                served.close()
    assert left_since(before) == NOTHING
    assert len(failures) > 5
    assert all("Too many open files" in text for text in failures), failures


def test_a_worker_that_sends_another_ready_leaves_nothing(make: Serve) -> None:
    served = make(
        """
        class TritonPythonModel:
            def initialize(self, args):
                Kind = sys.modules["tpy_python_worker.wire.core.frames"].FrameKind
                context = sys.modules["tpy_python_worker.pb_utils.context"]
                context.current().calls._connection.send(Kind.READY, 0, "7")
        """,
    )
    for _ in range(2):
        before = measure()
        with pytest.raises(Internal, match=r"^Stub process 'm_0' is not healthy\."):
            served.run()
        served.close()
    assert left_since(before) == NOTHING, "with the second one: the template of its workers stays"
