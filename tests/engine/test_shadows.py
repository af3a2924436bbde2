"""Copies of requests for a new version: what is copied, what is compared, and that none is left."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import trio

from tpy.config.rollout import RolloutShadow
from tpy.errors import Internal, TpyError, Unavailable
from tpy.limits import ROLLOUT_COPIES_MAX, ROLLOUT_COPY_BYTES_MAX
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Residency, SequencePosition, Tensor
from tpy.services import ResponseSink
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.rollouts.shadow import Shadows, difference
from tpy_data.engine.serving.served_copy import ServedCopy

SHADOW = RolloutShadow()
REQUEST = InferenceRequest(model_name="m")


def tensor(values: Sequence[Any], datatype: DataType = DataType.FP32, name: str = "Y") -> Tensor:
    return Tensor(name, datatype, np.array(values, datatype.numpy))


class Handle:
    def __init__(self, copy: Copy, sink: ResponseSink) -> None:
        self._sinks, self._sink = copy.sinks, sink
        self.pause = self.resume = self.recall = self.waiting = lambda: None
        self.times = lambda now_ns: None

    def cancel(self) -> None:
        if self._sink in self._sinks:
            self._sinks.remove(self._sink)


class Copy:
    """A version whose requests are answered when the test says so. `refuses`: on arrival."""

    def __init__(self) -> None:
        self.sinks: list[ResponseSink] = []
        self.requests: list[InferenceRequest] = []
        self.refuses = False

    def submit(self, request: InferenceRequest, sink: ResponseSink) -> EngineHandle:
        if self.refuses:
            raise Unavailable("full")
        self.sinks.append(sink)
        self.requests.append(request)
        return cast(EngineHandle, Handle(self, sink))

    def answer(self, value: float = 1.0, error: TpyError | None = None, place: int = 0) -> None:
        outputs = () if error is not None else (tensor([value]),)
        self.sinks.pop(place).deliver(InferenceResponse(model_name="m", model_version=1, outputs=outputs, error=error))


class Rig:
    """Two versions, what the client got, and what was told of each."""

    def __init__(self) -> None:
        self.shadows, self.old, self.new = Shadows(), Copy(), Copy()
        self.got: list[InferenceResponse] = []
        self.ended: tuple[list[TpyError | None], list[TpyError | None]] = ([], [])
        self.differences: list[str] = []

    def deliver(self, response: InferenceResponse) -> None:
        self.got.append(response)

    def submit(self) -> EngineHandle:
        versions = (cast(ServedCopy, self.old), cast(ServedCopy, self.new))
        told = (self.ended[0].append, self.ended[1].append)
        return self.shadows.submit(REQUEST, self, versions, told, SHADOW, self.differences.append)


@pytest.fixture
async def rig(nursery: trio.Nursery) -> Rig:
    found = Rig()
    nursery.start_soon(found.shadows.run)
    return found


async def settle(rig: Rig, count: int) -> None:
    """Until so many were compared: that is done in a thread."""
    while len(rig.differences) < count:
        await trio.lowlevel.checkpoint()


async def test_the_client_gets_the_old_answer_and_both_are_compared(rig: Rig) -> None:
    rig.submit()
    rig.new.answer(2.0)
    assert rig.got == []
    rig.old.answer(1.0)
    assert [response.outputs[0].array.tolist() for response in rig.got] == [[1.0]]
    rig.submit()
    rig.old.answer(1.0)
    rig.new.answer(1.0)
    await settle(rig, 2)
    assert rig.differences == ["output 'Y' [0] is 2.0, was 1.0", ""]
    assert rig.ended == ([None, None], [None, None])
    assert [each.is_call for each in (*rig.old.requests, *rig.new.requests)] == [False, False, True, True]


async def test_errors_are_not_compared(rig: Rig) -> None:
    error = Internal("broken")
    rig.submit()
    rig.new.answer(error=error)
    rig.old.answer()
    rig.submit()
    rig.old.answer(error=error)
    rig.new.answer()
    rig.new.refuses = True
    rig.submit()
    rig.old.answer()
    assert [each if each is None else type(each) for each in rig.ended[1]] == [Internal, None, Unavailable]
    rig.old.refuses = True
    with pytest.raises(Unavailable):
        rig.submit()
    await trio.testing.wait_all_tasks_blocked()
    assert rig.differences == []


def test_what_is_copied() -> None:
    shadows = Shadows()
    small, large = ((tensor([0] * count, DataType.UINT8),) for count in (ROLLOUT_COPY_BYTES_MAX - 1, ROLLOUT_COPY_BYTES_MAX))
    assert shadows.takes(InferenceRequest(model_name="m", inputs=small))
    assert not shadows.takes(InferenceRequest(model_name="m", inputs=large))
    assert not shadows.takes(InferenceRequest(model_name="m", residency=Residency(inputs=True)))
    assert shadows.takes(InferenceRequest(model_name="m", inputs=small, residency=Residency(outputs=frozenset({"Y"})))), "a step"
    elsewhere = Tensor("X", DataType.UINT8, cast(Any, memoryview(b"0")))
    assert not shadows.takes(InferenceRequest(model_name="m", inputs=(elsewhere,)))
    assert not shadows.takes(InferenceRequest(model_name="m", sequence=SequencePosition(correlation_id=1)))


async def test_copies_are_few_at_a_time_and_none_is_left(rig: Rig) -> None:
    chance, handles = random.Random(1), list[EngineHandle]()
    for _ in range(2000):
        rig.new.refuses = chance.random() < 0.1
        match chance.randrange(4):
            case 0 if rig.shadows.takes(REQUEST):
                handles.append(rig.submit())
            case 1 if rig.old.sinks:
                rig.old.answer(place=chance.randrange(len(rig.old.sinks)))
            case 2 if rig.new.sinks:
                rig.new.answer(place=chance.randrange(len(rig.new.sinks)))
            case 3 if handles and chance.random() < 0.5:
                chance.choice(handles).cancel()
            case _:
                await trio.lowlevel.checkpoint()
        assert len(rig.new.sinks) <= ROLLOUT_COPIES_MAX
    while rig.old.sinks:
        rig.old.answer()
    while rig.new.sinks:
        rig.new.answer()
    rig.new.refuses = False
    while len(rig.shadows):
        await trio.lowlevel.checkpoint()
    for _ in range(ROLLOUT_COPIES_MAX):
        assert rig.shadows.takes(REQUEST)
        rig.submit()
    assert not rig.shadows.takes(REQUEST)


NAN = float("nan")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ([tensor([1.0, NAN])], [tensor([1.0005, NAN])], ""),
        ([tensor([1.0, 2.0])], [tensor([1.0, 2.1])], "output 'Y' [1] is 2.1, was 2.0"),
        ([tensor([[1.0], [NAN]])], [tensor([[1.0], [2.0]])], "output 'Y' [1, 0] is 2.0, was nan"),
        ([tensor([1.0])], [tensor([1.0, 1.0])], "output 'Y' is FP32 [2], was FP32 [1]"),
        ([tensor([1.0])], [tensor([1], DataType.INT32)], "output 'Y' is INT32 [1], was FP32 [1]"),
        ([tensor([1], DataType.INT32)], [tensor([2], DataType.INT32)], "output 'Y' [0] is 2, was 1"),
        ([tensor([b"a", b"b"], DataType.BYTES)], [tensor([b"a", b"c"], DataType.BYTES)], "output 'Y' [1] is b'c', was b'b'"),
        ([tensor([])], [tensor([])], ""),
        ([tensor([1000.0, NAN], DataType.BF16)], [tensor([1000.5, NAN], DataType.BF16)], ""),
        ([tensor([1.5], DataType.BF16)], [tensor([1.25], DataType.BF16)], "output 'Y' [0] is 1.25, was 1.5"),
        ([tensor([1.0])], [tensor([1.0]), tensor([1.0], name="Z")], "output 'Z' is in one answer only"),
        ([tensor([1.0]), tensor([2.0], name="Z")], [tensor([2.0], name="Z"), tensor([1.0])], ""),
        ([tensor([True], DataType.BOOL)], [tensor([False], DataType.BOOL)], "output 'Y' [0] is False, was True"),
    ],
)
def test_differences(old: list[Tensor], new: list[Tensor], found: str) -> None:
    assert difference(old, new, SHADOW.rtol, SHADOW.atol) == found
