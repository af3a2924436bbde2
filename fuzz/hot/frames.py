"""Frames of batches: the native codec writes the bytes that Python writes, and reads what Python reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import random_tensor, same, spoiled
from tpy.backend import ExecutionResult
from tpy.devices import NO_DEVICES
from tpy.messages import DataType, SequencePosition, Tensor
from tpy_data.backends.python.protocol.device_tensors import DeviceTensors
from tpy_data.backends.python.protocol.messages import (
    ModelAnswer,
    decode_result,
    encode_batches,
    result_of,
    standard_frame,
    standard_result,
)
from tpy_data.backends.python.worker.wire.core.batch import Layout
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ProtocolViolation, ReceivedFrame, encode

EXECUTE = "the frame of a batch is the bytes that Python writes, or is left to Python"
RESULT = "a result is what Python reads, bit for bit, or is left to Python; whatever Python refuses is left to it"

_TEXT_BYTES_MAX = 4096


@dataclass
class Request:
    """A request of a batch."""

    id: str
    inputs: dict[str, Tensor]
    sequence: SequencePosition | None = None
    timeout_us: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    requested_outputs: tuple[str, ...] = ()
    record: None = None


def _tensor(chance: Chance, name: str) -> Tensor:
    tensor = random_tensor(chance, name)
    array = tensor.array
    if chance.random() < 0.1 and array.ndim > 1:
        array = array.T
    if chance.random() < 0.1 and tensor.datatype is DataType.FP32:
        array = np.zeros(chance.choice((2047, 2048, 2049)), np.float32)
    return Tensor(name, tensor.datatype, array)


def _sequence(chance: Chance) -> SequencePosition:
    return SequencePosition(
        correlation_id=chance.choice((1, 2**63, 2**64 - 1, "a", "\u00e4", 'q"', "x" * 128)),
        start=chance.random() < 0.5,
        end=chance.random() < 0.5,
    )


def _request(chance: Chance) -> Request:
    names = [chance.choice(("IN", "b", "\u00e4", 'q"')) + str(index) for index in range(chance.choice((0, 1, 1, 2)))]
    return Request(
        id=chance.choice(("", "", "7", "\u00e4", '"', "x" * 70_000 if chance.random() < 0.05 else "x")),
        inputs={name: _tensor(chance, name) for name in names},
        sequence=_sequence(chance) if chance.random() < 0.3 else None,
        timeout_us=chance.choice((0, 0, 5, 2**62, 2**63 - 1, 2**63, 2**64 - 1)),
        parameters={"p": 1} if chance.random() < 0.05 else {},
        requested_outputs=chance.choice(((), (), ("OUT",), ("A", "\u00e4"))),
    )


def run_execute(chance: Chance) -> int:
    """Some batches."""
    batches: list[Any] = [[_request(chance) for _ in range(chance.choice((1, 1, 2, 3)))] for _ in range(chance.choice((1, 1, 2)))]
    number = chance.choice((1, 7, 2**40))
    found = standard_frame(number, batches)
    if found is None:
        return 1
    layout = Layout()
    header = encode_batches(batches, None, layout, on_device=False)
    expected = b"".join(encode(FrameKind.EXECUTE, number, header, layout.data, layout.data_bytes))
    if found != expected or layout.placed:
        raise Violation(f"{batches}\n  written as {found!r}\n  Python: {expected!r}")
    return 2


def run_result(chance: Chance, read: Any = standard_result) -> int:
    """One message, sound and then with bytes that are wrong."""
    layout = Layout()
    answers: list[Any] = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        if chance.random() < 0.05:
            answers.append(chance.choice((None, 5, [3, "failed", "", []], [-1, "", '{"p":1}', []])))
            continue
        tensors = [random_tensor(chance, f"OUT{index}") for index in range(chance.choice((0, 1, 1, 2)))]
        storage = [each.array.view(np.uint16) if each.datatype is DataType.BF16 else each.array for each in tensors]
        answers.append(
            [
                -1,
                "",
                "",
                [layout.add(each.name, each.datatype.number, array) for each, array in zip(tensors, storage, strict=True)],
            ]
        )
    document: list[Any] = [[1, 2, 2**60], answers if chance.random() < 0.95 else "failed"]
    header = json.dumps(document, separators=chance.choice(((",", ":"), (", ", ": ")))).encode() + b" " * chance.randrange(4)
    data = b"".join(layout.data)
    _compare(header, data, read)
    for _ in chance.rounds((1, 3)):
        _compare(bytes(spoiled(chance, header)), data[: len(data) - chance.choice((0, 0, 1, 16))], read)
    return 3


def _compare(header: bytes, data: bytes, read: Any) -> None:
    message = ReceivedFrame(FrameKind.RESULT, 1, memoryview(header), memoryview(bytearray(data)))
    found = read(message, _TEXT_BYTES_MAX)
    if found is None:
        return
    try:
        times, answers = decode_result(header)
        results = [_result(answer, message) for answer in answers]
    except (msgspec.DecodeError, ProtocolViolation, TypeError) as error:
        raise Violation(f"{header!r}, {data!r}\n  read as {found}\n  Python: {error}") from None
    if found[0] != times or len(found[1]) != len(results) or not all(map(_same, found[1], results)):
        raise Violation(f"{header!r}, {data!r}\n  read as {found}\n  Python: {times} {results}")


def _result(answer: Any, message: ReceivedFrame) -> ExecutionResult:
    if not isinstance(answer, ModelAnswer):
        raise TypeError(f"{answer!r} is not an answer")
    return result_of(answer, message, _DEVICES, None)


class _Nowhere:
    """In place of an endpoint: nothing here is on a device."""


_DEVICES = DeviceTensors(_Nowhere(), NO_DEVICES)  # type: ignore[arg-type]


def _same(one: ExecutionResult, other: ExecutionResult) -> bool:
    return (
        one.error is None
        and other.error is None
        and one.parameters == other.parameters
        and len(one.outputs) == len(other.outputs)
        and all(map(same, one.outputs, other.outputs))
        and all(a.array.flags.writeable == b.array.flags.writeable for a, b in zip(one.outputs, other.outputs, strict=True))
    )
