"""A replay against a server that answers as it likes, and goes away when it likes."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from tpy.cli.parsing import UsageError
from tpy.messages import DataType
from tpy.recording.core.entries import (
    Beginning,
    RecordedRequest,
    RecordedResponse,
    RecordedSequence,
    RecordedTensor,
    RecordingEnd,
)
from tpy.recording.core.file_format import write_entry, write_preface
from tpy_tools.commands.replay import DIFFERENT, EQUAL, FAILED, Wanted, run

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_ID = re.compile(rb'"id":"(\d+)"')


class SmallServer:
    """Answers each request with OUT = 1, `count` of them; then it is gone. `ids` are those of the requests."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.ids: list[str] = []
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        while True:
            try:
                more = connection.recv(65536)
            except OSError:
                return
            if not more:
                return
            data += more
            head, end, body = data.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if not end or length is None or len(body) < int(length[1]):
                continue
            data = b""
            if not self._left:
                self.close()
                return
            self._left -= 1
            self.ids += [found.decode() for found in _ID.findall(body)]
            answer = b'{"outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1], "data": [1.0]}]}'
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))


@contextmanager
def small_server(count: int) -> Iterator[SmallServer]:
    server = SmallServer(count)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server
    server.close()
    thread.join(10)
    assert not thread.is_alive()


def recording(path: Path, *outputs: float, cut: bool = False) -> Path:
    """A recording of a sequence whose answers had these values."""

    def tensor(name: str, value: float) -> RecordedTensor:
        return RecordedTensor(name=name, datatype=DataType.FP32, shape=(1,), data=np.float32(value).tobytes())

    entries = [
        RecordedRequest(
            arrived_ns=index,
            latency_ns=1,
            protocol="http",
            model="m",
            id=str(index),
            sequence=RecordedSequence(id=1, start=index == 0),
            inputs=(tensor("IN", index),),
            responses=(RecordedResponse(after_ns=1, outputs=(tensor("OUT", value),)),),
        )
        for index, value in enumerate(outputs)
    ]
    beginning = Beginning(server="s", server_version="1", began_ns=0, models=("*",))
    data = write_preface(beginning) + b"".join(map(write_entry, reversed(entries)))
    path.write_bytes(data if cut else data + write_entry(RecordingEnd(reason="r")))
    return path


def wanted(file: Path, port: int, **more: object) -> Wanted:
    given = {"url": f"127.0.0.1:{port}", "speed": "max", "concurrency": 8, **more}
    return Wanted(file=file, **given)  # type: ignore[arg-type]  # as they come


def test_all_in_order_and_equal_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(6) as server:
        assert run(wanted(recording(tmp_path / "r", 1, 1, 1), server.port)) == EQUAL
        assert server.ids == ["0", "1", "2"]
        assert "all 3 answers are equal" in capsys.readouterr().out
        report = tmp_path / "report.json"
        assert run(wanted(recording(tmp_path / "r", 1, 2, 1), server.port, report=str(report))) == DIFFERENT
    out = capsys.readouterr().out
    assert "request 1 (id 1) of m, output OUT: element at [0]: recorded 2.0, replayed 1.0" in out
    document = json.loads(report.read_text())
    assert (document["sent"], document["different"], document["differences"][0]["deviation"]) == (3, 1, 1.0)


def test_a_recording_that_is_cut_off_is_replayed_and_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    with small_server(6) as server:
        assert run(wanted(recording(tmp_path / "r", 1, 1, 1, cut=True), server.port, report=str(report))) == FAILED
        assert run(wanted(recording(tmp_path / "r", 1, 2, 1, cut=True), server.port)) == FAILED
    equal, different = capsys.readouterr().out.split("the recording: it is cut off at byte")[1:]
    assert "the recording is not whole; of 3 answers 0 are different" in equal
    assert "the recording is not whole; of 3 answers 1 are different" in different
    document = json.loads(report.read_text())
    assert (document["sent"], document["equal"], document["problem"]) == (3, 3, "")
    assert document["file_problem"].startswith("it is cut off at byte")


def test_a_report_that_the_disk_has_no_room_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(1) as server, pytest.raises(UsageError, match="cannot write the report: No space left on device"):
        run(wanted(recording(tmp_path / "r", 1), server.port, report="/dev/full"))
    assert "all 1 answers are equal" in capsys.readouterr().out


def test_a_server_that_dies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(2) as server:
        assert run(wanted(recording(tmp_path / "r", 1, 1, 1, 1), server.port)) == FAILED
    out = capsys.readouterr().out
    assert "3 of 4 requests sent" in out
    assert "ended early, 2 answered, 0 of them different: no server at 127.0.0.1" in out


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"speed": "0"}, "--speed: expected a number above 0, or max, got '0'"),
        ({"speed": "nan"}, "--speed: expected a number above 0, or max, got 'nan'"),
        ({"tolerances": ("OUT",)}, "--tolerance: expected OUTPUT=NUMBER or NUMBER, got 'OUT'"),
        ({"tolerances": ("OUT=-1",)}, "--tolerance: expected OUTPUT=NUMBER or NUMBER, got 'OUT=-1'"),
        ({"model_as": ("m",)}, "--model-as: expected OLD=NEW, got 'm'"),
        ({"tolerances": ("OTHER=1", "OUT=1", "2")}, "RECORDING: --tolerance: no answer has an output OTHER; there are OUT"),
        ({"model_as": ("n=m",)}, "RECORDING: there is no request to n; there are some to m"),
        ({"headers": ("secret",)}, "--header: expected NAME:VALUE, got 'secret'"),
        ({"report": "/nowhere/report.json"}, "--json: cannot write '/nowhere/report.json': No such file or directory"),
        ({"file": Path("/nowhere")}, "/nowhere: No such file or directory"),
        ({"url": "a b"}, "--url: expected HOST:PORT, got 'a b'"),
        ({"url": "host:99999"}, "--url: expected HOST:PORT, got 'host:99999'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(tmp_path: Path, more: dict[str, object], text: str) -> None:
    whole = wanted(recording(tmp_path / "r", 1), 1)
    given = {name: getattr(whole, name) for name in whole.__struct_fields__}
    with pytest.raises(UsageError) as refused:
        run(Wanted(**{**given, **more}))  # type: ignore[arg-type]  # as they come
    assert str(refused.value).replace(str(tmp_path / "r"), "RECORDING") == text


def test_nothing_to_send_is_said_with_the_reason(tmp_path: Path) -> None:
    entry = RecordedRequest(arrived_ns=0, latency_ns=1, protocol="http", model="m", status="Cancelled")
    file = tmp_path / "r"
    file.write_bytes(write_preface(Beginning(server="s", server_version="1", began_ns=0, models=("*",))) + write_entry(entry))
    with pytest.raises(UsageError, match="no request that can be sent; 1 that their clients cancelled; it is cut off at byte"):
        run(wanted(file, 1))
