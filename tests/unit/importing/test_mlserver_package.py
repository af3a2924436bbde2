"""The package that is put beside models of MLServer: messages, codecs and batches, without a server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, List, Optional, Tuple, Union  # noqa: UP035  # what models are annotated with

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpy_tools.commands.importing.mls import MLModel, ModelSettings, batches, metrics
from tpy_tools.commands.importing.mls.codecs import (
    Base64Codec,
    CodecError,
    DatetimeCodec,
    NumpyCodec,
    NumpyRequestCodec,
    PandasCodec,
    StringCodec,
    StringRequestCodec,
    decode_args,
    get_decoded_or_raw,
)
from tpy_tools.commands.importing.mls.codecs.base import InputCodec, find_input_codec, register_input_codec
from tpy_tools.commands.importing.mls.codecs.errors import CodecNotFound, InputsNotFound, OutputNotFound
from tpy_tools.commands.importing.mls.errors import InvalidModelURI
from tpy_tools.commands.importing.mls.settings import ModelParameters
from tpy_tools.commands.importing.mls.tensors import array_of, arrays_of, request_of
from tpy_tools.commands.importing.mls.types import (
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
    TensorData,
)
from tpy_tools.commands.importing.mls.utils import get_model_uri

KINDS = {"BOOL": "bool", "UINT8": "uint8", "INT16": "int16", "INT64": "int64", "FP16": "float16", "FP32": "float32"}


def given_request(
    *tensors: tuple[str, str, np.ndarray[Any, Any]], parameters: str = "", outputs: Sequence[str] = ()
) -> InferenceRequest:
    return request_of(
        {name: array for name, _, array in tensors},
        {name: datatype for name, datatype, _ in tensors},
        request_id="7",
        parameters=parameters,
        outputs=outputs,
    )


def texts(*elements: bytes) -> np.ndarray[Any, Any]:
    array = np.empty((len(elements), 1), object)
    array[:, 0] = elements
    return array


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, np.ndarray[Any, Any]]:
    datatype = draw(st.sampled_from(sorted(KINDS)))
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=4))
    return datatype, draw(hnp.arrays(KINDS[datatype], shape))


@settings(max_examples=25)
@given(tensors())
def test_arrays_come_back_as_they_went_in(drawn: tuple[str, np.ndarray[Any, Any]]) -> None:
    datatype, array = drawn
    [tensor] = given_request(("x", datatype, array)).inputs
    decoded = NumpyCodec.decode_input(tensor)
    np.testing.assert_array_equal(decoded, array)
    output = NumpyCodec.encode_output("y", decoded)
    assert (output.datatype, output.shape) == (datatype, list(array.shape))
    np.testing.assert_array_equal(array_of(output), array)
    # By the lists that MLServer has there, the same.
    listed = ResponseOutput(name="y", datatype=datatype, shape=array.shape, data=array.tolist())
    np.testing.assert_array_equal(array_of(listed), array)
    np.testing.assert_array_equal(NumpyCodec.decode_output(listed), array)


@settings(max_examples=25)
@given(st.lists(st.text(), min_size=1))
def test_texts_come_back_as_they_went_in(words: list[str]) -> None:
    array = array_of(StringCodec.encode_output("x", words))
    assert (array.shape, [each.decode() for each in array.ravel()]) == ((len(words), 1), words)
    [tensor] = given_request(("x", "BYTES", array)).inputs
    assert tensor.data.root == words
    assert StringCodec.decode_input(tensor) == words
    assert StringCodec.encode_input("x", words, use_bytes=False).data.root == words


@settings(max_examples=25)
@given(st.lists(st.binary(), min_size=1))
def test_bytes_come_back_as_they_went_in(content: list[bytes]) -> None:
    array = array_of(Base64Codec.encode_output("x", content))
    [tensor] = given_request(("x", "BYTES", array)).inputs
    assert Base64Codec.decode_input(tensor) == content


@settings(max_examples=25)
@given(st.lists(st.datetimes(timezones=st.sampled_from([None, UTC])), min_size=1))
def test_times_come_back_as_they_went_in(times: list[datetime]) -> None:
    array = array_of(DatetimeCodec.encode_output("x", times))
    [tensor] = given_request(("x", "BYTES", array)).inputs
    assert DatetimeCodec.decode_input(tensor) == times
    assert DatetimeCodec.can_encode(times)


def test_elements_that_are_not_text_stay_bytes() -> None:
    [tensor] = given_request(("x", "BYTES", texts(b"a", b"\xff"))).inputs
    assert tensor.data.root == [b"a", b"\xff"]
    assert Base64Codec.decode_input(tensor)[1] == b"\xff"
    with pytest.raises(UnicodeDecodeError):
        StringCodec.decode_input(tensor)


@settings(max_examples=25)
@given(st.lists(hnp.arrays("int32", st.tuples(st.integers(1, 3), st.just(2))), min_size=1, max_size=5))
def test_a_batch_answers_as_its_requests_would(parts: list[np.ndarray[Any, Any]]) -> None:
    requests = [given_request(("x", "INT32", part), ("word", "BYTES", texts(*[b"%d" % len(part)] * len(part)))) for part in parts]
    assert len({batches.kind_of(each) for each in requests}) == 1

    def answer(request: InferenceRequest) -> InferenceResponse:
        x, word = request.inputs
        outputs = [
            NumpyCodec.encode_output("double", NumpyCodec.decode_input(x) * 2),
            StringCodec.encode_output("word", StringCodec.decode_input(word)),
        ]
        return InferenceResponse(model_name="m", outputs=outputs, parameters=Parameters(mine=1))

    found = batches.parts_of(answer(batches.merged(requests)), requests)
    for each, request in zip(found, requests, strict=True):
        expected = arrays_of(answer(request))
        assert each.parameters == Parameters(mine=1)
        assert {name: array.tolist() for name, array in arrays_of(each).items()} == {
            name: array.tolist() for name, array in expected.items()
        }


def test_requests_that_differ_do_not_share_a_batch() -> None:
    x = ("x", "INT32", np.zeros((1, 2), np.int32))
    assert (
        len(
            {
                batches.kind_of(each)
                for each in (
                    given_request(x),
                    given_request(x, parameters='{"a": 1}'),
                    given_request(x, parameters='{"x.content_type": "np"}'),
                    given_request(x, outputs=["y"]),
                    given_request(("x", "INT32", np.zeros((1, 3), np.int32))),
                )
            }
        )
        == 5
    )


def test_an_output_with_other_rows_than_its_batch_is_an_error() -> None:
    requests = [given_request(("x", "INT32", np.zeros((1, 2), np.int32)))] * 2
    response = InferenceResponse(model_name="m", outputs=[NumpyCodec.encode_output("y", np.zeros((1, 1)))])
    with pytest.raises(ValueError, match=r"output 'y' has the shape \[1, 1\], for 2 rows of a batch"):
        batches.parts_of(response, requests)


def test_outputs_as_models_make_them() -> None:
    def made(datatype: str, shape: list[int], data: Any) -> Any:
        return array_of(ResponseOutput(name="y", datatype=datatype, shape=shape, data=data)).tolist()

    assert made("BYTES", [25], [b"a text of MLServer's example"]) == [b"a text of MLServer's example"]
    assert made("BYTES", [1], "text") == [b"text"]
    assert made("BYTES", [2, 1], [["a"], [b"b"]]) == [[b"a"], [b"b"]]
    assert made("BYTES", [2], np.array(["a", "b"])) == [b"a", b"b"]
    assert made("FP32", [2], [1, None])[0] == 1
    assert np.isnan(made("FP32", [2], [1, None])[1])
    with pytest.raises(ValueError, match=r"output 'y' has 3 elements, and the shape \[2\]"):
        made("INT64", [2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"output 'y' has 1 elements, and the shape \[2, 1\]"):
        made("BYTES", [2, 1], ["a"])


def test_messages() -> None:
    tensor = RequestInput(name="x", shape=(1, 2), datatype="FP32", data=[1, 2], unknown=1)
    assert tensor.model_dump() == {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    assert (tensor.datatype, tensor.parameters, list(tensor.data), tensor.data[1], len(tensor.data)) == (
        "FP32",
        None,
        [1, 2],
        2,
        2,
    )
    tensor.parameters = Parameters(content_type="np", mine=5)
    assert tensor.parameters.model_extra == {"mine": 5}
    assert json.loads(tensor.model_dump_json()) == tensor.model_dump()
    request = InferenceRequest.model_validate({"inputs": [tensor.model_dump()], "id": None})
    assert request.inputs[0] == tensor
    assert request.model_dump(exclude_none=False) == {"id": None, "inputs": [tensor.model_dump()]}
    assert InferenceRequest.model_validate_json(request.model_dump_json()) == InferenceRequest(inputs=[tensor])
    assert repr(TensorData([1])) == "TensorData(root=[1])"
    assert StringCodec.encode_output("x", ["a"]).dict()["data"] == [b"a"]
    assert '"data":["a"]' in StringCodec.encode_output("x", ["a"]).json()
    for wrong in ({"name": "x"}, {"name": "x", "shape": [1], "datatype": "FP31", "data": []}):
        with pytest.raises(ValueError, match=r"missing|FP31"):
            RequestInput(**wrong)
    with pytest.raises(ValueError, match="expected names and values"):
        InferenceRequest.model_validate([])


def test_codecs_are_found_by_content_type_value_and_settings() -> None:
    said = ModelSettings(
        name="m",
        inputs=[MetadataTensor(name="x", datatype="BYTES", shape=[-1], parameters=Parameters(content_type="base64"))],
        outputs=[MetadataTensor(name="y", datatype="BYTES", shape=[-1], parameters=Parameters(content_type="str"))],
        parameters=ModelParameters(content_type="np"),
    )
    model = MLModel(said)
    array = texts(b"AAE=")
    assert model.decode(given_request(("x", "BYTES", array)).inputs[0]) == [b"\x00\x01"]
    said = given_request(("x", "BYTES", array), parameters='{"x.content_type": "str", "mine": 2}')
    assert model.decode(said.inputs[0]) == ["AAE="]
    assert (get_decoded_or_raw(said.inputs[0]), said.parameters.model_extra if said.parameters else None) == (
        ["AAE="],
        {"mine": 2},
    )
    other = given_request(("z", "FP32", np.ones((1, 2), np.float32)))
    assert model.decode(other.inputs[0]).root == [1.0, 1.0]
    assert model.decode(other.inputs[0], default_codec=NumpyCodec).shape == (1, 2)
    np.testing.assert_array_equal(model.decode_request(other), np.ones((1, 2)))
    said.parameters = None
    assert model.decode_request(other) is not None
    assert model.encode(["a"], RequestOutput(name="y")).parameters == Parameters(content_type="str")
    assert model.encode(np.ones(2), RequestOutput(name="z")).shape == [2, 1]
    assert model.encode_response(["a"]).outputs[0].name == "output-1"
    with pytest.raises(CodecNotFound, match="Codec not found for output field with name 'z'"):
        model.encode(object(), RequestOutput(name="z"))
    with pytest.raises(CodecNotFound, match="output response with type"):
        model.encode_response(object())
    two = InferenceRequest(inputs=[*other.inputs, *said.inputs])
    with pytest.raises(CodecError, match=r"'np' codec only supports a single input tensor \(2 were received\)"):
        NumpyRequestCodec.decode_request(two)
    assert StringRequestCodec.decode_response(StringRequestCodec.encode_response("m", ["a", "b"])) == ["a", "b"]
    assert NumpyRequestCodec.decode_request(NumpyRequestCodec.encode_request(np.ones((1, 1)))).tolist() == [[1.0]]


def test_a_codec_of_ones_own() -> None:
    class Upper(StringCodec):
        ContentType = "upper"
        TypeHint = frozenset

        @classmethod
        def can_encode(cls, payload: Any) -> bool:
            return isinstance(payload, frozenset)

        @classmethod
        def decode_input(cls, request_input: RequestInput) -> Any:
            return frozenset(each.upper() for each in super().decode_input(request_input))

    register_input_codec(Upper)
    assert find_input_codec("upper") is Upper
    assert find_input_codec(payload=frozenset("a")) is Upper
    tensor = given_request(("x", "BYTES", texts(b"a")), parameters='{"x.content_type": "upper"}').inputs[0]
    assert MLModel(ModelSettings(name="m")).decode(tensor) == {"A"}
    with pytest.raises(NotImplementedError):
        InputCodec.decode_input(tensor)


class Arguments(MLModel):
    @decode_args
    async def predict(
        self,
        a: np.ndarray,  # type: ignore[type-arg]
        words: Optional[List[str]] = None,  # noqa: UP006, UP045
        times: Union[List[Union[str, datetime]], None] = None,  # noqa: UP006, UP007
        more: list[bytes] | None = None,
    ) -> Tuple[np.ndarray, List[str]]:  # type: ignore[type-arg]  # noqa: UP006
        self.got = words, times, more
        return (a * 2, words or []) if a[0, 0] else 5


def test_arguments_of_predict() -> None:
    model = Arguments(ModelSettings(name="m", parameters=ModelParameters(version="v1")))
    a = ("a", "INT32", np.ones((1, 2), np.int32))
    request = given_request(
        a, ("words", "BYTES", texts(b"x")), ("times", "BYTES", texts(b"2026-01-01")), ("more", "BYTES", texts(b"AA=="))
    )
    response = asyncio.run(model.predict(request))
    assert model.got == (["x"], [datetime(2026, 1, 1)], [b"\0"])
    assert [(each.name, array_of(each).tolist()) for each in response.outputs] == [("output-0", [[2, 2]]), ("output-1", [[b"x"]])]
    assert response.model_version == "v1"
    asyncio.run(model.predict(given_request(a)))
    assert model.got == (None, None, None)
    with pytest.raises(InputsNotFound, match=r"Input 'b' was not found. Available inputs are 'a', 'words', 'times', 'more'\."):
        asyncio.run(model.predict(given_request(a, ("b", "INT32", np.ones((1, 1), np.int32)))))
    with pytest.raises(OutputNotFound, match="Unexpected output value at position '0'"):
        asyncio.run(model.predict(given_request(("a", "INT32", np.zeros((1, 2), np.int32)))))
    with pytest.raises(CodecNotFound, match="Codec not found for input field with name 'x' and type <class 'int'>"):

        @decode_args
        async def predict(self, x: int) -> None: ...


def test_data_frames() -> None:
    if find_spec("pandas") is None:
        assert "pandas" not in sys.modules
        assert not PandasCodec.can_encode(object())
        pytest.skip("needs pandas")
    import pandas as pd

    frame = pd.DataFrame({"n": [1, 2], "x": [0.5, None], "s": ["a", "b"], "d": [{"k": 1}, [2]]})
    response = PandasCodec.encode_response("m", frame)
    assert [(each.name, each.datatype, each.shape) for each in response.outputs] == [
        ("n", "INT64", [2, 1]),
        ("x", "FP64", [2, 1]),
        ("s", "BYTES", [2, 1]),
        ("d", "BYTES", [2, 1]),
    ]
    assert response.outputs[3].data.root == [b'{"k":1}', b"[2]"]
    back = PandasCodec.decode_response(response)
    assert back["d"].tolist() == [{"k": 1}, [2]]
    assert back["n"].tolist() == [1, 2]
    request = given_request(("n", "INT32", np.array([[1], [2]], np.int32)), ("s", "BYTES", texts(b"a", b"b")))
    decoded = PandasCodec.decode_request(request)
    assert (decoded["n"].dtype, decoded["n"].tolist(), decoded["s"].tolist()) == ("int32", [1, 2], ["a", "b"])


def test_settings_and_the_path_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "model-settings.json").write_text(
        '{"name": "m", "implementation": "a.B", "parameters": {"uri": "./w", "mine": 1}}'
    )
    (tmp_path / "w").mkdir()
    said = ModelSettings.parse_file(str(tmp_path / "model-settings.json"))
    assert said.parameters is not None
    assert (said.parameters.extra, said.parameters.model_extra, said.version) == ({}, {"mine": 1}, None)
    assert asyncio.run(get_model_uri(said, ["a.bin"])) == str(tmp_path / "w")
    (tmp_path / "w" / "a.bin").touch()
    assert asyncio.run(get_model_uri(said, ["b.bin", "a.bin"])) == str(tmp_path / "w" / "a.bin")
    said.parameters.uri = "s3://bucket/a"
    assert asyncio.run(get_model_uri(said)) == "s3://bucket/a"
    said.parameters.uri = "none"
    with pytest.raises(InvalidModelURI, match="Invalid URI specified for model m"):
        asyncio.run(get_model_uri(said))


def test_a_metric_that_the_server_refuses_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def refuse(name: str, *_: object) -> Any:
        asked.append(name)
        raise RuntimeError("taken")

    metrics.set_context("m", "", refuse)
    metrics.log(refused_rows=1)
    metrics.log(refused_rows=2)
    assert asked == ["refused_rows"]
    assert [each.getMessage() for each in caplog.records] == ["metric refused_rows is left out"]
