"""The data plane as one thing: `open_data_plane` is its life, `DataPlane` what others may ask of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from tpy.clock import Clock
from tpy.config import RequestTimeout
from tpy.deliveries import Deliveries
from tpy.devices import NO_DEVICES, Devices
from tpy.echo import echo
from tpy.errors import InvalidArgument, Unsupported
from tpy.ids import ModelId
from tpy.limits import MEMORY_LOOK_S
from tpy.messages import (
    CacheStatistics,
    CalledActivity,
    Latency,
    MemoryGrowth,
    ModelCounters,
    ModelExplanation,
    ModelStatistics,
)
from tpy.observers import RequestObservers
from tpy.services import LoadingService
from tpy.state import ModelStateStore, ObservedWriter
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.telemetry.exposition import MeasuredFamily
from tpy.telemetry.host import SERVER_FAMILIES
from tpy.telemetry.latencies import LatencyOptions
from tpy.units import NS_PER_S
from tpy_data.cache.options import CacheOptions
from tpy_data.engine.caching.cache_access import open_cache
from tpy_data.engine.calls.model_calls import EngineCalls
from tpy_data.engine.explanation.core.recent import recent_activity
from tpy_data.engine.instances.restarts import RestartOptions
from tpy_data.engine.loading.loaded_version import Backends, Loader
from tpy_data.engine.loading.placing import Machine
from tpy_data.engine.memory_budget_options import MemoryBudgetOptions
from tpy_data.engine.requests.request_log import RequestLog
from tpy_data.engine.rollouts.when_needed import RolloutsWhenNeeded
from tpy_data.engine.runtimes.reconciler import Reconciler
from tpy_data.engine.runtimes.runtime import Shared
from tpy_data.engine.serving.inference import EngineInference
from tpy_data.engine.serving.serving_table import Served, ServingTable
from tpy_data.engine.versions.version_engine import VersionEngine
from tpy_data.executors.executor import Executor, ThreadExecutor
from tpy_data.schedulers.core import NO_START_DELAY, StartDelay

if TYPE_CHECKING:
    from tpy.tenants import TenantsConfig
    from tpy_data.engine.budget.memory_budget import MemoryBudget
    from tpy_data.engine.channels.rate_limiter import RateLimiter
    from tpy_data.engine.memory.memory_watch import MemoryWatch
    from tpy_data.engine.rollouts.kept import KeptRollouts
    from tpy_data.engine.tenancy.tenancy import Tenancy
    from tpy_data.schedulers.core.rate_limiter import Supply

_log = logging.getLogger(__name__)
_LOG_LEVELS = {"verbose": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class DataPlaneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`load_threads_max` is --model-load-thread-count, `exit_timeout_ns` --exit-timeout-secs: how long stopping may take, from
    draining to the last unload. `load_retries` is --model-load-retry-count. `server_id` is --id. Without `cache` no
    answers are kept, without `rate_limit` nothing is. `request_timeout` is --request-timeout, `latencies` are the distributions
    that --metrics-config asks for, `restarts` how failed instances are started again. `rollouts` has
    the content of --rollout-file. `tenants_file` is --tenants-file, which is used as far as `check_tenants` does not raise
    InvalidArgument, `curves_file` --batching-curves-file. Without `memory_budget` all models are loaded and stay. `start_delay`
    is for tests."""

    load_threads_max: int = 4
    load_retries: int = 0
    exit_timeout_ns: int = 30 * NS_PER_S
    machine: Machine = Machine()
    server_id: str = "triton"
    model_namespacing: bool = False
    cache: CacheOptions | None = None
    rate_limit: Supply | None = None
    start_delay: StartDelay = NO_START_DELAY
    request_timeout: RequestTimeout = RequestTimeout.QUEUE
    latencies: LatencyOptions = LatencyOptions()
    restarts: RestartOptions = RestartOptions()
    rollouts: KeptRollouts | None = None
    tenants_file: str = ""
    check_tenants: Callable[[TenantsConfig], None] = lambda config: None
    curves_file: Path | None = None
    memory_budget: MemoryBudgetOptions | None = None


class DataPlane:
    """`inference` is the InferenceService for frontends, which may close their connections before the context is left: until then
    requests are served. `deliveries` are the blocks in which requests are answered."""

    def __init__(
        self,
        inference: EngineInference,
        shared: Shared,
        metrics: CustomMetrics,
        calls: EngineCalls,
        reconciler: Reconciler,
        rollouts: RolloutsWhenNeeded,
        budget: MemoryBudget | None = None,
        tenancy: Tenancy | None = None,
    ) -> None:
        self.tenancy = tenancy
        self.rollouts = rollouts
        self.budget = budget
        self.inference = inference
        self._reconciler = reconciler
        self._calls = calls
        self._metrics = metrics
        self._table = shared.table
        self._cache = shared.cache
        self._clock = shared.clock
        self._executor = shared.executor
        self._memory: MemoryWatch | None = None
        self.deliveries = shared.deliveries

    def use_repository(self, repository: LoadingService) -> None:
        """Have models that load and unload others do it there; before this is called they are refused."""
        self._calls.repository = repository

    def begin_drain(self) -> bool:
        """Begin no sequences from now on; all else goes on. Returns whether sequences live. Idempotent."""
        self._table.sequences.closed = True
        return self._table.sequences.live()

    def stop_accepting(self) -> None:
        """Refuse new requests; accepted ones and live sequences go on. Idempotent."""
        self.inference.stop()

    def versions_in_flight(self) -> int:
        """The number of model versions whose requests wait or execute."""
        return sum(version.has_requests() for version in self._reconciler.unfinished())

    def refuse_open(self) -> None:
        """Refuse every request that is not answered yet, whatever has become of it, and all that come: the server is about to
        end."""
        self.stop_accepting()
        for version in self._reconciler.unfinished():
            version.abandon()

    def refuse_everything(self) -> None:
        """Say for ever, to all that is asked about models, that the server is not ready."""
        self.inference.refuse_everything()

    async def wait_sequences_over(self) -> None:
        """Until no sequence lives. Leaving the context does not wait for their next requests."""
        await self._table.sequences.wait_over()

    async def check_ready(self, model_name: str, version: int | None = None) -> bool:
        """True when a version that is served says itself that it is ready. Raises as `InferenceService.resolve`."""
        return await self.inference.check_ready(model_name, version)

    def custom_metrics(self) -> tuple[MeasuredFamily, ...]:
        """The metrics that models measure themselves."""
        families, queued = self._metrics.families(), self._queued_for_engines()
        if not queued:
            return families
        from tpy_data.generation.engine_numbers import with_aliases  # most servers have no engine

        return with_aliases(families, queued)

    def _queued_for_engines(self) -> dict[tuple[str, str], int]:
        return {
            (served.id.name, str(served.version)): served.served_copy.engine.snapshot().queued
            for served in self._table.all()
            if _is_engine(served)
        }

    def budget_families(self) -> Sequence[MeasuredFamily]:
        """The metrics of the memory budget."""
        return () if self.budget is None else self.budget.families()

    def tenant_families(self) -> Sequence[MeasuredFamily]:
        """The metrics of tenants."""
        return () if self.tenancy is None else self.tenancy.families()

    def batching_families(self) -> Sequence[MeasuredFamily]:
        """The metrics of models whose batches are tuned."""
        tuned = [each for each in self._table.all() if "batching" in each.served_copy.config.parameters]
        if not tuned:
            return ()
        from tpy_data.engine.tuning.metrics import batching_families  # most servers have no such model

        return batching_families((each.id, each.version, each.executing_engine.explain().queue) for each in tuned)

    async def watch_memory(self) -> None:
        """Watch whether the server or a model leaks, until cancelled."""
        await trio.sleep(MEMORY_LOOK_S)
        from tpy_data.engine.memory.memory_watch import MemoryWatch  # no server is kept from its start for this

        self._memory = MemoryWatch(self._table.all, self._clock, self._executor, self._cached_bytes)
        await self._memory.run()

    def growth(self) -> MemoryGrowth | None:
        """The growth of the server's own process; None while that is not known."""
        return None if self._memory is None else self._memory.server.growth

    def _cached_bytes(self) -> int:
        """Memory of the response cache, which fills up to its size and leaks nothing."""
        found = self.cache_statistics()
        return 0 if found is None else found.bytes_used

    def rollout_families(self) -> Sequence[MeasuredFamily]:
        """The metrics of rollouts."""
        return self.rollouts.families()

    def cache_statistics(self) -> CacheStatistics | None:
        """Of the response cache as a whole; None: no cache, or it has its own metrics."""
        return None if self._cache is None else self._cache.statistics()

    def statistics(
        self, model_name: str = "", version: int | None = None, *, with_latencies: bool = False
    ) -> Sequence[ModelStatistics]:
        """As `DiagnosticsService.statistics`: of the versions that are switched in. `with_latencies`: also their `latencies`."""
        found = self._served(model_name, version)
        rows = [_statistics(model, served, with_latencies=with_latencies) for model, served in found]
        if not any(_is_engine(served) for _, served in found):
            return rows
        from tpy_data.generation.engine_numbers import statistics  # most servers have no engine

        families = self._metrics.families()
        return [statistics(row, families) for row in rows]

    def counters(self) -> Sequence[ModelCounters]:
        """As `DiagnosticsService.counters`."""
        self.inference.require_live()
        return [served.counters() for served in self._table.all()]

    def explain(self, model_name: str, version: int | None = None) -> Sequence[ModelExplanation]:
        """As `DiagnosticsService.explain`: of the versions that are switched in."""
        from tpy_data.engine.explanation.model_explanation import explain  # most servers are never asked

        now_ns = self._clock.now_ns()
        return [
            explain(model, served, now_ns, self._called_by(model.name, now_ns))
            for model, served in self._served(model_name, version)
        ]

    def model_path(self, model_name: str, version: int | None = None) -> Path:
        """The file or folder that the configuration of a version names, of the newest ready one for None. Raises InvalidArgument
        for what is not served, Unsupported for an ensemble."""
        found = [served for _, served in self._served(model_name, version)]
        served = ([each for each in found if each.ready] or found)[-1]
        if served.directory is None:
            raise Unsupported(f"'{echo(model_name)}' is an ensemble: its steps are in its configuration")
        return served.directory / served.served_copy.config.default_model_filename

    def _called_by(self, model_name: str, now_ns: int) -> tuple[CalledActivity, ...]:
        return tuple(
            CalledActivity(name=name, calls=calls, queued=queued, busy=self._busy(name, now_ns))
            for name, (calls, queued) in sorted(self._calls.called_by(model_name).items())
        )

    def _busy(self, model_name: str, now_ns: int) -> float:
        """The recent share of the busiest version; 0 for a model that is not served any more."""
        try:
            served = self._served(model_name, None)
        except InvalidArgument:
            return 0.0
        return max(recent_activity(each.instances(), now_ns).busy for _, each in served)

    def _served(self, model_name: str, version: int | None) -> list[tuple[ModelId, Served]]:
        """The versions of this model, of all for "". Raises InvalidArgument when no version is found."""
        self.inference.require_live()
        if not model_name:
            return [(model, served) for model, versions in self._table.models() for served in versions.versions.values()]
        if (aliased := self.inference.of_alias(model_name, version)) is not None:
            model_name, version = aliased
        models = [(model, known.versions) for model in self._table.named(model_name) if (known := self._table.model(model))]
        if not models:
            raise InvalidArgument(f"requested model '{echo(model_name)}' is not available")
        found = [
            (model, served)
            for model, versions in models
            for number, served in versions.items()
            if version is None or number == version
        ]
        if not found:
            raise InvalidArgument(f"requested model version is not available for model '{model_name}'")
        return found


@asynccontextmanager
async def open_data_plane(
    options: DataPlaneOptions,
    store: ModelStateStore,
    writer: ObservedWriter,
    backends: Backends,
    clock: Clock,
    *,
    executor: Executor | None = None,
    devices: Devices = NO_DEVICES,
    observers: RequestObservers | None = None,
    custom_metrics: CustomMetrics | None = None,
) -> AsyncIterator[DataPlane]:
    """Run the data plane for the length of the block. The nursery of all model versions is in here.

    Leaving the block stops it: it refuses new requests, finishes the accepted ones, and unloads everything, all within
    `exit_timeout_ns`. What is not done by then is left behind, with a log line each. Cancelling from outside the block is the
    hard stop: nothing is finished. The caller closes `backends` afterwards. Without `executor` work runs in threads.
    `observers` see the calls that models make, and get one more: the log's line of each
    request.
    """
    executor = executor or ThreadExecutor()
    observers = observers or RequestObservers()
    observers.add(RequestLog())
    metrics = CustomMetrics(SERVER_FAMILIES) if custom_metrics is None else custom_metrics
    table = ServingTable()
    inference = EngineInference(table, store, clock=clock, model_namespacing=options.model_namespacing)
    calls = EngineCalls(inference, observers)
    rollouts = RolloutsWhenNeeded(table, store.snapshot, writer.answer, clock)
    if options.rollouts is not None:
        rollouts.go_on(options.rollouts)
    tenancy = None
    if options.tenants_file:
        from tpy_data.engine.tenancy.tenancy import Tenancy  # most servers have no tenants

        tenancy = await trio.to_thread.run_sync(Tenancy, options.tenants_file, options.check_tenants)
        tenancy.tenants.is_rate_limited = options.rate_limit is not None
    curves = None
    if options.curves_file is not None:
        from tpy_data.engine.tuning.kept_curves import KeptCurves  # most servers keep none

        curves = await trio.to_thread.run_sync(KeptCurves, options.curves_file)
    loader = Loader(
        backends,
        machine=options.machine,
        server_id=options.server_id,
        log=_log_from_thread,
        metrics=metrics,
        server=calls,
        devices=devices,
        start_delay=options.start_delay,
        tenants=None if tenancy is None else tenancy.tenants,
        curves=curves,
    )
    shared = Shared(
        loader=loader,
        loaders=executor.open_worker("load", threads_max=options.load_threads_max),
        unloaders=executor.open_worker("unload", threads_max=options.load_threads_max),
        executor=executor,
        table=table,
        writer=writer,
        clock=clock,
        deliveries=Deliveries(),
        load_retries=options.load_retries,
        request_timeout=options.request_timeout,
        cache=open_cache(options.cache, executor, clock, metrics),
        limiter=None if options.rate_limit is None else _rate_limiter(options.rate_limit),
        latencies=options.latencies,
        restarts=options.restarts,
    )
    budget = None
    if options.memory_budget is not None:
        from tpy_data.engine.budget.opening import open_budget  # most servers have no budget
        from tpy_data.engine.runtimes import on_demand_runtime

        budget = await open_budget(
            options.memory_budget,
            options.machine,
            loader.meter,
            clock,
            loads_max=options.load_threads_max,
            tenants=None if tenancy is None else tenancy.tenants,
        )
        shared = shared._replace(make_runtime=partial(on_demand_runtime.make_runtime, budget=budget))
    if tenancy is not None:
        shared = shared._replace(make_copy=tenancy.make_copy)
        calls.tenant_of = tenancy.tenant_of
    reconciler = Reconciler(store, shared)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.run, name="repository calls of models")
            nursery.start_soon(rollouts.run)
            if budget is not None:
                nursery.start_soon(budget.run)
            if tenancy is not None:
                nursery.start_soon(tenancy.run)
            nursery.start_soon(reconciler.run, nursery)
            try:
                yield DataPlane(inference, shared, metrics, calls, reconciler, rollouts, budget, tenancy)
            finally:
                inference.stop()
                table.sequences.let_go()
                await _shut_down(reconciler, options.exit_timeout_ns)
                if curves is not None:
                    with trio.move_on_after(1, shield=True):  # one file is written, whole or not at all
                        await trio.to_thread.run_sync(curves.close, abandon_on_cancel=True)
                nursery.cancel_scope.cancel()
    finally:
        shared.loaders.close()
        shared.unloaders.close()
        if shared.cache is not None:
            shared.cache.close()


def _rate_limiter(supply: Supply) -> RateLimiter:
    from tpy_data.engine.channels.rate_limiter import RateLimiter  # most servers limit no rates

    return RateLimiter(supply)


def _is_engine(served: Served) -> bool:
    """True for a model that an engine runs, token by token."""
    engine = served.executing_engine
    return isinstance(engine, VersionEngine) and engine.is_engine


async def _shut_down(reconciler: Reconciler, timeout_ns: int) -> None:
    """Unload everything. The log has Triton's lines."""
    _log.info("All models are stopped, unloading models")
    reconciler.close()
    with trio.move_on_after(timeout_ns / NS_PER_S):
        async with trio.open_nursery() as watching:
            watching.start_soon(_count_live, reconciler)
            await reconciler.wait_closed()
            watching.cancel_scope.cancel()
        _log_live(0)
    for version in reconciler.unfinished():
        _log.warning(
            "not unloaded within the exit time-out", extra={"context": {"model": str(version.id), "version": version.version}}
        )
        version.abandon()


async def _count_live(reconciler: Reconciler) -> None:
    while found := len(reconciler.unfinished()):
        _log_live(found)
        await trio.sleep(1)


def _log_live(count: int) -> None:
    left_s = trio.current_effective_deadline() - trio.current_time()
    text = "Timeout %(left_s)d: Found %(models)d live models and 0 in-flight non-inference requests"  # the ports have drained
    _log.info(text, {"left_s": round(max(0.0, left_s)), "models": count})


def _statistics(model: ModelId, served: Served, *, with_latencies: bool) -> ModelStatistics:
    copy = served.served_copy
    engine, counters = copy.engine, copy.engine.statistics
    caches = served.executing_engine.caches
    latencies: tuple[Latency, ...] = ()
    if with_latencies and counters.latencies is not None:
        latencies = counters.latencies.snapshot(caches=caches)
    return ModelStatistics(
        name=model.name,
        namespace=model.namespace,
        version=served.version,
        last_inference_ms=counters.last_inference_ms,
        inference_count=counters.inference_count,
        execution_count=counters.execution_count,
        inference=counters.inference(),
        batches=counters.batches(),
        responses=counters.responses.snapshot(),
        failures=counters.failures(),
        pending_requests=engine.snapshot().queued,
        load_duration_ns=served.load_duration_ns,
        memory_usage=served.memory_usage(),
        memory_growths=tuple(growth for each in served.processes() if (growth := each.growth) is not None),
        executing_s=served.executing_s(),
        load=served.load(),
        instance_restarts=served.restarts(),
        metric_tags=tuple(sorted(copy.config.metric_tags.items())),
        caches=caches,
        latencies=latencies,
        max_batch_size=copy.config.max_batch_size,
    )


def _log_from_thread(level: str, message: str) -> None:
    """For backends; logging is safe in any thread."""
    _log.log(_LOG_LEVELS.get(level, logging.INFO), "%s", message)
