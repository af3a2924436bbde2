"""The file format of recordings: what is written reads back, from any blocks, up to any cut or damage."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence

import pytest

from tpy.limits import RECORDING_ENTRY_BYTES_MAX
from tpy.messages import Contents, DataType
from tpy.recording.core.entries import (
    Beginning,
    RecordedRequest,
    RecordedResponse,
    RecordedSequence,
    RecordedTensor,
    RecordingEnd,
)
from tpy.recording.core.file_format import RecordingReader, UnreadableRecording, write_entry, write_preface

from .reading import read_recording

BEGINNING = Beginning(server="s", server_version="1", began_ns=5, models=("a*",), sample=3, inputs=Contents.HASH)
END = RecordingEnd(reason="it was stopped", dropped=2, unfinished=1)


def tensor(chance: random.Random, index: int) -> RecordedTensor:
    kind = chance.choice([each for each in DataType if each is not DataType.INVALID])
    data = chance.choice((None, b"", chance.randbytes(chance.randrange(40))))
    shape = tuple(chance.randrange(5) for _ in range(chance.randrange(4)))
    digest = chance.choice((None, chance.randbytes(32)))
    return RecordedTensor(name=f"T{index}ä", datatype=kind, shape=shape, data=data, sha256=digest)


def request(chance: random.Random) -> RecordedRequest:
    values: list[bool | int | float | str] = [True, 0, -(2**63), 2**63 - 1, 0.5, "", "text\n"]
    responses = tuple(
        RecordedResponse(
            after_ns=chance.randrange(2**40),
            outputs=tuple(tensor(chance, index) for index in range(chance.randrange(3))),
            error=chance.choice(("", "no")),
        )
        for _ in range(chance.randrange(3))
    )
    return RecordedRequest(
        arrived_ns=chance.randrange(2**62),
        latency_ns=chance.randrange(2**40),
        protocol="grpc-stream",
        model="m",
        version=chance.choice((None, 1)),
        id=chance.choice(("", "7")),
        stream="ab",
        sequence=chance.choice((None, RecordedSequence(id=2**64 - 1, start=True), RecordedSequence(id="x", end=True))),
        parameters={f"p{index}": chance.choice(values) for index in range(chance.randrange(3))},
        inputs=tuple(tensor(chance, index) for index in range(chance.randrange(3))),
        requested=("OUT",),
        responses=responses,
        status=chance.choice(("OK", "Internal")),
    )


def blocks_of(data: bytes, chance: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = chance.choice((1, 3, 50, 10_000))
        yield data[at : at + size]
        at += size


def read(data: bytes, chance: random.Random | None = None) -> tuple[list[RecordedRequest], RecordingReader]:
    reader = RecordingReader()
    return list(read_recording(blocks_of(data, chance) if chance else [data], reader)), reader


def written(requests: Sequence[RecordedRequest], end: RecordingEnd | None = END) -> bytes:
    return write_preface(BEGINNING) + b"".join(map(write_entry, requests)) + (write_entry(end) if end else b"")


@pytest.mark.parametrize("seed", range(40))
def test_what_is_written_reads_back_up_to_any_cut(seed: int) -> None:
    chance = random.Random(seed)
    requests = [request(chance) for _ in range(chance.randrange(5))]
    found, reader = read(written(requests), chance)
    assert found == requests
    assert (reader.beginning, reader.end, reader.problem) == (BEGINNING, END, "")

    sizes = [len(write_preface(BEGINNING))]
    for each in requests:
        sizes.append(sizes[-1] + len(write_entry(each)))
    data = written(requests)
    for cut in {chance.randrange(12, len(data)) for _ in range(20)} | set(sizes):
        found, reader = read(data[:cut], chance)
        assert found == requests[: max(0, sum(size <= cut for size in sizes) - 1)]
        assert reader.problem.startswith(f"it is cut off at byte {cut}")
        assert reader.end is None


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_found_and_ends_the_reading(seed: int) -> None:
    chance = random.Random(seed)
    requests = [request(chance) for _ in range(4)]
    data = bytearray(written(requests))
    place = chance.randrange(12, len(data))
    data[place] ^= 1 << chance.randrange(8)
    found, reader = read(bytes(data), chance)
    assert reader.problem
    assert found == requests[: len(found)]


def test_other_files_and_other_versions_are_refused() -> None:
    for data, text in (
        (b"", "this is not a recording: it ends within its first 12 bytes"),
        (b"TPYREC", "this is not a recording: it ends within its first 12 bytes"),
        (b"PK\x03\x04", r"this is not a recording: it begins with b'PK\x03\x04' in place of b'TPYREC\r\n'"),
        (b"TPYREC\r\n\x02\0\0\0", "the recording has format version 2, this tpy reads version 1"),
    ):
        with pytest.raises(UnreadableRecording) as refused:
            read(data)
        assert str(refused.value) == text


def entry(content: bytes) -> bytes:
    return len(content).to_bytes(4, "little") + zlib.crc32(content).to_bytes(4, "little") + content


def test_sound_checksums_over_nonsense() -> None:
    preface, one = write_preface(BEGINNING), write_entry(request(random.Random(1)))
    at = len(preface)
    for data, problem in (
        (preface + entry(b"\x81\xa4kind\xa4mine"), "content that is not an entry (Invalid value 'mine' - at `$.kind`)"),
        (preface + entry(b""), "content that is not an entry (Input data was truncated)"),
        (preface + preface[12:], "the kind of the first one"),
        (preface[:12] + one, "its place before the first one"),
        (preface + write_entry(END) + one, "its place behind the last one"),
        (preface + (2**31).to_bytes(4, "little") + bytes(4), f"a length of {2**31} bytes"),
    ):
        found, reader = read(data)
        assert found == []
        assert reader.problem.startswith("it is damaged: the entry that begins at byte ")
        assert reader.problem.endswith(problem)
    assert RECORDING_ENTRY_BYTES_MAX < 2**31
    _, reader = read(preface + entry(b"\xc1"))
    assert f"at byte {at} " in reader.problem
