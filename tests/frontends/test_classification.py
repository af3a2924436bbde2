"""Classification against the plainest way to compute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.errors import InvalidArgument
from tpy.frontends.classification import classify
from tpy.limits import CLASSIFICATION_ELEMENTS_MAX
from tpy.messages import Tensor
from tpy.messages.datatypes import from_numpy


def classes(array: Any, count: int, *, batches: bool = False, labels: tuple[str, ...] = ()) -> Any:
    tensor = Tensor("OUT", from_numpy(array.dtype), array)
    return classify(tensor, class_count=count, batches=batches, labels=labels).array.tolist()


def test_values_indices_and_labels() -> None:
    array = np.array([0.1, 3, -2], np.float32)
    assert classes(array, 2, labels=("cat", "", "bird")) == [b"3.000000:1", b"0.100000:0:cat"]
    assert classes(array, 9, labels=("cat",)) == [b"3.000000:1", b"0.100000:0:cat", b"-2.000000:2"]


def test_integers_are_written_whole() -> None:
    assert classes(np.array([1, 2**64 - 1, 2**63], np.uint64), 2) == [b"18446744073709551615:1", b"9223372036854775808:2"]
    assert classes(np.array([-128, 127], np.int8), 2) == [b"127:1", b"-128:0"]


def test_rows_are_flattened_behind_the_batch() -> None:
    array = np.arange(8, dtype=np.int32).reshape(2, 2, 2)
    assert classes(array, 1, batches=True) == [[b"3:3"], [b"7:3"]]
    assert classes(array, 1) == [b"7:7"]


def test_nothing_to_classify() -> None:
    assert classes(np.zeros((2, 0), np.float32), 3, batches=True) == [[], []]
    assert classes(np.zeros((0, 3), np.float32), 3, batches=True) == []
    assert classes(np.array(5, np.int32), 3) == [b"5:0"]


@pytest.mark.parametrize("dtype", [np.float16, np.bool_, object])
def test_types_without_classes(dtype: Any) -> None:
    with pytest.raises(InvalidArgument, match="class result not available for output due to unsupported type"):
        classes(np.zeros(3, dtype), 1)


def test_too_large() -> None:
    with pytest.raises(InvalidArgument, match="classification output tensor too large"):
        classes(np.zeros(CLASSIFICATION_ELEMENTS_MAX + 1, np.int8), 1)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 50), st.sampled_from([1, 100]))
def test_largest_first_and_equal_ones_by_index(values: list[int], count: int, times: int) -> None:
    row = values * times  # long rows take another way to the same answer
    expected = sorted(range(len(row)), key=lambda index: (-row[index], index))[:count]
    for dtype in (np.int8, np.float64):
        found = [int(text.split(b":")[1]) for text in classes(np.array(row, dtype), count)]
        assert found == expected


def test_not_a_number_comes_first() -> None:
    row = np.zeros(5000, np.float32)
    row[[7, 4000]] = np.nan
    row[9] = 2
    assert classes(row, 3) == [b"nan:7", b"nan:4000", b"2.000000:9"]
