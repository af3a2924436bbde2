"""Implicit state in python models, and decoupled requests that are given back, without an engine around them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from tpy.backend import SequenceState
from tpy.config.model_config import SequenceBatching
from tpy.config.model_config import SequenceState as StateConfig
from tpy.errors import Unsupported
from tpy.messages import DataType
from tpy.testing.requests import RecordingSender

from .conftest import Serve, request

STATE = StateConfig(input_name="BEFORE", output_name="AFTER", data_type=DataType.FP32, dims=(-1,))

SUMS = """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            array, before = given(r), given(r, "BEFORE")
            if array[0] < 0:
                out.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative")))
            elif array[0] == 99:
                out.append(answer(tensor(before), pb_utils.Tensor("AFTER", np.zeros(3, np.int32))))
            elif array[0] == 98:
                out.append(answer(tensor(before)))
            else:
                out.append(answer(tensor(before + array), pb_utils.Tensor("AFTER", before + array)))
        return out
"""


def state() -> SequenceState:
    return SequenceState({"BEFORE": np.zeros(3, np.float32)})


def test_what_a_model_returns_is_what_it_gets_next(serve: Serve) -> None:
    served = serve(SUMS, sequence_batching=SequenceBatching(state=(STATE,)))
    one, two = state(), state()
    for number in range(1, 4):
        ones, tens = np.full(3, 1, np.float32), np.full(3, 10, np.float32)
        results = served.run(request(ones, state=one), request(tens, state=two, requested_outputs=("OUT",)))
        assert [result.outputs[0].array.tolist() for result in results] == [[number] * 3, [10 * number] * 3]
    value: Any = two.values["BEFORE"]
    assert value.tolist() == [30, 30, 30]
    assert value.base is None or value.nbytes == value.base.nbytes


def test_failures_keep_the_state_and_so_do_answers_without_it(serve: Serve) -> None:
    served = serve(SUMS, sequence_batching=SequenceBatching(state=(STATE,)))
    held = state()
    served.run(request(np.full(3, 5, np.float32), state=held))
    (failed,) = served.run(request(np.full(3, -1, np.float32), state=held))
    assert failed.error is not None
    (wrong,) = served.run(request(np.full(3, 99, np.float32), state=held))
    assert wrong.error is not None
    assert "state 'AFTER' was returned with datatype INT32, expected FP32" in wrong.error.message
    (without,) = served.run(request(np.full(3, 98, np.float32), state=held))
    assert without.outputs[0].array.tolist() == [5, 5, 5]
    assert np.asarray(held.values["BEFORE"]).tolist() == [5, 5, 5]


def test_not_in_decoupled_models(serve: Serve) -> None:
    served = serve(SUMS, decoupled=True, sequence_batching=SequenceBatching(state=(STATE,)))
    with pytest.raises(Unsupported, match="implicit state of a decoupled model"):
        served.run(request(sender=RecordingSender(), state=state()))


ROUNDS = """
class TritonPythonModel:
    def initialize(self, args):
        self.rounds = {}
    def execute(self, requests):
        for r in requests:
            number = self.rounds[r.request_id()] = self.rounds.get(r.request_id(), 0) + 1
            sender = r.get_response_sender()
            last = number == int(given(r)[0])
            if last:
                sender.send(answer(tensor(np.array([number], np.float32))), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                sender.send(answer(tensor(np.array([number], np.float32))))
                r.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""


def test_a_decoupled_request_is_given_back_until_it_ends(serve: Serve) -> None:
    served = serve(ROUNDS, decoupled=True, sequence_batching=SequenceBatching(iterative_sequence=True))
    senders = {"a": RecordingSender(), "b": RecordingSender()}
    left = {"a": 3, "b": 150}
    while left:
        results = served.run(
            *(request(np.array([left[name]], np.float32), id=name, sender=senders[name]) for name in left),
        )
        if results:
            left = {name: left[name] for name, result in zip(list(left), results, strict=True) if result.reschedule}
        else:
            left = {}
    for name, count in (("a", 3), ("b", 150)):
        assert senders[name].finished.wait(10)
        sent = [(result.outputs[0].array.tolist(), final) for result, final in senders[name].sent if result is not None]
        assert sent == [([number], number == count) for number in range(1, count + 1)]


def test_a_request_that_is_cancelled_while_it_rests_leaves_nothing(make: Serve) -> None:
    served = make(ROUNDS, decoupled=True, sequence_batching=SequenceBatching(iterative_sequence=True))
    cancelled = []
    for name in ("a", "b", "c"):
        sender = RecordingSender()
        cancelled.append(weakref.ref(sender))
        (result,) = served.run(request(np.array([5], np.float32), id=name, sender=sender))
        assert result.reschedule
        sender.cancel()
    sender = RecordingSender()
    assert list(served.run(request(np.array([1], np.float32), id="d", sender=sender))) == []
    assert sender.finished.wait(10)
    assert [held for held in cancelled if held() is not None] == []
