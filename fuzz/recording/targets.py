"""The targets of the file format of recordings."""

from __future__ import annotations

import zlib

from fuzz.chance import Chance
from fuzz.target import Target, Violation
from fuzz.tensors import TYPES, spoiled
from tpy.messages import ParameterValue
from tpy.recording.core.entries import (
    Beginning,
    RecordedRequest,
    RecordedResponse,
    RecordedSequence,
    RecordedTensor,
    RecordingEnd,
)
from tpy.recording.core.file_format import RecordingReader, UnreadableRecording, write_entry, write_preface

_PREFACE_BYTES = 12
_CUTS = 12


def _tensors(chance: Chance) -> tuple[RecordedTensor, ...]:
    return tuple(
        RecordedTensor(
            name=chance.choice(("", "X", "ä\n")),
            datatype=chance.choice(TYPES),
            shape=tuple(chance.choice((0, 1, 2**62)) for _ in range(chance.randrange(3))),
            data=chance.choice((None, b"", chance.randbytes(9))),
            sha256=chance.choice((None, chance.randbytes(32))),
        )
        for _ in range(chance.randrange(3))
    )


def _request(chance: Chance) -> RecordedRequest:
    values: list[ParameterValue] = [True, 0, -(2**63), 2**63 - 1, 0.5, "", "text"]
    return RecordedRequest(
        arrived_ns=chance.choice((0, 2**62)),
        latency_ns=chance.randrange(1000),
        protocol=chance.choice(("http", "grpc-stream")),
        model="m",
        version=chance.choice((None, 1)),
        sequence=chance.choice((None, RecordedSequence(id=2**64 - 1, start=True), RecordedSequence(id="a", end=True))),
        parameters={f"p{index}": chance.choice(values) for index in range(chance.randrange(3))},
        inputs=_tensors(chance),
        responses=tuple(RecordedResponse(after_ns=index, outputs=_tensors(chance)) for index in range(chance.randrange(3))),
        error=chance.choice(("", "no")),
    )


def _read(chance: Chance, data: bytes) -> tuple[list[RecordedRequest], RecordingReader]:
    """Read the bytes in blocks of any size. Raises UnreadableRecording."""
    reader, found, at = RecordingReader(), [], 0
    while at < len(data):
        size = chance.choice((1, 7, 100, len(data)))
        found += reader.feed(data[at : at + size])
        at += size
    reader.finish()
    return found, reader


def _file(chance: Chance) -> int:
    """Write a file, read it; cut it, damage it, put nonsense under sound checksums, read that."""
    requests = [_request(chance) for _ in range(chance.randrange(4))]
    preface = write_preface(Beginning(server="s", server_version="1", began_ns=0, models=("*",)))
    entries = [write_entry(each) for each in requests]
    data = preface + b"".join(entries) + write_entry(RecordingEnd(reason="r"))
    found, reader = _read(chance, data)
    if found != requests or reader.problem or reader.end is None:
        raise Violation(f"{requests} became {found}; {reader.problem}")
    cut = chance.randrange(_PREFACE_BYTES, len(data))
    whole = sum(len(preface) + sum(map(len, entries[: index + 1])) <= cut for index in range(len(entries)))
    found, reader = _read(chance, data[:cut])
    if found != requests[:whole] or not reader.problem:
        raise Violation(f"cut at {cut}: {whole} requests are whole, {len(found)} were read; '{reader.problem}'")
    content = spoiled(chance, chance.choice([preface[_PREFACE_BYTES:], *entries])[8:])
    sealed = len(content).to_bytes(4, "little") + zlib.crc32(content).to_bytes(4, "little") + content
    for hostile in (spoiled(chance, data), preface + sealed, preface[:_PREFACE_BYTES] + sealed, chance.randbytes(_CUTS)):
        try:
            found, reader = _read(chance, hostile)
        except UnreadableRecording:
            continue
        if not reader.problem and reader.end is None:
            raise Violation("a file without its last entry is said to be whole")
    return 6


class _Trusting(RecordingReader):
    """Wrong on purpose: a file that ends between two entries is said to be whole."""

    def finish(self) -> None:
        super().finish()
        if not self._buffer:
            self.problem = ""


def _canary(chance: Chance) -> int:
    preface = write_preface(Beginning(server="s", server_version="1", began_ns=0, models=("*",)))
    reader = _Trusting()
    reader.feed(preface + write_entry(_request(chance)))
    reader.finish()
    if not reader.problem:
        raise Violation("a file without its last entry is said to be whole")
    return 1


FILE = Target(
    name="recording_file",
    invariant="what is written reads back the same from any blocks; a file that is cut anywhere reads up to its last whole "
    "entry and says so; anything else raises UnreadableRecording or is read up to a problem, which is said",
    run=_file,
    smoke_examples=1500,
)
CANARY = Target(
    name="recording_canary",
    invariant="a reader that takes a cut file for a whole one is found out",
    run=_canary,
    smoke_examples=5,
    must_fail=True,
)
