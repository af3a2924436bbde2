"""Two versions of a model that share its requests without a version: the core chooses one for each request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tpy.clock import Clock
from tpy.config.rollout import RolloutPlan
from tpy.errors import ErrorCode, TpyError
from tpy.messages import InferenceRequest, InferenceResponse, ModelDescription, TensorDescription
from tpy.services import ResponseSink
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.rollouts.core.rollout import Arm, Decision, RolloutCore
from tpy_data.engine.serving.served_copy import ServedCopy, next_copy_number

if TYPE_CHECKING:
    from tpy_data.engine.rollouts.shadow import Shadows

_OF_CLIENTS = frozenset((ErrorCode.INVALID_ARG, ErrorCode.CANCELLED, ErrorCode.UNSUPPORTED, ErrorCode.RESOURCE_EXHAUSTED))
"""Errors that say nothing against a version: the request was wrong, nobody waits for it, or its tenant sends too many."""


class Split:
    """Two copies of a model, as one `tpy.services.ResolvedModel`: each request gets the one that the core chooses."""

    __slots__ = ("_clock", "_copying", "_core", "_decided", "copy", "description", "new", "old")

    def __init__(
        self,
        old: ServedCopy,
        new: ServedCopy,
        core: RolloutCore,
        clock: Clock,
        decided: Callable[[Decision], None],
        copying: Callable[[], Shadows],
    ) -> None:
        self.copy = next_copy_number()
        self.description = old.description
        self.old = old
        self.new = new
        self._core = core
        self._clock = clock
        self._decided = decided
        self._copying = copying

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`."""
        if self._core.copies() and self._copying().takes(request):
            return self._submit_to_both(request, sink)
        arm = self._core.choose(_key(self._core.plan, request))
        chosen = self.new if arm is Arm.NEW else self.old
        begun = Begun(self._core.begun, self._clock.now_ns())
        try:
            return chosen.submit(request, _Counted(self, sink, begun, None if arm is Arm.OLD else chosen.description))
        except TpyError as refusal:
            self.ended(arm, refusal, begun)
            raise

    def hold(self) -> None:
        """See ResolvedModel."""
        self.old.hold()
        self.new.hold()

    def release(self) -> None:
        """See ResolvedModel."""
        self.old.release()
        self.new.release()

    def _submit_to_both(self, request: InferenceRequest, sink: ResponseSink) -> EngineHandle:
        core, begun = self._core, Begun(self._core.begun, self._clock.now_ns())
        assert core.shadow is not None
        ended = [partial(self.ended, arm, begun=begun) for arm in (Arm.OLD, Arm.NEW)]
        compared = partial(self._compared, begun=begun)
        return self._copying().submit(request, sink, (self.old, self.new), (ended[0], ended[1]), core.shadow, compared)

    def _compared(self, difference: str, begun: Begun) -> None:
        decision = self._core.answers_compared(difference, begun.step)
        if decision is not None:
            self._decided(decision)

    def answered(self, response: InferenceResponse, begun: Begun) -> None:
        """A request is over. It counts for the version that answered: one of a sequence stays where the sequence is."""
        for arm, copy in ((Arm.NEW, self.new), (Arm.OLD, self.old)):
            if response.model_version == copy.version:
                self.ended(arm, response.error, begun)

    def ended(self, arm: Arm, error: TpyError | None, begun: Begun) -> None:
        """A request to this version is over."""
        if error is not None and error.code in _OF_CLIENTS:
            return
        latency_ns = self._clock.now_ns() - begun.at_ns
        decision = self._core.ended(arm, begun.step, failed=error is not None, latency_ns=latency_ns)
        if decision is not None:
            self._decided(decision)


class Begun(NamedTuple):
    """The begin of a request: the number of the step, and the time."""

    step: int
    at_ns: int


class _Counted:
    """Passes responses on, and tells how the last one was. `description` is that of the copy, where the request was decoded for
    another one."""

    __slots__ = ("_begun", "_description", "_sink", "_split")

    def __init__(self, split: Split, sink: ResponseSink, begun: Begun, description: ModelDescription | None) -> None:
        self._split = split
        self._sink = sink
        self._begun = begun
        self._description = description

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        if response.final:
            self._split.answered(response, self._begun)
        if self._description is not None and response.described_by is None:
            response = msgspec.structs.replace(response, described_by=self._description)
        self._sink.deliver(response)


def _key(plan: RolloutPlan, request: InferenceRequest) -> bytes | None:
    """The text by which requests stay together; None: this one is on its own. Those of a sequence always do."""
    if request.sequence is not None:
        return str(request.sequence.correlation_id).encode()
    if plan.sticky == "request_id":
        return request.id.encode() or None
    value = request.parameters.get(plan.sticky_parameter) if plan.sticky_parameter else None
    return None if value is None else str(value).encode()


def difference(old: ModelDescription, new: ModelDescription) -> str:
    """The reason why requests for the old version cannot be sent to the new one; "": they can."""
    if old.decoupled != new.decoupled:
        return "it is decoupled, the old version is not" if new.decoupled else "the old version is decoupled, it is not"
    if new.max_batch_size < old.max_batch_size or new.batches != old.batches:
        return f"its max_batch_size is {new.max_batch_size}, that of the old version is {old.max_batch_size}"
    for kind in ("inputs", "outputs"):
        before = {each.name: each for each in getattr(old, kind)}
        now = {each.name: each for each in getattr(new, kind)}
        for name in sorted(before.keys() | now.keys()):
            if differs := _tensor_difference(before.get(name), now.get(name)):
                return f"its {kind} are not those of the old version: '{name}' {differs}"
    return ""


def _tensor_difference(old: TensorDescription | None, new: TensorDescription | None) -> str:
    """The reason why one of a request for the old version does not fit the new one; "": it does."""
    if old is None or new is None or (old.datatype, old.shape) != (new.datatype, new.shape):
        return "differs"
    if old.optional and not new.optional:
        return "is not optional any more"
    return "has no allow_ragged_batch any more" if old.ragged and not new.ragged else ""
