"""A time limit for every test: one that hangs fails, or ends its process, with the stacks of all tasks, threads and servers.

The limit is `--time-limit` seconds for setup, test and teardown; `@pytest.mark.time_limit(seconds)` sets another, 0 sets none. At
the limit the stacks are written to stderr and into the report, and the test is cancelled, if Trio runs it; then it gets an
exception. If nothing of that ends it, because it holds the interpreter or ignores both, the process is ended. A worker
(`tests.workers`) that ended is replaced, and its test is reported as the one that ended it. Servers are ended to see their
stacks; those that tests share are started anew for the next test. A machine with much else to do gives each test less of its
time: then the limit is extended, a few times.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator
from types import FrameType

import pytest

from .stacks import describe_all, trio_runs

_LIMIT_S = 120.0
_GRACE_S_MAX = 5.0
"""Between two attempts to end a test; no longer than the test's limit."""

_BUSY_TASKS = 2.0
"""Tasks that want to run, for each core, from which on the machine is busy."""

_EXTENSIONS = 3
"""By the limit, while the machine is busy."""

_EXIT_LIMIT_S = 60.0
"""From the end of the last test to the end of the process: a thread that stays must not keep it."""


class TimeLimitError(Exception):
    """The test took longer than it may."""


class TimeLimit:
    """A thread that watches the main thread run one test after another."""

    def __init__(self, limit_s: float, exit_limit_s: float, extensions: int) -> None:
        self._limit_s = limit_s
        self._extensions_max = extensions
        self._exit_limit_s = exit_limit_s
        self._stderr = os.dup(2)  # while tests run, descriptor 2 is captured
        self._changed = threading.Condition()
        self._test: str | None = None
        self._expires_at = 0.0
        self._grace_s = 0.0
        self._extensions = 0
        self._extension_s = 0.0
        self._late: dict[str, str] = {}
        self._stopped: set[str] = set()
        """Tests that reached their limit, until their teardown."""
        self._process = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        marker = item.get_closest_marker("time_limit")
        limit_s = float(marker.args[0]) if marker else self._limit_s
        if limit_s:
            self._set(item.nodeid, limit_s)
        try:
            return (yield)
        finally:
            self._set(None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        return (yield from _interruptible())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from _interruptible())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.nodeid in self._stopped:
            self._stopped.discard(item.nodeid)
            item.session._setupstate.teardown_exact(None)
        return (yield from _interruptible())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        said = self._late.pop(item.nodeid, None)
        if said is not None:
            report.outcome = "failed"
            report.longrepr = f"{said}\n{report.longrepr or ''}"
        return report

    def pytest_sessionfinish(self) -> None:
        faulthandler.dump_traceback_later(self._exit_limit_s, exit=True, file=self._stderr)

    def _set(self, test: str | None, limit_s: float = 0.0) -> None:
        if self._process != os.getpid():  # a worker that was forked has no thread yet
            self._process = os.getpid()
            signal.signal(signal.SIGALRM, _raise)
            threading.Thread(target=self._watch, name="time limit", daemon=True).start()
        with self._changed:
            self._test = test
            self._expires_at = time.monotonic() + limit_s
            self._grace_s = min(limit_s, _GRACE_S_MAX)
            self._extensions = self._extensions_max
            self._extension_s = limit_s
            self._changed.notify()
        if test is None:
            faulthandler.cancel_dump_traceback_later()
        else:  # needs no Python: for a test that holds the interpreter
            last_s = (1 + self._extensions_max) * limit_s + 4 * self._grace_s
            faulthandler.dump_traceback_later(last_s, exit=True, file=self._stderr)

    def _watch(self) -> None:
        while True:
            with self._changed:
                while self._test is None or (left := self._expires_at - time.monotonic()) > 0:
                    self._changed.wait(None if self._test is None else left)
                if self._extensions and _is_busy():
                    self._extensions -= 1
                    self._expires_at += self._extension_s
                    continue
                test = self._test
            self._say_where(test)
            for attempt in (_cancel_trio, _interrupt_main_thread, _interrupt_main_thread):
                if attempt() and self._ended(test):
                    break
            else:
                self._write(f"{test} could not be ended; its process is\n")
                os._exit(70)

    def _ended(self, test: str) -> bool:
        """Wait a little for its end."""
        with self._changed:
            return self._changed.wait_for(lambda: self._test != test, self._grace_s)

    def _say_where(self, test: str) -> None:
        said = [f"TIME LIMIT: {test} has run for too long"]
        self._stopped.add(test)
        self._late[test] = said[0]
        self._write(f"\n{said[0]}\n")
        try:
            for line in describe_all():
                said.append(line)
                self._write(f"{line}\n")
        except Exception:  # what is described changes meanwhile
            said.append(traceback.format_exc())
            self._write(said[-1])
        self._late[test] = "\n".join(said)

    def _write(self, text: str) -> None:
        os.write(self._stderr, text.encode(errors="replace"))


def _cancel_trio() -> bool:
    """Cancel what the main thread's Trio runs. False when it runs nothing."""
    found = False
    for thread_id, runner in trio_runs():
        if thread_id == threading.main_thread().ident and runner.main_task is not None:
            cancel: list[Callable[[], None]] = [nursery.cancel_scope.cancel for nursery in runner.main_task.child_nurseries]
            for each in cancel:
                runner.entry_queue.run_sync_soon(each)
            found = True
    return found


def _interrupt_main_thread() -> bool:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGALRM)
    return True


def _is_busy() -> bool:
    return os.getloadavg()[0] > _BUSY_TASKS * (os.cpu_count() or 1)


_phases: list[None] = []
"""The setup, call or teardown that is run now."""


def _interruptible() -> Generator[None, object, object]:
    _phases.append(None)
    try:
        return (yield)
    finally:
        _phases.pop()


def _raise(number: int, frame: FrameType | None) -> None:
    """Not inside of Trio: its loop would be left in pieces, and the next test with them. Nor between the phases: an exception
    in the hooks there would end the whole run."""
    if _phases and frame is not None and f"{os.sep}trio{os.sep}_core{os.sep}" not in frame.f_code.co_filename:
        raise TimeLimitError


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--time-limit", type=float, default=_LIMIT_S, metavar="SECONDS", help="of one test; 0 for none")
    parser.addoption("--time-limit-extensions", type=int, default=_EXTENSIONS, metavar="N", help="while the machine is busy")
    parser.addoption("--exit-limit", type=float, default=_EXIT_LIMIT_S, metavar="SECONDS", help="of the end of the process")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "time_limit(seconds): this test may take so long, setup and teardown included; 0 for ever")
    options = ("--time-limit", "--exit-limit", "--time-limit-extensions")
    limit = TimeLimit(*map(config.getoption, options))
    config.pluginmanager.register(limit, "tests of limited time")
