"""Differences of answers, requests that can be sent, and the report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tpy.frontends.binary_tensor import write_binary
from tpy.messages import DataType, Tensor
from tpy.recording.core.entries import RecordedRequest, RecordedResponse, RecordedSequence, RecordedTensor
from tpy_tools.load import PlannedCall
from tpy_tools.replay.core.comparison import Answered, compare
from tpy_tools.replay.core.report import RequestOutcome, Results, render
from tpy_tools.replay.requests import Calls

NAN, INF = float("nan"), float("inf")


def tensor(values: object, datatype: DataType = DataType.FP32, name: str = "OUT") -> Tensor:
    return Tensor(name, datatype, np.array(values, datatype.numpy))


def recorded(each: Tensor, *, data: bool = True, hashed: bool = False) -> RecordedTensor:
    content = bytes(write_binary(each.array, each.datatype))
    return RecordedTensor(
        name=each.name,
        datatype=each.datatype,
        shape=each.array.shape,
        data=content if data else None,
        sha256=hashlib.sha256(content).digest() if hashed else None,
    )


def request(*outputs: RecordedTensor, responses: int = 1, **more: Any) -> RecordedRequest:
    answered = tuple(RecordedResponse(after_ns=1, outputs=outputs) for _ in range(responses))
    return RecordedRequest(**{"arrived_ns": 0, "latency_ns": 5, "protocol": "http", "model": "m", "responses": answered, **more})


def text_of(before: RecordedRequest, *answers: Answered, tolerance: float = 0.0) -> str | None:
    found = compare(4, before, answers, {"OUT": tolerance})
    return None if found is None else str(found)


def differs(before: Tensor, now: Tensor, tolerance: float = 0.0) -> str | None:
    text = text_of(request(recorded(before)), Answered((now,)), tolerance=tolerance)
    return None if text is None else text.removeprefix("request 4 of m, output OUT: ")


@pytest.mark.parametrize(
    ("before", "now", "datatype", "tolerance", "text"),
    [
        ([1, 2], [1, 2], DataType.FP32, 0, None),
        ([NAN, INF, -INF], [NAN, INF, -INF], DataType.FP32, 0, None),
        ([0.0], [-0.0], DataType.FP32, 0, None),
        (
            [[1, 2], [3, 4]],
            [[1, 2], [3.5, 5]],
            DataType.FP32,
            0,
            "at [1, 0]: recorded 3.0, replayed 3.5; 2 of 4 elements differ, by at most 1",
        ),
        ([1.0], [1.01], DataType.FP32, 0.02, None),
        (
            [0.001],
            [0.002],
            DataType.FP32,
            0.0005,
            "at [0]: recorded 0.001, replayed 0.002; 1 of 1 elements differ, by at most 0.001",
        ),
        ([1000.0], [1001.0], DataType.FP32, 0.002, None),
        ([1.0], [NAN], DataType.FP32, 1e9, "at [0]: recorded 1.0, replayed nan; 1 of 1 elements differ"),
        ([INF], [-INF], DataType.FP32, 1e9, "at [0]: recorded inf, replayed -inf; 1 of 1 elements differ"),
        ([3e38], [-3e38], DataType.FP32, 0, "at [0]: recorded 3e+38, replayed -3e+38; 1 of 1 elements differ, by at most 6e+38"),
        ([200], [100], DataType.UINT8, 0, "at [0]: recorded 200, replayed 100; 1 of 1 elements differ, by at most 100"),
        (
            [2**64 - 1],
            [0],
            DataType.UINT64,
            0,
            "at [0]: recorded 18446744073709551615, replayed 0; 1 of 1 elements differ, by at most 1.84467e+19",
        ),
        (
            [2**62 + 1],
            [2**62],
            DataType.INT64,
            0,
            "at [0]: recorded 4611686018427387905, replayed 4611686018427387904; 1 of 1 elements differ, by at most 1",
        ),
        ([2**62 + 1], [2**62], DataType.INT64, 1e-6, None),
        ([True], [False], DataType.BOOL, 0, "at [0]: recorded True, replayed False; 1 of 1 elements differ, by at most 1"),
        ([1.0], [1.5], DataType.BF16, 0, "at [0]: recorded 1, replayed 1.5; 1 of 1 elements differ, by at most 0.5"),
        ([b"a", b"b"], [b"a", b"c"], DataType.BYTES, 9, "at [1]: recorded b'b', replayed b'c'; 1 of 2 elements differ"),
        (1.5, 2.5, DataType.FP64, 0, "at []: recorded 1.5, replayed 2.5; 1 of 1 elements differ, by at most 1"),
    ],
)
def test_elements(before: object, now: object, datatype: DataType, tolerance: float, text: str | None) -> None:
    found = differs(tensor(before, datatype), tensor(now, datatype), tolerance)
    assert found == (None if text is None else f"element {text}")


def test_datatypes_shapes_names_and_numbers() -> None:
    one = tensor([1.0])
    assert differs(one, tensor([1], DataType.INT32)) == "datatype: recorded FP32, replayed INT32"
    assert differs(one, tensor([[1.0]])) == "shape: recorded [1], replayed [1, 1]"
    other = tensor([1.0], name="Y")
    assert text_of(request(recorded(one)), Answered((other,))) == "request 4 of m: names of outputs: recorded OUT, replayed Y"
    assert text_of(request(recorded(one))) == "request 4 of m: number of responses: recorded 1, replayed 0"
    twice = request(recorded(one), responses=2, id="x")
    second = text_of(twice, Answered((one,)), Answered((tensor([2.0]),)))
    assert second is not None
    assert second.startswith("request 4 (id x) of m, response 1, output OUT: element at [0]")


def test_errors() -> None:
    good = Answered((tensor([1.0]),))
    failed = request(status="Internal", error="it broke", responses=0)
    assert text_of(failed, Answered(error="other words")) is None
    assert text_of(failed, good) == "request 4 of m: an answer in place of an error: recorded it broke, replayed an answer"
    text = text_of(request(recorded(tensor([1.0]))), Answered(error="no"))
    assert text == "request 4 of m: an error in place of an answer: recorded an answer, replayed no"


def test_hashes_and_what_was_left_out() -> None:
    one, two = tensor([1.0]), tensor([2.0])
    assert text_of(request(recorded(one, data=False)), Answered((two,))) is None
    hashed = request(recorded(one, data=False, hashed=True))
    assert text_of(hashed, Answered((one,))) is None
    text = text_of(hashed, Answered((two,)))
    assert text is not None
    assert text.startswith("request 4 of m, output OUT: SHA-256: recorded ")


def test_what_can_be_sent() -> None:
    whole, hashed = recorded(tensor([1.0])), recorded(tensor([1.0]), data=False, hashed=True)
    wrong = RecordedTensor(name="IN", datatype=DataType.FP32, shape=(2,), data=b"1234")
    step = RecordedSequence(id=2**63, start=True)
    entries = [
        request(arrived_ns=9, inputs=(whole,), version=3, id="last", requested=("OUT",), parameters={"p": 1}, timeout_us=5),
        request(arrived_ns=1, inputs=(hashed,)),
        request(arrived_ns=2, inputs=(wrong,)),
        request(arrived_ns=3, status="Cancelled", sequence=RecordedSequence(id=1, start=True)),
        request(arrived_ns=4, sequence=RecordedSequence(id=1)),
        request(arrived_ns=5, sequence=RecordedSequence(id=1, start=True)),
        request(arrived_ns=6, responses=2),
        request(arrived_ns=7, sequence=step),
    ]
    entries.sort(key=lambda each: each.arrived_ns)
    http, calls = made(entries, "http", {"m": "new"})
    assert [arrived for arrived, _ in calls] == [5, 7, 9]
    assert http.left_out == {
        "without inputs in the recording": 1,
        "with an input that does not fit its shape": 1,
        "that their clients cancelled": 1,
        "of sequences with a request that is left out": 1,
        "with more or less than one response, which --protocol grpc-stream takes": 1,
    }
    last = calls[-1][1]
    assert (last.model, last.version, last.request_id, last.outputs) == ("new", "3", "last", ("OUT",))
    assert last.parameters == {"p": 1, "timeout": 5}
    assert calls[0][1].parameters == {"sequence_id": 1, "sequence_start": True, "sequence_end": False}
    _, streamed = made(entries, "grpc-stream", {})
    assert [arrived for arrived, _ in streamed] == [5, 6, 9]
    assert streamed[1][1].parameters == {"triton_enable_empty_final_response": True}
    unary, single = made(entries, "grpc", {})
    assert [(arrived, call.parameters.get("triton_enable_empty_final_response")) for arrived, call in single] == [
        (5, None),
        (9, None),
    ]
    assert unary.left_out["with an id of a sequence above 2^63 - 1, which --protocol http takes"] == 1


def made(
    entries: Sequence[RecordedRequest], protocol: str, model_as: Mapping[str, str]
) -> tuple[Calls, list[tuple[int, PlannedCall]]]:
    """The calls, each behind the arrival of its request."""
    calls = Calls(protocol, model_as)
    return calls, [(each.arrived_ns, call) for each in entries if (call := calls.make(each)) is not None]


def test_the_report() -> None:
    requests = [request(latency_ns=1_000_000 * (1 + index)) for index in range(10)]
    results = Results(kept_max=1)
    for _ in range(10):
        results.sent("m")
    for index in range(9):
        found = compare(index, requests[index], [] if index > 6 else [Answered()], {})
        took_ns = requests[index].latency_ns
        results.answered(
            RequestOutcome(model="m", recorded_ns=took_ns, replayed_ns=2_000_000, difference=found, whole=index != 3)
        )
    report = results.report(
        file="f", url="u", requests=12, left_out={"of a kind": 2}, seconds=1.5, file_problem="it is cut", problem="gone"
    )
    assert report.shapes_only == 1
    assert (report.requests, report.sent, report.answered, report.equal, report.different) == (12, 10, 9, 7, 2)
    assert len(report.differences) == 1
    text = render(report)
    assert "f to u: 10 of 12 requests sent in 1.5 s\n  left out: 2 of a kind" in text
    row = next(line for line in text.splitlines() if line.startswith("m "))
    assert row.split() == ["m", "10", "7", "2", "5.00", "9.00", "9.00", "2.00", "2.00", "2.00"]
    assert "and 1 more" in text
    assert text.endswith("the recording: it is cut\n\nended early, 9 answered, 2 of them different: gone")
