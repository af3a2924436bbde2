"""Inference messages to and from the server's own: every datatype, every refusal, and no copies of large tensors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.frontends.grpc.codec_messages import FP32, NUMERIC, TYPED, decode, encoded, refusal, request, response_of, typed
from tests.frontends.http.fakes import describe
from tpy import limits
from tpy.echo import echo
from tpy.errors import ErrorCode, Internal, InvalidArgument, NotFound, TpyError, Unsupported
from tpy.frontends.grpc import codec
from tpy.frontends.grpc.calls import GRPC_STATUS
from tpy.frontends.grpc.codec import wire
from tpy.frontends.grpc.codec.fields import FieldBudget
from tpy.messages import DataType, SequencePosition, Tensor
from tpy.messages.datatypes import BY_WORD


@pytest.mark.parametrize("kind", NUMERIC, ids=lambda kind: kind.value)
def test_raw_contents_of_every_datatype_go_in_and_out(kind: DataType) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(kind.numpy)
    inputs = decode(request(("INPUT0", kind.value, [2, 3]), raw=(array.tobytes(),)))[0].inputs
    assert inputs[0].datatype is kind
    assert inputs[0].array.dtype == kind.numpy
    np.testing.assert_array_equal(inputs[0].array, array)
    answer = encoded(response_of(Tensor("OUTPUT0", kind, inputs[0].array)))
    assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == (kind.value, [2, 3])
    assert answer.raw_output_contents[0] == array.tobytes()


@pytest.mark.parametrize(("word", "field"), TYPED.items(), ids=TYPED)
def test_typed_contents_of_every_datatype_are_read(word: str, field: str) -> None:
    values = [True, False] if word == "BOOL" else [1, 100]
    tensor = decode(typed(word, [1, 2], field, values))[0].inputs[0]
    assert tensor.array.dtype == BY_WORD[word].numpy
    assert tensor.array.tolist() == [values]


def test_integers_of_typed_contents_are_cut_to_their_width() -> None:
    assert decode(typed("INT8", [2], "int_contents", [300, -129]))[0].inputs[0].array.tolist() == [44, 127]
    assert decode(typed("UINT16", [1], "uint_contents", [65537]))[0].inputs[0].array.tolist() == [1]


def test_texts_go_in_and_out() -> None:
    from_typed = decode(typed("BYTES", [3], "bytes_contents", [b"a", b"", b"\xff"]))[0].inputs[0]
    raw = b"\1\0\0\0a\0\0\0\0\1\0\0\0\xff"
    from_raw = decode(request(("INPUT0", "BYTES", [3]), raw=(raw,)))[0].inputs[0]
    assert from_typed.array.tolist() == from_raw.array.tolist() == [b"a", b"", b"\xff"]
    assert encoded(response_of(Tensor("OUTPUT0", DataType.BYTES, from_raw.array))).raw_output_contents[0] == raw


def test_raw_contents_are_taken_in_the_order_of_the_inputs() -> None:
    first, second = np.int32([1, 2]).tobytes(), np.float32([3]).tobytes()
    inputs = decode(request(("A", "INT32", [2]), ("B", "FP32", [1]), raw=(first, second, b"not asked for")))[0].inputs
    assert [(tensor.name, tensor.array.tolist()) for tensor in inputs] == [("A", [1, 2]), ("B", [3.0])]


def test_everything_else_of_a_request() -> None:
    message = request(("INPUT0", "FP32", [1]), raw=(bytes(4),), id="seven", model_version="1")
    for name, field, value in (
        ("sequence_id", "int64_param", -1),
        ("sequence_start", "bool_param", True),
        ("sequence_end", "bool_param", True),
        ("priority", "uint64_param", 2),
        ("timeout", "int64_param", 99),
        ("triton_enable_empty_final_response", "bool_param", True),
        ("i", "int64_param", -5),
        ("b", "bool_param", False),
        ("s", "string_param", "text"),
        ("d", "double_param", 0.5),
    ):
        setattr(message.parameters[name], field, value)
    message.outputs.add(name="OUTPUT1")
    message.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    decoded, plan = decode(message, deadline_ns=5, forwarded={"s": "from metadata", "user-agent": "x"})
    assert decoded.sequence == SequencePosition(correlation_id=2**64 - 1, start=True, end=True)
    assert (decoded.id, decoded.model_version, decoded.priority, decoded.timeout_us) == ("seven", 1, 2, 99)
    assert decoded.parameters == {"i": -5, "b": False, "s": "from metadata", "d": 0.5, "user-agent": "x"}
    assert decoded.requested_outputs == ("OUTPUT1", "OUTPUT0")
    assert (decoded.deadline_ns, decoded.received_ns) == (5, 7)
    assert plan == codec.GrpcOutputPlan(requested=("OUTPUT1", "OUTPUT0"), class_counts={"OUTPUT0": 2}, empty_final=True)


@pytest.mark.parametrize(
    ("text", "version"), [("", None), ("1", 1), (" 1", 1), ("+12x", 12), ("1.5", 1), ("0", 0), ("9223372036854775807", 2**63 - 1)]
)
def test_versions_are_read_as_triton_does(text: str, version: int | None) -> None:
    assert codec.parse_version(text) == version


@pytest.mark.parametrize("text", ["x", "-", " ", "99999999999999999999", "1" * 5000, "9223372036854775808", "٣"])
def test_a_version_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        codec.parse_version(text)
    assert str(caught.value) == (
        f"failed to get model version from specified version string '{echo(text)}' (details: stol), "
        "version should be an integral value > 0"
    )


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^invalid model version specified '-1' , version should be an integral"):
        codec.parse_version("-1")


SIZE = "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'm'. Expected {}, got {}"
EXPLICIT = "unexpected explicit tensor data for input tensor 'INPUT0' for model 'm' of type '{}', expected datatype '{}'"
TEXTS = "[request id: <id_unknown>] {} for inference input 'INPUT0' for model 'm', {}"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (request(FP32), "unable to find data for input tensor 'INPUT0' for model 'm' in request."),
        (request(FP32, raw=(bytes(8),)), SIZE.format(16, 8)),
        (request(("INPUT0", "FP32", [1, -4]), raw=(bytes(16),)), SIZE.format(-16, 16)),
        (
            request(("INPUT0", "FP32", [-1, -4]), raw=(bytes(16),)),
            "invalid shape for input 'INPUT0': shape [-1,-4] contains one or more invalid dimensions",
        ),
        (request(("INPUT0", "FP32", [1, 2**62, 2**62]), raw=(bytes(16),)), SIZE.format(2**126, 16)),
        (
            request(("INPUT0", "FP32", [1] * 33), raw=(bytes(4),)),
            f"invalid shape for input 'INPUT0': shape [{','.join('1' * 33)}] has 33 dimensions, at most 32 are supported",
        ),
        (
            request(("INPUT0", "FP31", [1, 4]), raw=(bytes(16),)),
            "[request id: <id_unknown>] inference input 'INPUT0' data-type is '<invalid>', but model 'm' expects 'FP32'",
        ),
        (
            request(("X", "FP31", [1, 4]), raw=(bytes(16),)),
            "unexpected inference input 'X' for model 'm'; allowed inputs are: INPUT0 (FP32 [-1,-1])",
        ),
        (request(FP32, FP32, raw=(bytes(16), bytes(16)), id="a"), "[request id: a] input 'INPUT0' already exists in request"),
        (
            request(FP32, raw=(bytes(16),), outputs=[{"name": "O"}, {"name": "P"}, {"name": "O"}], id="a"),
            "[request id: a] output 'O' already exists in request",
        ),
        (typed("FP32", [1, 4], "fp32_contents", [1, 2, 3]), SIZE.format(16, 12)),
        (typed("FP32", [1, 4], "fp32_contents", []), SIZE.format(16, 0)),
        (typed("FP32", [1, 4], "int_contents", [1, 2, 3, 4]), EXPLICIT.format("INT32", "FP32")),
        (typed("FP16", [1, 4], "fp32_contents", [1, 2, 3, 4]), EXPLICIT.format("FP32", "FP16")),
        (typed("FP31", [1, 4], "fp64_contents", [1, 2, 3, 4]), EXPLICIT.format("FP64", "<invalid>")),
        (typed("BYTES", [2], "bytes_contents", [b"a"]), TEXTS.format("expected 2 string elements", "got 1")),
        (
            typed("BYTES", [1], "bytes_contents", [b"a", b"b"]),
            TEXTS.format("unexpected number of string elements 2", "expecting 1"),
        ),
        (request(("INPUT0", "BYTES", [2]), raw=(b"\1\0\0\0a",)), TEXTS.format("expected 2 string elements", "got 1")),
    ],
)
def test_inputs_are_refused_with_tritons_texts(message: pb.ModelInferRequest, text: str) -> None:
    assert refusal(message) == text


def test_raw_and_typed_contents_together_are_refused() -> None:
    message = typed("FP32", [1, 4], "fp32_contents", [1, 2, 3, 4])
    message.raw_input_contents.append(bytes(16))
    assert refusal(message) == "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'm'"


@pytest.mark.parametrize(
    ("name", "field", "value", "text"),
    [
        (
            "sequence_id",
            "bool_param",
            True,
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
        ),
        ("sequence_start", "int64_param", 1, "invalid value type for 'sequence_start' parameter, expected bool_param."),
        ("sequence_end", "string_param", "x", "invalid value type for 'sequence_end' parameter, expected bool_param."),
        ("priority", "string_param", "1", "invalid value type for 'priority' parameter, expected int64_param or uint64_param."),
        ("priority", "int64_param", -1, "invalid value for 'priority', expected value >= 0."),
        ("timeout", "uint64_param", 1, "invalid value type for 'timeout' parameter, expected int64_param."),
        (
            "triton_enable_empty_final_response",
            "int64_param",
            1,
            "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
        ),
        (
            "triton_x",
            "bool_param",
            True,
            (
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
                "'triton_' are allowed: triton_enable_empty_final_response"
            ),
        ),
        ("k", "uint64_param", 1, "invalid value type for 'k' parameter, expected int64_param, bool_param, or string_param."),
        ("k", "", None, "invalid value type for 'k' parameter, expected int64_param, bool_param, or string_param."),
    ],
)
def test_parameters_are_refused_with_tritons_texts(name: str, field: str, value: object, text: str) -> None:
    message = request(FP32, raw=(bytes(16),))
    message.parameters[name].SetInParent()
    if field:
        setattr(message.parameters[name], field, value)
    assert refusal(message) == text


def test_content_types_of_inputs_are_parameters() -> None:
    message = request(FP32, raw=(bytes(16),))
    message.inputs[0].parameters["content_type"].int64_param = 1
    assert decode(message)[0].parameters == {}
    message.inputs[0].parameters["content_type"].string_param = "np"
    message.parameters["mine"].int64_param = 1
    assert decode(message)[0].parameters == {"INPUT0.content_type": "np", "mine": 1}


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("string_param", "1", "invalid value type for 'classification' parameter, expected int64_param"),
        ("int64_param", 0, "invalid value for 'classification' parameter, expected >= 0"),
    ],
)
def test_a_wrong_classification_is_refused(field: str, value: object, text: str) -> None:
    message = request(FP32, raw=(bytes(16),))
    setattr(message.outputs.add(name="OUTPUT0").parameters["classification"], field, value)
    assert refusal(message) == text


def test_classes_in_a_region_are_refused_whoever_registered_it() -> None:
    """As by Triton, which looks for the region later."""
    message = request(FP32, raw=(bytes(16),))
    parameters = message.outputs.add(name="OUTPUT0").parameters
    parameters["classification"].int64_param = 1
    parameters["shared_memory_region"].string_param = "r"
    assert refusal(message) == "output can't set both 'shared_memory_region' and 'classification'"


def test_a_region_that_nobody_registered_is_refused() -> None:
    for of_input in (True, False):
        message = request(FP32)
        holder = message.inputs[0] if of_input else message.outputs.add(name="OUTPUT0")
        if not of_input:
            message.raw_input_contents.append(bytes(16))
        holder.parameters["shared_memory_region"].string_param = "r"
        holder.parameters["shared_memory_byte_size"].int64_param = 8
        with pytest.raises(NotFound, match=r"^Unable to find shared memory region: 'r'$"):
            decode(message)


def test_a_negative_timeout_is_none() -> None:
    message = request(FP32, raw=(bytes(16),))
    message.parameters["timeout"].int64_param = -1
    assert decode(message)[0].timeout_us == 0


def test_a_text_of_a_sequence_is_bounded() -> None:
    message = request(FP32, raw=(bytes(16),))
    message.parameters["sequence_id"].string_param = "x" * 129
    with pytest.raises(Unsupported, match=r"^string correlation ID cannot be longer than 128 characters$"):
        decode(message)


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\x05a", b"\x0a\x02\xff\xfe", bytes(9000)])
def test_bytes_that_are_no_request_are_refused(garbage: bytes) -> None:
    with pytest.raises(Internal, match=r"^Unable to parse request$"):
        codec.parse_request(memoryview(garbage))


def test_large_tensors_are_not_copied() -> None:
    array = np.arange(100_000, dtype=np.float32)
    wired = request(("INPUT0", "FP32", [100_000]), raw=(array.tobytes(),)).SerializeToString()
    assert len(wire.split_request(memoryview(wired), FieldBudget(10)).head) < 100
    parsed = codec.parse_now(memoryview(wired))
    assert parsed is not None
    decoded, _ = codec.decode_request(parsed, description=describe("m"), version=None, received_ns=0, deadline_ns=None)
    ours = decoded.inputs[0].array
    assert np.shares_memory(ours, np.frombuffer(wired, np.uint8))
    np.testing.assert_array_equal(ours, array)
    pieces = codec.encode_response(response_of(Tensor("OUTPUT0", DataType.FP32, ours)), codec.NO_PLAN, describe("m"))
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), ours) for piece in pieces if len(piece) == array.nbytes)
    assert pb.ModelInferResponse.FromString(b"".join(pieces)).raw_output_contents[0] == array.tobytes()


_blob = st.binary(max_size=40)
_texts = st.text(max_size=5)


@st.composite
def _wire_messages(draw: st.DrawFn) -> bytes:
    """A ModelInferRequest as bytes; its parts in any order, sometimes with fields that nobody knows."""
    message = pb.ModelInferRequest(model_name=draw(_texts), id=draw(_texts))
    for _ in range(draw(st.integers(0, 3))):
        message.inputs.add(name=draw(_texts), datatype="FP32", shape=[draw(st.integers(-2, 300))])
    pieces = [message.SerializeToString()]
    pieces += [pb.ModelInferRequest(raw_input_contents=[draw(_blob)]).SerializeToString() for _ in range(draw(st.integers(0, 4)))]
    pieces += draw(st.lists(st.sampled_from([b"\xa2\x06\x01x", b"\x50\x05", b"\x3a\x82\x80\x00ab", b""]), max_size=2))
    return b"".join(draw(st.permutations(pieces)))


@given(_wire_messages(), st.integers(0, 400))
def test_a_split_request_is_what_protobuf_reads(wired: bytes, cut: int) -> None:
    wired = wired[: len(wired) - cut] if cut % 4 == 0 else wired
    try:
        expected = pb.ModelInferRequest.FromString(wired)
    except DecodeError:
        with pytest.raises(Internal):
            wire.parse_split(wire.split_request(memoryview(wired), FieldBudget(1000)))
        return
    parsed = wire.parse_split(wire.split_request(memoryview(wired), FieldBudget(1000)))
    assert [bytes(raw) for raw in parsed.raws] == list(expected.raw_input_contents)
    parsed.head.ClearField("raw_input_contents")
    expected.ClearField("raw_input_contents")
    assert parsed.head.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(garbage: bytes) -> None:
    try:
        parsed = wire.parse_split(wire.split_request(memoryview(garbage), FieldBudget(1000), 0))
        codec.decode_request(parsed, description=describe("m"), version=None, received_ns=0, deadline_ns=None)
    except TpyError:
        pass


@given(st.lists(st.integers(0, 40_000), max_size=4), st.booleans())
def test_protobuf_reads_what_is_written(sizes: list[int], in_stream: bool) -> None:
    tensors = [Tensor(f"T{at}", DataType.UINT8, np.full(size, at, np.uint8)) for at, size in enumerate(sizes)]
    response = response_of(*tensors, id="i", parameters={"p": 1})
    if in_stream:
        pieces = codec.encode_stream_response(response, codec.NO_PLAN, describe("m"))
        read = pb.ModelStreamInferResponse.FromString(b"".join(pieces)).infer_response
        assert read.parameters["triton_final_response"].bool_param
    else:
        read = encoded(response)
    assert (read.model_name, read.model_version, read.id, read.parameters["p"].int64_param) == ("m", "3", "i", 1)
    assert [output.name for output in read.outputs] == [tensor.name for tensor in tensors]
    assert list(read.raw_output_contents) == [tensor.array.tobytes() for tensor in tensors]


def test_outputs_of_any_layout_are_written_row_major() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    turned = encoded(response_of(Tensor("OUTPUT0", DataType.INT16, array.T)))
    assert turned.raw_output_contents[0] == array.T.tobytes()
    scalar = encoded(response_of(Tensor("OUTPUT0", DataType.INT16, np.array(5, np.int16))))
    assert (list(scalar.outputs[0].shape), scalar.raw_output_contents[0]) == ([], b"\5\0")
    half = encoded(response_of(Tensor("OUTPUT0", DataType.BF16, np.array([1.5], ml_dtypes.bfloat16))))
    assert half.raw_output_contents[0] == b"\xc0\x3f"


def test_an_output_is_wanted_as_classes() -> None:
    tensor = Tensor("OUTPUT0", DataType.FP32, np.array([[0.1, 0.7, 0.2]], np.float32))
    answer = encoded(response_of(tensor), codec.GrpcOutputPlan(requested=("OUTPUT1", "OUTPUT0"), class_counts={"OUTPUT0": 2}))
    assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == ("BYTES", [1, 2])
    assert answer.raw_output_contents[0] == b"\x0e\0\0\x000.700000:1:one\x0e\0\0\x000.200000:2:two"


def test_response_parameters_of_every_kind() -> None:
    answer = encoded(response_of(parameters={"b": True, "i": -1, "u": 2**63, "d": 0.5, "s": "x"}))
    values = {
        key: (value.WhichOneof("parameter_choice"), str(value).split(": ")[1].strip()) for key, value in answer.parameters.items()
    }
    assert values == {
        "b": ("bool_param", "true"),
        "i": ("int64_param", "-1"),
        "u": ("uint64_param", str(2**63)),
        "d": ("double_param", "0.5"),
        "s": ("string_param", '"x"'),
    }


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800"])
def test_response_parameters_that_protobuf_cannot_carry_are_a_fault_of_the_model(value: int | str) -> None:
    with pytest.raises(Internal, match=r"^response parameter 'p' is"):
        encoded(response_of(parameters={"p": value}))


def test_an_error_is_raised_and_a_response_beyond_two_gigabytes_refused() -> None:
    with pytest.raises(NotFound, match=r"^gone$"):
        encoded(response_of(error=NotFound("gone")))
    size = limits.GRPC_MESSAGE_BYTES_MAX // 3 + 1
    third = np.zeros(size, np.uint8)
    with pytest.raises(InvalidArgument) as caught:
        encoded(response_of(*(Tensor(f"T{at}", DataType.UINT8, third) for at in range(3))))
    assert "exceeds gRPC's byte size limit 2147483647." in str(caught.value)


def test_messages_that_only_streams_have() -> None:
    bare = pb.ModelStreamInferResponse.FromString(codec.encode_empty_final("m", "", "i"))
    assert bare.infer_response.parameters["triton_final_response"].bool_param
    assert (bare.infer_response.model_name, bare.infer_response.model_version, bare.infer_response.id) == ("m", "", "i")
    early = pb.ModelStreamInferResponse.FromString(codec.encode_stream_error("no", request_id=""))
    assert (early.error_message, early.HasField("infer_response"), early.infer_response.ByteSize()) == ("no", True, 0)
    late = pb.ModelStreamInferResponse.FromString(
        codec.encode_stream_error("no", request_id="i", response=response_of(error=Internal("no")))
    )
    assert (late.infer_response.id, late.infer_response.model_name, late.infer_response.model_version) == ("i", "m", "")
    assert late.infer_response.parameters["triton_final_response"].bool_param


def test_every_error_code_has_a_status() -> None:
    assert set(GRPC_STATUS) == set(ErrorCode)
