"""Records of single requests, and of the GPUs of a server, as they are beside the histograms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpy.limits import loading as limits
from tpy_tools.load import AnswerPart, Slot
from tpy_tools.load import records as module
from tpy_tools.load.gpus import MeasuredGpu, gpus_of, use_of
from tpy_tools.load.records import NO_BODY, Body, ReceivedResponse, Record, Records

PAGE = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25
nv_gpu_utilization{gpu_uuid="GPU-2"} nonsense
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1048576
nv_gpu_power_usage{gpu_uuid="GPU-1"} 50.5
nv_energy_consumption{gpu_uuid="GPU-1"} 7
nv_inference_count{model="m",version="1"} 3
"""


def slot(number: int, call: int = 0) -> Slot:
    return cast("Slot", SimpleNamespace(number=number, call=call, begun_ns=5))


def answer(body: bytes, **headers: str) -> AnswerPart:
    return AnswerPart(200, body, True, {name.replace("_", "-"): value for name, value in headers.items()})


def test_responses_of_requests_that_go_at_the_same_time() -> None:
    records = Records(lambda slot: slot + 10)
    records.responded(slot(1, 7), answer(b"a"), 20)
    records.responded(slot(2, 8), answer(b"b"), 21)
    records.responded(slot(1, 7), answer(b"b"), 22)
    records.finished(slot(1, 7), answer(b""), 23, is_response=False)
    first = records.take()
    assert first.bodies == [Body(b"a"), Body(b"b")]
    assert first.records == [Record(7, 5, [ReceivedResponse(20, 0), ReceivedResponse(22, 1)], 11)]
    records.finished(slot(2, 8), answer(b"c", inference_header_content_length="1"), 24, is_response=True)
    second = records.take()
    assert second.bodies == [Body(b"b"), Body(b"c", 1)], "a batch has all bodies of its records"
    assert second.records == [Record(8, 5, [ReceivedResponse(21, 0), ReceivedResponse(24, 1)], 12)]


def test_a_failed_request_leaves_no_record() -> None:
    records = Records(lambda slot: 0)
    records.responded(slot(1), answer(b"a"), 20)
    records.failed(slot(1))
    records.finished(slot(1), answer(b"b"), 30, is_response=True)
    assert [len(record.responses) for record in records.take().records] == [1]


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_RECORDS_KEPT_MAX", 2)
    monkeypatch.setattr(module, "LOAD_BODIES_BYTES_MAX", 10)
    records = Records(lambda slot: 0)
    for body in (b"x" * 8, b"y" * 8, b"z"):
        records.finished(slot(1), answer(body), 20, is_response=True)
    batch = records.take()
    assert [record.responses[0].body for record in batch.records] == [0, NO_BODY]
    assert batch.left_out == 1
    assert limits.LOAD_RECORDS_KEPT_MAX > 2


def test_gpus_of_a_metrics_page() -> None:
    assert gpus_of(PAGE) == {"GPU-1": {"utilization": 0.25, "memory_used_bytes": 1048576, "power_w": 50.5, "energy_j": 7}}


def test_the_use_of_a_gpu_is_that_between_the_boundaries() -> None:
    def sample(**values: float) -> dict[str, Any]:
        return {"GPU-1": values}

    second = 10**9
    samples = [
        (0, sample(utilization=1.0, energy_j=0.0)),
        (2 * second, sample(utilization=0.5, memory_used_bytes=5.0, energy_j=100.0)),
        (4 * second, sample(utilization=0.7, memory_used_bytes=7.0, energy_j=300.0)),
        (9 * second, sample(utilization=0.0, energy_j=300.0)),
    ]
    (use,) = use_of(samples, [second, 5 * second]).values()
    assert use == MeasuredGpu(utilization=pytest.approx(0.6), memory_used_bytes=7.0, energy_j=pytest.approx(400.0))
    (powered,) = use_of([(second, sample(power_w=50.0))], [0, 4 * second]).values()
    assert powered.energy_j == pytest.approx(200.0)
    assert use_of(samples, []) == {}
