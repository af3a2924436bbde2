"""The dynamic cores of models with `batching: auto`: those of other models, around a BatchTuner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tpy.config.model_config import ModelConfig
from tpy.config.tuned_batching import tuned_batching
from tpy.limits.tuning import TUNED_CONVOYS_MIN
from tpy.messages import CurvePoint, QueueActivity
from tpy_data.schedulers.core.batch_forming import BatchForming
from tpy_data.schedulers.core.batch_tuner import BatchTuner
from tpy_data.schedulers.core.contract import BatchStrategy, Dispatch, Phase, Ticket
from tpy_data.schedulers.core.cost_curve import CostCurve
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import NO_START_DELAY, DynamicOptions, StartDelay, dynamic_options
from tpy_data.schedulers.core.fair_cores import FairDynamicCore
from tpy_data.schedulers.core.overlap import OverlapTerms
from tpy_data.schedulers.core.priority_queue import QueueLevel
from tpy_data.schedulers.core.tenants import Tenants


class TunedForming(BatchForming):
    """Asks the tuner whether to wait, and how many rows to send."""

    __slots__ = ("_tuner",)

    def __init__(self, options: DynamicOptions, strategy: BatchStrategy | None, tuner: BatchTuner) -> None:
        self._tuner = tuner
        super().__init__(options, strategy)

    def due_ns(self) -> int | None:
        """As `BatchForming.due_ns`."""
        return self._tuner.due_ns() if self.tickets else None

    def ready_count(self, now_ns: int) -> int:
        """As `BatchForming.ready_count`."""
        if self._rows == 1 and now_ns < self._tuner.rests_until_ns:
            return 1
        if not self._closed and self._rows < self._batch_size_max and self._tuner.holds(self._rows, self._oldest_ns, now_ns):
            return 0
        size = self._tuner.size(self._rows, self._oldest_ns, now_ns)
        if size >= self._rows:
            return len(self.tickets)
        rows = 0
        for count, ticket in enumerate(self.tickets):
            rows += ticket.batch_size
            if rows > size:
                return max(1, count)
        return len(self.tickets)


class _Tuned(DynamicCore):
    """The verbs, each of which the tuner hears of."""

    __slots__ = ()

    tuner: BatchTuner

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        """As `DynamicCore.add_instance`."""
        self.tuner.forget_waits()
        super().add_instance(instance, now_ns, prefetch=prefetch, credit=credit, tokens=tokens)

    def remove_instance(self, instance: int, now_ns: int) -> None:
        """As `DynamicCore.remove_instance`."""
        self.tuner.forget_waits()
        super().remove_instance(instance, now_ns)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """As `DynamicCore.done`."""
        tuner = self.tuner
        if now_ns < tuner.rests_until_ns:
            super().done(instance, now_ns, times_ns)
            return
        if tuner.target_ns:
            self._expire(now_ns)  # of what is refused now nobody gets a late answer
        for tickets, took_ns in zip(self._pool.batches(instance), times_ns, strict=False):
            tuner.ended(_rows(tickets), took_ns, now_ns)
            if tuner.target_ns:
                in_time_ns = now_ns - tuner.target_ns
                answered = [each for each in tickets if each.phase is Phase.EXECUTING and each not in self._given_back]
                tuner.late += sum([ticket.queued_ns < in_time_ns for ticket in answered])
        super().done(instance, now_ns, times_ns)

    def explain(self, now_ns: int) -> QueueActivity:
        """As `SchedulerCore.explain`."""
        halving = self._overlap is not None and self._overlap.is_halving
        tuning = msgspec.structs.replace(self.tuner.explain(now_ns), halving=halving)
        return msgspec.structs.replace(super().explain(now_ns), tuning=tuning)

    def _watch_anew(self) -> None:
        super()._watch_anew()
        self.tuner.all_stay, self.tuner.instances = self._pool.all_stay, self._pool.members

    def _enqueue(self, ticket: Ticket, level: QueueLevel, deadline_ns: int | None, now_ns: int) -> None:
        self.tuner.arrived(ticket.batch_size, now_ns)
        super()._enqueue(ticket, level, deadline_ns, now_ns)

    def _dispatch(self, now_ns: int) -> None:
        tuner, pool, overlap, actions = self.tuner, self._pool, self._overlap, self._actions
        if self._queue.count == 1 and now_ns < tuner.rests_until_ns:
            super()._dispatch(now_ns)
            return
        if not self._queue.count or pool.next_free(self._revoking) is None:  # mostly so, and nothing is to be decided
            if self._forming.looked:
                self._forming.reset()
            return
        tuner.may_wait = tuner.all_stay and (overlap is None or not overlap.is_halving)
        tuner.others_idle = len(pool.idle) > 1
        before = len(actions)
        super()._dispatch(now_ns)
        if len(actions) > before:
            for action in actions[before:]:
                if isinstance(action, Dispatch):
                    tuner.began(_rows(action.batches[0]), now_ns)


def _rows(tickets: Sequence[Ticket]) -> int:
    return tickets[0].batch_size if len(tickets) == 1 else sum([ticket.batch_size for ticket in tickets])


class TunedDynamicCore(_Tuned):
    """See the module. Sizes and delay of `options` are those of `dynamic_batching { }`."""

    __slots__ = ("tuner",)

    def __init__(
        self,
        options: DynamicOptions,
        tuner: BatchTuner,
        delay: StartDelay = NO_START_DELAY,
        strategy: BatchStrategy | None = None,
    ) -> None:
        super().__init__(options, delay, strategy)
        self.tuner = tuner
        self._forming = TunedForming(options, strategy, tuner)


class TunedFairCore(_Tuned, FairDynamicCore):
    """See the module: with tenants."""

    __slots__ = ("tuner",)

    def __init__(
        self,
        options: DynamicOptions,
        tuner: BatchTuner,
        tenants: Tenants,
        delay: StartDelay = NO_START_DELAY,
        strategy: BatchStrategy | None = None,
    ) -> None:
        FairDynamicCore.__init__(self, options, tenants, delay, strategy)
        self.tuner = tuner
        self._forming = TunedForming(options, strategy, tuner)


def tuned_options(options: DynamicOptions) -> DynamicOptions:
    """These options without the sizes and the delay: the tuner chooses them. Convoys are halved only where no wait holds them
    together: that has been seen before they are counted as one."""
    return msgspec.structs.replace(
        options,
        preferred=frozenset({options.batch_size_max}),
        queue_delay_ns_max=0,
        overlap=OverlapTerms(convoys_min=TUNED_CONVOYS_MIN),
    )


def make_tuned_core(
    config: ModelConfig,
    tenants: Tenants | None,
    delay: StartDelay,
    strategy: BatchStrategy | None,
    points: Iterable[CurvePoint] = (),
) -> TunedDynamicCore | TunedFairCore | None:
    """As `make_core`; None: this model's batches are not tuned. `points` are those of an earlier curve."""
    tuned = tuned_batching(config)
    if tuned is None:
        return None
    options = tuned_options(dynamic_options(config))
    tuner = BatchTuner(CostCurve(options.batch_size_max, points), tuned.target_ns)
    if tenants is None:
        return TunedDynamicCore(options, tuner, delay, strategy)
    return TunedFairCore(options, tuner, tenants, delay, strategy)
