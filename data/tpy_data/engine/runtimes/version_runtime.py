"""VersionRuntime: the runtime of a version whose requests are executed on instances."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

import trio

from tpy.backend import ChecksReadiness
from tpy.clock import Clock
from tpy.config import enforces_timeouts, not_ready_after_s
from tpy.config_forms import ConfigForms
from tpy.errors import Internal, TpyError, Unavailable
from tpy.limits import INSTANCE_CLOSE_S_MAX, LOAD_SLOW_S, LONG_EXECUTION_S
from tpy.messages import InstanceActivity, MemoryUsage, ModelState
from tpy.state import DesiredModel, DesiredVersion, ObservedKey
from tpy_data.engine.caching.caching import forget_cached, with_cache, with_content
from tpy_data.engine.instances.instance_set import InstanceSet
from tpy_data.engine.instances.readiness import ReadinessChecks
from tpy_data.engine.instances.supervised_instance import InstanceRecipe
from tpy_data.engine.loading.loaded_version import LoadedVersion
from tpy_data.engine.loading.memory_meter import give_back, total
from tpy_data.engine.loading.placing import PlacedInstance
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.engine.runtimes.core import Phase
from tpy_data.engine.runtimes.runtime import FAILED_TO_LOAD, Runtime, Shared
from tpy_data.engine.sequences.sequence_peers import SequenceHolder
from tpy_data.engine.serving.served_copy import ServedCopy
from tpy_data.engine.serving.serving_table import ServedProcess
from tpy_data.engine.versions.version_engine import VersionEngine
from tpy_data.exception_text import exception_text
from tpy_data.executors.executor import call, see_through
from tpy_data.schedulers.core import SchedulerCore
from tpy_data.schedulers.driver import Performer, SchedulerDriver

if TYPE_CHECKING:
    from tpy_data.engine.channels.rate_limiter import InstanceGate
    from tpy_data.engine.sequences.sequences import Sequences
    from tpy_data.schedulers.gated_driver import PooledCore

_log = logging.getLogger(__name__)


class VersionRuntime(Runtime):
    """A version with instances. Its life is one call stack: `_live` tries as often as a load may fail, `_attempt` loads and
    unloads, `_use` makes the engine and the instances between the two, and `_serve` is the time in which it is READY."""

    def __init__(
        self,
        key: ObservedKey,
        model: DesiredModel,
        version: DesiredVersion,
        shared: Shared,
        statistics: VersionStatistics | None = None,
    ) -> None:
        """`statistics` go on with those of an earlier copy."""
        super().__init__(key, model, shared)
        self._statistics = statistics
        self._desired_version = version
        self._instances: InstanceSet | None = None
        self._shared_memory: tuple[MemoryUsage, ...] = ()
        self._gate: InstanceGate | None = None
        self._resize_to: DesiredModel | None = None
        self._readiness = ReadinessChecks(self._readiness_checks)
        self._nursery: trio.Nursery | None = None
        self._awaiting = trio.CancelScope()

    async def check_ready(self) -> bool:
        """As `Served.check_ready`: of all instances that there are."""
        instances = self._instances
        if instances is not None and instances.all_execute_s() >= not_ready_after_s(self.served_copy.config):
            await trio.lowlevel.checkpoint()
            return False
        return await self._readiness.ask()

    def load(self) -> float | None:
        """As `Served.load`."""
        return None if self._instances is None else self._instances.load()

    @property
    def directory(self) -> Path:
        """As `Served.directory`."""
        return self._desired_version.directory

    def restarts(self) -> int:
        """As `Served.restarts`."""
        return 0 if self._instances is None else self._instances.restarts()

    def retry_s(self) -> int | None:
        """As `Served.retry_s`."""
        return None if self._instances is None else self._instances.retry_s()

    def executing_s(self) -> float:
        """As `Served.executing_s`."""
        return 0.0 if self._instances is None else self._instances.executing_s()

    def instances(self) -> tuple[InstanceActivity, ...]:
        """As `Served.instances`."""
        return () if self._instances is None else self._instances.explain(self._shared.clock.now_ns())

    def memory_usage(self) -> tuple[MemoryUsage, ...]:
        """As `Served.memory_usage`: what its instances share, and theirs."""
        return total([self._shared_memory, () if self._instances is None else self._instances.memory_usage()])

    def processes(self) -> Sequence[ServedProcess]:
        """As `Served.processes`."""
        return () if self._instances is None else self._instances.processes()

    def _memory_bytes(self) -> int:
        of_instances = 0 if self._instances is None else self._instances.memory_bytes()
        return of_instances + sum([usage.byte_size for usage in self._shared_memory])

    def give_up_starting(self) -> None:
        """As `Runtime.give_up_starting`."""
        super().give_up_starting()
        if self._instances is not None:
            self._instances.give_up_starting()

    def resize(self, model: DesiredModel) -> None:
        """As `Runtime.resize`."""
        self._model = model
        self._resize_to = model
        self._wake.set()

    def reconsider(self) -> None:
        """As `Runtime.reconsider`: no other model makes this one ready."""

    def abandon(self) -> None:
        """As `Runtime.abandon`."""
        if self._copy is not None:
            self._copy.engine.stop(executing=True)

    async def _live(self) -> TpyError | None:
        failure = await self._attempt()
        for _ in range(self._shared.load_retries):
            if failure is None or self._stopping or self._loading.cancel_called:
                break
            _log.warning(f"{FAILED_TO_LOAD}; trying again", {**self._about(), "reason": failure.reason()})
            self._loading = trio.CancelScope()  # none can be entered twice
            failure = await self._attempt()
        return failure

    async def _attempt(self) -> TpyError | None:
        """As `_live`, once."""
        self._began_ns = self._shared.clock.now_ns()
        try:
            loaded = await self._load()
        except TpyError as error:
            return error
        self._was_loaded = True
        limiter = None if loaded.is_engine else self._shared.limiter
        gate = self._gate = None if limiter is None else limiter.open_gate(self.key)
        try:
            return await self._use(loaded, gate)
        finally:
            self._instances = None  # nor its warm-up requests
            forget_cached(self.key, self._shared.cache)
            if gate is not None:
                gate.close()
            await see_through(self._shared.unloaders, functools.partial(_unload, loaded), grace_s=INSTANCE_CLOSE_S_MAX)

    async def _use(self, loaded: LoadedVersion, gate: InstanceGate | None) -> TpyError | None:
        """Make instances, and serve until stopped."""
        shared = self._shared
        failure: TpyError | None = None
        sequences = None if loaded.config.sequence_batching is None else self._make_sequences(loaded)
        executing = self._make_engine(loaded, gate, sequences)
        copy = self._copy = shared.make_copy(
            with_cache(executing, self.key, loaded, shared.cache),
            self.version,
            loaded.config,
            loaded.description,
            shared.clock,
            enforces_timeouts=enforces_timeouts(loaded.config, shared.request_timeout),
        )
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            recipe = InstanceRecipe(
                loaded.model,
                loaded.samples,
                shared.executor,
                executing,
                shared.loader.meter,
                gate,
                restarts=shared.restarts,
                long_s=min(LONG_EXECUTION_S, not_ready_after_s(loaded.config)),
            )
            self._shared_memory = loaded.memory
            instances = self._instances = InstanceSet(recipe, nursery, self._on_instances_changed)
            nursery.start_soon(copy.engine.run, name=f"deadlines of {self.id}")
            with nullcontext() if sequences is None else self._joined(copy, sequences):
                try:
                    await self._have(instances, () if self._stopping else loaded.instances)
                except TpyError as error:
                    failure = error
                else:
                    self.load_duration_ns = shared.clock.now_ns() - self._began_ns
                    await self._serve()
                    await copy.engine.drain.wait()
                    copy.engine.stop()
                    await instances.close()
            nursery.cancel_scope.cancel()
        return failure

    def _make_sequences(self, loaded: LoadedVersion) -> Sequences:
        from tpy_data.engine.sequences.sequences import Sequences  # few models have any

        return Sequences(self.id, loaded, self._shared.table.sequences)

    def _make_engine(self, loaded: LoadedVersion, gate: InstanceGate | None, sequences: Sequences | None) -> VersionEngine:
        """With a gate, batches of sequences wait in the channel of their instance, because a sequence does not change it; others
        wait for whichever instance may run."""
        shared = self._shared
        return VersionEngine(
            loaded.config,
            self.version,
            loaded.core,
            shared.clock,
            make_driver=self._make_driver(loaded, None if sequences is not None else gate),
            deliveries=shared.deliveries,
            gate=gate,
            sequences=sequences,
            latencies=shared.latencies_of(loaded.config) if self._statistics is None else None,
            statistics=self._statistics,
            make_ticket=loaded.make_ticket,
            is_engine=loaded.is_engine,
        )

    def _make_driver(
        self, loaded: LoadedVersion, gate: InstanceGate | None
    ) -> Callable[[SchedulerCore, Clock, Performer], SchedulerDriver]:
        if loaded.is_tuned:
            from tpy_data.engine.tuning.tuned_driver import tuned_driver  # most models are not tuned

            return functools.partial(tuned_driver, model=str(self.id), gate=gate)
        return SchedulerDriver if gate is None else functools.partial(_gated_driver, gate=gate)

    def _joined(self, copy: ServedCopy, sequences: Sequences) -> AbstractContextManager[None]:
        def let_go() -> None:
            sequences.let_go = True
            copy.engine.drain.check()

        return self._shared.table.sequences.joined(self.id, SequenceHolder(copy, sequences, let_go))

    async def _load(self) -> LoadedVersion:
        load = functools.partial(_load, self._shared, self._model, self._desired_version)
        failure: TpyError = Unavailable("the server ends")
        with self._loading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._log_slow_load)
                try:
                    return await call(self._shared.loaders, load, release=_unload)
                except TpyError as error:
                    failure = error
                finally:
                    nursery.cancel_scope.cancel()
        raise failure

    async def _log_slow_load(self) -> None:
        waited_s = LOAD_SLOW_S
        while True:
            await trio.sleep(waited_s)
            text = "still loading '%(model)s' version %(version)s; it may hang and holds one of the load threads"
            _log.warning(text, self._about())
            waited_s *= 2

    async def _serve(self) -> None:
        """Answer requests until `stop`."""
        if self._stopping:
            return
        self.ready = True
        self._shared.table.switch_in(self)
        self._move(ModelState.READY, phase=Phase.SERVING)
        while not self._stopping:
            await self._wake.wait()
            self._wake = trio.Event()
            model, self._resize_to = self._resize_to, None
            if model is not None and not self._stopping:
                await self._apply(model)

    async def _apply(self, model: DesiredModel) -> None:
        """Have the instances of this configuration; keep the old ones when that fails."""
        copy, instances = self.served_copy, self._instances
        if instances is None:
            raise Internal(f"{self.key} has no instances to resize")
        try:
            config, wanted = self._shared.loader.resized(
                copy.config, model.config, (self._desired_version.directory, model.directory)
            )
            await self._have(instances, wanted)
            await self._wait_superfluous_closed(instances)
        except TpyError as error:
            self._applied_error = error.reason()
            self._refused_revision = model.config_revision
            _log.error(
                "update of '%(model)s' version %(version)s failed, it goes on with the instances that it had: %(reason)s",
                {**self._about(), "reason": error.reason()},
            )
        else:
            copy.forms = ConfigForms(config)
            self._applied_revision = model.config_revision
            self._applied_error = ""
            _log.info("instances changed", extra={"context": {**self._about(), **instances.counts()}})
        if self.phase is Phase.SERVING and not self._on_instances_changed():
            self._move_serving()

    async def _have(self, instances: InstanceSet, wanted: Sequence[PlacedInstance]) -> None:
        """Have exactly these instances. Raises TpyError, and all is as before, when they cannot be had or could never run."""
        with nullcontext() if self._gate is None else self._gate.change(wanted):
            await instances.resize(wanted)

    async def _wait_superfluous_closed(self, instances: InstanceSet) -> None:
        """Until removed instances are finalized, so that a load call can wait for it; or something newer is wanted."""
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self._wake.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            await instances.wait_closed()
            nursery.cancel_scope.cancel()

    def _readiness_checks(self) -> list[ChecksReadiness]:
        return [] if self._instances is None else self._instances.readiness_checks()

    def _on_instances_changed(self) -> bool:
        """READY while one instance is alive; UNAVAILABLE, with the reason, while no instance is. Returns True if that or the
        remark changed."""
        instances = self._instances
        if instances is not None and (instances.alive() or instances.beyond_help()):
            self._awaiting.cancel()
        if instances is not None and instances.beyond_help():
            self._stop_waiting()
        if self.phase is not Phase.SERVING or instances is None:
            return False
        remark, self._remark = self._remark, instances.remark()
        if instances.alive() is not self.ready:
            self.ready = not self.ready
            self._is_awaited = False
            if not self.ready and self._shared.restarts.wait_s > 0 and self._nursery is not None:
                self._is_awaited = True
                self._awaiting = trio.CancelScope()
                self._nursery.start_soon(self._wait_for_instance, self._awaiting)
            self._shared.table.refresh(self)
        elif remark == self._remark:
            return False
        self._move_serving()
        return True

    async def _wait_for_instance(self, awaiting: trio.CancelScope) -> None:
        """Have requests wait for the next instance, but not for ever."""
        with awaiting:
            await trio.sleep(self._shared.restarts.wait_s)
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        """Refuse what waits, and from now on what comes."""
        if self._is_awaited:
            self._is_awaited = False
            self._shared.table.refresh(self)
            self._move_serving()
        self.served_copy.engine.refuse_waiting()

    def _move_serving(self) -> None:
        """READY, or why not."""
        if self.ready:
            self._move(ModelState.READY)
        else:
            reason = "" if self._instances is None else self._instances.reason()
            self._move(ModelState.UNAVAILABLE, Internal(reason).reason())


def _gated_driver(core: SchedulerCore, clock: Clock, performer: Performer, *, gate: InstanceGate) -> SchedulerDriver:
    from tpy_data.schedulers.gated_driver import GatedDriver  # most servers limit no rates

    return GatedDriver(cast("PooledCore", core), clock, performer, gate)


def _load(shared: Shared, model: DesiredModel, version: DesiredVersion) -> LoadedVersion:
    """In a loader thread. An exception that is not a TpyError is a bug in a backend, and becomes this version's reason."""
    try:
        return with_content(shared.loader.load(model, version), model, version, shared.cache)
    except TpyError:
        raise
    except Exception as error:
        _log.exception("loading raised", extra={"context": {"model": str(model.id), "version": version.version}})
        raise Internal(exception_text(error)) from error


def _unload(loaded: LoadedVersion) -> None:
    """In an unloader thread, or in a loader thread for a load that nobody waits for any more."""
    try:
        loaded.unload()
    finally:
        give_back()
