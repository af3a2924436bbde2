"""Trace files: what is written, and what a disk that fails costs."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tpy.errors import InvalidArgument
from tpy.limits import TRACE_TENSOR_BYTES_MAX, TRACES_HELD_BYTES_MAX, TRACES_RECENT_MAX
from tpy.messages import DataType, InferenceRequest, InferenceResponse, RequestRecord, Tensor
from tpy.observers import RequestObserver, RequestObservers
from tpy.telemetry.traces import trace_file
from tpy.telemetry.traces.core.setting import TraceSetting
from tpy.telemetry.traces.core.settings import ActiveSetting
from tpy.telemetry.traces.options import TraceOptions
from tpy.telemetry.traces.trace import TensorMemory, Trace
from tpy.telemetry.traces.trace_file import TraceFiles
from tpy.telemetry.traces.tracer import Tracer, tracing

BOTH = frozenset({"TIMESTAMPS", "TENSORS"})


def trace(tracer: Tracer, *inputs: Tensor, error: str = "", request_id: str = "7") -> None:
    """A request that is answered, or refused as wrong."""
    observers = RequestObservers()
    observers.add(tracer)
    record = observers.open("http", model="m", received_ns=5)
    if record is None:
        return
    record.admit(InferenceRequest(model_name="m", id=request_id, inputs=inputs), 10)
    if not error:
        record.started_ns, record.input_ns, record.infer_ns, record.output_ns = 20, 1, 2, 3
        record.respond(InferenceResponse(model_name="m", model_version=2, outputs=inputs))
    record.end(30, *(("Invalid argument", error) if error else ("OK", "")))
    record.finish(40)


def options(file: Path, **setting: object) -> TraceOptions:
    return TraceOptions(file=str(file), setting=TraceSetting(levels=BOTH, rate=1, **setting))  # type: ignore[arg-type]


def data_of(file: Path) -> list[str]:
    return [row["tensor"]["data"] for row in json.loads(file.read_text()) if row.get("activity") == "TENSOR_QUEUE_INPUT"]


def test_tensors_of_every_kind(tmp_path: Path) -> None:
    texts = np.array([b'a"b', b"\xff"], object)
    tensors = [
        Tensor("f", DataType.FP32, np.array([[1.5, -2]], np.float32)),
        Tensor("b", DataType.BOOL, np.array([True, False])),
        Tensor("i", DataType.INT8, np.array([-1, 65], np.int8)),
        Tensor("u", DataType.UINT64, np.array([2**64 - 1], np.uint64)),
        Tensor("h", DataType.BF16, np.array([0.5], ml_dtypes.bfloat16)),
        Tensor("s", DataType.BYTES, texts),
        Tensor("large", DataType.FP32, np.zeros(TRACE_TENSOR_BYTES_MAX // 4 + 1, np.float32)),
    ]
    with tracing(options(tmp_path / "t.json")) as tracer:
        trace(tracer, *tensors)
    assert data_of(tmp_path / "t.json") == ["1.5,-2", "1,0", "-1,65", "18446744073709551615", "0.5", '"a"b","\\xff"']


def test_a_tensor_is_traced_as_it_was(tmp_path: Path) -> None:
    array = np.array([1], np.int32)
    with tracing(options(tmp_path / "t.json", log_frequency=2)) as tracer:
        trace(tracer, Tensor("x", DataType.INT32, array))
        array[0] = 2  # the buffer is used again
        trace(tracer, Tensor("x", DataType.INT32, array))
    assert data_of(tmp_path / "t.json.0") == ["1", "2"]


async def test_the_newest_traces_are_kept_in_memory(tmp_path: Path) -> None:
    with tracing(options(tmp_path / "t.json")) as tracer:
        for number in range(TRACES_RECENT_MAX + 3):
            trace(tracer, request_id=str(number))
        trace(tracer, error="wrong shape")
        kept = await tracer.recent_after(0)
        assert [each.number for each in kept] == list(range(4, TRACES_RECENT_MAX + 4))
        (newest,) = await tracer.recent_after(TRACES_RECENT_MAX + 2)
    (part,) = newest.parts
    assert (part.model_name, part.request_id, part.status, part.parent_id) == ("m", str(TRACES_RECENT_MAX + 2), "OK", 0)
    moments = {moment.name: moment.ns for moment in part.timestamps}
    assert moments["QUEUE_START"] == 10
    assert (moments["COMPUTE_START"], moments["COMPUTE_INPUT_END"], moments["COMPUTE_OUTPUT_START"]) == (20, 21, 23)
    assert (moments["COMPUTE_END"], moments["HTTP_SEND_END"]) == (26, 40)


def test_refused_requests_have_no_trace(tmp_path: Path) -> None:
    with tracing(options(tmp_path / "t.json", count=2)) as tracer:
        trace(tracer)
        trace(tracer, error="wrong shape")
        assert tracer.settings()["trace_count"] == ("0",)
    rows = json.loads((tmp_path / "t.json.0").read_text())
    assert {row["id"] for row in rows} == {1}


def test_a_disk_that_fails_costs_traces_and_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with tracing(options(folder / "t.json", log_frequency=1)) as tracer:
        folder.rmdir()
        for _ in range(3):
            trace(tracer)
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.getMessage() == f"traces are lost: cannot write '{folder}/t.json': No such file or directory"


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidArgument, match=r"--trace-config triton,file: cannot write '.*': Is a directory"),
        tracing(options(tmp_path)),
    ):
        pass


def test_observers_are_told_of_what_they_want_only() -> None:
    class Everything(RequestObserver):
        def __init__(self) -> None:
            self.seen: list[RequestRecord] = []

        def finished(self, record: RequestRecord) -> None:
            self.seen.append(record)

    observers, everything = RequestObservers(), Everything()
    tracer = Tracer(TraceOptions(setting=TraceSetting(levels=BOTH, rate=2)), None)
    observers.add(tracer)
    assert observers.open("http", model="m") is None, "there is no file: nothing is traced"
    observers.add(everything)
    record = observers.open("http", model="m")
    assert record is not None
    record.finish(3)
    assert (everything.seen, list(record.attachments)) == ([record], [everything])


def test_tensors_of_traces_have_a_budget() -> None:
    """Strings count with their content, and what is written makes room."""
    element = np.empty(1, object)
    element[0] = b"x" * (TRACE_TENSOR_BYTES_MAX // 2)
    large = np.empty(1, object)
    large[0] = b"x" * (TRACE_TENSOR_BYTES_MAX + 1)
    memory = TensorMemory()
    noted = Trace(ActiveSetting(TraceSetting(levels=BOTH)), 1, memory)
    noted.note_tensors("TENSOR_QUEUE_INPUT", (Tensor("large", DataType.BYTES, large),))
    assert noted.tensors == []
    for _ in range(1000):
        noted.note_tensors("TENSOR_QUEUE_INPUT", (Tensor("s", DataType.BYTES, element),))
    assert TRACES_HELD_BYTES_MAX - TRACE_TENSOR_BYTES_MAX < memory.held <= TRACES_HELD_BYTES_MAX
    noted.release()
    assert (memory.held, noted.tensors) == (0, [])


def test_a_disk_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(trace_file, "TRACES_CLOSE_S_MAX", 0.01)
    monkeypatch.setattr(TraceFiles, "_append", lambda self, rows: goes_on.wait(30))
    files = TraceFiles(str(tmp_path / "trace.json"))
    files.write([Trace(ActiveSetting(TraceSetting(levels=BOTH)), 1, TensorMemory())], numbered=False)
    files.close()
    assert not goes_on.is_set()
    assert "the disk is too slow" in caplog.text
    goes_on.set()
