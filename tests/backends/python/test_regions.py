"""Inputs in regions of clients, which are copied into the worker's memory and nowhere else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.backends.python.conftest import Serve, request
from tests.backends.python.test_queued import Listener, queued
from tpy.backend import CopiesInputs, ExecutionBatch, ExecutionResult, InstanceFailure, PhaseTimes, QueuedInstance
from tpy.errors import TpyError
from tpy.messages import DataType, RegionFacts, RegionKind, Tensor
from tpy.regions import CountedRegion, RegionArray, RegionCopies, SegmentRegion
from tpy.testing.requests import SampleRequest
from tpy.units import MIB
from tpy_data.backends.python.worker.wire.segments import FREE_BYTES_MAX

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
        array = RegionArray(CountedRegion(self.region, 4 * ELEMENTS), (ELEMENTS,), np.dtype(np.float32))
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
    assert results(make, Segment(1), Segment(2), shrunk=(0, 1)) == [SHORT, SHORT, [5, 5, 1]]


def test_requests_of_one_batch_share_a_region(make: Serve) -> None:
    segment = Segment(3)
    assert results(make, segment, segment, segment) == [*[[3, 3, 3]] * 3, [5, 5, 1]]
    assert segment.copies.held_bytes == 0


def test_a_worker_that_dies_with_a_copy_lets_go_of_it(make: Serve) -> None:
    segment = Segment(1)
    served = make("import os\n" + CODE.replace("return", "os._exit(3) if given(requests[0])[0] == 1 else None\n        return"))
    listener = Listener()
    instance = queued(served)
    assert instance.begin([ExecutionBatch([segment.request()], PhaseTimes())], listener) == 1
    while listener.failure is None:
        instance.check()
        time.sleep(0.001)
    served.close()
    assert segment.copies.held_bytes == 0


def test_tensors_of_many_sizes_leave_no_more_than_is_kept(make: Serve) -> None:
    served = make(CODE)
    instance = queued(served)
    segments = [Segment(1), Segment(2)]
    random = Random(15)
    for _ in range(200):
        batch = []
        for _ in range(random.randint(1, 4)):
            elements = random.randrange(MIB // 4, ELEMENTS)
            chosen = random.choice(segments)
            array = RegionArray(CountedRegion(chosen.region, 4 * elements), (elements,), np.dtype(np.float32))
            batch.append(request(inputs={"IN": Tensor("IN", DataType.FP32, array.as_array())}))
            del array
        listener = Listener()
        assert instance.begin([ExecutionBatch(batch, PhaseTimes())], listener) == 1
        (outcome,) = listener.wait(instance)
        assert not isinstance(outcome, InstanceFailure | TpyError)
        assert {result.outputs[0].array.tolist()[2] for result in outcome} == {len(batch)}
        del batch, outcome
    served.output(request(np.array([0], np.float32)))  # whoever took the last answer holds it no longer
    assert [segment.copies.held_bytes for segment in segments] == [0, 0]
    assert shared_with(instance) <= FREE_BYTES_MAX + 2 * 16 * MIB


def shared_with(instance: QueuedInstance) -> int:
    """The bytes of segments that the worker has mapped."""
    lines = Path(f"/proc/{instance.pid}/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if "memfd:tpy-tensors" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


def test_workers_say_that_they_copy_inputs(make: Serve) -> None:
    served = make(CODE)
    assert isinstance(served.backend.load(served.context), CopiesInputs)
    in_a_thread = make(CODE, "thread")
    assert not isinstance(in_a_thread.backend.load(in_a_thread.context), CopiesInputs)
