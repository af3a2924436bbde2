"""Numbers that are read as arrays: the same as by way of lists, and refused in the same words."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec import parse_infer
from tpy.frontends.http.codec.json_data import read_json_data
from tpy.frontends.http.codec.json_text import parse_json
from tpy.frontends.http.codec.numbers import holds_numbers, load_with_numbers, read_numbers
from tpy.messages import DataType, ModelDescription
from tpy.messages.models import TensorDescription

DATATYPES = [datatype for datatype in DataType if holds_numbers(datatype)]

VALUES = st.one_of(
    st.integers(-300, 300),
    st.integers(-(2**64), 2**65),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([3.4028235e38, 3.5e38, -0.0, 1e-320, 127, 128, 255, 256, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]),
)
OTHERS = st.one_of(st.booleans(), st.none(), st.text(alphabet="a[]1", max_size=3))
ARRAYS = st.recursive(st.lists(VALUES, max_size=8), lambda inner: st.lists(inner, max_size=3), max_leaves=8)
MIXED = st.recursive(st.lists(st.one_of(VALUES, OTHERS), max_size=8), lambda inner: st.lists(inner, max_size=3), max_leaves=8)


def count_of(value: object) -> int:
    return sum(map(count_of, value)) if isinstance(value, list) else 1


def by_lists(text: bytes, datatype: DataType) -> np.ndarray[Any, Any] | None:
    """The numbers as the other way reads them, None where it refuses them."""
    try:
        elements = parse_json(text)
        assert isinstance(elements, list)
        count = count_of(elements)
        return read_json_data(elements, datatype, count, tensor="X") if count else np.empty(0, datatype.numpy)
    except InvalidArgument:
        return None


class TestAnArray:
    @settings(max_examples=300)
    @given(array=st.one_of(ARRAYS, MIXED), datatype=st.sampled_from(DATATYPES), spaced=st.booleans())
    def test_it_is_that_of_lists(self, array: list[Any], datatype: DataType, *, spaced: bool) -> None:
        text = json.dumps(array, indent=1 if spaced else None).encode()
        found, expected = read_numbers(text, datatype), by_lists(text, datatype)
        if found is not None:
            assert expected is not None
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes()

    @settings(max_examples=300)
    @given(array=ARRAYS, datatype=st.sampled_from(DATATYPES), seed=st.integers(0, 2**32))
    def test_nothing_broken_is_read(self, array: list[Any], datatype: DataType, seed: int) -> None:
        chance = random.Random(seed)
        text = bytearray(json.dumps(array).encode())
        at = chance.randrange(len(text))
        text[at : at + chance.randrange(2)] = chance.choice(
            [b"", b",", b"[", b"]", b'"', b"e", b".", b"0", b" ", b"-", b"\x00", b"\xff"]
        )
        found = read_numbers(bytes(text), datatype)
        if found is not None:
            expected = by_lists(bytes(text), datatype)
            assert expected is not None
            assert found.tobytes() == expected.tobytes()

    @pytest.mark.parametrize("datatype", DATATYPES)
    def test_all_that_is_usual_is_read(self, datatype: DataType) -> None:
        numbers = np.arange(100).astype(datatype.numpy)
        for shape in ((100,), (10, 10), (1, 2, 5, 10)):
            found = read_numbers(json.dumps(numbers.reshape(shape).tolist()).encode(), datatype)
            assert found is not None
            assert found.flags.writeable
            assert np.array_equal(found, numbers)

    @pytest.mark.parametrize("datatype", [DataType.BOOL, DataType.BYTES, DataType.FP16, DataType.BF16])
    def test_other_types_are_left_to_lists(self, datatype: DataType) -> None:
        assert read_numbers(b"[1]", datatype) is None

    def test_deep_nesting_is_left_to_lists(self) -> None:
        deepest = limits.JSON_DEPTH_MAX - 1
        assert read_numbers(b"[" * deepest + b"1" + b"]" * deepest, DataType.FP32) is not None
        assert read_numbers(b"[" * limits.JSON_DEPTH_MAX + b"1" + b"]" * limits.JSON_DEPTH_MAX, DataType.FP32) is None
        assert read_numbers(b"[" + b",".join([b"[1]"] * 2 * limits.JSON_DEPTH_MAX) + b"]", DataType.FP32) is not None

    def test_threads_have_parsers_of_their_own(self) -> None:
        wrong: list[int] = []

        def read(number: int) -> None:
            text = json.dumps([number] * 1000).encode()
            for _ in range(50):
                found = read_numbers(text, DataType.INT64)
                if found is None or not (found == number).all():
                    wrong.append(number)

        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def description(*datatypes: DataType) -> ModelDescription:
    inputs = tuple(TensorDescription(name=f"X{index}", datatype=each, shape=(-1,)) for index, each in enumerate(datatypes))
    return ModelDescription(
        name="model",
        version=1,
        platform="",
        max_batch_size=0,
        decoupled=False,
        inputs=inputs,
        outputs=(),
        input_by_name={each.name: each for each in inputs},
        output_by_name={},
    )


def parsed(document: object, *datatypes: DataType) -> Any:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    assert len(text) > limits.JSON_LISTS_BYTES_MAX * (len(datatypes) + 1)
    return parse_infer(text, header_length=None, description=description(*datatypes), version=None, received_ns=0)[0]


NUMBERS = [index / 8 for index in range(1000)]
ITEM = {"name": "X0", "datatype": "FP32", "shape": [1000], "data": NUMBERS}


class TestADocument:
    def test_all_its_members_are_as_ever(self) -> None:
        request = parsed(
            {
                "id": "a",
                "parameters": {"priority": 3, "own": 1.5, "text": "[1]"},
                "inputs": [ITEM, {"name": "X1", "datatype": "INT8", "shape": [2, 2], "data": [[1, 2], [3, -4]]}],
                "outputs": [{"name": "Y", "parameters": {"classification": 2}}],
            },
            DataType.FP32,
            DataType.INT8,
        )
        assert (request.id, request.priority, request.parameters) == ("a", 3, {"own": 1.5, "text": "[1]"})
        assert request.requested_outputs == ("Y",)
        assert np.array_equal(request.inputs[0].array, np.array(NUMBERS, np.float32))
        assert request.inputs[1].array.tolist() == [[1, 2], [3, -4]]

    def test_its_data_needs_no_lists(self) -> None:
        document = load_with_numbers(json.dumps({"inputs": [ITEM]}).encode())
        assert document is not None
        inputs = document["inputs"]
        assert isinstance(inputs, list)
        assert isinstance(inputs[0]["data"], np.ndarray)

    @pytest.mark.parametrize(
        "document",
        [
            {"inputs": [{**ITEM, "data": [*NUMBERS[:-1], True]}]},
            {"inputs": [{**ITEM, "data": [*NUMBERS[:-1], "1"]}]},
            {"inputs": [{**ITEM, "data": [*NUMBERS[:-1], None]}]},
            {"inputs": [{**ITEM, "data": [*NUMBERS[:-1], 1e39]}]},
            {"inputs": [{**ITEM, "data": NUMBERS[:-1]}]},
            {"inputs": [{**ITEM, "data": [*NUMBERS, 1]}]},
            {"inputs": [{**ITEM, "datatype": "INT32"}]},
            {"inputs": [{**ITEM, "datatype": "FP99"}]},
            {"inputs": [{**ITEM, "datatype": 1}]},
            {"inputs": [{**ITEM, "shape": [-1]}]},
            {"inputs": [{**ITEM, "shape": NUMBERS}]},
            {"inputs": [{**ITEM, "name": NUMBERS}]},
            {"inputs": [{**ITEM, "parameters": {"binary_data_size": 4}}]},
            {"inputs": [ITEM, ITEM]},
            {"inputs": [ITEM, 1]},
            {"inputs": {"a": ITEM}},
            {"inputs": [ITEM], "outputs": [{"name": NUMBERS}]},
            {"inputs": [ITEM], "id": 1},
            [ITEM],
            b'{"inputs": [%b, ], "id": "a"}' % json.dumps(ITEM).encode(),
            b'{"inputs": [%b]} x' % json.dumps(ITEM).encode(),
            b'{"other": [1,,2], "inputs": [%b]}' % json.dumps(ITEM).encode(),
        ],
    )
    def test_it_is_refused_in_the_words_of_lists(self, document: object, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InvalidArgument) as refused:
            parsed(document, DataType.FP32)
        monkeypatch.setattr("tpy.frontends.http.codec.request.load_with_numbers", lambda text: None)
        with pytest.raises(InvalidArgument) as expected:
            parsed(document, DataType.FP32)
        assert str(refused.value) == str(expected.value)

    @pytest.mark.parametrize(
        ("last", "value"), [(b"NaN", np.nan), (b"Infinity", np.inf), (b"36893488147419103232", 2.0**65), (b"7", 7.0)]
    )
    def test_unusual_numbers_are_taken(self, last: bytes, value: float) -> None:
        text = json.dumps({"inputs": [{**ITEM, "data": [*NUMBERS[:-1], 4711]}]}).encode().replace(b"4711", last)
        assert np.array_equal(parsed(text, DataType.FP32).inputs[0].array[-1], value, equal_nan=True)

    def test_of_members_with_one_name_the_last_counts(self) -> None:
        text = json.dumps({"inputs": [ITEM]}).encode()
        twice = text[:-1] + b', "id": "first", "id": "last"}'
        assert parsed(twice, DataType.FP32).id == "last"
        item = json.dumps(ITEM).encode()
        assert parsed(b'{"inputs": [' + item[:-1] + b', "data": ' + item[item.index(b"[0.0") :] + b"]}", DataType.FP32).inputs[0]
