"""Bounds of inference requests over gRPC: what takes long, what is counted before it is read, large typed contents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.frontends.grpc.codec_messages import FP32, TYPED, decode, refusal, request, response_of, typed
from tests.frontends.http.fakes import describe
from tpy import limits
from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.frontends.grpc import codec
from tpy.frontends.grpc.codec import contents
from tpy.frontends.grpc.codec.fields import varint
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_WORD


def test_what_takes_long_is_known() -> None:
    many = np.full(limits.GRPC_INLINE_ELEMENTS_MAX + 1, b"", object)
    assert codec.is_large(response_of(Tensor("OUTPUT0", DataType.BYTES, many)), codec.NO_PLAN)
    few = np.array([b"x" * limits.INLINE_STRING_OUTPUT_BYTES_MAX], object)
    assert not codec.is_large(response_of(Tensor("OUTPUT0", DataType.BYTES, few)), codec.NO_PLAN)
    assert codec.is_large(response_of(Tensor("OUTPUT0", DataType.BYTES, few + b"x")), codec.NO_PLAN)
    floats = Tensor("OUTPUT0", DataType.FP32, many.astype(bool).astype(np.float32))
    assert not codec.is_large(response_of(floats), codec.NO_PLAN)
    assert codec.is_large(
        response_of(floats), codec.GrpcOutputPlan(requested=("OUTPUT1", "OUTPUT0"), class_counts={"OUTPUT0": 1})
    )

    def heavy(message: pb.ModelInferRequest) -> bool:
        wired = memoryview(message.SerializeToString())
        return codec.is_heavy(codec.parse_request(wired), len(wired))

    size = limits.GRPC_INLINE_STRING_BYTES_MAX + 4
    assert heavy(request(("INPUT0", "BYTES", [1]), raw=(bytes(size),)))
    assert not heavy(request(("INPUT0", "BYTES", [1]), raw=(bytes(size - 100),)))
    assert not heavy(request(("INPUT0", "FP32", [1]), raw=(bytes(size),)))
    size = limits.GRPC_INLINE_BYTES_MAX + 4
    assert heavy(typed("FP32", [size // 4], "fp32_contents", [0.0] * (size // 4)))
    count = limits.GRPC_INLINE_STRINGS_MAX + 1
    assert heavy(request(("INPUT0", "BYTES", [count]), raw=(bytes(4 * count),)))
    halves = (("A", "BYTES", [count // 2 + 1]), ("B", "BYTES", [count // 2 + 1]))
    assert heavy(request(*halves, raw=(bytes(2 * count + 2), bytes(2 * count + 2))))
    assert heavy(request(*((str(number), "FP32", [0]) for number in range(limits.GRPC_INLINE_INPUTS_MAX + 1))))


@pytest.mark.parametrize("datatype", [*TYPED, "BYTES"])
@pytest.mark.parametrize("size", [100, 3_000, 50_000])
def test_large_typed_contents_are_read_as_small_ones_are(datatype: str, size: int) -> None:
    """Protobuf reads up to a kilobyte itself."""
    chance = np.random.default_rng(size)
    values: list[Any]
    if datatype == "BYTES":
        values = [chance.bytes(length) for length in chance.integers(0, 40, size)]
    else:
        kind = BY_WORD[datatype].numpy
        values = (chance.normal(size=size) if kind.kind == "f" else chance.integers(-300, 300, size)).astype(kind).tolist()
    message = typed(datatype, [size], TYPED.get(datatype, "bytes_contents"), values)
    array = decode(message)[0].inputs[0].array
    assert array.dtype == BY_WORD[datatype].numpy
    assert array.tolist() == values


def test_large_typed_contents_may_come_in_pieces_and_at_the_ends_of_their_range() -> None:
    ends = [-(2**63), 2**63 - 1, -1, 0, 127, 128] * 1_000
    one, other = typed("INT64", [12_000], "int64_contents", ends), typed("INT64", [12_000], "int64_contents", ends[::-1])
    both = one.inputs[0].SerializeToString() + other.inputs[0].SerializeToString()
    wired = b"\x0a\x01m\x2a" + varint(len(both)) + both
    read = codec.parse_now(memoryview(wired))
    assert read is not None
    assert list(read.contents) == [0]
    del both, wired
    item = read.head.inputs[0]
    array = contents.read_contents(read.contents[0], DataType.INT64, (12_000,), tensor=item.name, model="m", prefix="")
    assert array.tolist() == ends + ends[::-1]


def _refused(wired: bytes) -> tuple[type[TpyError], str]:
    def read() -> None:
        parsed = codec.parse_request(memoryview(wired))
        codec.decode_request(parsed, description=describe("m"), version=None, received_ns=0, deadline_ns=None)

    with pytest.raises(TpyError) as caught:
        read()
    return type(caught.value), str(caught.value)


def test_contents_that_no_writer_writes_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def within_input(contents: bytes, datatype: bytes, size: int = 1) -> bytes:
        shape = b"\x1a" + varint(len(varint(size))) + varint(size)
        item = b"\x0a\x01x\x12" + bytes([len(datatype)]) + datatype + shape + b"\x2a" + varint(len(contents)) + contents
        return b"\x0a\x01m\x2a" + varint(len(item)) + item

    unpacked = b"\x10\x01" * limits.GRPC_CONTENTS_PARSE_BYTES_MAX
    kind, text = _refused(within_input(unpacked, b"INT32"))
    assert kind is InvalidArgument
    assert "expected packed numbers, or raw_input_contents" in text
    few = 100_000
    monkeypatch.setattr(contents, "GRPC_CONTENTS_FIELDS_MAX", few)
    strings = b"\x42\x20" + bytes(32)
    kind, text = _refused(within_input(strings * (few + 1), b"BYTES", few + 1))
    assert kind is InvalidArgument
    assert f"more than {few} strings" in text
    kind, text = _refused(within_input(strings * (few + 1) + b"\xff", b"BYTES"))  # which is not reached
    assert kind is InvalidArgument
    assert "unexpected number of string elements 2 " in text
    for broken in (b"\x32\x86\x08" + bytes(1030), b"\x12\x80\x08" + b"\xff" * 1024, b"\x12\x80\x10" + bytes(1024)):
        assert _refused(within_input(broken, b"FP32")) == (Internal, "Unable to parse request")
    broken = b"\x12\x80\x08" + bytes(1024) + b"\x12\x02\xff\xff"  # ends within a number
    assert _refused(within_input(broken, b"INT32")) == (Internal, "Unable to parse request")
    kind, text = _refused(within_input(strings * few + b"\x0b\x42\x01a\x0c", b"BYTES", few + 1))
    assert (kind, "of several kinds" in text) == (InvalidArgument, True)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (b"", b"\x4c"),  # the end of a group that has not begun
        (b"", b"\x4b"),  # a group without an end
        (b"", b"\x4b\x54"),  # one with the end of another
        (b"", b"\x02\x00"),  # field 0
        (b"", b"\x88\x80\x80\x80\x80\x00\x00"),  # a tag of six bytes
        (b"", b"\x88\x80\x80\x80\x10\x00"),  # one of more than 32 bits
        (b"\x32\x80\x80\x80\x80\x80\x00", b""),  # a length of six bytes
    ],
)
def test_large_contents_are_refused_where_protobuf_refuses_small_ones(begin: bytes, end: bytes) -> None:
    """Groups without one of their ends and long lengths were read."""
    for count in (1, 5_000):
        numbers = b"\x32" + varint(4 * count) + bytes(4 * count)
        message = pb.ModelInferRequest(model_name="m")
        message.inputs.add(name="x", datatype="FP32", shape=[count])
        item = message.inputs[0].SerializeToString()
        del message.inputs[:]
        contents = begin + numbers + end
        item += b"\x2a" + varint(len(contents)) + contents
        wired = message.SerializeToString() + b"\x2a" + varint(len(item)) + item
        assert _refused(wired) == (Internal, "Unable to parse request")


def test_large_strings_are_those_that_were_written() -> None:
    """More than protobuf is given at once, with lengths of one, two and three bytes."""
    lengths = [0, 1, 127, 128, 129, 16_383, 16_384, 70_000, 0, 5]
    written = [bytes([number % 256]) * length for number, length in enumerate(lengths * 30)]
    many = [*written, *[b""] * limits.GRPC_CONTENTS_PARSE_BYTES_MAX, b"end"]
    read = decode(typed("BYTES", [len(many)], "bytes_contents", many))[0].inputs[0].array
    assert read.tolist() == many


@pytest.mark.parametrize("field", [b"\x3a\x00", b"\x2a\x00", b"\x32\x00", b"\x22\x00", b"\x78\x00", b"\xa2\x06\x00"])
def test_fields_are_counted_before_they_are_read(field: bytes) -> None:
    many = memoryview(field * 9_000)
    assert codec.parse_now(many) is None
    kind, text = _refused(field * (limits.GRPC_REQUEST_FIELDS_MAX + 1))
    assert kind is InvalidArgument
    assert f"more than {limits.GRPC_REQUEST_FIELDS_MAX} fields" in text


@pytest.mark.parametrize("within", [b"\x12\x00", b"\x0a\x00", b"\x78\x00", b"\x12\x02\x12\x00"])
@pytest.mark.parametrize("field", [b"\x2a", b"\x32"])
def test_fields_within_fields_are_counted(field: bytes, within: bytes) -> None:
    item = within * (1_000 // len(within))
    count = limits.GRPC_NESTED_FIELDS_MAX * len(within) // 1_000 + 40
    kind, text = _refused(b"\x0a\x01m" + (field + varint(len(item)) + item) * count)
    assert kind is InvalidArgument
    assert f"more than {limits.GRPC_NESTED_FIELDS_MAX} fields" in text


def test_what_is_no_tensor_is_bounded() -> None:
    kind, text = _refused(request(FP32, id="x" * limits.GRPC_HEAD_BYTES_MAX, raw=(bytes(16),)).SerializeToString())
    assert kind is InvalidArgument
    assert f"at most {limits.GRPC_HEAD_BYTES_MAX} are accepted; expected the data of tensors in raw_input_contents" in text


def test_a_thousand_inputs_are_no_abuse() -> None:
    count = 1_000
    message = request(*((f"INPUT{number}", "FP32", [1]) for number in range(count)), raw=(bytes(4),) * count)
    for number in range(count):
        message.outputs.add(name=f"OUTPUT{number}")
    assert len(decode(message)[0].inputs) == count


def test_a_shape_of_a_million_dimensions_is_refused_shortly() -> None:
    text = refusal(request(("INPUT0", "FP32", [1] * 1_000), raw=(bytes(20_000),)))
    assert text.startswith("invalid shape for input 'INPUT0': shape [1,1,1,1,1,")
    assert text.endswith("] has 1000 dimensions, at most 32 are supported")
    text = refusal(request(("INPUT0", "FP32", [1] * 1_000_000), raw=(bytes(4),)))
    assert text == "an input has a shape of 1000000 bytes, at most 32 dimensions are supported"
