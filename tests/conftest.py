"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Generator

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings

from tests.pace import at_pace
from tpy.testing.loop_guard import STEP_CPU_NS_MAX, LoopGuard

pytest_plugins = ["tests.time_limit", "tests.workers"]

# Images of Python set this. Each of a thousand servers and commands would compile all that it imports, and start twice as slowly.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# With more threads each of a thousand processes would spend as much on their start, when it imports NumPy, as on all else of it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell ignores Ctrl-C in what it runs in the background, and so would all servers and commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine with much else to do makes examples slowly: that is no fault of a test.
settings.register_profile("tests", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("tests")

LONGEST_FIRST = (
    "tests/docs/test_how_to",
    "tests/docs/",
    "tests/e2e/",
    "tests/backends/isolated/",
    "tests/backends/pytorch/",
    "tests/native/",
    "tests/chaos/",
    "tests/leaks/",
    "tests/conformance/",
    "tests/attack/",
    "tests/page/",
    "tests/",
)
"""Paths, those of the files that take minutes and tens of seconds before those that take one: cores that share the files then end
together."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak N`: the tests with random traffic send N times as much."""
    parser.addoption("--soak", type=int, default=1, metavar="N", help="send N times as much in tests with random traffic")


@pytest.fixture(scope="session")
def soak(pytestconfig: pytest.Config) -> int:
    """A factor for amounts of random traffic."""
    return int(pytestconfig.getoption("--soak"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files, and leave the tests of each in their order."""
    items.sort(key=lambda item: next(rank for rank, path in enumerate(LONGEST_FIRST) if path in item.path.as_posix()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile: it would look through all modules and tests again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave the modules and the tests themselves to no garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor what the tests of a file leave: modules of frameworks, reports of tests. Each check for leaks would look through it."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Take pytest's name of the test out of the environment: workers are forked from a process for each environment."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    return (yield)


@pytest.fixture
def mock_clock() -> trio.testing.MockClock:
    """Virtual time that jumps to the next deadline whenever everybody sleeps."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
async def loop_guard() -> AsyncIterator[LoopGuard]:
    """Fails the test when one task step uses more than 50 ms of the loop thread's CPU time, on the machine of `tests.pace`."""
    guard = LoopGuard(int(at_pace(STEP_CPU_NS_MAX)))
    trio.lowlevel.add_instrument(guard)
    yield guard
    trio.lowlevel.remove_instrument(guard)
    guard.close()
    guard.check()
