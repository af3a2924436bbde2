"""The recorder: which requests are in a recording, and how it ends."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import trio

from tpy.errors import AlreadyExists, Internal, InvalidArgument, NotFound, TpyError, Unsupported
from tpy.messages import (
    Contents,
    DataType,
    InferenceRequest,
    InferenceResponse,
    RecordingOptions,
    RecordingState,
    RequestRecord,
    SequencePosition,
    Tensor,
)
from tpy.observers import RequestObservers
from tpy.recording import recorder as recorder_module
from tpy.recording import recording_file
from tpy.recording.core.entries import RecordedRequest
from tpy.recording.core.file_format import RecordingReader
from tpy.recording.recorder import Recorder, recording
from tpy.services import NoRecordings
from tpy.units import NS_PER_S

from .reading import read_recording

WALL_MS = 1_700_000_000_000


class HandClock:
    """Set by hand."""

    def __init__(self) -> None:
        self.ns = 1000

    def now_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return WALL_MS


class Hall:
    """A recorder, and requests that go by it."""

    def __init__(self, directory: Path) -> None:
        self.clock = HandClock()
        self.recorder = Recorder(directory, self.clock, "triton", frozenset({"x-team-key"}))
        self.observers = RequestObservers()
        self.observers.add(self.recorder)

    async def start(self, **options: object) -> Path:
        return Path((await self.recorder.change(RecordingOptions(**options))).file)  # type: ignore[arg-type]

    async def stop(self) -> None:
        await self.recorder.change(None)

    def ask(
        self,
        model: str = "m",
        *inputs: Tensor,
        answers: Sequence[Sequence[Tensor]] = ((),),
        sequence: SequencePosition | None = None,
        error: TpyError | None = None,
        protocol: str = "http",
        peer: str = "",
    ) -> RequestRecord | None:
        headers = {"authorization": "secret"}
        record = self.observers.open(protocol, model=model, peer=peer, received_ns=self.clock.ns, headers=headers)
        if record is None:
            return None
        request = InferenceRequest(model_name=model, id="7", inputs=inputs, sequence=sequence, parameters={"p": 1})
        record.admit(request, self.clock.ns)
        for index, outputs in enumerate(answers):
            self.clock.ns += 10
            final = index == len(answers) - 1
            failed = error if final else None
            record.respond(
                InferenceResponse(model_name=model, model_version=3, outputs=tuple(outputs), error=failed, final=final)
            )
        record.end(self.clock.ns, *(("OK", "") if error is None else (error.code.value, error.message)))
        record.finish(self.clock.ns + 5)
        return record


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    made = Hall(tmp_path)
    yield made
    made.recorder.close()


def read(file: Path) -> tuple[list[RecordedRequest], RecordingReader]:
    reader = RecordingReader()
    return list(read_recording([file.read_bytes()], reader)), reader


def floats(name: str, *values: float) -> Tensor:
    return Tensor(name, DataType.FP32, np.array(values, np.float32))


async def test_a_request_and_all_that_it_was_answered(hall: Hall) -> None:
    file = await hall.start()
    values = np.array([[1.5, -2]], np.float32)
    texts = Tensor("s", DataType.BYTES, np.array([b"a", b"\xff\xfe"], object))
    record = hall.observers.open("grpc-stream", model="m", peer="1.2.3.4:5", begun_ns=1000, received_ns=1200)
    assert record is not None
    record.admit(InferenceRequest(model_name="m", model_version=2, inputs=(Tensor("f", DataType.FP32, values), texts)), 1300)
    values[:] = 0  # the memory belongs to somebody else
    for _ in range(2):
        hall.clock.ns += 1000
        record.respond(InferenceResponse(model_name="m", model_version=2, outputs=(floats("o", 4),), final=False))
    record.respond(InferenceResponse(model_name="m", model_version=2))
    record.end(3500)
    record.finish(4000)
    await hall.stop()

    [entry], reader = read(file)
    assert reader.problem == ""
    assert reader.end is not None
    assert reader.end.reason == "it was stopped"
    assert entry.arrived_ns == WALL_MS * 1_000_000
    assert entry.latency_ns == 3000
    assert (entry.model, entry.version, entry.served_version, entry.status) == ("m", 2, 2, "OK")
    assert [(each.name, each.shape, each.data) for each in entry.inputs] == [
        ("f", (1, 2), np.array([1.5, -2], np.float32).tobytes()),
        ("s", (2,), b"\1\0\0\0a\2\0\0\0\xff\xfe"),
    ]
    assert [(each.after_ns, each.outputs[0].data) for each in entry.responses] == [
        (1000, np.float32(4).tobytes()),
        (2000, np.float32(4).tobytes()),
    ]
    assert len(entry.stream) == 16
    assert b"1.2.3.4" not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600


async def test_errors_are_recorded_and_headers_are_not(hall: Hall) -> None:
    file = await hall.start()
    hall.ask(answers=[()], error=NotFound("not here"))
    await hall.stop()
    [entry], _ = read(file)
    assert (entry.status, entry.error, entry.responses[0].error) == ("Not found", "not here", "not here")
    assert b"secret" not in file.read_bytes()


async def test_hashes_and_nothing_in_place_of_elements(hall: Hall) -> None:
    file = await hall.start(inputs=Contents.HASH, outputs=Contents.NONE)
    hall.ask("m", floats("f", 1), answers=[[floats("o", 2)]])
    await hall.stop()
    [entry], _ = read(file)
    assert entry.inputs[0].sha256 == hashlib.sha256(np.float32(1).tobytes()).digest()
    assert entry.inputs[0].data is None
    output = entry.responses[0].outputs[0]
    assert (output.name, output.shape, output.data, output.sha256) == ("o", (1,), None, None)


async def test_models_samples_and_sequences(hall: Hall) -> None:
    hall.ask()  # before
    file = await hall.start(models=("a*", "b?"), sample=2)
    for model in ("a1", "b1", "b22", "ab", "a1", "c"):
        hall.ask(model)
    hall.ask("a1", protocol="call")
    for correlation_id in (1, 2):  # one of two, as a whole
        for position in range(3):
            step = SequencePosition(correlation_id=correlation_id, start=position == 0, end=position == 2)
            hall.ask("a1", sequence=step)
    hall.ask("a1", sequence=SequencePosition(correlation_id=9))  # began before the recording
    await hall.stop()
    assert hall.ask("a1") is None  # after
    found, _ = read(file)
    assert [(each.model, each.sequence.id if each.sequence else None) for each in found] == [
        ("b1", None),
        ("a1", None),
        ("a1", 2),
        ("a1", 2),
        ("a1", 2),
    ]


async def test_without_a_recording_requests_have_no_records(hall: Hall) -> None:
    assert hall.ask() is None
    await hall.start()
    assert hall.ask("m") is not None
    await hall.stop()
    assert hall.ask() is None


@pytest.mark.parametrize(
    ("options", "reason", "count"),
    [
        ({"requests_max": 2}, "max_requests is reached", 2),
        ({"bytes_max": 1500}, "max_bytes is reached", 3),
    ],
)
async def test_it_stops_by_itself(hall: Hall, options: dict[str, int], reason: str, count: int) -> None:
    file = await hall.start(**options)
    for _ in range(10):
        hall.ask("m", floats("f", *range(20)))
    await hall.stop()
    found, reader = read(file)
    assert len(found) == count
    assert reader.end is not None
    assert reader.end.reason == reason
    assert file.stat().st_size <= options.get("bytes_max", 10_000)
    status = await hall.recorder.status()
    assert (status.state, status.reason, status.requests) == (RecordingState.STOPPED, reason, count)
    assert status.bytes_written == file.stat().st_size
    assert status.requests + status.unfinished <= 10


async def test_it_stops_when_its_time_is_over(hall: Hall) -> None:
    file = await hall.start(seconds_max=60)
    hall.ask()
    hall.clock.ns += 60 * NS_PER_S
    assert hall.ask() is None
    assert not hall.recorder.active
    await hall.stop()
    found, reader = read(file)
    assert len(found) == 1
    assert reader.end is not None
    assert reader.problem == ""


async def test_what_does_not_fit_is_left_out_and_counted(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "RECORDING_ENTRY_BYTES_MAX", 1000)
    file = await hall.start()
    hall.ask("m", floats("f", *range(400)))
    hall.ask("m", answers=[[floats("f", *range(200))], [floats("f", *range(200))]])
    hall.ask("m", floats("f", 1))
    under_way = hall.observers.open("http", model="m")
    assert under_way is not None
    under_way.admit(InferenceRequest(model_name="m"), 5)
    await hall.stop()
    under_way.finish(9)  # after the end
    found, reader = read(file)
    assert len(found) == 1
    assert reader.end is not None
    assert (reader.end.dropped, reader.end.unfinished) == (2, 1)


async def test_memory_is_bounded_while_requests_are_under_way(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "RECORDING_HELD_BYTES_MAX", 1000)
    monkeypatch.setattr(recorder_module, "RECORDING_HELD_REQUESTS_MAX", 3)
    file = await hall.start()
    open_records = []
    for _ in range(4):
        record = hall.observers.open("http", model="m")
        assert record is not None
        record.admit(InferenceRequest(model_name="m", inputs=(floats("f", *range(100)),)), 5)
        open_records.append(record)
    assert (await hall.recorder.status()).dropped == 2  # of 464 bytes each
    for record in open_records:
        record.finish(9)
    for _ in range(5):
        record = hall.observers.open("http", model="m")
        assert record is not None
        record.admit(InferenceRequest(model_name="m"), 5)
    assert (await hall.recorder.status()).dropped >= 4
    await hall.stop()
    assert len(read(file)[0]) == 2


async def test_requests_that_wait_are_written_together(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    file = await hall.start()
    write, begun, go_on, writes = os.write, threading.Event(), threading.Event(), []

    def slow(descriptor: int, data: memoryview) -> int:
        writes.append(len(data))
        begun.set()
        assert go_on.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr(recording_file.os, "write", slow)
    hall.ask("m", floats("f", 1))
    assert await trio.to_thread.run_sync(begun.wait, 60)
    for _ in range(100):
        hall.ask("m", floats("f", 1))
    go_on.set()
    await hall.stop()
    assert len(read(file)[0]) == 101
    assert len(writes) == 3, "the first request, all others, and the last entry"


async def test_a_full_disk_ends_the_recording_and_leaves_whole_entries(
    hall: Hall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = await hall.start()
    hall.ask("m", floats("f", 1))
    write = os.write

    def limited(descriptor: int, data: memoryview) -> int:
        room = 1500 - os.fstat(descriptor).st_size
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:room])

    monkeypatch.setattr(recording_file.os, "write", limited)
    with caplog.at_level(logging.ERROR):
        for _ in range(20):
            hall.ask("m", floats("f", *range(50)))
        await hall.stop()
    found, reader = read(file)
    assert 1 <= len(found) < 20
    assert reader.problem.startswith("it is cut off at byte")
    assert "in the entry" not in reader.problem
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [f"the recording has ended: cannot write '{file}': No space left on device"]
    assert not hall.recorder.active
    status = await hall.recorder.status()
    assert status.state is RecordingState.STOPPED
    assert status.requests == len(found)


async def test_refusals(hall: Hall, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="start it with --recording-directory"):
        await NoRecordings().change(RecordingOptions())
    for options, text in (
        (RecordingOptions(models=()), "a recording needs models"),
        (RecordingOptions(models=("",)), "a recording needs models"),
        (RecordingOptions(models=("m",) * 101), "at most 100 patterns"),
        (RecordingOptions(sample=0), "sample: expected 1 to 2147483647, got 0"),
        (RecordingOptions(seconds_max=10**9), "max_seconds: expected 1 to 604800, got 1000000000"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            await hall.recorder.change(options)
    first = await hall.start()
    with pytest.raises(AlreadyExists, match=f"'{first}'; stop it first"):
        await hall.start()
    await hall.stop()
    assert await hall.start() != first
    with (
        pytest.raises(InvalidArgument, match="--recording-directory: there is no folder"),
        recording("/x", hall.clock, "t", frozenset()),
    ):
        pass
    gone = Recorder(tmp_path / "gone", hall.clock, "triton", frozenset())
    with pytest.raises(Internal, match="No such file or directory"):
        await gone.change(RecordingOptions())


async def test_credentials_are_not_recorded(tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    file = await hall.start()
    names = ("Authorization", "cookie", "X-API-Key", "x-team-key", "Private-Token", "X-Goog-IAP-JWT-Assertion", "temperature")
    record = hall.observers.open("http", model="m", received_ns=5)
    assert record is not None
    record.admit(InferenceRequest(model_name="m", parameters=dict.fromkeys(names, "secret")), 10)
    record.respond(InferenceResponse(model_name="m", model_version=1))
    record.end(30, "OK", "")
    record.finish(40)
    await hall.stop()
    hall.recorder.close()
    assert file.read_bytes().count(b"secret") == 1
