"""Keys and sizes of the response cache."""

from __future__ import annotations

import numpy as np
import pytest

from tpy.messages import DataType, InferenceRequest, SequencePosition, Tensor
from tpy.messages.tensors import ELEMENT_BYTES
from tpy_data.cache.core.entry import ENTRY_BYTES, KEY_BYTES, PARAMETER_BYTES, TENSOR_BYTES, RequestKey, entry_bytes, keep
from tpy_data.cache.core.lru import LruCore

KEY = RequestKey(("m", 1))


def texts(name: str, *elements: bytes) -> Tensor:
    return Tensor(name, DataType.BYTES, np.array(elements, dtype=object))


def numbers(name: str, *shape: int, datatype: DataType = DataType.FP32, start: int = 0) -> Tensor:
    count = int(np.prod(shape))
    return Tensor(name, datatype, np.arange(start, start + count).astype(datatype.numpy).reshape(shape))


def digest(*inputs: Tensor, key: RequestKey = KEY, **fields: object) -> bytes:
    return key.digest(InferenceRequest(model_name="m", inputs=inputs, **fields))  # type: ignore[arg-type]  # checked at runtime


SAME = [
    (digest(numbers("a", 4), numbers("b", 2)), digest(numbers("b", 2), numbers("a", 4))),
    (digest(numbers("a", 2, 3)), digest(Tensor("a", DataType.FP32, np.asfortranarray(numbers("a", 2, 3).array)))),
    (digest(texts("a", b"x", b"yz")), digest(texts("a", b"x", b"yz"))),
    (digest(numbers("a", 0)), digest(numbers("a", 0))),
    (digest(numbers("a", 1), requested_outputs=("p", "q")), digest(numbers("a", 1), requested_outputs=("q", "p"))),
    (digest(numbers("a", 1), id="1", priority=1), digest(numbers("a", 1), id="2", priority=2, timeout_us=7)),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_request(one: bytes, other: bytes) -> None:
    assert one == other
    assert len(one) == KEY_BYTES == 32


DIFFERENT = [
    digest(),
    digest(numbers("a", 4)),
    digest(numbers("b", 4)),
    digest(numbers("a", 4, start=1)),
    digest(numbers("a", 2, 2)),
    digest(numbers("a", 4, datatype=DataType.INT32)),
    digest(numbers("a", 4), numbers("b", 4)),
    digest(numbers("a", 4), numbers("b", 4, start=1)),
    digest(texts("a", b"x", b"yz")),
    digest(texts("a", b"xy", b"z")),
    digest(texts("a", b"x", b"yy")),
    digest(texts("a", b"", b"xyz")),
    digest(texts("a", b"xyz")),
    digest(numbers("a", 4), requested_outputs=("p",)),
    digest(numbers("a", 4), parameters={"p": 1}),
    digest(numbers("a", 4), parameters={"p": "1"}),
    digest(numbers("a", 4), sequence=SequencePosition(correlation_id=1)),
    digest(numbers("a", 4), sequence=SequencePosition(correlation_id="1")),
    digest(numbers("a", 4), sequence=SequencePosition(correlation_id=1, start=True)),
    digest(numbers("a", 4), sequence=SequencePosition(correlation_id=1, end=True)),
    digest(numbers("a", 4), key=RequestKey(("m", 2))),
]


def test_different_requests() -> None:
    assert len(set(DIFFERENT)) == len(DIFFERENT)


def test_what_an_answer_costs() -> None:
    outputs = [numbers("out", 2, 3), texts("text", b"a", b"bcd")]
    assert entry_bytes([], {}, 10_000) == ENTRY_BYTES
    tensors = 24 + TENSOR_BYTES + 3 + 4 + TENSOR_BYTES + 4 + 2 * ELEMENT_BYTES
    parameters = 2 * PARAMETER_BYTES + 1 + 2 + len("text")
    assert entry_bytes(outputs, {"p": 1, "qq": "text"}, 10_000) == ENTRY_BYTES + tensors + parameters


def test_what_is_kept_is_nobody_elses() -> None:
    output = numbers("out", 2)
    kept = keep([output], {"p": 1})
    output.array[0] = 9
    assert kept.outputs[0].array.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        kept.outputs[0].array[0] = 1


def test_hits_and_misses_are_counted() -> None:
    cache: LruCore[int] = LruCore(2)
    assert (cache.hits, cache.misses, cache.evictions, cache.bytes_used) == (0, 0, 0, 0)
    cache.put(b"a", 1, 1)
    assert [cache.get(b"a"), cache.get(b"a"), cache.get(b"b")] == [1, 1, None]
    assert (cache.hits, cache.misses) == (2, 1)
