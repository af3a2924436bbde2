"""The end of a batch from a worker's answers."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult, InstanceFailure, Outcome, WaitingBatch
from tpy.errors import Internal
from tpy_data.backends.python.protocol.device_tensors import DeviceTensors
from tpy_data.backends.python.protocol.messages import RESCHEDULED_CODE, BatchFailure, ModelAnswer, result_of
from tpy_data.backends.python.protocol.responses import OpenResponses
from tpy_data.backends.python.protocol.translation import error_of
from tpy_data.backends.python.worker.wire.core.frames import ProtocolViolation, ReceivedFrame

Answers = Sequence[ModelAnswer | ExecutionResult | int | None] | str | BatchFailure
"""Of the requests of a batch; or why it failed as a whole."""

_SENT = ExecutionResult()
"""In place of a result of a decoupled model, whose responses are sent one by one."""


class BatchExtra:
    """Kept of a batch that is held, beside the batch itself. `requests` are what the worker sees; `numbers` those of the
    requests of a decoupled model; `refused` the results, by their place in the batch, of requests that it does not see; `unsent`
    the end of a batch of which it sees none."""

    __slots__ = ("numbers", "refused", "requests", "unsent", "waiting")

    def __init__(self, requests: Sequence[ExecutionRequest]) -> None:
        self.requests = requests
        self.numbers: Sequence[int] = ()
        self.refused: dict[int, ExecutionResult] = {}
        self.unsent: Outcome | None = None
        self.waiting: WaitingBatch | None = None


def outcome_of(
    answers: Answers,
    message: ReceivedFrame,
    batch: BatchExtra,
    devices: DeviceTensors,
    responses: OpenResponses,
    *,
    decoupled: bool,
) -> Outcome:
    """The end of a batch that was executed. Raises ProtocolViolation."""
    if isinstance(answers, (str, BatchFailure)):
        if message.segment is not None:
            raise ProtocolViolation("a segment came with an error")
        responses.drop(batch.numbers)
        return Internal(answers) if isinstance(answers, str) else error_of(answers.code, answers.text)
    if len(answers) != len(batch.requests):
        raise ProtocolViolation(f"a result for {len(answers)} of {len(batch.requests)} requests")
    if decoupled:
        return [
            _SENT if answer is None else _given_back(answer, number, responses)
            for answer, number in zip(answers, batch.numbers, strict=True)
        ]
    results: list[ExecutionResult] = []
    for answer, request in zip(answers, batch.requests, strict=True):
        if isinstance(answer, ExecutionResult):
            results.append(answer)
        elif isinstance(answer, ModelAnswer):
            results.append(result_of(answer, message, devices, request.residency))
        elif answer is not None:
            results.append(responses.expect(answer))
        else:
            raise ProtocolViolation("no answer to a request")
    for index, refusal in batch.refused.items():  # in order
        results.insert(index, refusal)
    return results


def _given_back(answer: ModelAnswer | ExecutionResult | int, number: int, responses: OpenResponses) -> ExecutionResult:
    if not isinstance(answer, ModelAnswer) or answer.code != RESCHEDULED_CODE:
        raise ProtocolViolation("an answer to a request of a decoupled model")
    return ExecutionResult(reschedule=responses.rest(number))


class Waiter:
    """A `BatchListener` for a thread that waits."""

    def __init__(self) -> None:
        self.said: SimpleQueue[Outcome | InstanceFailure] = SimpleQueue()

    def completed(self, batch: ExecutionBatch, outcome: Outcome, following: ExecutionBatch | None) -> None:
        self.said.put(outcome)

    def failed(self, failure: InstanceFailure, held: Sequence[ExecutionBatch]) -> None:
        self.said.put(failure)

    def settled(self) -> None:
        pass
