"""TensorProto: all forms of writers, bounds, and what is refused. What they hold is compared by fuzz/tensorflow_serving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.limits import BYTES_ELEMENTS_MAX
from tpy.limits.tensorflow_serving import FILLED_BYTES_MAX, INLINE_FILLED_BYTES_MAX, TENSOR_FIELDS_MAX
from tpy.messages import DataType, Tensor
from tpy_platforms.tensorflow_serving.models import Argument
from tpy_platforms.tensorflow_serving.protos import tf
from tpy_platforms.tensorflow_serving.tensors import DTYPES, ManyFilled, read_tensor, write_tensor


def proto(dtype: str, *shape: int, **values: Any) -> Any:
    return tf.TensorProto(dtype=dtype, tensor_shape={"dim": [{"size": size} for size in shape]}, **values)


def read(message: Any, *, inline: bool = False) -> Any:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return read_tensor(memoryview(data), "x", inline=inline)[1]


def test_the_last_element_is_repeated() -> None:
    assert read(proto("DT_FLOAT", 2, 2, float_val=[1, 2])).tolist() == [[1, 2], [2, 2]]
    assert read(proto("DT_INT8", 3, int_val=[-1])).tolist() == [-1, -1, -1]
    assert read(proto("DT_STRING", 2, string_val=[b"a"])).tolist() == [b"a", b"a"]
    assert read(proto("DT_STRING", 2)).tolist() == [b"", b""]
    assert read(proto("DT_BOOL", 2)).tolist() == [False, False]
    assert read(proto("DT_FLOAT", float_val=[7])).tolist() == 7
    assert read(proto("DT_FLOAT", 0)).tolist() == []


def test_content_is_not_copied() -> None:
    data = np.arange(6, dtype=np.float32)
    array = read(proto("DT_FLOAT", 2, 3, tensor_content=data.tobytes()))
    assert array.tolist() == data.reshape(2, 3).tolist()
    assert array.base is not None
    assert read(proto("DT_STRING", 2, tensor_content=b"\x01\x02abc")).tolist() == [b"a", b"bc"]
    assert read(proto("DT_STRING", 1, tensor_content=b"\x80\x01" + b"x" * 128)).tolist() == [b"x" * 128]


def test_the_bits_of_halves() -> None:
    assert read(proto("DT_HALF", 2, half_val=[0x3C00, 0xC000])).tolist() == [1, -2]
    assert read(proto("DT_BFLOAT16", 1, half_val=[0x3F80])).tolist() == [1]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (proto("DT_INVALID", 1), "dtype 0 is not served, expected one of DT_BOOL"),
        (b"\x08\x08\x12\x00", "dtype 8 is not served"),
        (proto("DT_FLOAT", 1, float_val=[1, 2]), "more elements than its shape has, 1"),
        (proto("DT_STRING", 1, string_val=[b"a", b"b"]), "more elements than its shape has, 1"),
        (proto("DT_FLOAT", -1), "a size below 0"),
        (proto("DT_FLOAT", *[1] * 33), "more than 32 dimensions"),
        (tf.TensorProto(dtype="DT_FLOAT", tensor_shape={"unknown_rank": True}), "its shape is unknown"),
        (proto("DT_FLOAT", 2, tensor_content=b"1234"), "tensor_content has 4 bytes, its shape and type need 8"),
        (proto("DT_STRING", 2, tensor_content=b"\x05"), "does not have the lengths of 2 strings"),
        (proto("DT_STRING", 1, tensor_content=b"\xff\xff\xff\xff\xff\xff"), "does not have the lengths of 1 strings"),
        (proto("DT_STRING", 1, tensor_content=b"\x05abc"), "has 3 bytes for strings of 5 bytes"),
        (proto("DT_STRING", 1, string_val=[b"a"]).SerializeToString() + b"\x08\x07", "of several kinds"),
        (proto("DT_FLOAT", FILLED_BYTES_MAX), f"such an input may have {FILLED_BYTES_MAX} bytes, not {4 * FILLED_BYTES_MAX}"),
        (proto("DT_STRING", BYTES_ELEMENTS_MAX, string_val=[b"a" * 17]), "would be repeated"),
        (proto("DT_STRING", 2**62, string_val=[b"a"]), f"{2**62} string elements, at most {BYTES_ELEMENTS_MAX} are supported"),
        (proto("DT_STRING", BYTES_ELEMENTS_MAX + 1, tensor_content=bytes(BYTES_ELEMENTS_MAX + 1)), "are supported"),
        (proto("DT_INT32", 1).SerializeToString() + b"\x38\x01" * TENSOR_FIELDS_MAX, "numbers that are not packed"),
    ],
)
def test_what_does_not_fit_is_refused(message: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        read(message)


@pytest.mark.parametrize("end", [b"\x2a\x05\0\0\0\0\0", b"\x3a\x02\xff\xff", b"\x3a", b"\x0f"])
def test_broken_messages_are_refused(end: bytes) -> None:
    with pytest.raises(Internal, match="Unable to parse request"):
        read(proto("DT_INT32" if b"\x3a" in end else "DT_FLOAT", 1).SerializeToString() + end)


def test_few_bytes_make_no_large_array_on_the_loop() -> None:
    count = INLINE_FILLED_BYTES_MAX // 4
    assert read(proto("DT_FLOAT", count, float_val=[1]), inline=True).sum() == count
    for message in (proto("DT_FLOAT", count + 1), proto("DT_STRING", count)):
        with pytest.raises(ManyFilled):
            read(message, inline=True)
        assert read(message).size >= count


def test_a_shape_that_the_model_refuses_is_not_filled() -> None:
    argument = Argument(name="x", datatype=DataType.FP32, shape=(-1, 3), is_scalar=False, rows_max=8)

    def filled(*shape: int, dtype: str = "DT_FLOAT", **values: Any) -> Any:
        data = memoryview(proto(dtype, *shape, **values).SerializeToString())
        return read_tensor(data, "x", require_shape=argument.require_shape)[1].shape

    assert filled(8, 3) == (8, 3)
    assert filled(1, 4, float_val=[1, 2, 3, 4]) == (1, 4), "nothing is filled: the model refuses it"
    for shape, told in (
        ((250_000, 3), r"input 'x': batch size must be <= 8 \(max_batch_size\), got 250000"),
        ((8, 100_000), r"unexpected shape for input 'x'. Expected \[-1, ?3\], got \[8[, ]*100000\]"),
        ((250_000,), "unexpected shape"),
    ):
        for dtype in ("DT_FLOAT", "DT_STRING"):
            with pytest.raises(InvalidArgument, match=told):
                filled(*shape, dtype=dtype)
    scalar = Argument(name="x", datatype=DataType.FP32, shape=(-1,), is_scalar=True, rows_max=8)
    for shape in ((8,), (8, 1)):
        scalar.require_shape(shape)
    for shape in ((9,), (8, 2), (8, 1, 1)):
        with pytest.raises(InvalidArgument):
            scalar.require_shape(shape)


@pytest.mark.parametrize("datatype", [each for each in DataType if each is not DataType.INVALID])
def test_answers_have_the_field_of_their_type(datatype: DataType) -> None:
    values: list[Any] = [b"", b"\xff"] if datatype is DataType.BYTES else [0, 1]
    tensor = Tensor("y", datatype, np.array(values * 20_000, datatype.numpy).reshape(2, -1))
    written = tf.TensorProto.FromString(b"".join(write_tensor(tensor)))
    assert not written.tensor_content
    assert tf.TensorProto.FromString(b"".join(write_tensor(tensor))).dtype == written.dtype != 0
    assert [dim.size for dim in written.tensor_shape.dim] == [2, 20_000]
    assert read(written).tolist() == tensor.array.tolist()


def test_types_are_total() -> None:
    assert DTYPES.keys() == set(DataType)
    with pytest.raises(TpyError, match="TensorFlow has no type INVALID"):
        write_tensor(Tensor("y", DataType.INVALID, np.zeros(1)))
