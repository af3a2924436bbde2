"""The audit log: what lines say, and what becomes of them when the disk is full, a name is hostile or many are refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tpy.auditing import AuditLog, audit_log
from tpy.auditing.certificate import certificate_name
from tpy.clock import SystemClock
from tpy.errors import InvalidArgument, NotFound, PermissionDenied, Unavailable
from tpy.limits import AUDIT_ERROR_CHARACTERS_MAX, AUDIT_REFUSALS_PER_S_MAX
from tpy.messages import AuditLogOptions
from tpy.reloading import reload, reloaded
from tpy.units import NS_PER_MS, NS_PER_S

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


CERTIFICATE = {"subject": ((("commonName", "ci"),),)}


class VirtualClock(SystemClock):
    """Stands until a test moves it."""

    def __init__(self) -> None:
        self.time_ns = NS_PER_S

    def now_ns(self) -> int:  # type: ignore[override]  # the other is a function of no object
        return self.time_ns


class Logged:
    """A log in a file, on a virtual clock."""

    def __init__(self, log: AuditLog, path: Path, clock: VirtualClock) -> None:
        self.log = log
        self.path = path
        self.clock = clock

    def lines(self) -> list[dict[str, Any]]:
        self.log.flush()
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Logged]:
    clock = VirtualClock()
    with audit_log(AuditLogOptions(file=str(tmp_path / "audit.log")), clock, reports_reloads=True) as log:
        assert log is not None
        yield Logged(log, tmp_path / "audit.log", clock)


async def act(log: AuditLog, model: str = "m", error: Exception | None = None) -> None:
    """A call that loads a model, or fails."""
    with log.action("http", "POST /load", peer="127.0.0.1:5000", certificate=CERTIFICATE) as action:
        action.identified("ci", model)
        await action.begin()
        if error is not None:
            raise error
        action.changes("load", files=["1/model.py"])


async def test_a_line_says_who_did_what_and_how_it_ended(logged: Logged) -> None:
    with logged.log.action("http", "POST /load", peer="127.0.0.1:5000", certificate=CERTIFICATE) as action:
        action.identified("ci", "m")
        action.changes("load", files=["1/model.py"])
        logged.clock.time_ns += 12 * NS_PER_MS
    (line,) = logged.lines()
    assert TIME.fullmatch(line.pop("time"))
    assert line == {
        "audit": "done",
        "id": f"{os.getpid()}-1",
        "action": "load",
        "model": "m",
        "protocol": "http",
        "route": "POST /load",
        "peer": "127.0.0.1:5000",
        "certificate": "CN=ci",
        "caller": "ci",
        "details": {"files": ["1/model.py"]},
        "result": "OK",
        "ms": 12.0,
    }
    assert stat.S_IMODE(logged.path.stat().st_mode) == 0o600


async def test_how_calls_end(logged: Logged) -> None:
    with pytest.raises(NotFound):
        await act(logged.log, error=NotFound("no such model"))
    with pytest.raises(ZeroDivisionError):
        await act(logged.log, error=ZeroDivisionError("a secret of ours"))
    with logged.log.action("http", "DELETE /models/<name>") as action:
        action.ended("HTTP 404")
    with trio.CancelScope() as scope, logged.log.action("http", "POST /load"):
        scope.cancel()
        await trio.lowlevel.checkpoint()
    with logged.log.action("grpc", "/TraceSetting") as action:
        action.forget()
    found = [(line["result"], line.get("error")) for line in logged.lines()]
    assert found == [("NOT_FOUND", "no such model"), ("INTERNAL", None), ("HTTP 404", None), ("CANCELLED", None)]


HOSTILE = 'm"}\n{"audit":"done"}\r\x1b[2J\u2028\u202e\ud800'


async def test_no_name_forges_a_line(logged: Logged) -> None:
    await act(logged.log, HOSTILE)
    await act(logged.log, "m" * 100_000)
    with pytest.raises(NotFound):
        await act(logged.log, error=NotFound(HOSTILE * 100_000))
    logged.log.flush()
    text = logged.path.read_text()
    assert not set(text) & set("\x1b\u2028\u202e\r")
    lines = logged.lines()
    assert [line["audit"] for line in lines] == ["done"] * 3
    assert lines[0]["model"] == HOSTILE
    assert len(lines[1]["model"]) < 10_000
    assert len(lines[2]["error"]) < AUDIT_ERROR_CHARACTERS_MAX + 50


async def test_those_without_a_key_do_not_fill_it(logged: Logged) -> None:
    for _ in range(AUDIT_REFUSALS_PER_S_MAX + 30):
        with pytest.raises(PermissionDenied):
            await act(logged.log, error=PermissionDenied("no"))
    await act(logged.log)
    logged.clock.time_ns += NS_PER_S
    with pytest.raises(PermissionDenied):
        await act(logged.log, error=PermissionDenied("no"))
    lines = logged.lines()
    assert [line["result"] for line in lines[AUDIT_REFUSALS_PER_S_MAX - 1 :]] == ["PERMISSION_DENIED", "OK", "PERMISSION_DENIED"]
    assert lines[-2]["refusals_left_out"] == 30
    assert "refusals_left_out" not in lines[-1]


async def test_it_is_opened_again_at_a_reload(logged: Logged) -> None:
    await act(logged.log)
    logged.log.flush()
    logged.path.rename(logged.path.with_suffix(".1"))
    reload("SIGHUP")

    def fail() -> None:
        raise InvalidArgument("no")

    with reloaded(fail):
        reload("SIGUSR1")
    found = [(line["action"], line["protocol"], line["route"], line["result"]) for line in logged.lines()]
    assert found == [("reload", "signal", "SIGHUP", "OK"), ("reload", "signal", "SIGUSR1", "ERROR")]
    assert len(logged.path.with_suffix(".1").read_text().splitlines()) == 1


async def test_a_full_disk_fails_nothing() -> None:
    with audit_log(AuditLogOptions(file="/dev/full"), SystemClock()) as log:
        assert log is not None
        await act(log)
        log.flush()
        assert log.dropped == 1


async def test_a_full_disk_refuses_where_lines_are_required() -> None:
    with audit_log(AuditLogOptions(file="/dev/full", required=True), SystemClock()) as log:
        assert log is not None
        with pytest.raises(Unavailable, match="the audit log cannot be written, so nothing can be changed"):
            await act(log)


def fill(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))


async def test_a_disk_that_hangs_refuses_where_lines_are_required(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A pipe that is full, and nobody reads it."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    filler = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    try:
        with audit_log(AuditLogOptions(file=str(tmp_path / "pipe"), required=True), SystemClock()) as log:
            assert log is not None
            fill(filler)
            with pytest.raises(Unavailable):
                await act(log)
            os.read(reader, 1 << 20)  # so that the thread ends
    finally:
        os.close(reader)
        os.close(filler)


async def test_lines_that_are_required_come_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with audit_log(AuditLogOptions(file=str(path), required=True), SystemClock()) as log:
        assert log is not None
        with log.action("http", "POST /load") as action:
            await action.begin()
            assert [json.loads(line)["audit"] for line in path.read_text().splitlines()] == ["begin"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["audit"], line["id"]) for line in lines] == [("begin", lines[0]["id"]), ("done", lines[0]["id"])]


async def test_a_line_behind_one_that_was_cut_off_is_whole(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes a part of a line, and later there is room again."""
    written: list[int] = []
    write = os.write

    def half(descriptor: int, data: Any) -> int:
        written.append(len(data))
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2] if len(written) == 1 else data)

    monkeypatch.setattr("tpy.telemetry.log_writer.os.write", half)
    await act(logged.log)
    logged.log.flush()
    await act(logged.log)
    logged.log.flush()
    first, second = logged.path.read_text().splitlines()
    with pytest.raises(json.JSONDecodeError):
        json.loads(first)
    assert json.loads(second)["result"] == "OK"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    options = AuditLogOptions(file=str(tmp_path / "none" / "a"))
    with (
        pytest.raises(InvalidArgument, match=r"--audit-log: cannot write '.*/none/a': No such file"),
        audit_log(options, SystemClock()),
    ):
        pass


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, ""),
        ({}, ""),
        ({"subject": ((("organizationName", "Acme, Inc"),), (("commonName", "ci"),))}, r"CN=ci,O=Acme\, Inc"),
        ({"subject": ((("userId", "a=b"),),)}, r"userId=a\=b"),
        ({"subject": (), "subjectAltName": (("URI", "spiffe://x/y"),)}, "URI:spiffe://x/y"),
    ],
)
def test_the_name_in_a_certificate(certificate: Any, name: str) -> None:
    assert certificate_name(certificate) == name
