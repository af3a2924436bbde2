"""Runtimes under a memory budget: OnDemandRuntime is there all the time, with a loaded copy inside while it is asked for;
PinnedRuntime is loaded and stays.

The copy inside is a VersionRuntime like any other. It has a serving table and a store for itself, so that everybody else sees one
copy, which is READY whether it is loaded or not.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import trio

from tpy.config import ModelConfig, enforces_timeouts
from tpy.config.on_demand import LoadPolicy, LoadWhen
from tpy.config_forms import ConfigForms
from tpy.errors import TpyError, Unavailable
from tpy.messages import InstanceActivity, MemoryUsage, ModelDescription, ModelState
from tpy.state import DesiredModel, DesiredVersion, ModelStateStore, ObservedKey, ObservedVersion, ObservedWriter
from tpy.units import NS_PER_S
from tpy_data.engine.budget.core.sizes import ModelFiles
from tpy_data.engine.budget.fingerprint import files_of
from tpy_data.engine.budget.memory_budget import Member, MemoryBudget
from tpy_data.engine.budget.on_demand_engine import OnDemandEngine, misfit
from tpy_data.engine.instances.restarts import Restarts
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.engine.runtimes.core import Phase
from tpy_data.engine.runtimes.runtime import Runtime, Shared
from tpy_data.engine.runtimes.version_runtime import VersionRuntime
from tpy_data.engine.serving.serving_table import ServedProcess, ServingTable
from tpy_data.executors.executor import call

_log = logging.getLogger(__name__)

NOT_LOADED = "it is not loaded: a request loads it"
FAILED = "it is not loaded, its last load failed: a request tries again"
LOADING = "it is being loaded"
DRAINING = "it is being unloaded"
"""Remarks of the index."""


def make_runtime(
    key: ObservedKey, model: DesiredModel, version: DesiredVersion, shared: Shared, *, budget: MemoryBudget
) -> Runtime:
    """The runtime of a version under a budget."""
    policy = budget.policy(model.config)
    if policy.when is LoadWhen.AT_START:
        return PinnedRuntime(key, model, version, shared, budget)
    return OnDemandRuntime(key, model, version, shared, budget, policy)


class PinnedRuntime(VersionRuntime):
    """A VersionRuntime whose memory counts. What has more than the whole budget is not loaded."""

    def __init__(
        self, key: ObservedKey, model: DesiredModel, version: DesiredVersion, shared: Shared, budget: MemoryBudget
    ) -> None:
        super().__init__(key, model, version, shared)
        self._budget = budget
        self._files = ModelFiles("", 0)

    async def _live(self) -> TpyError | None:
        files: ModelFiles | None = None
        try:
            with self._loading:
                files = await call(self._shared.loaders, functools.partial(files_of, self._model, self._desired_version))
            if files is None:
                return Unavailable("the server ends")
            self._files = files
            self._loading = trio.CancelScope()  # none can be entered twice
            self._budget.check_pinned(f"{self.id}:{self.version}", self._model.config, self._files)
            return await super()._live()
        except TpyError as error:
            return error
        finally:
            self._budget.unpin(self.key)

    async def _serve(self) -> None:
        self._budget.pin(self.key, self.served_copy.config, self._files, self.memory_usage())
        await super()._serve()

    async def _apply(self, model: DesiredModel) -> None:
        await super()._apply(model)
        self._budget.pin(self.key, self.served_copy.config, self._files, self.memory_usage())


class _InnerWriter(ObservedWriter):
    """Tells what the copy inside is."""

    def __init__(self, store: ModelStateStore, moved: Callable[[ObservedVersion], None]) -> None:
        super().__init__(store)
        self._moved = moved

    def move(self, observed: ObservedVersion) -> None:
        """As `ObservedWriter.move`."""
        super().move(observed)
        self._moved(observed)


class OnDemandRuntime(Runtime):
    """See `Runtime`."""

    is_on_demand = True

    def __init__(
        self,
        key: ObservedKey,
        model: DesiredModel,
        version: DesiredVersion,
        shared: Shared,
        budget: MemoryBudget,
        policy: LoadPolicy,
    ) -> None:
        super().__init__(key, model, shared)
        self._desired_version = version
        self._budget = budget
        self._policy = policy
        self._statistics = VersionStatistics(shared.latencies_of(model.config))
        table = ServingTable()
        table.sequences = shared.table.sequences
        self._writer = _InnerWriter(ModelStateStore(shared.clock), self._inner_moved)
        self._inner_shared = shared._replace(table=table, writer=self._writer, make_runtime=None)
        self._inner: VersionRuntime | None = None
        self._member: Member | None = None
        self._completed: ModelConfig | None = None
        """The configuration with all that its files say, once that is known: what is completed once need not be again."""
        self._is_over = False
        self._failures = Restarts(shared.restarts)
        self._sized_revision = 0  # of the configuration whose instances were measured
        self._changed = trio.Event()  # it is to be loaded, or all is over

    @property
    def executing_engine(self) -> ModelEngine:
        """As `Served.executing_engine`."""
        engine = self.engine
        return engine.inner or engine

    @property
    def engine(self) -> OnDemandEngine:
        """See ModelOnDemand."""
        engine = self.served_copy.engine
        assert isinstance(engine, OnDemandEngine)
        return engine

    # Served: what the copy inside says, if there is one

    @property
    def directory(self) -> Path:
        """As `Served.directory`."""
        return self._desired_version.directory

    def memory_usage(self) -> tuple[MemoryUsage, ...]:
        """As `Served.memory_usage`."""
        return () if self._inner is None else self._inner.memory_usage()

    def processes(self) -> Sequence[ServedProcess]:
        """As `Served.processes`."""
        return () if self._inner is None else self._inner.processes()

    def _memory_bytes(self) -> int:
        return sum(usage.byte_size for usage in self.memory_usage())

    def instances(self) -> tuple[InstanceActivity, ...]:
        """As `Served.instances`."""
        return () if self._inner is None else self._inner.instances()

    def load(self) -> float | None:
        """As `Served.load`."""
        return 0.0 if self._inner is None else self._inner.load()

    def restarts(self) -> int:
        """As `Served.restarts`."""
        return 0 if self._inner is None else self._inner.restarts()

    def retry_s(self) -> int | None:
        """As `Served.retry_s`."""
        return None if self._inner is None else self._inner.retry_s()

    def executing_s(self) -> float:
        """As `Served.executing_s`."""
        return 0.0 if self._inner is None else self._inner.executing_s()

    async def check_ready(self) -> bool:
        """As `Served.check_ready`: one that is not loaded is ready to be."""
        if self._inner is not None and self._inner.phase is Phase.SERVING:
            return await self._inner.check_ready()
        await trio.lowlevel.checkpoint()
        return True

    # What is wanted

    def begin_load(self) -> None:
        """See ModelOnDemand."""
        self._changed.set()

    def begin_unload(self) -> None:
        """See ModelOnDemand."""
        if self._inner is not None:
            self._inner.stop()

    def is_busy(self) -> bool:
        """See ModelOnDemand."""
        inner = self.engine.inner
        return inner is not None and (not inner.drain.is_idle() or self._shared.table.sequences.lives_in(self.id))

    def reconsider(self) -> None:
        """As `Runtime.reconsider`: no other model makes this one ready."""

    def resize(self, model: DesiredModel) -> None:
        """As `Runtime.resize`: the next load has the new instances, and what is loaded now."""
        self._model, self._completed = model, None
        self._applied_revision = model.config_revision
        if self._inner is not None:
            self._inner.resize(model)
        self._report()

    def give_up_starting(self) -> None:
        """As `Runtime.give_up_starting`."""
        super().give_up_starting()
        if self._copy is not None:
            self.engine.stop()
        if self._inner is not None:
            self._inner.give_up_starting()

    def abandon(self) -> None:
        """As `Runtime.abandon`."""
        if self._copy is not None:
            self.engine.stop(executing=True)
        if self._inner is not None:
            self._inner.abandon()

    # Its life

    async def _live(self) -> TpyError | None:
        described: tuple[ModelConfig, ModelDescription, ModelFiles] | None = None
        with self._loading:
            try:
                described = await call(self._shared.loaders, self._describe)
            except TpyError as error:
                return error
        if described is None:
            return Unavailable("the server ends")
        if self._stopping:
            return None
        config, description, files = described
        with self._budget.joined(self, self._policy, config, files) as member:
            self._member = member
            engine = OnDemandEngine(
                self.id.name,
                self.version,
                self._shared.clock,
                self._statistics,
                self._budget.room,
                member,
                wait_ns_max=self._budget.wait_ns_max,
                elsewhere=functools.partial(self._shared.table.sequences.other, self.id),
            )
            self._was_loaded = True
            self._switch_in(engine, config, description)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait_over, engine)
                failure = await self._load_and_unload(member, engine)
                nursery.cancel_scope.cancel()
        return failure

    def _describe(self) -> tuple[ModelConfig, ModelDescription, ModelFiles]:
        """In a loader thread."""
        model, version = self._model, self._desired_version
        return (*self._shared.loader.described(model, version), files_of(model, version))

    def _switch_in(self, engine: OnDemandEngine, config: ModelConfig, description: ModelDescription) -> None:
        self._copy = self._shared.make_copy(
            engine,
            self.version,
            config,
            description,
            self._shared.clock,
            enforces_timeouts=enforces_timeouts(config, self._shared.request_timeout),
        )
        if self._stopping:
            return
        self.ready = True
        self.load_duration_ns = self._shared.clock.now_ns() - self._began_ns
        self._shared.table.switch_in(self)
        self.phase = Phase.SERVING
        self._report(NOT_LOADED)

    async def _wait_over(self, engine: OnDemandEngine) -> None:
        """Until it is to end, and nobody waits for a load any more."""
        await self._wake.wait()
        await engine.drain.wait()
        self._is_over = True
        if self._inner is not None:
            self._was_loaded = False  # the copy inside says that it was unloaded
            self._inner.stop()
        self._changed.set()

    async def _load_and_unload(self, member: Member, engine: OnDemandEngine) -> TpyError | None:
        """Have a copy inside whenever the budget says so. Returns why it could not be loaded, if so."""
        while True:
            await self._changed.wait()
            if self._is_over:
                return None
            self._changed = trio.Event()
            model = self._model
            if self._completed is not None:
                model = msgspec.structs.replace(model, config=self._completed, auto_complete=False)
            inner = VersionRuntime(self.key, model, self._desired_version, self._inner_shared, self._statistics)
            self._inner = inner
            self._report(LOADING)
            try:
                await inner.run()
            finally:
                engine.use(None)
                self._inner = None
            failure = inner.failure
            del inner
            self._writer.forget(self.key)
            is_lost = failure is not None and (self._stopping or self._completed is None)
            if failure is not None:
                self._refuse(engine, failure, is_lost=is_lost)
            self._budget.unloaded(member)
            if is_lost:
                return failure
            self._recover()
            self._report(NOT_LOADED if failure is None else FAILED)

    def _refuse(self, engine: OnDemandEngine, failure: TpyError, *, is_lost: bool) -> None:
        """A load has failed; the copy inside has logged it. What was loaded before from the same files is tried again after a
        pause, as an instance that fails is: its worker was killed, or memory ran out."""
        message = f"failed to load model '{self.id.name}': {failure.message}"
        if is_lost:
            self.failure = failure
            self._retire()
            engine.fail(Unavailable(message))
            return
        now_ns = self._shared.clock.now_ns()
        self._failures.failed(now_ns / NS_PER_S)
        pause_s = self._failures.pause_s(now_ns / NS_PER_S, now_ns / NS_PER_S)
        engine.pause(message, now_ns + math.ceil(pause_s * NS_PER_S))

    def _inner_moved(self, observed: ObservedVersion) -> None:
        """The copy inside is something else now."""
        inner, member = self._inner, self._member
        if inner is None or member is None or self._copy is None:
            return
        engine = self.engine
        if observed.state is ModelState.READY:
            if engine.inner is None:
                self._begin_serving(inner, member, engine)
            elif observed.config_revision != self._sized_revision:
                self._budget.resized(member, inner.memory_usage())
            self._sized_revision = observed.config_revision
            self._recover()
            self._remark = observed.remark
            self._report(observed.remark)
        elif observed.state is ModelState.UNLOADING:
            engine.use(None)
            self._report(DRAINING)
        elif observed.state is ModelState.UNAVAILABLE and inner.phase is Phase.SERVING:
            self._fail(observed.reason, inner)

    def _begin_serving(self, inner: VersionRuntime, member: Member, engine: OnDemandEngine) -> None:
        """The copy inside takes requests from now on."""
        loaded = inner.served_copy
        self._completed = loaded.config
        self._failures.in_row = 0
        self.load_duration_ns = inner.load_duration_ns
        self._budget.loaded(member, inner.memory_usage())
        copy = self.served_copy
        refusal = misfit(copy.description, loaded.description, self.id.name)
        if refusal is not None:
            self._switch_in(engine, loaded.config, loaded.description)
        elif copy.config != loaded.config:
            copy.forms = ConfigForms(loaded.config)
        engine.use(loaded.engine, refusal)

    def _fail(self, reason: str, inner: VersionRuntime) -> None:
        """The copy inside has lost its instances: so has this one."""
        if self._stopping:
            return
        self.ready, self._is_awaited = False, inner.accepts
        self._shared.table.refresh(self)
        self._move(ModelState.UNAVAILABLE, reason)

    def _recover(self) -> None:
        """It takes requests again, with or without a copy inside."""
        if not self.ready and not self._stopping:
            self.ready, self._is_awaited = True, False
            self._shared.table.refresh(self)

    def _report(self, remark: str | None = None) -> None:
        if remark is not None:
            self._remark = remark
        if self.ready:
            self._move(ModelState.READY)
