"""Rows and columns of JSON: what they become, what is refused, and the answers."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from tpy.errors import Internal, InvalidArgument
from tpy.frontends.http.codec.cutting import load_in_pieces
from tpy.frontends.http.codec.pieces import ArraySizes, LongArray
from tpy.frontends.http.codec.response import nested
from tpy.limits.tensorflow_serving import INLINE_LITERALS_ELEMENTS_MAX
from tpy.messages import DataType, Tensor
from tpy_platforms.tensorflow_serving import rows
from tpy_platforms.tensorflow_serving.models import Argument
from tpy_platforms.tensorflow_serving.predictions import is_slow
from tpy_platforms.tensorflow_serving.rows import array_of, document_of, tensors_of

from .signatures import arguments, signature

ONE = signature(arguments(x=DataType.FP32))
TWO = signature(arguments(a=DataType.INT32, b=DataType.BYTES))


def read(document: dict[str, Any], wanted: Any = ONE) -> tuple[dict[str, Any], bool]:
    tensors, is_rows = tensors_of(document, wanted)
    return {tensor.name: tensor.array.tolist() for tensor in tensors}, is_rows


def test_rows_and_columns() -> None:
    assert read({"instances": [[1, 2], [3, 4.5]]}) == ({"x": [[1, 2], [3, 4.5]]}, True)
    assert read({"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}) == ({"x": [[1, 2], [3, 4]]}, True)
    assert read({"inputs": [[1, 2]]}) == ({"x": [[1, 2]]}, False)
    assert read({"inputs": {"x": [[1, 2]]}}) == ({"x": [[1, 2]]}, False)
    assert read({"inputs": 7}) == ({"x": 7}, False)
    rows = [{"a": [1], "b": {"b64": "/w=="}}, {"a": [-2], "b": "é"}]
    assert read({"instances": rows}, TWO) == ({"a": [[1], [-2]], "b": [b"\xff", "é".encode()]}, True)
    assert read({"inputs": {"b": [{"b64": "aGk="}], "a": []}}, TWO) == ({"b": [b"hi"], "a": []}, False)
    texts = signature(arguments(t=DataType.BYTES))
    assert read({"instances": [{"b64": "aGk="}, "x"]}, texts) == ({"t": [b"hi", b"x"]}, True)


def test_a_number_of_each_row_gets_the_dimension_that_it_has_here() -> None:
    scalar = signature({"x": Argument(name="x", datatype=DataType.FP32, shape=(-1,), is_scalar=True)})
    assert read({"instances": [1, 2]}, scalar) == ({"x": [[1], [2]]}, True)
    assert read({"instances": [[1], [2]]}, scalar) == ({"x": [[1], [2]]}, True)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"inputs": 1, "instances": [1]}, "Not expecting both"),
        ({"instances": 1}, "'instances' to be an list/array, got 1"),
        ({"instances": []}, "'instances' is empty"),
        ({"instances": [[1], {"x": [1]}]}, "every row has to be an object"),
        ({"instances": [{"x": [1]}, {"y": [1]}]}, "element: 1 of 'instances' list"),
        ({"instances": [{"x": [1]}, [1]]}, "element: 1 of 'instances' list"),
        ({"instances": [{"y": [1]}]}, r"alias not found in signature: y\. Inputs expected to be in the set \{x\}"),
        ({"instances": [[1, 2], [1]]}, "'x': Encountered list at unexpected size at level: 1: 1, 2"),
        ({"instances": [[1], 2]}, "unexpected size at level: 1: no list, 1"),
        ({"instances": [[1, "2"]]}, 'JSON Value: "2" is not of expected type: FP32'),
        ({"instances": [[True]]}, "JSON Value: true is not of expected type: FP32"),
        ({"instances": [[None]]}, "JSON Value: null is not of expected type: FP32"),
        ({"instances": [[{"b64": "aGk="}]]}, "an object is not of expected type: FP32"),
        ({"instances": [[1e300]]}, "'x': a number is out of the range of FP32"),
    ],
)
def test_what_does_not_fit_is_refused(document: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        read(document)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"instances": [1]}, "expecting an object as multiple input tensors required: a, b"),
        ({"inputs": [1]}, "expecting an object as multiple input tensors required: a, b"),
        ({"inputs": {"a": [1.5]}}, "JSON Value: 1.5 is not of expected type: INT32"),
        ({"inputs": {"a": [2**31]}}, "out of the range of INT32"),
        ({"inputs": {"b": [{"b64": "?"}]}}, "input 'b': Unable to base64 decode"),
        ({"inputs": {"b": [{"b64": "", "x": 1}]}}, "input 'b': expected a text, or"),
        ({"inputs": {"b": [1]}}, "JSON Value: 1 is not of expected type: BYTES"),
    ],
)
def test_what_does_not_fit_several_inputs_is_refused(document: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        read(document, TWO)


@pytest.mark.parametrize("datatype", [each for each in DataType if each not in (DataType.INVALID, DataType.BYTES)])
def test_every_type_holds_its_numbers(datatype: DataType) -> None:
    values: list[Any] = [True, False] if datatype is DataType.BOOL else [0, 1, 100]
    array = array_of(values, datatype, "x")
    assert (array.dtype, array.tolist()) == (datatype.numpy, values)
    if datatype.numpy.kind in "iu":
        bounds = np.iinfo(datatype.numpy)
        assert array_of([bounds.min, bounds.max], datatype, "x").tolist() == [bounds.min, bounds.max]
        for beyond in (bounds.min - 1, bounds.max + 1):
            with pytest.raises(InvalidArgument, match="out of the range"):
                array_of([beyond], datatype, "x")


def written(*outputs: Tensor, is_rows: bool) -> Any:
    return json.loads(b"".join(document_of(outputs, is_rows=is_rows)))


def tensor(name: str, values: Any, datatype: DataType = DataType.FP32) -> Tensor:
    return Tensor(name, datatype, np.array(values, datatype.numpy))


def test_names_are_left_out_of_answers_with_one_output() -> None:
    one, two = tensor("y", [[1.5], [2]]), tensor("z", [3, 4], DataType.INT64)
    assert written(one, is_rows=True) == {"predictions": [[1.5], [2.0]]}
    assert written(one, is_rows=False) == {"outputs": [[1.5], [2.0]]}
    assert written(one, two, is_rows=True) == {"predictions": [{"y": [1.5], "z": 3}, {"y": [2.0], "z": 4}]}
    assert written(one, two, is_rows=False) == {"outputs": {"y": [[1.5], [2.0]], "z": [3, 4]}}
    assert written(tensor("y", 2.5), is_rows=False) == {"outputs": 2.5}
    assert written(tensor("y", np.zeros((0, 3))), is_rows=True) == {"predictions": []}


def test_numbers_have_the_digits_of_their_type_and_literals_are_those_of_tensorflow_serving() -> None:
    text = b"".join(document_of([tensor("y", [0.1, np.nan, np.inf, -np.inf])], is_rows=True))
    assert text == b'{"predictions":[0.1,NaN,Infinity,-Infinity]}'
    assert b"".join(document_of([tensor("y", [0.1, 1])], is_rows=True)) == b'{"predictions":[0.1,1.0]}'
    text = b"".join(document_of([tensor("y", [[0.1]]), tensor("z", [np.nan])], is_rows=True))
    assert text == b'{"predictions":[{"y":[0.1],"z":NaN}]}'
    numbers = np.random.default_rng(3).integers(0, 2**32, 2000, np.uint32).view(np.float32)
    numbers[:8] = [0, -0.0, 1e16, 1e-5, 1e-7, 1e-45, 3.4e38, 16777216]
    for values in (numbers, numbers[np.isfinite(numbers)], numbers.reshape(2, -1), numbers[::2]):
        expected = [json.dumps(float(str(each))) for each in values.reshape(-1)]
        text = b"".join(document_of([tensor("y", values)], is_rows=True)).decode()
        assert [json.dumps(float(each)) for each in re.findall(r"[-+.e\dNaInfty]{1,30}(?=[],])", text)] == expected
    assert written(tensor("y", [0.5], DataType.BF16), is_rows=True) == {"predictions": [0.5]}
    assert written(tensor("y", [0.5], DataType.FP16), is_rows=True) == {"predictions": [0.5]}


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64])
def test_literals_are_written_on_the_loop_where_they_are_few(datatype: DataType) -> None:
    values = np.ones(INLINE_LITERALS_ELEMENTS_MAX + 1)
    assert not is_slow([tensor("y", values, datatype)])
    values[0] = np.nan
    assert is_slow([tensor("y", values, datatype)])
    assert not is_slow([tensor("y", values[:-1], datatype), tensor("z", values.astype(np.bool_), DataType.BOOL)])


def test_texts_are_base64_under_the_names_that_say_so() -> None:
    raw = np.array([[b"\xff"], [b"a"]], object)
    encoded = [[{"b64": "/w=="}], [{"b64": "YQ=="}]]
    assert written(Tensor("y_bytes", DataType.BYTES, raw), is_rows=True) == {"predictions": encoded}
    assert written(Tensor("y", DataType.BYTES, raw[1:]), is_rows=True) == {"predictions": [["a"]]}
    with pytest.raises(Internal, match=r"output 'y' .*not UTF-8.*_bytes"):
        written(Tensor("y", DataType.BYTES, raw), is_rows=True)


def test_outputs_without_common_rows_are_for_columns() -> None:
    with pytest.raises(InvalidArgument, match=r"inconsistent batch sizes \(y: 2, z: 1\)"):
        written(tensor("y", [1, 2]), tensor("z", [1]), is_rows=True)
    with pytest.raises(InvalidArgument, match="has no shape information"):
        written(tensor("y", 1), is_rows=True)
    with pytest.raises(Internal, match="gave no outputs"):
        written(is_rows=True)
    assert written(is_rows=False) == {"outputs": {}}


def test_strings_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BYTES_ELEMENTS_MAX", 4)
    texts = signature(arguments(t=DataType.BYTES))
    assert read({"inputs": ["a"] * 4}, texts)[0] == {"t": [b"a"] * 4}
    sizes = ArraySizes(piece=12, look=8, string=12, array=10, space=20)
    long = load_in_pieces(b'{"inputs":[["a","a","a"],["a","a","a"]]}', sizes)
    assert type(long["inputs"]) is LongArray
    for document in ({"inputs": ["a"] * 5}, {"inputs": [["?"] * 3] * 2}, long, {"inputs": [{"b64": "?"}] * 5}):
        with pytest.raises(InvalidArgument, match="input 't': more than 4 string elements are not supported"):
            read(document, texts)


def test_large_answers_come_in_pieces() -> None:
    long, wide = np.arange(40_000, dtype=np.int32), np.arange(120_000, dtype=np.int32).reshape(3, 2, 20_000)
    for array in (long, wide):
        pieces = list(document_of([tensor("y", array, DataType.INT32)], is_rows=True))
        assert max(map(len, pieces)) < 200_000
        assert json.loads(b"".join(pieces)) == {"predictions": array.tolist()}
    pieces = list(document_of([tensor("y", long, DataType.INT32), tensor("z", long, DataType.INT32)], is_rows=True))
    assert json.loads(b"".join(pieces))["predictions"][-1] == {"y": 39_999, "z": 39_999}
    assert 3 < len(pieces) < 20


def test_long_arrays_are_read_as_short_ones_are() -> None:
    """Cut into pieces of some bytes each."""
    chance = random.Random(7)
    sizes = ArraySizes(piece=24, look=8, string=12, array=10, space=20)
    long = 0
    for _ in range(150):
        shape = tuple(chance.randrange(1, 5) for _ in range(chance.randrange(1, 5)))
        datatype = chance.choice([DataType.INT64, DataType.FP32, DataType.BYTES])
        elements = [chance.choice([0, -17, 123456]) for _ in range(int(np.prod(shape)))]
        if datatype is DataType.BYTES:
            elements = [chance.choice(["", "ab", "a long text, quite", '"[']) for _ in elements]
        document = {
            "inputs": {"x": nested(elements, shape)},
            "instances": [{"x": nested(elements, shape)}, {"x": nested(elements, shape)}],
        }
        if chance.random() < 0.3:  # a list too long, too short or too deep somewhere
            _spoil(chance, document["inputs"]["x"])
        text = json.dumps(document).encode()
        cut = load_in_pieces(text, sizes)
        long += type(cut["inputs"]["x"]) is LongArray
        for value, whole in (
            (cut["inputs"]["x"], document["inputs"]["x"]),
            ([row["x"] for row in cut["instances"]], [row["x"] for row in document["instances"]]),
        ):
            expected, found = (_outcome(each, datatype) for each in (whole, value))
            assert (found is None) == (expected is None), (text, found, expected)
            if expected is not None:
                assert found is not None
                assert found.tolist() == expected.tolist()
                assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert long > 75


def _outcome(value: Any, datatype: DataType) -> Any:
    try:
        return array_of(value, datatype, "x")
    except InvalidArgument:
        return None


def _spoil(chance: random.Random, value: list[Any]) -> None:
    while isinstance(value[0], list) and chance.random() < 0.7:
        value = chance.choice(value)
    kind = chance.randrange(3)
    if kind == 0:
        value.append(value[0])
    elif kind == 1:
        value.insert(0, [1])
    else:
        value[-1] = None
