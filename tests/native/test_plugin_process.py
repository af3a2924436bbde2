"""The process of a plug-in: what it writes goes to the log, and what it starts ends with it."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.server import is_alive
from tests.e2e.waiting import wait_until
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_native.process import PluginGone, PluginProcess

from .noisy import LINE, LINES


@contextmanager
def unread_standard_error() -> Iterator[None]:
    """Standard error is a full pipe that nobody reads."""
    reading, writing = os.pipe()
    before = os.dup(2)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writing, True)
    os.dup2(writing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        for descriptor in (reading, writing, before):
            os.close(descriptor)


def opened(module: str) -> PluginProcess:
    return PluginProcess(module, "cache 'c'", {}, CustomMetrics(), reply_bytes_max=1000)


def test_a_plug_in_waits_for_no_reader_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Its standard error was the server's: a pipe that nobody read stopped it."""
    with caplog.at_level(logging.INFO, "tpy_data"):
        with unread_standard_error():
            process = opened("tests.native.noisy")
            assert process.exchange(b"a", time.monotonic() + 60) == b"a"
        process.close()
    assert caplog.messages.count(f"cache 'c': {LINE.decode()}") == LINES
    said = [record for record in caplog.records if record.getMessage() == "cache 'c': it does not stop"]
    assert [record.levelno for record in said] == [logging.ERROR]


@pytest.mark.parametrize("end", ["kill", "close", "death"])
def test_what_a_plug_in_started_ends_with_it(end: str) -> None:
    process = opened("tests.native.forking")
    child = int(process.exchange(b"fork", time.monotonic() + 60))
    assert is_alive(child)
    assert os.getpgid(child) != os.getpgid(0)
    if end == "death":
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PluginGone, match="was ended by SIGKILL"):
            process.exchange(b"fork", time.monotonic() + 60)
    elif end == "close":
        process.close()
    else:
        process.kill()
    wait_until(lambda: not is_alive(child))
    process.kill()
    assert not Path(f"/proc/{process.pid}").exists()
