"""LogWriter: who logs never waits for who reads; what does not fit is counted, and said when it is over."""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.waiting import wait_until
from tpy.limits import LOG_WAITING_CHARACTERS_MAX
from tpy.messages import LogSettings, RequestRecord
from tpy.telemetry.access_log import AccessLogOptions, access_log
from tpy.telemetry.log_writer import LogFile, LogStream, LogWriter, write_at_once
from tpy.telemetry.logs import LogController

_LINE = 1023 * "x" + "\n"
_FITS = LOG_WAITING_CHARACTERS_MAX // len(_LINE)


class Pipe:
    """A pipe that nobody reads yet."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.stream = open(writing, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        self.read = bytearray()
        self._reader = threading.Thread(target=self._read)

    def begin_reading(self) -> None:
        self._reader.start()

    def close(self) -> None:
        self.stream.close()
        if self._reader.ident is None:
            os.close(self.reading)
        else:
            self._reader.join()

    def _read(self) -> None:
        while piece := os.read(self.reading, 65536):
            self.read += piece
        os.close(self.reading)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A write that waits is a failure, and not a test run that hangs."""

    def late(*_: object) -> None:
        raise TimeoutError("waited for a log that nobody reads")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_pipe_that_nobody_reads_keeps_nobody_and_says_so_when_it_is_read(pipe: Pipe) -> None:
    told: list[int] = []
    writer = LogWriter(LogStream(pipe.stream), on_recovered=told.append)
    before = 0
    while select.select([], [pipe.stream], [], 0.001)[1]:  # until the thread has filled it, however late it gets its turn
        writer.write(_LINE)
        before += 1
    said, dropped = list(told), writer.dropped
    for _ in range(2 * _FITS):
        writer.write(_LINE)
    lost = writer.dropped - dropped
    assert _FITS - 100 < lost <= _FITS + before
    assert told == said
    pipe.begin_reading()
    wait_until(lambda: told != said)
    assert sum(told) == writer.dropped == dropped + lost
    writer.write("the last one\n")
    writer.close()
    pipe.close()
    assert pipe.read.count(b"\n") == before + 2 * _FITS - writer.dropped + 1
    assert pipe.read.endswith(b"the last one\n")


def test_the_end_is_bounded_while_nobody_reads(pipe: Pipe) -> None:
    controller = LogController(LogSettings(), stream=pipe.stream)
    controller.install()
    for _ in range(100):
        logging.getLogger("tpy.test").info(_LINE)
    controller.remove()
    write_at_once(pipe.stream, 100 * _LINE)
    assert len(os.read(pipe.reading, 1_000_000)) > 40_000
    pipe.begin_reading()  # or the thread writes on, to whatever has the number of this pipe next
    wait_until(lambda: all(thread.name != "log" for thread in threading.enumerate()))


def test_the_log_says_once_how_many_lines_were_lost(pipe: Pipe) -> None:
    controller = LogController(LogSettings(), stream=pipe.stream)
    controller.install()
    for _ in range(LOG_WAITING_CHARACTERS_MAX // 100_000 + 10):
        logging.getLogger("tpy.test").info(100_000 * "x")
    assert controller.dropped
    pipe.begin_reading()
    wait_until(lambda: b"lines were dropped" in pipe.read)
    controller.remove()
    pipe.close()
    assert f"of=server lines={controller.dropped}".encode() in pipe.read
    assert pipe.read.count(b"lines were dropped") == 1


@pytest.mark.parametrize("lines", [1, 3])
def test_lines_wait_while_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch, lines: int) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    stream = io.StringIO()
    writer = LogWriter(LogStream(stream), on_recovered=lambda _: None)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        for _ in range(lines):
            writer.write("a line\n")
    if lines > 1:
        writer.write("a line\n")  # the thread starts now; or else with `close`
        writer.flush()
        assert stream.getvalue() == (lines + 1) * "a line\n"
    writer.close()
    assert stream.getvalue().startswith(lines * "a line\n")
    assert writer.dropped == 0


def test_lines_that_nobody_can_ever_write_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = LogWriter(LogStream(io.StringIO()), on_recovered=lambda _: None)
    for _ in range(_FITS + 10):
        writer.write(_LINE)
    assert writer.dropped == 10
    writer.close()


def test_the_access_log_is_bounded_alike(tmp_path: Path) -> None:
    fifo = tmp_path / "access"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with access_log(AccessLogOptions(file=str(fifo))) as log:
        assert log is not None
        record = RequestRecord(log, "http", model=1000 * "m")
        while not log.dropped:
            log.finished(record)
    os.close(reading)


def test_a_pipe_without_reader_is_not_waited_for_when_logs_are_opened_again(tmp_path: Path) -> None:
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="No such device"):
        LogFile(str(fifo), may_wait=False)


def test_lines_before_a_rotation_are_in_the_old_file_and_those_after_in_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "log"
    writer = LogWriter(LogFile(str(file)), on_recovered=print)
    writer.write("before\n")
    file.rename(tmp_path / "log.1")
    writer.switch(LogFile(str(file)))
    writer.write("after\n")
    writer.close()
    assert (tmp_path / "log.1").read_text() == "before\n"
    assert file.read_text() == "after\n"


def test_every_line_is_written_and_in_order() -> None:
    stream = io.StringIO()
    writer = LogWriter(LogStream(stream), on_recovered=print)
    lines = [f"{number} {number % 7 * 1000 * 'x'}\n" for number in range(1000)]
    for line in lines:
        writer.write(line)
    writer.close()
    assert stream.getvalue() == "".join(lines)
    assert writer.dropped == 0
