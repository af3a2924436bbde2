"""CachedEngine: the request path of a model whose answers are kept: in front of its engine, which only sees what is not known.

Equal requests at the same time are executed once: the first leads, the others wait for its answer, each with its own deadline
and cancellation. When the leader is cancelled or its time is over, the one that has waited longest leads; when the model
answers it with an error, all that wait are handed to the model, as they had been without a cache. So nobody waits for more than
one failed execution of somebody else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import trio

from tpy.alarm import Alarm
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.limits import CACHE_INLINE_BYTES_MAX, CACHE_JOBS_MAX, CACHE_WAITING_MAX
from tpy.messages import (
    CacheActivity,
    EngineActivity,
    InferenceRequest,
    InferenceResponse,
    ParameterValue,
    Tensor,
    WaitReason,
    held_bytes,
)
from tpy.messages.inference import NO_PARAMETERS
from tpy.services import ResponseSink
from tpy_data.cache.core.entry import CachedResponse, RequestKey
from tpy_data.cache.core.flights import Flights
from tpy_data.engine.admission.admission import Admission
from tpy_data.engine.caching.cache_access import CacheAccess
from tpy_data.engine.caching.cached_request import CachedRequest, CacheStage
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.requests.responder import Responder, deliver, error_of
from tpy_data.engine.requests.statistics import FailureReason
from tpy_data.schedulers.core import CoreSnapshot, Outcome
from tpy_data.schedulers.core.deadlines import Deadlines

_log = logging.getLogger(__name__)


class CachedEngine:
    """See the module. `run` is a task of the version's, in place of the engine's own."""

    caches = True

    def __init__(
        self, engine: ModelEngine, config: ModelConfig, version: int, *, access: CacheAccess, key: RequestKey, owner: str
    ) -> None:
        self.statistics = engine.statistics
        self.drain = engine.drain
        self._engine = engine
        self._responder = Responder(config.name, version)
        self._access = access
        self._cache = access.cache
        self._clock = access.clock
        self._key = key
        self.owner = owner
        self._admission = Admission(config)
        self._flights: Flights[CachedRequest] = Flights()
        self._open: dict[CachedRequest, None] = {}  # requests that ask or wait
        self._deadlines = Deadlines()
        self._alarm = Alarm(access.clock)

    async def run(self) -> None:
        """Keep deadlines. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._engine.run)
            while True:
                now_ns = await self._alarm.wait()
                while (ticket := self._deadlines.pop_due(now_ns)) is not None:
                    self._refuse(cast(CachedRequest, ticket), Outcome.TIMED_OUT)
                self._arm()

    def submit(self, request: InferenceRequest, sink: ResponseSink) -> EngineHandle:
        """As `ResolvedModel.submit`. Answers inside the call when the answer is known."""
        now_ns = self._clock.now_ns()
        if request.residency is not None:
            if request.residency.inputs:  # to know whether it is known, it would have to be copied
                return self._engine.submit(request, sink)
            request = msgspec.structs.replace(request, residency=None)  # answers are kept in host memory
        ours = CachedRequest(self, request, sink, now_ns)
        if _takes_long(request.inputs):
            if self._access.hashing >= CACHE_JOBS_MAX:
                return self._engine.submit(request, sink)
            self._require_admissible(request)
            self._access.hashing += 1
            self._await(ours)
            self._access.worker.put(_Hashing(ours, self._key, self))
            return ours
        ours.key = self._key.digest(request)
        if self._flights.leader(ours.key) is not None:
            self._take_answer(ours, None)
            return ours
        self._cache.lookup(ours.key, ours)
        ours.submitting = ours.known
        if ours.known:
            self._take_answer(ours, ours.kept)
        else:
            self._require_admissible(request)
            self._lead(ours)
            self._await(ours)
        return ours

    def cancel(self, request: CachedRequest) -> None:
        """Nobody waits for its answer any more. No-op for one that has ended."""
        stage = request.stage
        if stage is CacheStage.ENDED:
            return
        if stage is not CacheStage.RUNNING:
            self._leave(request)
            self.statistics.failed(request, FailureReason.CANCELED, self._clock.now_ns())
            if request.leads:
                self._succeed(request.key)
            return
        request.stage = CacheStage.ENDED
        if request.handle is not None:
            request.handle.cancel()
        if request.leads:
            self._succeed(request.key)

    def leader_of(self, request: CachedRequest) -> CachedRequest | None:
        """As `CachedRequestOwner.leader_of`."""
        return self._flights.leader(request.key) if request.stage is CacheStage.WAITING else None

    def snapshot(self) -> CoreSnapshot:
        """Requests that ask or wait here count as queued."""
        inner = self._engine.snapshot()
        return CoreSnapshot(queued=inner.queued + len(self._open), executing=inner.executing, idle_instances=inner.idle_instances)

    def explain(self) -> EngineActivity:
        """As `ModelEngine.explain`: what its engine does, and what waits in front of it."""
        inner, times = self._engine.explain(), self.statistics.inference()
        queue = inner.queue
        if self._open and queue.waits_for is WaitReason.NOTHING:
            queue = msgspec.structs.replace(queue, waits_for=WaitReason.CACHE)
        cache = CacheActivity(hits=times.cache_hit.count, misses=times.cache_miss.count, waiting=len(self._open))
        return msgspec.structs.replace(inner, queue=queue, cache=cache)

    def refuse_waiting(self) -> None:
        """Refuse what waits: no instance can be had."""
        for request in self._flights.members():
            if request.stage is CacheStage.WAITING:
                self._refuse(request, Outcome.NO_INSTANCE)
        self._engine.refuse_waiting()

    def stop(self, *, executing: bool = False) -> None:
        """As `ModelEngine.stop`, including requests that ask or wait."""
        for request in reversed(list(self._open)):  # leaders last, or others would succeed them
            if request in self._open:
                self._refuse(request, Outcome.STOPPING)
        self._engine.stop(executing=executing)

    # From the cache and its threads (CachedRequestOwner)

    def hashed(self, request: CachedRequest) -> None:
        """Its key was made in a thread; no key: that failed."""
        self._access.hashing -= 1
        if request.stage is CacheStage.ENDED:
            return
        if request.key and self._flights.leader(request.key) is None:
            self._lead(request)
            self._cache.lookup(request.key, request)
        else:
            self._take_answer(request, None)

    def looked_up(self, request: CachedRequest, response: CachedResponse | None) -> None:
        """The cache has answered after `submit` had returned."""
        if request.stage is not CacheStage.ENDED:
            self._take_answer(request, response)

    def inserted(self, request: CachedRequest) -> None:
        """Its answer is kept, or will not be."""
        self.statistics.cache_inserted(request.spent_ns, self._clock.now_ns() - request.began_ns)

    # From the model

    def delivered(self, request: CachedRequest, response: InferenceResponse) -> None:
        """Keep the answer, give it to all who wait for it; or let others try."""
        if request.stage is CacheStage.ENDED:
            return
        request.stage = CacheStage.ENDED
        error = response.error
        if error is not None:
            deliver(request.sink, response)
            if request.leads and isinstance(error, Unavailable) and error.message == Outcome.TIMED_OUT.value:
                self._succeed(request.key)
            elif request.leads:
                for other in self._flights.end(request.key):
                    if other.stage is CacheStage.WAITING:
                        self._start(other)
        else:
            self.statistics.cache_missed(request.spent_ns, request.began_ns - request.queued_ns, inserting=bool(request.key))
            if request.key:
                request.began_ns = self._clock.now_ns()
                self._cache.insert(request.key, response.outputs, response.parameters, owner=self.owner, waiter=request)
            waiting = self._flights.end(request.key) if request.leads else ()
            deliver(request.sink, response)
            for other in waiting:
                if other.stage is CacheStage.WAITING:
                    self._answer(other, response.outputs, response.parameters)

    # Stages

    def _take_answer(self, request: CachedRequest, response: CachedResponse | None) -> None:
        """The answer is this one, or (None) not known."""
        request.spent_ns = self._clock.now_ns() - request.queued_ns
        if response is None:
            self._run_or_wait(request)
            return
        waiting = self._flights.end(request.key) if request.leads else ()
        self._answer(request, response.outputs, response.parameters)
        for other in waiting:
            if other.stage is CacheStage.WAITING:
                self._answer(other, response.outputs, response.parameters)

    def _run_or_wait(self, request: CachedRequest) -> None:
        leader = self._flights.leader(request.key)
        if leader is None or request.leads:
            if request.key and not request.leads:
                self._lead(request)
            self._start(request)
        elif leader.priority == request.priority and self._flights.waiting < CACHE_WAITING_MAX:
            request.stage = CacheStage.WAITING
            self._flights.wait(request.key, request)
            self._await(request)
        else:
            self._start(request)

    def _start(self, request: CachedRequest) -> None:
        """Hand the request to the model. A refusal is raised in `submit`, and delivered later."""
        refusal = self._hand_over(request)
        if refusal is None:
            return
        if request.leads:
            self._succeed(request.key)
        if request.submitting:
            raise refusal
        self._deliver(request, error=refusal)

    def _succeed(self, key: bytes) -> None:
        """The leader will have no answer: the next one leads."""
        while (successor := self._flights.succeed(key)) is not None:
            successor.leads = True
            refusal = self._hand_over(successor)
            if refusal is None:
                break
            self._deliver(successor, error=refusal)

    def _hand_over(self, request: CachedRequest) -> TpyError | None:
        """Submit it to the model. Returns why the model did not take it; it has ended then."""
        request.stage = CacheStage.RUNNING
        if request in self._open:
            request.began_ns = self._clock.now_ns()
            refusal = self._submit(request)
            self._await_no_more(request)  # after the engine has it, or it could be drained in between
            return refusal
        request.began_ns = request.queued_ns + request.spent_ns
        return self._submit(request)

    def _submit(self, request: CachedRequest) -> TpyError | None:
        try:
            handle = self._engine.submit(request.request, request)
        except TpyError as refusal:
            request.stage = CacheStage.ENDED
            return refusal
        if request.stage is not CacheStage.ENDED:
            request.handle = handle
        return None

    def _answer(self, request: CachedRequest, outputs: tuple[Tensor, ...], parameters: Mapping[str, ParameterValue]) -> None:
        """With an answer that is known."""
        waited = request.stage is CacheStage.WAITING
        if request in self._open:
            self._await_no_more(request)
        request.stage = CacheStage.ENDED
        now_ns = self._clock.now_ns()
        taken_ns = now_ns - request.queued_ns
        self.statistics.cache_hit(taken_ns, taken_ns - request.spent_ns if waited else 0, request.spent_ns, now_ns)
        self._deliver(request, outputs, parameters)

    def _refuse(self, request: CachedRequest, outcome: Outcome) -> None:
        """One that asks or waits."""
        self._leave(request)
        self.statistics.refused(request, outcome, self._clock.now_ns())
        self._deliver(request, error=error_of(outcome))
        if request.leads:
            self._succeed(request.key)

    def _lead(self, request: CachedRequest) -> None:
        """Equal requests wait for this one from now on."""
        self._flights.begin(request.key, request)
        request.leads = True

    def _leave(self, request: CachedRequest) -> None:
        """It asks or waits no more, and has ended."""
        if request.stage is CacheStage.WAITING:
            self._flights.leave(request.key, request)
        self._await_no_more(request)
        request.stage = CacheStage.ENDED

    def _await(self, request: CachedRequest) -> None:
        """`submit` returns without an answer and without having handed it to the model."""
        request.submitting = False
        if request in self._open:
            return
        if not self._open:
            self.drain.hold()
        self._open[request] = None
        if request.deadline_ns is not None:
            self._deadlines.add(request, request.deadline_ns)
            self._arm()

    def _await_no_more(self, request: CachedRequest) -> None:
        del self._open[request]
        self._deadlines.discard(request)
        if not self._open:
            self.drain.release()

    def _arm(self) -> None:
        first_ns = self._deadlines.first_ns()
        if first_ns is not None:
            self._alarm.bring_forward(first_ns)

    def _require_admissible(self, request: InferenceRequest) -> None:
        """Raises InvalidArgument here and now for what the model would not take."""
        try:
            self._admission.admit(request)
        except InvalidArgument as refusal:
            self.statistics.refused_admission(refusal)
            raise

    def _deliver(
        self,
        request: CachedRequest,
        outputs: tuple[Tensor, ...] = (),
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        *,
        error: TpyError | None = None,
    ) -> None:
        self._responder.respond(request.sink, request.request.id, outputs, parameters, error=error)


def _takes_long(inputs: Sequence[Tensor]) -> bool:
    """True when making the key takes more of the loop's time than handing over to a thread."""
    return held_bytes(inputs, CACHE_INLINE_BYTES_MAX + 1) > CACHE_INLINE_BYTES_MAX


class _Hashing:
    """A request whose key is made in a thread."""

    __slots__ = ("_key", "_owner", "_request")

    def __init__(self, request: CachedRequest, key: RequestKey, owner: CachedEngine) -> None:
        self._request = request
        self._key = key
        self._owner = owner

    has_more = False

    def begin(self) -> None:
        """Nothing to do."""

    def run(self) -> bool:
        """In a thread."""
        try:
            self._request.key = self._key.digest(self._request.request)
        except Exception:  # out of memory, say: it runs as if there were no cache
            _log.exception("the key of a request could not be made")
        return True

    def finished(self) -> None:
        """Back on the Trio thread."""
        self._owner.hashed(self._request)
