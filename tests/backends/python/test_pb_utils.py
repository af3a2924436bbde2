"""`triton_python_backend_utils` as a unit test of a model.py sees it: without a server."""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import triton_python_backend_utils as pb_utils


def test_a_model_can_be_tested_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    request = pb_utils.InferenceRequest(
        request_id="one",
        inputs=[pb_utils.Tensor("IN", np.arange(2))],
        requested_output_names=["OUT"],
        parameters={"a": 1, "b": "x", "c": True},
        flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
    )
    assert request.parameters() == '{"a": 1, "b": "x", "c": true}'
    assert request.requested_output_names() == {"OUT"}
    assert not request.is_cancelled()
    request.set_flags(2)
    assert request.flags() == 2
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
    tensor = pb_utils.get_input_tensor_by_name(request, "IN")
    assert tensor is not None
    assert pb_utils.get_input_tensor_by_name(request, "NONE") is None
    response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())])
    assert pb_utils.get_output_tensor_by_name(response, "OUT") is not None
    assert (response.has_error(), response.error(), response.parameters()) == (False, None, "{}")
    pb_utils.Logger.log_warn("careful")
    assert capsys.readouterr().err == "warning: careful\n"
    with pytest.raises(pb_utils.TritonModelException, match="served model only"):
        pb_utils.get_model_dir()


def test_tensors_keep_what_they_are_given() -> None:
    array = np.zeros((2, 3), np.float32)
    tensor = pb_utils.Tensor("x", array)
    assert tensor.as_numpy() is array
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("x", [2, 3], 11, True)
    assert pb_utils.Tensor("x", array.T).as_numpy().flags.c_contiguous
    assert pb_utils.Tensor("x", np.array([b"ab", b"c"])).as_numpy().dtype == "S2"
    assert pb_utils.Tensor("x", np.array(["é", 1], object)).triton_dtype() == 13
    masked = np.ma.masked_array([1, 2], mask=[False, True])
    assert type(pb_utils.Tensor("x", masked).as_numpy()) is np.ndarray


@pytest.mark.parametrize("array", [np.array(["text"]), np.zeros(1, "datetime64[s]"), np.zeros(1, complex), np.zeros(1, ">i4")])
def test_arrays_of_other_types_are_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=r"^NumPy dtype is not supported\.$"):
        pb_utils.Tensor("x", array)


def test_wrong_arguments() -> None:
    for wrong in (
        lambda: pb_utils.Tensor("x", [1.0]),
        lambda: pb_utils.Tensor(1, np.zeros(1)),
        lambda: pb_utils.InferenceResponse([np.zeros(1)]),
        lambda: pb_utils.InferenceResponse([], error="text"),
        lambda: pb_utils.TritonError(1),
        lambda: pb_utils.TritonError("x", 5),
        lambda: pb_utils.InferenceRequest(inputs=[1]),
        lambda: pb_utils.Logger.log("x", 5),
    ):
        with pytest.raises(TypeError):
            wrong()
    for parameters, text in (({"a": 1.5}, "values to have type bool/int/str, found"), ({1: 1}, "keys to have type str, found")):
        with pytest.raises(pb_utils.TritonModelException, match=f"Expect parameters {text} type <class '"):
            pb_utils.InferenceRequest(parameters=parameters)
    with pytest.raises(pb_utils.TritonModelException, match=r"^Tensor name '\\udcff' is not valid Unicode\.$"):
        pb_utils.Tensor("\udcff", np.zeros(1))
    assert pb_utils.Tensor("é", np.zeros(1)).name() == "é"
    with pytest.raises(pb_utils.TritonModelException, match="Correlation ID must be integer or string"):
        pb_utils.InferenceRequest(correlation_id=1.5)


def test_errors_carry_a_code() -> None:
    assert pb_utils.TritonError("x").code() == pb_utils.TritonError.INTERNAL
    error = pb_utils.TritonError(message="x", code=pb_utils.TritonError.CANCELLED)
    assert (str(error.code()), f"{error.code():>22}", int(error.code())) == ("__ErrorCode.CANCELLED", " __ErrorCode.CANCELLED", 7)
    assert (error.message(), int(error.code())) == ("x", 7)
    assert issubclass(pb_utils.TritonModelException, Exception)


def test_dlpack_shares_memory() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    tensor = pb_utils.Tensor("x", array)
    assert tensor.__dlpack_device__() == (1, 0)
    seen = np.from_dlpack(tensor)
    assert seen.tolist() == array.tolist()
    array[0, 0] = 9
    assert seen[0, 0] == 9
    again = pb_utils.Tensor.from_dlpack("y", tensor.to_dlpack())
    assert np.shares_memory(again.as_numpy(), array)
    assert not np.shares_memory(np.from_dlpack(tensor, copy=True), array), "whoever asks for a copy may write to it"
    assert pb_utils.Tensor.from_dlpack("z", array > 3).as_numpy().dtype == bool
    fixed = array.copy()
    fixed.flags.writeable = False
    assert pb_utils.Tensor.from_dlpack("z", pb_utils.Tensor("w", fixed)).as_numpy().tolist() == fixed.tolist()


def test_dlpack_as_the_array_api_standard_has_it() -> None:
    array = np.arange(4, dtype=np.float32)
    tensor = pb_utils.Tensor("x", array)
    for options in ({}, {"copy": False}, {"stream": None}, {"dl_device": (1, 0)}, {"max_version": (1, 0)}):
        assert np.shares_memory(np.from_dlpack(_Consumer(tensor, options)), array), options
    assert not np.shares_memory(np.from_dlpack(_Consumer(tensor, {"copy": True})), array)
    with pytest.raises(BufferError, match="cannot be given on"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="no stream 7"):
        tensor.__dlpack__(stream=7)
    array.flags.writeable = False
    fixed = pb_utils.Tensor("x", array)
    with pytest.raises(BufferError, match="has to be copied"):
        fixed.__dlpack__(copy=False)
    assert not np.shares_memory(np.from_dlpack(_Consumer(fixed, {})), array), "who cannot be told may write"
    told = np.from_dlpack(_Consumer(fixed, {"max_version": (1, 0)}))
    assert np.shares_memory(told, array)
    assert not told.flags.writeable


class _Consumer:
    """Asks a tensor for its memory with these options, whatever NumPy's are."""

    def __init__(self, tensor: pb_utils.Tensor, options: dict[str, object]) -> None:
        self.tensor = tensor
        self.options = options

    def __dlpack__(self, **_: object) -> object:
        return self.tensor.__dlpack__(**self.options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


def test_bf16_by_dlpack() -> None:
    numbers = np.array([1.5, -2], ml_dtypes.bfloat16)
    tensor = pb_utils.Tensor("x", numbers)
    assert tensor.triton_dtype() == 14
    assert pb_utils.Tensor.from_dlpack("y", tensor).triton_dtype() == 14
    with pytest.raises(pb_utils.TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"):
        tensor.as_numpy()


def test_what_dlpack_cannot_do() -> None:
    cases = [
        (lambda: pb_utils.Tensor("o", np.array([b"a"], object)).to_dlpack(), "DLPack does not have support for string tensors."),
        (lambda: pb_utils.Tensor.from_dlpack("", np.zeros(1)), "Tensor name cannot be an empty string."),
        (lambda: pb_utils.Tensor.from_dlpack("a", 3), "Provided tensor is not supported. Tensor must be a DLPack capsule"),
        (lambda: pb_utils.Tensor.from_dlpack("a", np.arange(6)[::2]), "DLPack tensor is not contiguous."),
        (lambda: pb_utils.Tensor.from_dlpack("a", np.zeros(1, complex)), "is not supported"),
        (lambda: pb_utils.Tensor.from_dlpack("a", _OnRocm()), "lies on device type 10"),
    ]
    for attempt, text in cases:
        with pytest.raises(pb_utils.TritonModelException) as caught:
            attempt()
        assert text in str(caught.value)


class _OnRocm:
    def __dlpack__(self) -> object:
        raise AssertionError("not asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (10, 0)


def test_types_translate() -> None:
    for number, kind in ((1, np.bool_), (10, np.float16), (12, np.float64), (13, np.object_)):
        assert pb_utils.triton_to_numpy_type(number) == kind
        assert pb_utils.numpy_to_triton_type(kind) == number
    assert pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.numpy_to_triton_type(np.dtype(np.float32)) == 11
    for other in (np.complex64, np.str_, int, bool, "float32", "nosuch", None, 5, object()):
        assert pb_utils.numpy_to_triton_type(other) is None
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.triton_string_to_numpy("TYPE_FP32") is np.float32
    assert pb_utils.triton_string_to_numpy("TYPE_UINT8") is np.uint8
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_BYTES")


def test_bytes_serialise() -> None:
    encoded = pb_utils.serialize_byte_tensor(np.array([["a", b"b\0"]], object))
    assert encoded == b"\x01\0\0\0a\x02\0\0\0b\0"
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == [b"a", b"b\0"]
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(1)) is None
    with pytest.raises(struct.error):
        pb_utils.deserialize_bytes_tensor(b"\x05\0\0\0a")


def test_configurations_are_searched_by_name() -> None:
    config = {"input": [{"name": "A"}, {"name": "B"}], "output": [{"name": "C"}]}
    assert pb_utils.get_input_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_input_config_by_name(config, "C") is None
    assert pb_utils.get_output_config_by_name(config, "C") == {"name": "C"}
    assert not pb_utils.using_decoupled_model_transaction_policy(config)
    assert pb_utils.using_decoupled_model_transaction_policy({"model_transaction_policy": {"decoupled": True}})


@pytest.mark.parametrize("parameters", [[], "", 0, (), [1], "x"])
def test_parameters_are_a_dict_or_none(parameters: Any) -> None:
    """Also where what they are is empty. 2.51, which has none in responses, refuses any there with a TypeError."""
    with pytest.raises(TypeError, match="parameters"):
        pb_utils.InferenceResponse([], parameters=parameters)
    with pytest.raises(pb_utils.TritonModelException, match=f"^Expect N8pybind114dictE, got {type(parameters)}$"):
        pb_utils.InferenceRequest(inputs=[], parameters=parameters)
    for fine in ({}, None):
        assert pb_utils.InferenceResponse([], parameters=fine).parameters() == "{}"
        assert pb_utils.InferenceRequest(inputs=[], parameters=fine).parameters() == "{}"
