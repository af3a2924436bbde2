"""Responses and errors: what the recorded exchanges do not show."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tpy.errors import ErrorCode, Internal, InvalidArgument, Unavailable, Unknown
from tpy.frontends.bytes_tensor import object_array
from tpy.frontends.http.codec import (
    BINARY_PLAN,
    HTTP_STATUS,
    JSON_PLAN,
    HttpOutputPlan,
    OutputChoice,
    encode_error,
    encode_infer,
)
from tpy.frontends.http.codec.generate import encode_generate
from tpy.messages import DataType, InferenceResponse, Tensor
from tpy.messages.datatypes import from_numpy

from .exchanges import describe

MODEL = describe("m", {"max_batch_size": 2, "inputs": [["IN0", "FP32", [-1]]], "labels": ["cat"]})


def response(*arrays: Any, **members: Any) -> InferenceResponse:
    tensors = tuple(Tensor(f"OUT{place}", from_numpy(array.dtype), array) for place, array in enumerate(arrays))
    return InferenceResponse(model_name="m", model_version=2, outputs=tensors, **members)


def as_json(answer: InferenceResponse, plan: HttpOutputPlan = JSON_PLAN) -> Any:
    return json.loads(bytes(encode_infer(answer, plan, MODEL).parts[0]))


def test_members() -> None:
    document = as_json(response(id="x", parameters={"a": 1, "b": True, "c": "s", "d": 0.5}))
    assert document == {
        "id": "x",
        "model_name": "m",
        "model_version": "2",
        "parameters": {"a": 1, "b": True, "c": "s", "d": 0.5},
        "outputs": [],
    }
    assert "id" not in as_json(response())


def test_large_blobs_are_views_over_the_outputs() -> None:
    array = np.arange(10_000, dtype=np.int32).reshape(100, 100)
    encoded = encode_infer(response(array), BINARY_PLAN, MODEL)
    head, blob = encoded.parts
    assert json.loads(bytes(head))["outputs"] == [
        {"name": "OUT0", "datatype": "INT32", "shape": [100, 100], "parameters": {"binary_data_size": 40_000}}
    ]
    assert np.shares_memory(np.frombuffer(blob, np.uint8), array)
    assert (encoded.json_length, encoded.content_length) == (len(head), len(head) + 40_000)
    assert encoded.content_type == "application/octet-stream"


def test_any_layout_is_written_row_major() -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    scalar = np.array(7, np.int64)
    encoded = encode_infer(response(array, scalar), BINARY_PLAN, MODEL)
    assert b"".join(encoded.parts[1:]) == b"\x00\x03\x01\x04\x02\x05" + (7).to_bytes(8, "little")
    document = as_json(response(array, scalar))
    assert [output["data"] for output in document["outputs"]] == [[0, 3, 1, 4, 2, 5], [7]]
    assert [output["shape"] for output in document["outputs"]] == [[3, 2], []]


@pytest.mark.parametrize("size", [3, 1000])
def test_fp32_is_written_with_the_digits_of_a_double(size: int) -> None:
    text = bytes(encode_infer(response(np.full(size, 0.1, np.float32)), JSON_PLAN, MODEL).parts[0])
    assert text.count(b"0.10000000149011612") == size


@pytest.mark.parametrize("size", [3, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_literals(size: int, dtype: Any) -> None:
    array = np.zeros(size, dtype)
    array[:3] = [np.nan, np.inf, -np.inf]
    text = bytes(encode_infer(response(array), JSON_PLAN, MODEL).parts[0])
    assert b'"data":[NaN,Infinity,-Infinity' in text
    assert b"null" not in text


def test_any_nan_is_written_without_a_warning() -> None:
    numbers = np.full(100, 0x7F800001, np.uint32).view(np.float32)  # it signals
    text = bytes(encode_infer(response(numbers), JSON_PLAN, MODEL).parts[0])
    assert text.count(b"NaN") == 100


def test_a_text_null_stays_a_text() -> None:
    array = np.array([b"null", "é".encode()], dtype=object)
    text = bytes(encode_infer(response(array, parameters={"x": float("nan")}), JSON_PLAN, MODEL).parts[0])
    document = json.loads(text)
    assert document["outputs"][0]["data"] == ["null", "é"]
    assert document["parameters"]["x"] != document["parameters"]["x"]


def test_what_json_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="output 'OUT0' holds bytes that are not UTF-8"):
        as_json(response(np.array([b"\xff"], dtype=object)))
    with pytest.raises(InvalidArgument, match="sending FP16 data via JSON is not supported"):
        as_json(response(np.zeros(1, np.float16)))


def test_parameters_that_grpc_cannot_carry_are_refused_here_too() -> None:
    extremes = {"big": 2**64 - 1, "small": -(2**63)}
    assert as_json(response(parameters=extremes))["parameters"] == extremes
    for parameters in ({"big": 2**64}, {"big": -(2**63) - 1}, {"half": "\ud800"}):
        for encode in (as_json, encode_generate):
            with pytest.raises(Internal, match=r"^response parameter '(big|half)' is"):
                encode(response(parameters=parameters))


@pytest.mark.parametrize("shape", [(), (1, 1), (2, 3), (0,), (40_000, 1), (3, 2, 20_000), (2, 20_000)])
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.object_])
def test_generate_nests_outputs_when_it_is_asked_to(shape: tuple[int, ...], kind: type) -> None:
    flat = np.arange(np.prod(shape, dtype=int))
    values = flat.astype(kind).reshape(shape) if kind is not np.object_ else object_array([b"%d" % n for n in flat], shape)
    expected = np.array([element.decode() for element in values.reshape(-1)]).reshape(shape) if kind is np.object_ else values
    document = json.loads(b"".join(encode_generate(response(values), rows=True)))
    assert document["OUT0"] == expected.tolist()


def test_only_the_chosen_output_is_classified() -> None:
    plan = HttpOutputPlan(choices={"OUT0": OutputChoice(classification=1), "OUT1": OutputChoice()})
    values = np.array([[1.0, 2.0]], np.float32)
    first, second = as_json(response(values, values), plan)["outputs"]
    assert first == {"name": "OUT0", "datatype": "BYTES", "shape": [1, 1], "data": ["2.000000:1"]}
    assert second["data"] == [1.0, 2.0]


def test_an_error_is_raised() -> None:
    with pytest.raises(Unavailable, match="queue"):
        encode_infer(response(error=Unavailable("queue")), JSON_PLAN, MODEL)


def test_error_bodies() -> None:
    assert encode_error(InvalidArgument('a "quoted" null é')) == '{"error":"a \\"quoted\\" null é"}'.encode()
    assert json.loads(encode_error(Unknown("half \ud800"))) == {"error": "half \\ud800"}


def test_every_code_has_a_status() -> None:
    assert HTTP_STATUS.keys() == set(ErrorCode)


def test_datatypes_are_named_as_in_the_protocol() -> None:
    kinds = [kind for kind in DataType if kind.itemsize]
    encoded = encode_infer(response(*[np.zeros(1, kind.numpy) for kind in kinds]), BINARY_PLAN, MODEL)
    outputs = json.loads(bytes(encoded.parts[0]))["outputs"]
    assert [output["datatype"] for output in outputs] == [kind.value for kind in kinds]
    assert [output["parameters"]["binary_data_size"] for output in outputs] == [kind.itemsize for kind in kinds]
