"""The drivers of tuned cores: those of other cores, and a warning where the target cannot be met."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import msgspec

from tpy.clock import Clock
from tpy.messages import QueueActivity
from tpy.units import NS_PER_MS
from tpy_data.engine.channels.rate_limiter import InstanceGate
from tpy_data.schedulers.core.batch_tuner import BatchTuner
from tpy_data.schedulers.core.contract import SchedulerCore
from tpy_data.schedulers.core.tuned_cores import TunedDynamicCore, TunedFairCore
from tpy_data.schedulers.driver import Performer, SchedulerDriver
from tpy_data.schedulers.gated_driver import GatedDriver

_log = logging.getLogger(__name__)


class TargetWatch:
    """Has the tuner learn, and warns once of a target that even the smallest batch misses."""

    __slots__ = ("_is_over", "_model", "tuner")

    def __init__(self, model: str, tuner: BatchTuner) -> None:
        self._model = model
        self.tuner = tuner
        self._is_over = False  # nothing is to be warned of any more

    def look(self) -> None:
        """Learn of the batch that is over."""
        tuner = self.tuner
        tuner.learn()
        if self._is_over or not tuner.target_ns or not tuner.misses_target:
            return
        self._is_over = True
        smallest = tuner.curve.points()[0]
        about = {
            "model": self._model,
            "took_ms": smallest.mean_ns / NS_PER_MS,
            "target_ms": tuner.target_ns / NS_PER_MS,
        }
        _log.warning(
            "target_p99_ms of '%(model)s' is %(target_ms).3g, and its smallest batch takes %(took_ms).3g ms: no batching can "
            "meet the target",
            about,
        )


class _Watching(SchedulerDriver):
    __slots__ = ()

    _watch: TargetWatch

    def done(self, instance: int, times_ns: Sequence[int] = (0,)) -> None:
        """As `SchedulerDriver.done`."""
        super().done(instance, times_ns)
        if self._watch.tuner.over is not None:
            self._watch.look()  # the batch is answered, and the next one is sent


class _TunedDriver(_Watching):
    __slots__ = ("_watch",)

    def __init__(self, core: TunedDynamicCore | TunedFairCore, clock: Clock, performer: Performer, watch: TargetWatch) -> None:
        super().__init__(core, clock, performer)
        self._watch = watch


class _TunedGatedDriver(_Watching, GatedDriver):
    __slots__ = ("_watch",)

    def __init__(
        self,
        core: TunedDynamicCore | TunedFairCore,
        clock: Clock,
        performer: Performer,
        gate: InstanceGate,
        watch: TargetWatch,
    ) -> None:
        GatedDriver.__init__(self, core, clock, performer, gate)
        self._watch = watch

    def explain(self) -> QueueActivity:
        """As `GatedDriver.explain`. The core has an instance only for as long as a batch takes, so none waits for company."""
        queue = super().explain()
        if queue.tuning is None:
            return queue
        return msgspec.structs.replace(queue, tuning=msgspec.structs.replace(queue.tuning, may_wait=False))


def tuned_driver(
    core: SchedulerCore, clock: Clock, performer: Performer, *, model: str, gate: InstanceGate | None
) -> SchedulerDriver:
    """The driver of a tuned core. `gate` None: instances are not rate limited."""
    tuned = cast("TunedDynamicCore | TunedFairCore", core)
    watch = TargetWatch(model, tuned.tuner)
    if gate is None:
        return _TunedDriver(tuned, clock, performer, watch)
    return _TunedGatedDriver(tuned, clock, performer, gate, watch)
