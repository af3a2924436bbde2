"""`tpy top` and `tpy explain` against a running server, and the terminal that they leave behind."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from .repositories import ModelFolder
from .server import RunOutcome, ServerProcess, run_tpy

WAIT_S = 30
DELAY = "dynamic_batching { max_queue_delay_microseconds: 50000000 }"
BODY = json.dumps({"id": "x", "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("top")
    ModelFolder(folder / "models", "quick").identity()
    ModelFolder(folder / "models", "slow").identity(DELAY)
    tracing = ("--trace-config", f"triton,file={folder / 'trace.json'}", "--trace-config", "level=TIMESTAMPS")
    flags = (*tracing, "--trace-config", "rate=1", "--metrics-config=histogram_latencies=true", "--metrics-interval-ms=100")
    with ServerProcess(*flags, repositories=[folder / "models"]) as process:
        yield process


def tpy(*arguments: str) -> RunOutcome:
    return run_tpy(*arguments, timeout_s=WAIT_S)


def post(server: ServerProcess, model: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(server.http, timeout=WAIT_S)
    connection.request("POST", f"/v2/models/{model}/infer", BODY)
    return connection


def test_a_table_for_scripts(server: ServerProcess) -> None:
    ran = tpy("top", "--once", "--interval", "0.2", "--url", server.http, "--metrics-url", server.metrics, "--sort", "name")
    assert ran.code == 0, ran.err
    assert re.search(r"^quick +1 +READY +0 ", ran.out, re.M), ran.out
    assert "p50 and p99 of the interval, from histograms" in ran.out
    assert "\x1b" not in ran.out
    without = tpy("top", "--once", "--interval", "0.2", "--url", server.http, "--metrics-url", "127.0.0.1:9", "--model", "qu*")
    assert "no metrics page" in without.out
    assert "slow" not in without.out


def test_a_request_that_waits_for_company_is_explained(server: ServerProcess) -> None:
    with closing(post(server, "slow")):
        until_s = time.monotonic() + WAIT_S
        while "waits for" not in (ran := tpy("explain", "slow", "--url", server.http)).out:
            assert time.monotonic() < until_s, ran.out + ran.err
    assert "1 waiting" in ran.out
    assert re.search(r"waits for   other requests, to form a batch, for \d+(\.\d)? s more at most", ran.out), ran.out
    assert re.search(r"limit       batch delay", ran.out)


def test_a_traced_request_is_explained(server: ServerProcess) -> None:
    with closing(post(server, "quick")) as connection:
        assert connection.getresponse().status == 200
    until_s = time.monotonic() + WAIT_S
    while (ran := tpy("explain", "quick", "--request", "x", "--url", server.http)).code:
        assert time.monotonic() < until_s, ran.err
    assert re.search(r"^  in the queue +[\d.]+ (ns|us|ms|s)\b", ran.out, re.M), ran.out
    assert "most of it" in ran.out


def test_what_cannot_be_explained(server: ServerProcess) -> None:
    ran = tpy("explain", "nosuch", "--url", server.http)
    assert (ran.code, ran.err) == (1, "tpy: error: HTTP 400: requested model 'nosuch' is not available\n")
    assert tpy("top", "--once", "--url", "127.0.0.1:9").code == 1


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_the_terminal_is_as_it_was(server: ServerProcess, key: bytes) -> None:
    terminal, end = pty.openpty()
    try:
        termios.tcsetwinsize(end, (20, 60))
        before = termios.tcgetattr(end)
        command = [sys.executable, "-m", "tpy", "top", "--interval", "0.2", "--url", server.http, "--metrics-url", server.metrics]
        environment = {**os.environ, "TERM": "xterm"}
        with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, preexec_fn=_take_terminal, env=environment) as process:
            try:
                shown = _read_until(terminal, b"quick")
                assert termios.tcgetattr(end) != before
                os.write(terminal, b"s")
                shown += _read_until(terminal, b"by errors")
                os.write(terminal, key)
                shown += _read_until(terminal, b"\x1b[?1049l")
                assert process.wait(WAIT_S) == 0
            finally:
                process.kill()
        assert termios.tcgetattr(end) == before
    finally:
        os.close(terminal)
        os.close(end)
    text = re.sub(rb"\x1b\[[?\d]*[A-Za-z]", b"", shown.replace(b"\x1b[H", b"\n")).decode()
    assert max(len(line) for line in text.splitlines()) <= 60
    assert "Traceback" not in text


def test_a_terminal_that_obeys_nothing_gets_plain_tables(server: ServerProcess) -> None:
    terminal, end = pty.openpty()
    try:
        command = [sys.executable, "-m", "tpy", "top", "--interval", "0.2", "--url", server.http, "--metrics-url", server.metrics]
        environment = {**os.environ, "TERM": "dumb"}
        with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, preexec_fn=_take_terminal, env=environment) as process:
            try:
                shown = _read_until(terminal, b"quick")
                os.write(terminal, b"\x03")
                assert process.wait(WAIT_S) == 0
            finally:
                process.kill()
    finally:
        os.close(terminal)
        os.close(end)
    assert b"\x1b" not in shown


def _take_terminal() -> None:
    """In the child: Ctrl-C on the terminal is for it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(terminal: int, wanted: bytes) -> bytes:
    shown, until_s = b"", time.monotonic() + WAIT_S
    while wanted not in shown:
        left_s = until_s - time.monotonic()
        assert left_s > 0, f"{wanted!r} is not in {shown[-2000:]!r}"
        if select.select([terminal], [], [], left_s)[0]:
            shown += os.read(terminal, 4096)
    return shown


def test_a_server_that_is_away_is_asked_again() -> None:
    command = [sys.executable, "-m", "tpy", "top", "--interval", "0.1", "--url", "127.0.0.1:9"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.terminate()
    assert all("no server at 127.0.0.1:9" in line for line in lines)


def test_documents_for_scripts(server: ServerProcess) -> None:
    with closing(post(server, "quick")) as connection:
        assert connection.getresponse().status == 200
    ran = tpy("top", "--json", "--interval", "0.2", "-u", server.http, "--metrics-url", server.metrics, "--sort", "name")
    document = json.loads(ran.out)
    assert [(row["name"], row["state"]) for row in document["models"]] == [("quick", "READY"), ("slow", "READY")]
    assert document["seconds"] >= 0.2
    (found,) = json.loads(tpy("explain", "quick", "--json", "-u", server.http).out)["explanations"]
    assert found["name"] == "quick"
    until_s = time.monotonic() + WAIT_S
    while (ran := tpy("explain", "quick", "--request", "x", "--json", "-u", server.http)).code:
        assert time.monotonic() < until_s, ran.err
    trace = json.loads(ran.out)["traces"][0]
    assert trace["request_id"] == "x"
    assert trace["moments_ns"]["REQUEST_START"] <= trace["moments_ns"]["REQUEST_END"]
