"""BYTES elements: both ways of splitting them agree, and only whole elements pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.frontends.bytes_tensor import BrokenElements, join_elements, object_array, split_elements

ELEMENTS = st.lists(st.binary(max_size=6), max_size=20) | st.tuples(st.binary(max_size=6), st.integers(0, 20)).map(
    lambda pair: [pair[0]] * pair[1]
)


@given(ELEMENTS, st.sampled_from([bytes, bytearray, memoryview]))
def test_round_trip(elements: list[bytes], kind: type) -> None:
    joined = join_elements(object_array(elements, (len(elements),)))
    assert split_elements(kind(joined), len(elements)) == elements


@given(ELEMENTS, st.integers(-3, 3).filter(bool))
def test_another_count_is_refused(elements: list[bytes], difference: int) -> None:
    joined = join_elements(object_array(elements, (len(elements),)))
    wrong = len(elements) + difference
    if wrong >= 0:
        with pytest.raises(BrokenElements):
            split_elements(joined, wrong)


@given(st.binary(max_size=60), st.integers(0, 2**62))
def test_any_bytes(data: bytes, count: int) -> None:
    try:
        elements = split_elements(data, count)
    except BrokenElements as broken:
        assert "'IN'" in broken.text(tensor="IN", model="m", prefix="")  # noqa: PT017 (either outcome is right)
    else:
        assert join_elements(object_array(elements, (count,))) == data
