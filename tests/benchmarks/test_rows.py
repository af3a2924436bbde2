"""The choice of rows, and the computation of the ONNX row."""

import json
from pathlib import Path

import pytest

from benchmarks.load import Load, LoadFailed
from benchmarks.load.stream_client import StreamFailed, framed
from benchmarks.load.stream_pipeline import check_answer
from benchmarks.measurement import Measurement
from benchmarks.rows.batching import config_of
from benchmarks.rows.decoupled import rate_said
from benchmarks.rows.models import KINDS, Kind, code_of, request_for
from benchmarks.rows.models import config_of as config_of_kind
from benchmarks.rows.onnx import settings_for, without_clients
from benchmarks.rows.registry import ROWS, rows_named
from benchmarks.rows.tail import rate_of
from benchmarks.rows.tiny import VALUES, beside
from benchmarks.servers.models import write_python_onnx_model
from tpy._proto import message_class
from tpy.config.pbtxt import parse_pbtxt


def test_rows_are_chosen_by_name_in_the_programs_order() -> None:
    assert [row.name for row in rows_named("start, json")] == ["json", "start"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_python_models_are_such_as_a_server_takes(kind: Kind) -> None:
    config = parse_pbtxt(config_of_kind(kind)).config
    inputs = json.loads(request_for(kind).body)["inputs"]
    assert [tensor.name for tensor in config.input] == [tensor["name"] for tensor in inputs]
    assert len(config.output) == kind.tensors
    compile(code_of(kind), "model.py", "exec")


@pytest.mark.parametrize("names", ["", ",", "json,speed"])
def test_an_unknown_row_is_refused_with_the_names_there_are(names: str) -> None:
    with pytest.raises(ValueError, match=ROWS[0].name):
        rows_named(names)


def test_the_clients_time_is_left_out() -> None:
    # 2 cores for 10 s, of which clients took 4 core-seconds: 16 of 20 were left, so 8 s of the whole machine.
    assert without_clients(80, 10.0, 4.0, 2) == 10.0


def test_clients_are_kept_apart_only_where_there_are_two_cores() -> None:
    assert all(setting.client_cores is None for setting in settings_for((0,)))
    apart = [setting for setting in settings_for((2, 3, 5)) if setting.client_cores is not None]
    assert [(setting.server_cores, setting.client_cores) for setting in apart] == [((2,), (5,))]


def throughput(contender: str, value: float, *, metric: str = "throughput") -> Measurement:
    return Measurement(
        row="R", case="1", metric=metric, unit="/s", contender=contender, baseline="Triton python", round=1, value=value
    )


def test_throughputs_are_shown_again_beside_another_baseline() -> None:
    measured = [
        throughput("tpy built-in", 9.0),
        throughput("Triton python", 8.0),
        throughput("MLServer", 1.0),
        throughput("MLServer", 4.0, metric="p99 latency"),
    ]

    again = beside(measured, "R", "MLServer")

    assert [(one.contender, one.value, one.row, one.baseline) for one in again] == [
        ("tpy built-in", 9.0, "R, beside MLServer", "MLServer"),
        ("MLServer", 1.0, "R, beside MLServer", "MLServer"),
    ]
    assert not beside(measured[:2], "R", "MLServer")


@pytest.mark.parametrize(("per_s", "rate"), [(1000.0, 600), (0.5, 1)])
def test_the_rate_of_the_tail_row_is_part_of_the_peak(per_s: float, rate: int) -> None:
    peak = Load(answered=round(per_s * 2), seconds=2.0, latency_p50_ms=1.0, latency_p99_ms=2.0, cpu_s=0.0)

    assert rate_of(peak) == rate


def test_what_the_response_counters_print_is_read() -> None:
    assert rate_said("500 responses in 0.250 s\n") == 2000.0
    with pytest.raises(LoadFailed, match="Traceback"):
        rate_said("Traceback")


def test_a_message_is_framed_with_its_length() -> None:
    assert framed(b"abc") == b"\0\0\0\0\x03abc"


def stream_answer(values: bytes, error: str = "") -> bytes:
    answer = message_class("inference.ModelStreamInferResponse")(error_message=error)
    answer.infer_response.raw_output_contents.append(values)
    message: bytes = answer.SerializeToString()
    return message


def test_only_answers_that_give_back_what_was_sent_count() -> None:
    check_answer(stream_answer(VALUES.tobytes()), expected_size=0)
    with pytest.raises(StreamFailed, match="no such model"):
        check_answer(stream_answer(b"", "no such model"), expected_size=0)
    with pytest.raises(StreamFailed, match="not give back"):
        check_answer(stream_answer(bytes(64)), expected_size=0)
    with pytest.raises(StreamFailed, match="not give back"):
        check_answer(stream_answer(VALUES.tobytes()), expected_size=7)


@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
@pytest.mark.parametrize("batch", [1, 64])
def test_the_batching_model_batches_when_it_may(backend: str, batch: int) -> None:
    text = config_of(backend, batch)

    assert ("dynamic_batching { }" in text) == (batch > 1)
    assert ("intra_op_thread_count" in text) == (backend == "onnxruntime")


def test_the_onnx_model_of_the_python_backend_is_python(tmp_path: Path) -> None:
    write_python_onnx_model(tmp_path, "m", tmp_path / "it's.onnx", config_of("python", 8), Path("/some where"))

    source = (tmp_path / "m" / "1" / "model.py").read_text()
    compile(source, "model.py", "exec")
    assert "sys.path.append('/some where')" in source
