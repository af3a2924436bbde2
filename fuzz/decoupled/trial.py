"""Trial: a decoupled model's engine in virtual time beside a naive model of each request; compared whenever it has settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import trio
import trio.testing

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult
from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, ModelInput, ModelOutput, TransactionPolicy
from tpy.errors import Internal, InvalidArgument
from tpy.limits import DECOUPLED_RESPONSES_WAITING_MAX
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Tensor
from tpy.services import RequestHandle
from tpy.testing.trio_clock import TrioClock
from tpy.units import NS_PER_S
from tpy_data.engine.channels.channel import ThreadChannel
from tpy_data.engine.versions.version_engine import InstanceSlot, VersionEngine
from tpy_data.executors.executor import Job
from tpy_data.schedulers.core import make_core

INVARIANT = (
    "every accepted request ends exactly once: with its final response, an error of its batch, its deadline, a stop or its "
    "cancellation; its responses arrive once each, in the order in which they were sent, and none after the end or while it is "
    "paused; what is not delivered is counted, so that a model that waits for room never has more than the bound under way"
)

EXPIRED = "Request timeout expired"
BATCH_FAILED = "the batch failed"


@dataclass
class Naive:
    """The naive model of one request."""

    number: int
    deadline_s: float | None
    pause_at: int
    """Its sink pauses it when this many were delivered; -1 for never."""
    sent: list[str] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)
    paused: bool = False
    executed: bool = False
    """Its batch is over, and the engine knows."""
    failed: bool = False
    """Its batch has failed, and the engine knows."""
    final_sent: bool = False
    cancelled: bool = False
    ended: str = ""
    """Its end for its caller."""
    faults: list[str] = field(default_factory=list)
    """The violations that its sink found."""
    handle: RequestHandle | None = None
    request: ExecutionRequest | None = None
    taken: int = 0
    told_ended: int = 0

    @property
    def waiting(self) -> int:
        return len(self.sent) - self.taken


class Sink:
    """Takes a request's responses; refuses responses that must not come."""

    def __init__(self, naive: Naive, *, forgets: bool) -> None:
        self._naive = naive
        self._forgets = forgets

    def deliver(self, response: InferenceResponse) -> None:
        naive = self._naive
        if naive.ended or naive.cancelled:
            naive.faults.append(f"a response after its end ({naive.ended or 'cancelled'})")
            return
        error = response.error
        if error is not None and (error.message in (EXPIRED, BATCH_FAILED) or "stopping" in error.message):
            naive.ended = error.message
            if not response.final:
                naive.faults.append(f"{error.message} without the final flag")
            return
        if naive.paused:
            naive.faults.append("a response while it is paused")
        if self._forgets and len(naive.delivered) == 2:
            return
        naive.delivered.append(error.message if error is not None else _number(response))
        if naive.pause_at == len(naive.delivered) and naive.handle is not None and not response.final:
            naive.handle.pause()
            naive.paused = True
        if response.final:
            naive.ended = "final"


class Instance:
    """The model: a batch is executed when the history says so."""

    def __init__(self) -> None:
        self.fails = False
        self.seen: list[ExecutionRequest] = []

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        self.seen += batch.requests
        if self.fails:
            raise Internal(BATCH_FAILED)
        return ()

    def close(self) -> None:
        pass


class Worker:
    """Keeps jobs until the history runs them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def put(self, job: Job, *, anywhere: bool = False) -> None:
        self.jobs.append(job)

    def run_sync_soon(self, call: Callable[[], None]) -> None:
        call()

    def close(self) -> None:
        pass


class Trial:
    """One history. Rules are called between turns of the loop; `settle` lets the engine catch up, then compares."""

    def __init__(self, chance: Chance, clock: trio.testing.MockClock, *, forgets: bool = False) -> None:
        """`forgets`: a sink loses its third response, which must be found out."""
        self.taken = chance.taken
        self.clock = clock
        self.forgets = forgets
        self.instance = Instance()
        self.worker = Worker()
        config = ModelConfig(
            name="m",
            backend="fake",
            max_batch_size=chance.choice((0, 4)),
            input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(1,)),),
            output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(1,)),),
            model_transaction_policy=TransactionPolicy(decoupled=True),
            dynamic_batching=chance.choice((None, DynamicBatching())),
        )
        if config.max_batch_size == 0:
            config = msgspec.structs.replace(config, dynamic_batching=None)
        self.batching = config.max_batch_size > 0
        self.engine = VersionEngine(config, 1, make_core(config), TrioClock(clock))
        channel = ThreadChannel(self.instance, self.worker, self.engine.clock)
        slot = InstanceSlot(0, "m_0", channel, worked=lambda: None, failed=lambda why: None)
        self.engine.add_instance(slot)
        self.requests: list[Naive] = []
        self.unreported: list[tuple[Naive, bool]] = []
        """Whose batch is over, and whether it failed; quick batches are reported with those behind them."""
        self.stopped = False
        self.steps = 0

    # Rules

    def submit(self, timeout_s: float | None, *, pause_at: int) -> None:
        self.taken["submit"] += 1
        now_s = self.clock.current_time()
        deadline_s = None if timeout_s is None else now_s + timeout_s
        naive = Naive(len(self.requests), deadline_s, pause_at)
        shape = (1, 1) if self.batching else (1,)
        request = InferenceRequest(
            model_name="m",
            id=str(naive.number),
            inputs=(Tensor("IN", DataType.FP32, np.zeros(shape, np.float32)),),
            deadline_ns=None if deadline_s is None else round(deadline_s * NS_PER_S),
        )
        self.requests.append(naive)
        naive.handle = self.engine.submit(request, Sink(naive, forgets=self.forgets))

    def execute(self, *, fails: bool, before: Sequence[int]) -> None:
        """Run what waits for the instance; each request sends this many responses before its batch is over."""
        if not self.worker.jobs:
            return
        job = self.worker.jobs[0]
        self.taken["a batch fails" if fails else "execute"] += 1
        self.instance.fails = fails
        job.begin()
        reports = job.run()
        if not job.has_more:
            self.worker.jobs.pop(0)
        for index, seen in enumerate(self.instance.seen):
            naive = self.requests[int(seen.id)]
            naive.request = seen
            if seen.sender is not None:
                seen.sender.watch(partial(_take, naive), partial(_tell, naive))
            for _ in range(before[index % len(before)]):
                self.send(naive, final=False)
        self.unreported += [(self.requests[int(seen.id)], fails) for seen in self.instance.seen]
        self.instance.seen = []
        if reports:
            job.finished()
            for naive, failed in self.unreported:
                naive.executed, naive.failed = True, failed
            self.unreported = []

    def send(self, naive: Naive, *, final: bool, error: bool = False, alone: bool = False) -> None:
        """As a model does that waits for room: only when there is some."""
        sender = None if naive.request is None else naive.request.sender
        if sender is None or naive.final_sent or naive.waiting >= DECOUPLED_RESPONSES_WAITING_MAX:
            return
        text = f"{len(naive.sent)}"
        if alone:
            result = None
            text = "end"
        elif error:
            text = f"error {text}"
            result = ExecutionResult(error=InvalidArgument(text))
        else:
            shape = (1, 1) if self.batching else (1,)
            result = ExecutionResult([Tensor("OUT", DataType.FP32, np.full(shape, float(text), np.float32))])
        sender.send(result, final=final)
        naive.sent.append(text)
        self.taken["send" if not final else "final alone" if alone else "final"] += 1
        self.taken["error"] += error
        naive.final_sent = final

    def cancel(self, naive: Naive) -> None:
        if naive.handle is not None:
            naive.handle.cancel()
            self.taken["cancel"] += 1
            if not naive.ended:
                naive.cancelled = True

    def pause(self, naive: Naive, *, paused: bool) -> None:
        if naive.handle is None:
            return
        self.taken["pause" if paused else "resume"] += 1
        if paused:
            # What was delivered inside the call before it counts; nothing comes from now on.
            naive.handle.pause()
            naive.paused = naive.request is not None or not naive.ended
        else:
            naive.paused = False
            naive.handle.resume()

    def stop(self) -> None:
        self.taken["stop"] += 1
        self.stopped = True
        self.engine.stop()

    async def settle(self) -> None:
        """Let everything that was sent arrive, then compare."""
        await trio.testing.wait_all_tasks_blocked()
        self.steps += 1
        for naive in self.requests:
            self._compare(naive)

    def _compare(self, naive: Naive) -> None:
        if naive.faults:
            raise Violation(f"request {naive.number}: {naive.faults[0]}")
        if naive.delivered != naive.sent[: len(naive.delivered)]:
            raise Violation(f"request {naive.number}: delivered {naive.delivered}, sent {naive.sent}")
        over = bool(naive.ended) or naive.cancelled
        if naive.ended == "final" and (naive.delivered != naive.sent or not naive.final_sent):
            raise Violation(f"request {naive.number}: ended after {naive.delivered}, sent {naive.sent}")
        if not over and not naive.paused and naive.delivered != naive.sent:
            raise Violation(f"request {naive.number}: {naive.sent[len(naive.delivered) :]} did not arrive")
        if not over and naive.taken != len(naive.delivered):
            raise Violation(f"request {naive.number}: {naive.taken} counted as taken, {len(naive.delivered)} delivered")
        if not over and naive.deadline_s is not None and self.clock.current_time() >= naive.deadline_s:
            raise Violation(f"request {naive.number}: its deadline is over")
        if not over and (naive.failed or (self.stopped and naive.executed)):
            raise Violation(f"request {naive.number}: it must have ended: failed {naive.failed}, stopped {self.stopped}")
        told = int(over and naive.ended != "final")
        if naive.request is not None and naive.told_ended != told:
            raise Violation(
                f"request {naive.number}: its model was told {naive.told_ended} times that it is over, expected {told}"
            )
        if naive.request is not None and naive.request.is_cancelled() and not over:
            raise Violation(f"request {naive.number}: cancelled for its model, not for its caller")

    async def finish(self) -> None:
        """Execute and end everything; then nothing may be left."""
        while self.worker.jobs:
            self.execute(fails=False, before=(0,))
            await self.settle()
        for naive in self.requests:
            naive.pause_at = -1
            if naive.paused:
                self.pause(naive, paused=False)
            await self.settle()
            self.send(naive, final=True, alone=True)
        await self.settle()
        for naive in self.requests:
            if not naive.ended and not naive.cancelled:
                raise Violation(f"request {naive.number} never ended: sent {naive.sent}, delivered {naive.delivered}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.engine.drain.wait)
            await trio.testing.wait_all_tasks_blocked()
            if nursery.child_tasks:
                raise Violation("every request has ended, but the engine is not drained")


def _take(naive: Naive, count: int) -> None:
    naive.taken += count


def _tell(naive: Naive) -> None:
    naive.told_ended += 1


def _number(response: InferenceResponse) -> str:
    return f"{response.outputs[0].array.ravel()[0]:g}" if response.outputs else "end"
