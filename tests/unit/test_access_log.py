"""The access log: which requests have a line, and what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tpy.errors import InvalidArgument
from tpy.messages import RequestRecord
from tpy.observers import RequestObservers
from tpy.reloading import reload
from tpy.telemetry.access_log import AccessLogOptions, access_log
from tpy.units import NS_PER_MS

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def finish(
    observers: RequestObservers, *, request_id: str = "7", error: str = "", total_ns: int = 812_000, **fields: object
) -> RequestRecord:
    """A request that was executed, or (with `error`) refused."""
    record = observers.open("http", model="m", peer="127.0.0.1:5000", received_ns=1000, request_bytes=64, headers={})
    assert record is not None
    for name, value in fields.items():
        setattr(record, name, value)
    record.id = request_id
    record.submitted_ns = 1000
    if error:
        record.finish(1000 + total_ns, "Invalid argument", error, response_bytes=30)
        return record
    record.version, record.responses = 1, 1
    record.started_ns, record.input_ns, record.infer_ns, record.output_ns = 13_000, 3000, 700_000, 4000
    record.end(1000 + total_ns)
    record.finish(1000 + total_ns, response_bytes=120)
    return record


def lines_of(path: Path, options: AccessLogOptions, *requests: dict[str, object]) -> list[str]:
    observers = RequestObservers()
    with access_log(options) as log:
        assert log is not None
        observers.add(log)
        for fields in requests:
            finish(observers, **fields)  # type: ignore[arg-type]  # as they come
    return path.read_text().splitlines()


def test_lines_of_text(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    traced = {"headers": {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}}
    lines = lines_of(path, AccessLogOptions(file=str(path)), {}, {"error": 'no "x"\n', "version": None}, traced)
    assert all(TIME.match(line) for line in lines)
    assert [line.partition(" ")[2] for line in lines] == [
        '127.0.0.1:5000 http m/1 OK 812us (queue 12 input 3 infer 700 output 4) in=64 out=120 id="7"',
        r'127.0.0.1:5000 http m/- Invalid argument 812us in=64 out=30 responses=0 id="7" error="no \"x\"\n"',
        f'127.0.0.1:5000 http m/1 OK 812us (queue 12 input 3 infer 700 output 4) in=64 out=120 id="7" trace_id="{TRACE}"',
    ]


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    options = AccessLogOptions(file=str(path), format="json")
    first, second = lines_of(path, options, {"request_id": "\u2028\x1b[2J"}, {"error": "no"})
    assert "\u2028" not in first
    document = json.loads(first)
    assert TIME.fullmatch(document.pop("time"))
    assert document == {
        **{"protocol": "http", "peer": "127.0.0.1:5000", "model": "m", "version": 1, "id": "\u2028\x1b[2J", "status": "OK"},
        **{"total_us": 812, "queue_us": 12, "input_us": 3, "infer_us": 700, "output_us": 4},
        **{"responses": 1, "request_bytes": 64, "response_bytes": 120},
    }
    assert json.loads(second)["error"] == "no"


def test_the_name_of_a_model_cannot_forge_a_line_and_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    names = ["m/1 OK 5us (queue", 'a "b"', "z" * 100_000]
    lines = lines_of(path, AccessLogOptions(file=str(path)), *({"model": name, "error": "no"} for name in names))
    told = [line.partition(" http ")[2].partition(" Invalid")[0] for line in lines]
    assert told[:2] == ['"m/1 OK 5us (queue"/-', r'"a \"b\""/-']
    assert len(lines[2]) < 2000


@pytest.mark.parametrize("header", ["", "x", "00-0-0-0", f"00-{'0' * 32}-1-01", f"00-{TRACE.upper()}-1-01", "00-\n-1-01"])
def test_a_trace_that_is_none_is_not_told(tmp_path: Path, header: str) -> None:
    path = tmp_path / "access.log"
    (line,) = lines_of(path, AccessLogOptions(file=str(path)), {"headers": {"traceparent": header}})
    assert "trace_id" not in line


def test_one_request_in_so_many(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    requests = [{"request_id": str(number)} for number in range(7)]
    lines = lines_of(path, AccessLogOptions(file=str(path), sample=3), *requests)
    assert [line.rpartition(" ")[2] for line in lines] == ['id="2"', 'id="5"']


def test_parts_of_other_requests_have_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    observers = RequestObservers()
    with access_log(AccessLogOptions(file=str(path))) as log:
        assert log is not None
        observers.add(log)
        record = finish(observers)
        record.child("step", "a").finish(5)
        call = observers.open("call", model="a")
        assert call is not None
        call.finish(5)
    assert len(path.read_text().splitlines()) == 1


def test_slow_requests_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    observers = RequestObservers()
    with access_log(AccessLogOptions(slow_ms=10)) as log:
        assert log is not None
        observers.add(log)
        finish(observers, request_id="fast", total_ns=10 * NS_PER_MS - 1)
        finish(observers, request_id="slow", total_ns=10 * NS_PER_MS)
    (line,) = caplog.records
    assert (line.levelname, line.getMessage()) == ("WARNING", "slow request")
    context = line.__dict__["context"]
    assert (context["id"], context["total_us"], context["queue_us"], context["infer_us"]) == ("slow", 10_000, 12, 700)


def test_nothing_is_observed_when_nothing_is_wanted() -> None:
    with access_log(AccessLogOptions()) as log:
        assert log is None


def test_the_file_is_opened_again_at_a_reload(tmp_path: Path) -> None:
    path, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    observers = RequestObservers()
    with access_log(AccessLogOptions(file=str(path))) as log:
        assert log is not None
        observers.add(log)
        finish(observers, request_id="before")
        path.rename(rotated)
        finish(observers, request_id="between")
        reload("SIGHUP")
        finish(observers, request_id="after")
    assert [len(file.read_text().splitlines()) for file in (rotated, path)] == [2, 1]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    options = AccessLogOptions(file=str(tmp_path / "none" / "a"))
    with pytest.raises(InvalidArgument, match=r"--access-log: cannot write '.*/none/a': No such file"), access_log(options):
        pass


def test_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    observers = RequestObservers()
    with access_log(AccessLogOptions(file="-")) as log:
        assert log is not None
        observers.add(log)
        finish(observers)
        reload("SIGHUP")
        finish(observers)
    assert len(capsys.readouterr().out.splitlines()) == 2
