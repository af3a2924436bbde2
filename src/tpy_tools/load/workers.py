"""The processes that send requests, as their parent sees them."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO

import msgspec

from tpy.limits.loading import LOAD_REPORT_S_MAX
from tpy_tools.load import worker
from tpy_tools.load.exchange import LENGTH, SNAPSHOT, STOP, WorkerSettings, WorkerSnapshot, write_message

_STDERR = 2


class WorkerFailed(Exception):
    """A worker ended without a report: an error of ours. `str()` has what it wrote."""


class Workers:
    """Some workers that run at the same time. A context manager: leaving it ends them."""

    def __init__(self, settings: Sequence[WorkerSettings]) -> None:
        self._settings = settings
        self._processes: list[_Process] = []

    def __enter__(self) -> Workers:
        try:
            for one in self._settings:
                self._processes.append(_Process(one))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    @property
    def done(self) -> bool:
        """True when all of them have sent their last report."""
        return all(process.done for process in self._processes)

    def snapshots(self) -> list[WorkerSnapshot]:
        """Returns the measurements of each since the last time; finished ones give their last report once."""
        for process in self._processes:
            process.ask(SNAPSHOT)
        found = []
        for process in self._processes:
            found += process.reports()
        return found

    def stop(self) -> None:
        """Begin no more requests."""
        for process in self._processes:
            process.ask(STOP)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until one of them has something to say: it is done."""
        end_s = time.monotonic() + seconds
        running = [process.output for process in self._processes if not process.done]
        while running and (left_s := end_s - time.monotonic()) > 0:
            if select.select(running, [], [], left_s)[0]:
                return

    def _end(self) -> None:
        for process in self._processes:
            process.end()


class _Process:
    """One worker. It has its own process group, so that Ctrl-C reaches the parent only."""

    def __init__(self, settings: WorkerSettings) -> None:
        theirs, ours = os.pipe()
        self._input: IO[bytes] = os.fdopen(ours, "wb", buffering=0)
        ours, output = os.pipe()
        self.output: IO[bytes] = os.fdopen(ours, "rb", buffering=0)
        self.done = False
        self._asked = False
        try:
            self._pid = _fork(theirs, output)
        finally:
            os.close(theirs)
            os.close(output)
        try:
            self._write_all(msgspec.msgpack.encode(settings))
        except BaseException:
            self.end()
            raise

    def ask(self, command: bytes) -> None:
        """Send a command to a worker that is not done."""
        if self.done:
            return
        self._asked = self._asked or command == SNAPSHOT
        with suppress(BrokenPipeError):  # its last report is waiting
            self._input.write(command)

    def reports(self) -> list[WorkerSnapshot]:
        """The report that was asked for, or the last one."""
        if not self._asked or self.done:
            return []
        self._asked = False
        report = self._read()
        self.done = report.done
        return [report]

    def end(self) -> None:
        """End it at once."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._input.close()
        self.output.close()

    def _write_all(self, content: bytes) -> None:
        with os.fdopen(os.dup(self._input.fileno()), "wb") as file:
            write_message(file, content)

    def _read(self) -> WorkerSnapshot:
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return msgspec.msgpack.decode(self._exactly(size), type=WorkerSnapshot)

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            ready, _, _ = select.select([self.output], [], [], LOAD_REPORT_S_MAX)
            more = self.output.read(size - len(content)) if ready else b""
            if not more:
                raise WorkerFailed("a worker gave no report" if not ready else "a worker ended without a report")
            content += more
        return bytes(content)


def _fork(commands: int, reports: int) -> int:
    """Fork a worker with these as its standard input and output. Returns its process id. The command that measures has imported
    all that a worker needs and has one thread at this time, and a fresh process would take as much time of the processor
    as some hundred requests, beside the server that is about to be measured."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the worker has what waits there, too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of numpy's threads, which end in a fork
        # Python drops an interruption while it runs what others registered for forks: it has to wait for the end of the fork.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            pid = os.fork()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(commands, 0)
        os.dup2(reports, 1)
        for name in os.listdir("/proc/self/fd"):  # os.closerange() tries all numbers, in Pythons for old systems
            if int(name) > _STDERR:
                with suppress(OSError):  # the one that this looks with
                    os.close(int(name))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        status = worker.main(0, 1)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
