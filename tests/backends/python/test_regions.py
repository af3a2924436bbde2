"""Inputs in regions of clients, which are copied into the worker's memory and nowhere else."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.backends.python.conftest import Serve, request
from tests.backends.python.test_queued import Listener, queued
from tpy.backend import CopiesInputs, ExecutionBatch, ExecutionResult, PhaseTimes
from tpy.errors import InvalidArgument
from tpy.messages import DataType, RegionFacts, RegionKind, Tensor
from tpy.regions import RegionArray, RegionCopies, SegmentRegion
from tpy.testing.requests import SampleRequest
from tpy.units import MIB

CODE = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(tensor(np.array([given(r)[0], given(r)[-1], len(requests)], np.float32))) for r in requests]
"""

ELEMENTS = MIB


class Segment:
    """A client's segment with one array in it."""

    def __init__(self, value: float) -> None:
        self.copies = RegionCopies()
        descriptor = os.memfd_create("region")
        os.ftruncate(descriptor, 4 * ELEMENTS)
        os.pwrite(descriptor, np.full(ELEMENTS, value, np.float32).tobytes(), 0)
        facts = RegionFacts(name="r", kind=RegionKind.SYSTEM, key="/k", offset=0, byte_size=4 * ELEMENTS)
        self.region = SegmentRegion(facts, descriptor, self.copies)

    def shrink(self) -> None:
        """As a client may do at any time."""
        os.ftruncate(self.region.descriptor, 4096)

    def request(self) -> SampleRequest:
        """With the array as its input."""
        array = RegionArray(self.region, (ELEMENTS,), np.dtype(np.float32))
        return request(inputs={"IN": Tensor("IN", DataType.FP32, array.as_array())})


def results(make: Serve, *segments: Segment, shrunk: tuple[int, ...] = ()) -> list[list[float] | str]:
    """The answers of one batch, after some segments became shorter; errors as their texts. The worker lives on."""
    served = make(CODE)
    instance = queued(served)
    requests = [segment.request() for segment in segments]
    for index in shrunk:
        segments[index].shrink()
    found: list[list[float] | str] = []
    for batch in (requests, [request(np.array([5], np.float32))]):
        listener = Listener()
        assert instance.begin([ExecutionBatch(batch, PhaseTimes())], listener) == 1
        (outcome,) = listener.wait(instance)
        if isinstance(outcome, InvalidArgument):
            found.append(outcome.message)
            continue
        assert isinstance(outcome, list)
        found += [text(result) for result in outcome]
    return found


def text(result: ExecutionResult) -> list[float] | str:
    """Its numbers, or its error."""
    return result.outputs[0].array.tolist() if result.error is None else result.error.message


def test_it_is_copied_once(make: Serve) -> None:
    one, other = Segment(1), Segment(2)
    assert results(make, one, other) == [[1, 1, 2], [2, 2, 2], [5, 5, 1]]
    assert one.copies.held_bytes == other.copies.held_bytes == 0


SHORT = "shared memory region 'r' is shorter now than when it was registered: its segment '/k' was truncated"


@pytest.mark.parametrize("shrunk", [0, 1, 2])
def test_a_segment_that_became_shorter_fails_its_own_request(make: Serve, shrunk: int) -> None:
    expected: list[list[float] | str] = [[value, value, 2] for value in (1.0, 2.0, 3.0)]
    expected[shrunk] = SHORT
    assert results(make, Segment(1), Segment(2), Segment(3), shrunk=(shrunk,)) == [*expected, [5, 5, 1]]


def test_when_all_did_nothing_is_executed(make: Serve) -> None:
    assert results(make, Segment(1), Segment(2), shrunk=(0, 1)) == [SHORT, [5, 5, 1]]


def test_workers_say_that_they_copy_inputs(make: Serve) -> None:
    served = make(CODE)
    assert isinstance(served.backend.load(served.context), CopiesInputs)
    in_a_thread = make(CODE, "thread")
    assert not isinstance(in_a_thread.backend.load(in_a_thread.context), CopiesInputs)
