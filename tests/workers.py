"""`--workers N`: run the tests of each file in one of N processes, which are forked when the tests are collected.

The first process collects, gives a file at a time to a worker that has none, in the order of tests/conftest.py, and reports.
Tests marked `alone` come first, one after another. Beside them one worker runs the last files in the time of the processor that
they leave: the kernel takes it away at once when an `alone` test has something to do. A worker that ended is replaced, and its
test is reported as the one that ended it.

pytest-xdist has each worker collect for itself: on two cores with four workers that is a tenth of the time of the whole suite.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, cast

import pytest

Group = Sequence[int]
"""Tests that one worker runs one after another: places in what was collected."""


def groups_of(items: Sequence[pytest.Item], *, by_test: bool) -> tuple[list[Group], list[Group]]:
    """The tests that run alone, and the others: by file, or each by itself, in the order of the first test of each."""
    found: tuple[dict[str, list[int]], dict[str, list[int]]] = ({}, {})
    for number, item in enumerate(items):
        name = item.nodeid if by_test else item.nodeid.partition("::")[0]
        found[item.get_closest_marker("alone") is None].setdefault(name, []).append(number)
    alone, others = found
    return list(alone.values()), list(others.values())


_is_worker = False


def _leave() -> None:
    """The end of a worker, behind that of pytest and of what else runs at the end: it leaves without taking its modules apart.
    The fork has left libraries of some of them without their threads, and they abort the process when they end those."""
    if _is_worker:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


atexit.register(_leave)


class WorkerDone(BaseException):
    """Raised in a worker that has run all that it was given: it goes on to the end of pytest, which reports nothing there."""


class Worker:
    """A forked process, as the first process sees it. `left` are the tests of its group that have not ended. The descriptor `end`
    is readable when it has ended; its connection may be open longer, in servers that its tests forked."""

    def __init__(self, session: pytest.Session, *, yields: bool = False) -> None:
        """With `yields` it runs only while nothing else wants its processor, and what it starts as well."""
        self.left: deque[int] = deque()
        self.connection, theirs = Pipe()
        session.config.get_terminal_writer().flush()  # else what waits there would be written twice
        first = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            global _is_worker
            _is_worker = True
            self.connection.close()
            _work(session, theirs, first)
            raise WorkerDone
        theirs.close()
        self.end = os.pidfd_open(self._pid)
        if yields:
            os.sched_setscheduler(self._pid, os.SCHED_IDLE, os.sched_param(0))

    def run(self, group: Group) -> None:
        """Have it run these tests."""
        self.left = deque(group)
        with contextlib.suppress(OSError):  # it has ended: its connection says so
            self.connection.send(list(group))

    def close(self) -> str:
        """Wait for its end, now that it has nothing more to do. Returns how it ended."""
        self.connection.close()
        os.close(self.end)
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return f"exited with status {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"

    def kill(self) -> None:
        """End it at once."""
        os.kill(self._pid, signal.SIGKILL)
        self.close()


class Workers:
    """The first process of a run with workers."""

    def __init__(self, count: int, *, by_test: bool) -> None:
        self._count = count
        self._by_test = by_test
        self._workers: list[Worker] = []
        self._busy: list[Worker] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what was collected. Nothing, or what cannot be collected, is left to pytest."""
        if session.testsfailed or session.config.getoption("collectonly") or not session.items:
            return None
        alone, others = map(deque, groups_of(session.items, by_test=self._by_test))
        try:
            self._run_alone(session, alone, others)
            self._share(session, others)
            for worker in self._workers:
                worker.connection.send(None)
            while self._workers:
                self._workers.pop().close()
        except WorkerDone:
            self._workers.clear()
        finally:
            for worker in self._workers:
                worker.kill()
        return True

    def _run_alone(self, session: pytest.Session, alone: deque[Group], others: deque[Group]) -> None:
        """Run the tests that run alone; beside them, where there is a processor for it, the last of the others."""
        main: Worker | None = None
        yielding: Worker | None = None
        processors = min(self._count, os.cpu_count() or 1)
        while alone or self._busy:
            if alone and others and processors > 1 and yielding not in self._busy:
                yielding = self._give(yielding or self._start(session, yields=True), others.pop())
            if alone and main not in self._busy:
                main = self._give(main or self._start(session), alone.popleft())
            for worker, left in self._wait(session):
                if left:
                    (alone if worker is main else others).append(left)
            main, yielding = (each if each in self._workers else None for each in (main, yielding))
        if yielding is not None:
            self._workers.remove(yielding)
            with contextlib.suppress(OSError):
                yielding.connection.send(None)
            yielding.close()

    def _share(self, session: pytest.Session, groups: deque[Group]) -> None:
        """Run these groups, as many at a time as there are workers."""
        while groups or self._busy:
            while groups and len(self._busy) < self._count:
                idle = [worker for worker in self._workers if worker not in self._busy]
                self._give(idle[0] if idle else self._start(session), groups.popleft())
            for _, left in self._wait(session):
                if left:
                    groups.appendleft(left)

    def _give(self, worker: Worker, group: Group) -> Worker:
        worker.run(group)
        self._busy.append(worker)
        return worker

    def _wait(self, session: pytest.Session) -> list[tuple[Worker, Group]]:
        """Take the reports of workers. Returns those that have no test any more, with what one that ended has left."""
        done: list[tuple[Worker, Group]] = []
        ready = wait([worker.connection for worker in self._busy] + [worker.end for worker in self._busy])
        for worker in list(self._busy):
            if worker.connection in ready:
                with contextlib.suppress(EOFError, ConnectionError):
                    message = worker.connection.recv()
                    if message is None:
                        self._busy.remove(worker)
                        done.append((worker, ()))
                    else:
                        _report(session, worker, message)
                    continue
            if worker.end in ready:
                self._busy.remove(worker)
                done.append((worker, self._ended(session, worker)))
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return done

    def _start(self, session: pytest.Session, *, yields: bool = False) -> Worker:
        worker = Worker(session, yields=yields)
        self._workers.append(worker)
        return worker

    def _ended(self, session: pytest.Session, worker: Worker) -> Group:
        """A worker has ended in the middle of its tests. Returns those that it had not begun."""
        self._workers.remove(worker)
        how = worker.close()
        if not worker.left:
            return ()
        item = session.items[worker.left.popleft()]
        said = f"the worker of {item.nodeid} {how}; what it wrote last is above"
        hook = item.ihook
        hook.pytest_runtest_logreport(report=pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call"))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return worker.left


def _report(session: pytest.Session, worker: Worker, message: dict[str, Any]) -> None:
    hook = session.config.hook
    report = hook.pytest_report_from_serializable(config=session.config, data=message)
    hook.pytest_runtest_logreport(report=report)
    if report.when == "teardown":
        item = session.items[worker.left.popleft()]
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


# In a worker


class _Sender:
    """Sends reports to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(data)


def _work(session: pytest.Session, connection: Connection, first: int) -> None:
    """Run what the first process gives to this one, which was just forked."""
    plugins = session.config.pluginmanager
    plugins.unregister(name="terminalreporter")
    capture: Any = plugins.get_plugin("capturemanager")
    if capture is not None:  # the files in which it keeps the output are the first process's
        capture.stop_global_capturing()
        capture.start_global_capturing()
    plugins.register(_Sender(session.config, connection))
    for group in _groups(connection, os.pidfd_open(first)):
        _run(session, group)
        connection.send(None)


def _groups(connection: Connection, first: int) -> Iterator[Group]:
    """Groups of the first process, until it has no more or has ended."""
    while connection in wait([connection, first]) and (group := connection.recv()) is not None:
        yield group


def _run(session: pytest.Session, group: Group) -> None:
    items = [session.items[number] for number in group]
    # What comes after the last one is not known: fixtures of the session stay for it.
    after = cast(pytest.Item, session)
    for item, following in itertools.pairwise([*items, after]):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run the tests in N processes, a file at a time")
    parser.addoption("--by-test", action="store_true", help="with --workers: a test at a time")


def pytest_configure(config: pytest.Config) -> None:
    count = config.getoption("--workers")
    if count:
        config.pluginmanager.register(Workers(count, by_test=config.getoption("--by-test")), "workers")
