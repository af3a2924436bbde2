"""SupervisedInstance: one instance of a version, in its own thread: made, watched, started again when it fails, closed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from tpy.backend import (
    AnyThreadInstance,
    HasHostMemory,
    LimitedInstance,
    LoadedModel,
    ModelInstance,
    OverlappingInstance,
    QueuedInstance,
    ShowsStack,
    WatchedInstance,
)
from tpy.backend.host_policy import bind
from tpy.clock import Clock
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, TpyError, Unavailable
from tpy.limits import (
    INSTANCE_CLOSE_S_MAX,
    LONG_EXECUTION_S,
)
from tpy.messages import InstanceActivity, MemoryGrowth, MemoryUsage
from tpy.reactor import reactor_of_run
from tpy_data.engine.channels.channel import InstanceChannel, ThreadChannel
from tpy_data.engine.channels.loop_rule import LoopRule
from tpy_data.engine.instances.gpu_limits import require_share
from tpy_data.engine.instances.instance_activity import failed_instance, live_instance
from tpy_data.engine.instances.restarts import RestartOptions, Restarts
from tpy_data.engine.loading.memory_meter import MemoryMeter
from tpy_data.engine.loading.placing import PlacedInstance, devices_of
from tpy_data.engine.versions.version_engine import InstanceSlot, VersionEngine
from tpy_data.exception_text import exception_text
from tpy_data.executors.executor import Executor, Worker, call, see_through
from tpy_data.executors.stacks import thread_stack

if TYPE_CHECKING:
    from tpy_data.engine.channels.rate_limiter import InstanceGate
    from tpy_data.engine.loading.warmup import WarmupSample
    from tpy_data.engine.memory.core.memory_trend import MemoryTrend

_log = logging.getLogger(__name__)


class InstanceRecipe(NamedTuple):
    """The parts that every instance of a version is made from. `gate` None: nothing is rate limited."""

    model: LoadedModel
    samples: Sequence[WarmupSample]
    executor: Executor
    engine: VersionEngine
    meter: MemoryMeter
    gate: InstanceGate | None = None
    restarts: RestartOptions = RestartOptions()
    long_s: float = LONG_EXECUTION_S
    """Seconds without the end of a batch that are long."""


class _Made(NamedTuple):
    instance: ModelInstance
    memory: tuple[MemoryUsage, ...]


class SupervisedInstance:
    """One instance, in its own thread, and its replacements.

    `start` makes it; then `supervise` must run, in a nursery of the caller's, until `stop` was called. `alive` says that it
    takes batches, `beyond_help` that it failed and could not be started again either; `on_change` is called when one of them
    changes while it is supervised, and after each attempt. `memory` is what it has had since it was made. `reported_s` are the
    seconds last reported for a batch that takes long; 0 without such a batch. `trend` is that of its process, as the memory
    watch keeps it."""

    def __init__(
        self, numbers: Iterator[int], placed: PlacedInstance, recipe: InstanceRecipe, on_change: Callable[[], object]
    ) -> None:
        self.placed = placed
        self.alive = False
        self.beyond_help = False
        self.reason = ""
        self.memory: tuple[MemoryUsage, ...] = ()
        self.reported_s = 0
        self.trend: MemoryTrend | None = None
        self.ended = trio.Event()
        self._numbers = numbers
        self._number = -1  # of the instance that is there, or was there last: each has its own
        self._recipe = recipe
        self._on_change = on_change
        self._worker: Worker | None = None
        self._instance: ModelInstance | None = None
        self._channel: InstanceChannel | None = None
        self._slot: InstanceSlot | None = None
        self._rule: LoopRule | None = None
        self._restarts = Restarts(recipe.restarts)
        self._started_s = 0.0
        self._due_s: float | None = None
        self._long_since_s: float | None = None
        self._worked_again = trio.Event()
        self._failed = trio.Event()
        self._stopping = trio.Event()
        self._starting: trio.CancelScope | None = None
        self._retiring = False

    @property
    def name(self) -> str:
        """That of the instance, which its replacements have, too."""
        return self.placed.placement.name

    @property
    def instance(self) -> ModelInstance | None:
        """None while it is being started or has failed."""
        return self._instance

    @property
    def process(self) -> HasHostMemory | None:
        """The instance, while it is there and in a separate process."""
        instance: object = self._instance
        return instance if isinstance(instance, HasHostMemory) else None

    @property
    def growth(self) -> MemoryGrowth | None:
        """The growth of its process; None while that is not known."""
        return None if self.trend is None else self.trend.growth

    @property
    def executing_s(self) -> float:
        """Seconds since a batch ended, while it has one and that is long; else 0."""
        return 0.0 if self._long_since_s is None else trio.current_time() - self._long_since_s

    @property
    def restarts(self) -> int:
        """Replacements that were started."""
        return self._restarts.count

    @property
    def restart_in_s(self) -> float | None:
        """Seconds until it is started again; None while it need not be."""
        return None if self._due_s is None else self._due_s - trio.current_time()

    @property
    def closing(self) -> bool:
        """True when it takes no more batches, and closes after the one that it may be running."""
        return self._stopping.is_set()

    def explain(self, now_ns: int) -> InstanceActivity:
        """Its state now, and its last batches."""
        placement = self.placed.placement
        if self._instance is None or not self.alive:
            return failed_instance(placement, self.reason)
        leaves = self.closing or self._retiring
        return live_instance(placement, self._slot, self._recipe.gate, now_ns, leaves=leaves, memory=self.growth)

    async def start(self) -> None:
        """Make the instance and warm it up, both in its thread, and give it work. Raises TpyError with the reason."""
        name = self.placed.placement.name
        worker = self._recipe.executor.open_worker(name)
        make = functools.partial(_make, self._recipe, self.placed)
        with trio.CancelScope() as self._starting:
            try:
                made = await call(worker, make, release=_close_made)
            except TpyError:
                worker.close()
                raise
            except Exception as error:
                worker.close()
                raise Internal(exception_text(error)) from error
        if self._starting.cancelled_caught:
            # Its thread ends with the process; closed now it could not close the instance when that is there at last.
            raise Unavailable(f"gave up waiting for instance '{name}': the server ends")
        self._worker, self._instance, self.memory = worker, made.instance, made.memory
        instance = made.instance
        number = self._number = next(self._numbers)
        self._started_s = trio.current_time()
        self._failed = trio.Event()
        self.alive, self.beyond_help, self.reason = True, False, ""
        if not self.placed.passive:
            channel = self._channel = self._open_channel(instance, worker)
            slot = InstanceSlot(number, name, channel, worked=self._worked, failed=functools.partial(self._fail, number))
            slot.credit = instance.credit if isinstance(instance, OverlappingInstance) else 1
            if isinstance(instance, LimitedInstance) and (limits := instance.engine_limits) is not None:
                slot.credit, slot.tokens = limits.sequences, limits.tokens
            self._slot = slot
            self._recipe.engine.add_instance(slot)

    async def supervise(self) -> None:
        """Replace the instance whenever it fails, until `stop`; then close it."""
        try:
            while await self._wait_failed():
                _log.error("instance '%(instance)s' failed and is started again: %(reason)s", self._context())
                self._on_change()
                await self._close()
                if self._retiring:
                    return  # what tied requests to it is gone
                await self._restart()
        finally:
            await self._close()

    def stop(self) -> None:
        """Take no more batches; `supervise` closes the instance, after the batch that it may be running, and returns."""
        self._recipe.engine.remove_instance(self._number)
        self._stopping.set()

    def retire(self) -> None:
        """Begin nothing new, and stop when nothing ties requests to this instance any more."""
        self._retiring = True
        self._recipe.engine.retire_instance(self._number, self.stop)

    def leak_changed(self) -> None:
        """It leaks now, or does not any more, as `growth` says."""
        self._on_change()

    def give_up_starting(self) -> None:
        """Wait no longer for an instance that is being made; it is left behind, and `start` raises."""
        if self._starting is not None:
            self._starting.cancel()

    async def discard(self) -> None:
        """Close an instance that may have been started and is not supervised."""
        self.stop()
        await self._close()

    def _open_channel(self, instance: ModelInstance, worker: Worker) -> InstanceChannel:
        clock, gate = self._recipe.engine.clock, self._recipe.gate
        if gate is None:
            return _open_channel(instance, worker, clock, self._loop_rule(instance))
        if gate.is_of_version:
            return gate.enter(self._number, self.placed, _open_channel(instance, worker, clock))
        # A batch that waits for the gate may be given after the channel was closed: its thread takes it all the same.
        return gate.enter(self._number, self.placed, ThreadChannel(instance, worker, clock))

    def _loop_rule(self, instance: object) -> LoopRule | None:
        """For an instance whose thread is like any other."""
        placement, engine = self.placed.placement, self._recipe.engine
        is_bound = placement.kind is not InstanceKind.KIND_CPU or placement.host or not engine.answers_once
        if is_bound or not isinstance(instance, AnyThreadInstance) or not instance.any_thread:
            return None
        if self._rule is None:
            self._rule = LoopRule(reactor_of_run())
        self._rule.restarted()
        return self._rule

    async def _wait_failed(self) -> bool:
        """True when the instance failed, False when it is to stop."""
        async with trio.open_nursery() as nursery:

            async def first(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(first, self._failed)
            nursery.start_soon(first, self._stopping)
            nursery.start_soon(self._watch_end)
            nursery.start_soon(self._watch_long)
        return not self._stopping.is_set()

    async def _watch_end(self) -> None:
        """Have the instance failed as soon as it has ended by itself, also while it has nothing to do."""
        instance: object = self._instance
        if not isinstance(instance, WatchedInstance) or (descriptor := instance.end_fileno()) < 0:
            return
        await trio.lowlevel.wait_readable(descriptor)
        # What it may be running finds the same in its thread; nothing more is given to it.
        self._recipe.engine.remove_instance(self._number)
        self._fail(self._number, instance.end_reason)

    async def _watch_long(self) -> None:
        """Log a batch that takes long, with the stack of its model."""
        slot = self._slot
        if slot is None:
            return
        completed, due_s = slot.completed, trio.current_time() + self._recipe.long_s
        while True:
            if not slot.held:
                await _given_work(slot)  # a thousand idle instances need no timers
                due_s = trio.current_time() + self._recipe.long_s
            with trio.move_on_at(due_s):
                await self._worked_again.wait()
            self._worked_again = trio.Event()
            if not slot.held or slot.completed != completed:
                completed, self._long_since_s, due_s = slot.completed, None, trio.current_time() + self._recipe.long_s
                continue
            if self._long_since_s is None:
                self._long_since_s = min(due_s, trio.current_time()) - self._recipe.long_s
            if round(self.executing_s, 3) >= max(2 * self.reported_s, LONG_EXECUTION_S):
                self.reported_s = round(self.executing_s)
                self._log_long(slot.name)
                self._on_change()
            due_s = self._long_since_s + max(2 * self.reported_s, LONG_EXECUTION_S)

    def _log_long(self, name: str) -> None:
        context = {"instance": name, "seconds": f"{self.reported_s:g}"}
        instance: object = self._instance
        if isinstance(instance, ShowsStack):
            _log.warning("instance '%(instance)s' is still executing after %(seconds)s s; its stack follows", context)
            instance.show_stack()
        else:
            text = "instance '%(instance)s' is still executing after %(seconds)s s:\n%(stack)s"
            _log.warning(text, {**context, "stack": thread_stack(name)})

    async def _restart(self) -> None:
        """Try, at once and then with growing pauses, until the instance is there or is to stop."""
        while not self._stopping.is_set():
            restarts, now_s = self._restarts, trio.current_time()
            restarts.failed(now_s)
            if restarts.is_loop:
                self.reason, self.beyond_help = restarts.loop_reason(self.reason), True
                _log.error("instance '%(instance)s' is in a %(reason)s", self._context())
                self._on_change()
            pause_s = restarts.pause_s(self._started_s, now_s)
            self._due_s = now_s + pause_s
            with trio.move_on_after(pause_s):
                await self._stopping.wait()
                return
            try:
                await self.start()
            except TpyError as error:
                self.reason, self.beyond_help = error.message, True
                _log.error(
                    "instance '%(instance)s' could not be started again, more attempts follow: %(reason)s", self._context()
                )
                self._on_change()
                continue
            restarts.count += 1
            self._due_s = None
            _log.info("instance '%(instance)s' was started again", self._context())
            if self._stopping.is_set():
                self._recipe.engine.remove_instance(self._number)
            self._on_change()
            return

    async def _close(self) -> None:
        """Close the instance, if there is one, and its thread."""
        worker, instance = self._worker, self._instance
        self._worker = self._instance = None
        self.alive, self.memory, self.trend = False, (), None
        self.reported_s, self._long_since_s = 0, None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if worker is not None and instance is not None:
            try:
                if self._recipe.gate is not None:
                    await self._recipe.gate.leave(self._number)
            finally:
                await self._close_in(worker, instance)

    async def _close_in(self, worker: Worker, instance: ModelInstance) -> None:
        try:
            await see_through(worker, instance.close, grace_s=INSTANCE_CLOSE_S_MAX)
        finally:
            worker.close()

    def _worked(self) -> None:
        self._restarts.in_row = 0
        if self._long_since_s is not None:
            self.reported_s, self._long_since_s = 0, None
            self._worked_again.set()
            self._on_change()

    def _fail(self, number: int, reason: str) -> None:
        """The instance of this number has failed; no-op when another one has taken its place."""
        if number != self._number:
            return
        self.alive = False
        self.reason = reason
        self._failed.set()

    def _context(self) -> dict[str, str]:
        return {"instance": self.placed.placement.name, "reason": self.reason}


async def _given_work(slot: InstanceSlot) -> None:
    """Until it is given a batch."""
    given = trio.Event()
    slot.given = given.set
    try:
        await given.wait()
    finally:
        slot.given = None


def _make(recipe: InstanceRecipe, placed: PlacedInstance) -> _Made:
    """In the instance's thread, which is bound for as long as it lives."""
    bind(placed.placement.host)
    with recipe.meter.measure(devices_of([placed.placement])) as measured:
        instance = recipe.model.create_instance(placed.placement)
        try:
            if placed.gpu_share_max is not None:
                require_share(placed.placement, placed.gpu_share_max)
            if recipe.samples:
                from tpy_data.engine.loading.warmup import run_samples  # in the instance's thread

                run_samples(instance, recipe.samples, name=placed.placement.name)
        except BaseException:
            _close(instance)
            raise
    own = instance.host_memory_bytes() if isinstance(instance, HasHostMemory) else None
    return _Made(instance, measured.usage(host_bytes=own, gpu_bytes=recipe.meter.gpu_bytes(instance)))


def _close_made(made: _Made) -> None:
    _close(made.instance)


def _close(instance: ModelInstance) -> None:
    """In the instance's thread."""
    try:
        instance.close()
    except Exception:
        _log.exception("closing an instance failed")


def _open_channel(instance: ModelInstance, worker: Worker, clock: Clock, on_loop: LoopRule | None = None) -> InstanceChannel:
    """A channel to an instance that nobody uses yet, whose thread `worker` is. `close` it in any case."""
    if not isinstance(instance, QueuedInstance):
        return ThreadChannel(instance, worker, clock, on_loop=on_loop)
    from tpy_data.engine.channels.process_channel import ProcessChannel  # only what runs in another process has one

    return ProcessChannel(instance, worker, clock)
