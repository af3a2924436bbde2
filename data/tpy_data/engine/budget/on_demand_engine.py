"""OnDemandEngine: the request path of a version that is loaded when it is asked for. Requests go to the engine of the loaded
copy, or wait until there is one. All of it on the Trio thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from tpy.clock import Clock
from tpy.echo import request_prefix
from tpy.errors import Refusal, TpyError, Unavailable
from tpy.limits import ON_DEMAND_WAITING_BYTES_MAX
from tpy.messages import (
    EngineActivity,
    InferenceRequest,
    InferenceResponse,
    LevelActivity,
    ModelDescription,
    QueueActivity,
    WaitReason,
)
from tpy.messages.tensors import held_bytes
from tpy.services import ResponseSink
from tpy.units import NS_PER_S
from tpy_data.engine.budget.waiting_room import WaitingPlace, WaitingRoom
from tpy_data.engine.requests.handle import EngineHandle, Execution, WaitingRequest
from tpy_data.engine.requests.model_engine import Drain, ModelEngine
from tpy_data.engine.requests.responder import DISCARD, deliver
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.engine.sequences.sequence_peers import SequenceHolder
from tpy_data.schedulers.core import CoreSnapshot, Outcome

_NO_REQUEST = InferenceRequest(model_name="")


class PendingRequest:
    """A request that waits for a load, and its handle (an EngineHandle); later it stands for the handle of the loaded copy."""

    __slots__ = ("_handle", "_is_paused", "_owner", "deadline_ns", "place", "request", "since_ns", "sink")

    def __init__(
        self,
        owner: OnDemandEngine,
        request: InferenceRequest,
        sink: ResponseSink,
        place: WaitingPlace,
        *,
        since_ns: int,
        deadline_ns: int,
    ) -> None:
        self._owner = owner
        self._handle: EngineHandle | None = None
        self._is_paused = False
        self.request = request
        self.sink = sink
        self.place = place
        self.since_ns = since_ns
        self.deadline_ns = deadline_ns

    def submit(self, engine: ModelEngine) -> None:
        """Give it to the engine of the loaded copy."""
        request, sink = self.request, self.sink
        self.request, self.sink = _NO_REQUEST, DISCARD  # the handle has them, and lets go of them when it is answered
        try:
            handle = engine.submit(request, sink)
        except TpyError as refusal:
            self._owner.answer(request, sink, refusal)
            return
        self._handle = handle
        if self._is_paused:
            handle.pause()

    def cancel(self) -> None:
        """See EngineHandle."""
        if self._handle is not None:
            self._handle.cancel()
        else:
            self._owner.cancel(self)

    def pause(self) -> None:
        """See EngineHandle."""
        self._is_paused = True
        if self._handle is not None:
            self._handle.pause()

    def resume(self) -> None:
        """See EngineHandle."""
        self._is_paused = False
        if self._handle is not None:
            self._handle.resume()

    def waiting(self) -> Iterable[WaitingRequest]:
        """See EngineHandle: while it waits for a load no instance is what it waits for."""
        return () if self._handle is None else self._handle.waiting()

    def recall(self) -> None:
        """See EngineHandle."""
        if self._handle is not None:
            self._handle.recall()

    def times(self, now_ns: int) -> Execution | None:
        """See EngineHandle."""
        return None if self._handle is None else self._handle.times(now_ns)


class Demand(Protocol):
    """Told by an engine that requests come."""

    def used(self) -> None:
        """A request has come."""
        ...

    def wanted(self, deadline_ns: int) -> None:
        """A request waits for a load, no longer than until then."""
        ...

    def forgotten(self) -> None:
        """No request waits any more."""
        ...

    def cannot_fit(self) -> TpyError | None:
        """The refusal of a model that could not be loaded if it were the only one."""
        ...

    def refused(self, error: TpyError) -> None:
        """A request is refused on arrival; the error is to say when it may be worth to come again."""
        ...


class OnDemandEngine:
    """A ModelEngine. `inner` is the engine of the loaded copy, None: not loaded. `elsewhere` finds the copy that has the
    live sequence of a request."""

    caches = False

    def __init__(
        self,
        name: str,
        version: int,
        clock: Clock,
        statistics: VersionStatistics,
        room: WaitingRoom,
        demand: Demand,
        *,
        wait_ns_max: int,
        elsewhere: Callable[[InferenceRequest], SequenceHolder | None],
    ) -> None:
        self.statistics = statistics
        self.drain = Drain(lambda: not self._pending)
        self.inner: ModelEngine | None = None
        self._name = name
        self._version = version
        self._clock = clock
        self._room = room
        self._demand = demand
        self._wait_ns_max = wait_ns_max
        self._elsewhere = elsewhere
        self._pending: dict[PendingRequest, None] = {}
        self._ended: TpyError | None = None
        self._paused = "", 0  # the reason, and until when

    async def run(self) -> None:
        """Nothing to do: whoever has the budget keeps the deadlines."""

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`."""
        inner = self.inner
        if inner is not None:
            self._demand.used()
            return inner.submit(request, sink)
        if request.sequence is not None and (holder := self._elsewhere(request)) is not None:
            return holder.submit_described(request, sink)  # the copy that is being unloaded waits for the end of its sequence
        if self._ended is not None:  # the request was decoded for this copy before it ended
            raise Unavailable(f"{request_prefix(request.id)}{self._ended.message}")
        if (paused := self._still_paused()) is not None:
            self.statistics.refused_admission(paused)
            raise paused
        self._demand.used()
        refusal = self._demand.cannot_fit()
        try:
            if refusal is not None:
                raise refusal
            place = self._room.enter(held_bytes(request.inputs, ON_DEMAND_WAITING_BYTES_MAX), request.tenant)
        except Refusal as error:
            self.statistics.refused_admission(error)
            self._demand.refused(error)
            raise
        now_ns = self._clock.now_ns()
        deadline_ns = now_ns + self._wait_ns_max
        if request.deadline_ns is not None:
            deadline_ns = min(deadline_ns, request.deadline_ns)
        pending = PendingRequest(self, request, sink, place, since_ns=now_ns, deadline_ns=deadline_ns)
        self._pending[pending] = None
        self._demand.wanted(deadline_ns)
        return pending

    def use(self, inner: ModelEngine | None, misfit: TpyError | None = None) -> None:
        """Give requests to this engine from now on, waiting ones first; None: have them wait. `misfit`: refuse the waiting ones,
        which were decoded for what the model was thought to be."""
        self.inner = inner
        if inner is None:
            return
        if misfit is not None:
            self.refuse_pending(misfit)
        for pending in self._take(list(self._pending)):
            pending.submit(inner)

    def expire(self, now_ns: int, late: Callable[[], TpyError]) -> int:
        """Refuse what has waited for too long, for this reason where it is not the request's own deadline. Returns the number."""
        due = [pending for pending in self._pending if pending.deadline_ns <= now_ns]
        if not due:
            return 0
        error = late()
        for pending in self._take(due):
            asked_ns = pending.request.deadline_ns
            is_own = asked_ns is not None and asked_ns <= now_ns
            told = Unavailable(Outcome.TIMED_OUT.value) if is_own else error
            self.statistics.refused_admission(told)
            self.answer(pending.request, pending.sink, told)
        return len(due)

    def refuse_pending(self, error: TpyError) -> int:
        """Refuse all that waits for a load. Returns the number."""
        taken = self._take(list(self._pending))
        for pending in taken:
            self.statistics.refused_admission(error)
            self.answer(pending.request, pending.sink, error)
        return len(taken)

    def fail(self, error: TpyError) -> None:
        """Refuse what waits for a load, and what still comes while there is no loaded copy."""
        self._ended = self._ended or error
        self.refuse_pending(error)

    def pause(self, reason: str, until_ns: int) -> None:
        """Refuse what waits for a load, and until then what still comes."""
        self._paused = reason, until_ns
        self.refuse_pending(self._still_paused() or Unavailable(reason))

    def _still_paused(self) -> TpyError | None:
        reason, until_ns = self._paused
        left_ns = until_ns - self._clock.now_ns()
        if left_ns <= 0:
            return None
        error = Unavailable(reason)
        error.wait_s = math.ceil(left_ns / NS_PER_S)
        return error

    def pending(self) -> int:
        """The number of requests that wait for a load."""
        return len(self._pending)

    def next_deadline_ns(self) -> int | None:
        """The earliest of the requests that wait for a load."""
        return min([pending.deadline_ns for pending in self._pending], default=None)

    def cancel(self, pending: PendingRequest) -> None:
        """Forget a request that waits for a load. No-op for one that does not."""
        if pending in self._pending:
            self._take([pending])

    def answer(self, request: InferenceRequest, sink: ResponseSink, error: TpyError) -> None:
        """Refuse a request after `submit` has returned."""
        response = InferenceResponse(model_name=self._name, model_version=self._version, id=request.id, error=error, refused=True)
        deliver(sink, response)

    def snapshot(self) -> CoreSnapshot:
        """As `ModelEngine.snapshot`."""
        if self.inner is not None:
            return self.inner.snapshot()
        return CoreSnapshot(queued=len(self._pending), executing=0, idle_instances=0)

    def explain(self) -> EngineActivity:
        """As `ModelEngine.explain`."""
        if self.inner is not None:
            return self.inner.explain()
        now_ns = self._clock.now_ns()
        oldest_ns = max((now_ns - each.since_ns for each in self._pending), default=0)
        levels = (LevelActivity(waiting=len(self._pending), oldest_ns=oldest_ns),) if self._pending else ()
        reason = WaitReason.LOAD if self._pending else WaitReason.NOTHING
        return EngineActivity(queue=QueueActivity(waits_for=reason, levels=levels))

    def refuse_waiting(self) -> None:
        """As `ModelEngine.refuse_waiting`."""
        self.refuse_pending(Unavailable(Outcome.NO_INSTANCE.value))
        if self.inner is not None:
            self.inner.refuse_waiting()

    def stop(self, *, executing: bool = False) -> None:
        """As `ModelEngine.stop`."""
        self.fail(Unavailable(Outcome.STOPPING.value))
        if self.inner is not None:
            self.inner.stop(executing=executing)

    def _take(self, taken: list[PendingRequest]) -> list[PendingRequest]:
        for pending in taken:
            del self._pending[pending]
            self._room.leave(pending.place)
        if taken and not self._pending:
            self._demand.forgotten()
            self.drain.check()
        return taken


def misfit(decoded: ModelDescription, loaded: ModelDescription, name: str) -> TpyError | None:
    """The refusal of requests that were decoded by another description than that of the loaded copy; None: it is the same."""
    if (decoded.inputs, decoded.outputs) == (loaded.inputs, loaded.outputs):
        return None
    error = Unavailable(f"the inputs and outputs of model '{name}' are not those of its configuration: they are known now")
    error.wait_s = 1
    return error
