"""VersionRuntime: one copy of a model version from its load to its unload. One task, one nursery, one life."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import msgspec
import trio

from tpy.backend import ChecksReadiness
from tpy.clock import Clock
from tpy.config import ModelConfig, RequestTimeout
from tpy.deliveries import Deliveries
from tpy.errors import Internal, TpyError, Unavailable
from tpy.ids import ModelId, Version
from tpy.limits import INSTANCE_CLOSE_S_MAX, LOAD_SLOW_S
from tpy.messages import ModelState
from tpy.state import DesiredModel, DesiredVersion, ObservedKey, ObservedVersion, ObservedWriter
from tpy_data.engine.caching.cache_access import CacheAccess
from tpy_data.engine.caching.caching import forget_cached, with_cache, with_content
from tpy_data.engine.channels.rate_limiter import InstanceGate, RateLimiter
from tpy_data.engine.instances.instance_set import InstanceRecipe, InstanceSet
from tpy_data.engine.instances.readiness import ReadinessChecks
from tpy_data.engine.loading.loaded_version import LoadedVersion, Loader
from tpy_data.engine.loading.placing import PlacedInstance
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.runtimes.core import Phase, Running
from tpy_data.engine.runtimes.engine_choice import executing_engine
from tpy_data.engine.serving.served_copy import ServedCopy
from tpy_data.engine.serving.serving_table import ServingTable
from tpy_data.exception_text import exception_text
from tpy_data.executors.executor import Executor, Worker, call, see_through

_log = logging.getLogger(__name__)

UNLOADED = "unloaded"
"""The reason of a version that was unloaded on purpose, in Triton's word."""

FAILED_TO_LOAD = "failed to load '%(model)s' version %(version)s: %(reason)s"
SUCCESSFULLY_LOADED = "successfully loaded '%(model)s'"
SUCCESSFULLY_UNLOADED = "successfully unloaded '%(model)s' version %(version)s"
"""Triton's lines of the log: its users look for them."""


class Plant(NamedTuple):
    """What all versions of a data plane share. `loaders` run load and auto-complete, `unloaders` release: apart, so that loads
    that hang do not keep anything from being unloaded. A failed load is tried
    again `load_retries` times. `cache` None: no answers are kept; `limiter` None:
    nothing is rate limited. In `deliveries` everything is answered."""

    loader: Loader
    loaders: Worker
    unloaders: Worker
    executor: Executor
    table: ServingTable
    writer: ObservedWriter
    clock: Clock
    deliveries: Deliveries
    load_retries: int = 0
    request_timeout: RequestTimeout = RequestTimeout.QUEUE
    cache: CacheAccess | None = None
    limiter: RateLimiter | None = None


class VersionRuntime:
    """A copy of a version. `run` is started by the reconciler, in its nursery; everything else only says what is wanted.

    `config`, `engine` and `served_copy` are there from SERVING on.
    """

    nesting = 0
    """It is no ensemble."""

    def __init__(self, key: ObservedKey, model: DesiredModel, version: DesiredVersion, plant: Plant) -> None:
        self.key = key
        self.phase = Phase.LOADING
        self.ready = False
        self.load_duration_ns = 0
        self._model = model
        self._desired_version = version
        self._plant = plant
        self._loaded: LoadedVersion | None = None
        self._engine: ModelEngine | None = None
        self._served_copy: ServedCopy | None = None
        self._instances: InstanceSet | None = None
        self._gate: InstanceGate | None = None
        self._applied_revision = model.config_revision
        self._applied_error = ""
        self._refused_revision = 0
        self._resize_to: DesiredModel | None = None
        self._stopping = False
        self._loading = trio.CancelScope()
        self._wake = trio.Event()
        self._readiness = ReadinessChecks(self._readiness_checks)
        plant.writer.move(ObservedVersion(key=key, state=ModelState.LOADING, config_revision=model.config_revision))

    @property
    def id(self) -> ModelId:
        """The model."""
        return self.key.model

    @property
    def version(self) -> Version:
        """The version."""
        return self.key.version

    @property
    def config(self) -> ModelConfig:
        """Normalised and auto-completed."""
        return self._require_loaded().config

    @property
    def served_copy(self) -> ServedCopy:
        """What requests get."""
        if self._served_copy is None:
            raise Internal(f"{self.key} is not loaded")
        return self._served_copy

    @property
    def engine(self) -> ModelEngine:
        """The request path."""
        if self._engine is None:
            raise Internal(f"{self.key} is not loaded")
        return self._engine

    async def check_ready(self) -> bool:
        """As `Served.check_ready`: of all instances that there are."""
        return await self._readiness.ask()

    def running(self) -> Running:
        """This copy as the plan sees it."""
        return Running(key=self.key, phase=self.phase, config_revision=self._model.config_revision)

    def stop(self) -> None:
        """Take no new requests from now on, drain and unload; a load under way is unloaded when it is over. Idempotent."""
        self._stopping = True
        if self.phase is Phase.SERVING:
            # Here and not when the task gets to it, which can be busy for minutes with making more instances.
            self._plant.table.switch_out(self)
            self._move(ModelState.UNLOADING, phase=Phase.STOPPING)
        self._wake.set()

    def give_up_starting(self) -> None:
        """Wait no longer for a load or for instances that are being made: the server ends. They are left behind."""
        self._loading.cancel()
        if self._instances is not None:
            self._instances.give_up_starting()

    def resize(self, model: DesiredModel) -> None:
        """Apply the instance groups of a newer configuration."""
        self._model = model
        self._resize_to = model
        self._wake.set()

    def abandon(self) -> None:
        """Refuse what waits and what executes: the server ends before it is over."""
        if self._engine is not None:
            self._engine.abandon()

    async def run(self) -> None:
        """Load, serve until stopped, unload. Returns when nothing of it is left; then `phase` is FAILED or UNLOADED.

        Cancelling gives up waiting, after a short grace for each instance to close. A bug of ours in here (anything but
        TpyError) ends this version, with the reason in the store, and nothing else.
        """
        try:
            await self._live()
        except* Exception as bugs:
            _log.exception("a model version ended on a bug", extra={"context": self._context()})
            self._plant.table.switch_out(self)
            self._end(Internal(exception_text(bugs.exceptions[0])))
            self.abandon()
        finally:
            # An unloaded version stays to be seen, perhaps for ever; its model and warmup data do not.
            self._loaded = self._engine = self._served_copy = self._instances = None

    async def _live(self) -> None:
        failure = await self._attempt()
        for _ in range(self._plant.load_retries):
            if failure is None or self._stopping or self._loading.cancel_called:
                break
            _log.warning(f"{FAILED_TO_LOAD}; trying again", {**self._context(), "reason": failure.reason()})
            self._loading = trio.CancelScope()  # none can be entered twice
            failure = await self._attempt()
        self._end(failure)

    async def _attempt(self) -> TpyError | None:
        """Load, serve until stopped, unload. Returns why it could not be loaded, if so."""
        started_ns = self._plant.clock.now_ns()
        try:
            self._loaded = loaded = await self._load()
        except TpyError as error:
            return error
        failure: TpyError | None = None
        gate = self._gate = None if self._plant.limiter is None else self._plant.limiter.open_gate(self.key)
        try:
            async with trio.open_nursery() as nursery:
                executing = executing_engine(
                    self.key,
                    loaded,
                    self._plant.table.sequences,
                    self._plant.clock,
                    self._plant.deliveries,
                    gate,
                    request_timeout=self._plant.request_timeout,
                )
                self._engine = engine = with_cache(executing, self.key, loaded, self._plant.cache)
                self._served_copy = ServedCopy(engine, loaded.description, self._plant.clock)
                recipe = InstanceRecipe(loaded.model, loaded.samples, self._plant.executor, executing, gate)
                self._instances = instances = InstanceSet(recipe, nursery, self._on_instances_changed)
                nursery.start_soon(engine.run, name=f"deadlines of {self.key.model}")
                try:
                    await self._have(instances, () if self._stopping else loaded.instances)
                except TpyError as error:
                    failure = error
                else:
                    self.load_duration_ns = self._plant.clock.now_ns() - started_ns
                    await self._serve()
                    await self._drain(engine, instances)
                nursery.cancel_scope.cancel()
        finally:
            forget_cached(self.key, self._plant.cache)
            if gate is not None:
                gate.close()
            await see_through(self._plant.unloaders, loaded.model.unload, grace_s=INSTANCE_CLOSE_S_MAX)
        return failure

    async def _load(self) -> LoadedVersion:
        load = functools.partial(_load, self._plant, self._model, self._desired_version)
        failure: TpyError = Unavailable("the server ends")
        with self._loading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_slow_load)
                try:
                    return await call(self._plant.loaders, load, release=_unload)
                except TpyError as error:
                    failure = error
                finally:
                    nursery.cancel_scope.cancel()
        raise failure

    async def _tell_slow_load(self) -> None:
        waited_s = LOAD_SLOW_S
        while True:
            await trio.sleep(waited_s)
            _log.warning("still loading; it may hang and holds one of the load threads", extra={"context": self._context()})
            waited_s *= 2

    async def _serve(self) -> None:
        """Answer requests until `stop`."""
        if self._stopping:
            return
        self.ready = True
        self._plant.table.switch_in(self)
        self._move(ModelState.READY, phase=Phase.SERVING)
        while not self._stopping:
            await self._wake.wait()
            self._wake = trio.Event()
            model, self._resize_to = self._resize_to, None
            if model is not None and not self._stopping:
                await self._apply(model)

    async def _apply(self, model: DesiredModel) -> None:
        """Have the instances of this configuration; keep the old ones when that fails."""
        loaded, instances = self._require_loaded(), self._instances
        if instances is None:
            raise Internal(f"{self.key} has no instances to resize")
        try:
            config, wanted = self._plant.loader.resized(loaded.config, model.config)
            await self._have(instances, wanted)
            await self._wait_superfluous_closed(instances)
        except TpyError as error:
            self._applied_error = error.reason()
            self._refused_revision = model.config_revision
            _log.error(
                "update of '%(model)s' version %(version)s failed, it goes on with the instances that it had: %(reason)s",
                {**self._context(), "reason": error.reason()},
            )
        else:
            self._loaded = msgspec.structs.replace(loaded, config=config)
            self._applied_revision = model.config_revision
            self._applied_error = ""
            _log.info("instances changed", extra={"context": {**self._context(), **instances.counts()}})
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

    async def _drain(self, engine: ModelEngine, instances: InstanceSet) -> None:
        """Finish the requests that are there, close the instances."""
        await engine.wait_drained()
        engine.stop()
        await instances.close()

    def _readiness_checks(self) -> list[ChecksReadiness]:
        return [] if self._instances is None else self._instances.readiness_checks()

    def _on_instances_changed(self) -> bool:
        """READY while one instance is alive; UNAVAILABLE, with the reason, while none is. Whether that changed."""
        instances = self._instances
        if instances is not None and instances.beyond_help():
            self.engine.refuse_waiting()
        if self.phase is not Phase.SERVING or instances is None or instances.alive() is self.ready:
            return False
        self.ready = not self.ready
        self._plant.table.refresh(self)
        self._move_serving()
        return True

    def _move_serving(self) -> None:
        """READY, or why not."""
        if self.ready:
            self._move(ModelState.READY)
        else:
            reason = "" if self._instances is None else self._instances.reason()
            self._move(ModelState.UNAVAILABLE, Internal(reason).reason())

    def _end(self, failure: TpyError | None) -> None:
        """Nothing of the version is left."""
        was_loaded, self._loaded = self._loaded is not None, None
        if failure is None or self._stopping:
            self._move(ModelState.UNAVAILABLE, UNLOADED, phase=Phase.UNLOADED)
            if was_loaded:
                _log.info(SUCCESSFULLY_UNLOADED, self._context())
        else:
            self._move(ModelState.UNAVAILABLE, failure.reason(), phase=Phase.FAILED)
            _log.error(FAILED_TO_LOAD, {**self._context(), "reason": failure.reason()})

    def _move(self, state: ModelState, reason: str = "", *, phase: Phase | None = None) -> None:
        """Both what the plan sees and what everyone else sees."""
        if phase is not None:
            self.phase = phase
        loaded = self._loaded
        self._plant.writer.move(
            ObservedVersion(
                key=self.key,
                state=state,
                reason=reason,
                config=None if loaded is None else loaded.config,
                config_revision=self._applied_revision,
                description=None if loaded is None else loaded.description,
                applied_error=self._applied_error,
                refused_revision=self._refused_revision,
            )
        )

    def _require_loaded(self) -> LoadedVersion:
        if self._loaded is None:
            raise Internal(f"{self.key} is not loaded")
        return self._loaded

    def _context(self) -> dict[str, object]:
        return {"model": str(self.key.model), "version": self.key.version}


def _load(plant: Plant, model: DesiredModel, version: DesiredVersion) -> LoadedVersion:
    """In a loader thread. What is not a TpyError is a bug of a backend, and this version's reason."""
    try:
        return with_content(plant.loader.load(model, version), model, version, plant.cache)
    except TpyError:
        raise
    except Exception as error:
        _log.exception("loading raised", extra={"context": {"model": str(model.id), "version": version.version}})
        raise Internal(exception_text(error)) from error


def _unload(loaded: LoadedVersion) -> None:
    """In a loader thread, for a load that nobody waits for any more."""
    loaded.model.unload()
