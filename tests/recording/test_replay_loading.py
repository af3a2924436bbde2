"""A recording is read as a stream: in the order of arrival, and never more of it than the bounds say."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from tpy.messages import DataType
from tpy.recording.core.entries import Beginning, RecordedRequest, RecordedTensor, RecordingEnd
from tpy.recording.core.file_format import RecordingReader, UnreadableRecording, read_entry, write_entry, write_preface
from tpy_tools.replay import loading
from tpy_tools.replay.arrivals import EntryPlace, SortedArrivals
from tpy_tools.replay.loading import RecordingError, RequestLoader, scan
from tpy_tools.replay.requests import Calls

PREFACE = write_preface(Beginning(server="s", server_version="1", began_ns=0, models=("*",)))


def request(arrived_ns: int, size: int) -> RecordedRequest:
    tensor = RecordedTensor(name="IN", datatype=DataType.UINT8, shape=(size,), data=bytes(size))
    return RecordedRequest(arrived_ns=arrived_ns, latency_ns=1, protocol="http", model="m", inputs=(tensor,))


def write(path: Path, requests: list[RecordedRequest]) -> Path:
    with path.open("wb") as file:
        file.write(PREFACE)
        for each in requests:
            file.write(write_entry(each))
        file.write(write_entry(RecordingEnd(reason="r")))
    return path


@pytest.mark.parametrize("run_requests", [1, 7, 100, 10_000])
def test_places_come_in_the_order_of_arrival_whatever_the_length_of_a_run(run_requests: int) -> None:
    chance = random.Random(run_requests)
    places = [EntryPlace(chance.randrange(500), at, 9) for at in range(2500)]
    with SortedArrivals(run_requests) as arrivals:
        for each in places:
            arrivals.add(each)
        assert list(arrivals) == sorted(places)
        assert arrivals.count == len(places)


def test_no_more_is_held_than_the_bounds_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MiB in entries of 64 KiB, of which 512 KiB may be held; the largest one is larger than that, and comes alone."""
    monkeypatch.setattr(loading, "HELD_BYTES_MAX", 512 * 1024)
    monkeypatch.setattr(loading, "HELD_REQUESTS", 100)
    chance = random.Random(1)
    sizes = [65_536] * 500 + [600_000]
    path = tmp_path / "r"
    with path.open("wb") as file:
        file.write(PREFACE)
        for index, size in enumerate(sizes):
            file.write(write_entry(request(chance.randrange(1000) * 1000 + index, size)))
        file.write(write_entry(RecordingEnd(reason="r")))
    reader, arrived = RecordingReader(), []
    tracemalloc.start()
    try:
        with SortedArrivals() as arrivals:
            scan(path, reader, arrivals)
            with RequestLoader(path, arrivals, Calls("grpc-stream", {}), in_flight_max=1) as loader:
                loaded = loader.wait_first()
                while not loader.ended:
                    if loaded is not None:
                        arrived.append(loaded.request.arrived_ns)
                        loader.done(loaded)
                    loaded = loader.next_nowait()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not loader.problem
    assert len(arrived) == 501
    assert arrived == sorted(arrived)
    held_requests, held_bytes = loader.held_most
    assert 1 <= held_requests <= 8
    assert 600_000 <= held_bytes <= 600_500
    assert peak < 12 * 1024 * 1024, "blocks of 1 MiB, held entries some times: not the 32 MiB of the file"


def test_a_file_that_changes_meanwhile_ends_the_replay_with_the_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "r", [request(index, 10) for index in range(5)])
    with SortedArrivals() as arrivals:
        scan(path, RecordingReader(), arrivals)
        path.write_bytes(path.read_bytes()[:-100])
        with RequestLoader(path, arrivals, Calls("grpc-stream", {}), in_flight_max=1) as loader:
            assert loader.wait_first() is not None
            while not loader.ended:
                loader.next_nowait()
    assert loader.problem == f"{path}: the recording was changed while it was read"


def test_an_entry_of_another_kind_or_length_is_no_request() -> None:
    whole = write_entry(request(1, 3))
    assert read_entry(whole) == request(1, 3)
    for wrong in (b"", whole[:-1], whole + b"x", whole[:-1] + b"x", write_entry(RecordingEnd(reason="r"))):
        with pytest.raises(UnreadableRecording, match="changed while it was read"):
            read_entry(wrong)


def test_times_that_no_clock_has(tmp_path: Path) -> None:
    path = write(tmp_path / "r", [request(2**63, 1)])
    with SortedArrivals() as arrivals, pytest.raises(RecordingError):
        scan(path, RecordingReader(), arrivals)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with SortedArrivals() as arrivals:
        with pytest.raises(RecordingError, match="Is a directory"):
            scan(tmp_path, RecordingReader(), arrivals)
        with pytest.raises(RecordingError, match="No such file"):
            scan(tmp_path / "none", RecordingReader(), arrivals)
