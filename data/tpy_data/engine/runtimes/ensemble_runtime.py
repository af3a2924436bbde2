"""EnsembleRuntime: one copy of an ensemble's version. It has no backend and no instances; it serves as long as its members allow.

Whenever a member comes, goes or is replaced the serving table tells, inside the very switch, and the ensemble gets another
engine, or none, before anybody else can look: what it serves always fits the members that are served. Requests that are on
their way end with the engine, and so with the members, that they began with.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence

import msgspec
import trio

from tpy.config import ConfigError, ModelConfig, check_members, describe, enforces_timeouts, errors_of, normalise, validate
from tpy.config.model_config import EnsembleStep, TransactionPolicy
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.ids import ModelId, Version
from tpy.limits import ENSEMBLE_NESTING_MAX
from tpy.messages import ModelState
from tpy.state import UNLOADED, DesiredModel, ModelStateStore, ObservedKey, ObservedVersion
from tpy_data.engine.caching.caching import ensemble_with_cache, forget_ensemble
from tpy_data.engine.ensembles.ensemble_engine import EnsembleEngine
from tpy_data.engine.ensembles.ensemble_flow import Member
from tpy_data.engine.ensembles.ensemble_members import Lack, Unmet, find_members
from tpy_data.engine.loading.model_files import read_labels
from tpy_data.engine.loading.support import refuse_unsupported
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.engine.runtimes.core import Phase, Running
from tpy_data.engine.runtimes.version_runtime import FAILED_TO_LOAD, SUCCESSFULLY_LOADED, SUCCESSFULLY_UNLOADED, Plant
from tpy_data.engine.serving.served_copy import ServedCopy
from tpy_data.engine.serving.serving_table import Served
from tpy_data.exception_text import exception_text
from tpy_data.executors.executor import call

_log = logging.getLogger(__name__)

_Labels = Mapping[str, tuple[str, ...]]


class _Service:
    """One engine of an ensemble: from when its members are found until it has ended the last request that it took. `front` takes
    the requests: the engine itself, or the response cache before it."""

    def __init__(
        self, engine: EnsembleEngine, front: ModelEngine, config: ModelConfig, served_copy: ServedCopy, nesting: int
    ) -> None:
        self.engine = engine
        self.front = front
        self.config = config
        self.served_copy = served_copy
        self.nesting = nesting
        self.retired = trio.Event()

    async def run(self) -> None:
        """Until it is retired and drained. A task in its runtime's nursery."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.front.run)
                await self.retired.wait()
                await self.front.wait_drained()
                nursery.cancel_scope.cancel()
        finally:
            self.front.stop()
            self.engine.let_go()


class EnsembleRuntime:
    """What a VersionRuntime is to other models. `run` is started by the reconciler, in its nursery."""

    def __init__(self, key: ObservedKey, model: DesiredModel, plant: Plant, store: ModelStateStore) -> None:
        self.key = key
        self.phase = Phase.LOADING
        self.ready = False
        self.load_duration_ns = 0
        self._model = model
        self._plant = plant
        self._store = store
        self._statistics = VersionStatistics()
        self._names = tuple(dict.fromkeys(step.model_name for step in _steps(model.config)))
        self._labels: _Labels | None = None
        self._service: _Service | None = None
        self._services: set[_Service] = set()
        self._nursery: trio.Nursery | None = None
        self._has_served = False
        self._changes = 0
        self._told: ObservedVersion | None = None
        self._began_ns = plant.clock.now_ns()
        self._loading = trio.CancelScope()
        self._stopping = trio.Event()
        self._move(ModelState.LOADING)

    async def check_ready(self) -> bool:
        """An ensemble has no opinion of its own."""
        await trio.lowlevel.checkpoint()
        return True

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
        """Normalised; decoupled when a step is."""
        return self._serving().config

    @property
    def served_copy(self) -> ServedCopy:
        """What requests get."""
        return self._serving().served_copy

    @property
    def engine(self) -> ModelEngine:
        """The request path."""
        return self._serving().front

    @property
    def nesting(self) -> int:
        """How many ensembles deep it is."""
        return self._serving().nesting

    def running(self) -> Running:
        """This copy as the plan sees it."""
        return Running(key=self.key, phase=self.phase, config_revision=self._model.config_revision)

    def stop(self) -> None:
        """Take no new requests from now on, and end when those that are there have. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._loading.cancel()
        if self.phase is Phase.SERVING:
            self._retire()
            self._move(ModelState.UNLOADING, phase=Phase.STOPPING)

    def give_up_starting(self) -> None:
        """Wait no longer for a load: the server ends."""
        self._loading.cancel()

    def resize(self, model: DesiredModel) -> None:
        """Apply what may change without a new load, which in an ensemble changes nothing."""
        self._model = model
        self._move(ModelState.READY if self.ready else ModelState.UNAVAILABLE, "" if self._told is None else self._told.reason)

    def abandon(self) -> None:
        """Refuse what is still on its way: the server ends."""
        for service in self._services:
            service.front.stop()

    async def run(self) -> None:
        """Serve whenever the members allow it, until stopped. Returns when nothing of it is left."""
        try:
            await self._live()
        except* Exception as bugs:
            self._fall(bugs.exceptions[0])
        finally:
            self._service = self._labels = None

    async def _live(self) -> None:
        failure: TpyError | None = None
        try:
            with self._loading:
                read = functools.partial(_read, self._model)
                self._labels = await call(self._plant.loaders, read)
        except TpyError as error:
            failure = error
        if self._labels is None:
            self._end(failure or Unavailable("the server ends"))
            return
        table = self._plant.table
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            table.watch(self._names, self.reconsider)
            try:
                self.reconsider()
                await self._stopping.wait()
            finally:
                table.unwatch(self._names, self.reconsider)
                self._retire()
                self._nursery = None
        self._end(None)

    def reconsider(self) -> None:
        """A member may have come, gone or changed. Called by the serving table, and by the reconciler while the ensemble
        waits."""
        if self._nursery is None or self._stopping.is_set() or self.phase is Phase.FAILED:
            return
        try:
            self._reconsider()
        except Exception as bug:  # in the middle of some member's switch: that must not fail
            self._fall(bug)

    def _reconsider(self) -> None:
        if self._service is not None and not self._is_switched_in():
            return  # a newer copy has taken its place, and this one only ends its requests
        found = find_members(self._model.config, self.id, self._plant.table, self._store.snapshot())
        if not isinstance(found, Unmet):
            found = self._serve_with(found) or found
        if isinstance(found, Unmet):
            self._serve_not(found)

    def _serve_with(self, members: Sequence[Served]) -> Unmet | None:
        """Serve with these members. They may turn out not to fit."""
        bound = [Member(served.engine, served.config, served.version) for served in members]
        if self._service is None or _engines(self._service.engine.members) != _engines(bound):
            nesting = 1 + max((served.nesting for served in members), default=0)
            try:
                self._change(bound, nesting, _labels_of_members(self._model.config, members))
            except InvalidArgument as error:
                return Unmet(Lack.INVALID, error.message)
        if not self.ready:
            self.ready = True
            self._plant.table.refresh(self)
        if not self._has_served:
            self._has_served = True
            self.load_duration_ns = self._plant.clock.now_ns() - self._began_ns
        if self.phase is Phase.WAITING:
            _log.info(SUCCESSFULLY_LOADED, self._context())
        self._move(ModelState.READY, phase=Phase.SERVING)
        return None

    def _change(self, members: Sequence[Member], nesting: int, labels: _Labels) -> None:
        """Another engine, for these members; `labels` are theirs, for outputs without a label file of the ensemble's own. Raises
        InvalidArgument when the ensemble does not fit them."""
        if nesting > ENSEMBLE_NESTING_MAX:
            raise InvalidArgument(
                f"ensemble '{self.id.name}' nests ensembles {nesting} deep; at most {ENSEMBLE_NESTING_MAX} are allowed"
            )
        config = normalise(self._model.config)
        decoupled = check_members(config, [member.config for member in members])
        config = msgspec.structs.replace(config, model_transaction_policy=TransactionPolicy(decoupled=decoupled))
        problems = errors_of(validate(config))
        if problems:
            raise ConfigError(problems, message="; ".join(problem.message for problem in problems))
        description = describe(config, self.version, {**labels, **(self._labels or {})}, namespace=self.id.namespace)
        engine = EnsembleEngine(
            config,
            self.version,
            members,
            self._plant.clock,
            self._statistics,
            enforces_timeouts=enforces_timeouts(config, self._plant.request_timeout),
        )
        self._changes += 1
        front = ensemble_with_cache(engine, self.key, config, self._plant.cache, change=self._changes)
        served_copy = ServedCopy(front, description, self._plant.clock)
        before, self._service = self._service, _Service(engine, front, config, served_copy, nesting)
        self.ready = True
        self._start(self._service)
        self._plant.table.switch_in(self)
        if before is not None:
            before.retired.set()

    def _serve_not(self, unmet: Unmet) -> None:
        if unmet.lack is Lack.PENDING and self.phase is Phase.LOADING:
            return
        if unmet.lack is Lack.DOWN and self._service is not None:
            if self.ready:
                self.ready = False
                self._plant.table.refresh(self)
            self._move(ModelState.UNAVAILABLE, Unavailable(unmet.message).reason())
            return
        gone = self._has_served and unmet.lack is not Lack.INVALID
        self._retire()
        self._move(ModelState.UNAVAILABLE, UNLOADED if gone else InvalidArgument(unmet.message).reason(), phase=Phase.WAITING)

    def _start(self, service: _Service) -> None:
        if self._nursery is None:
            raise Internal(f"{self.key} does not run")
        self._services.add(service)
        self._nursery.start_soon(self._run_service, service, name=f"ensemble {self.id}")

    async def _run_service(self, service: _Service) -> None:
        try:
            await service.run()
        finally:
            self._services.discard(service)
            forget_ensemble(service.front, self._plant.cache)

    def _retire(self) -> None:
        """Take no new requests."""
        service, self._service = self._service, None
        self.ready = False
        if service is not None:
            self._plant.table.switch_out(self)
            service.retired.set()

    def _is_switched_in(self) -> bool:
        model = self._plant.table.model(self.id)
        return model is not None and model.versions.get(self.version) is self

    def _fall(self, bug: Exception) -> None:
        """A bug of ours ends this version, with the reason in the store, and nothing else."""
        _log.error("an ensemble ended on a bug", exc_info=bug, extra={"context": self._context()})
        self._retire()
        self._end(Internal(exception_text(bug)))
        self._stopping.set()
        self.abandon()

    def _end(self, failure: TpyError | None) -> None:
        """Nothing of the version is left."""
        if self.phase in (Phase.FAILED, Phase.UNLOADED):
            return
        if failure is None or self._stopping.is_set():
            was_serving = self.phase is Phase.STOPPING  # it comes from SERVING only
            self._move(ModelState.UNAVAILABLE, UNLOADED, phase=Phase.UNLOADED)
            if was_serving:
                _log.info(SUCCESSFULLY_UNLOADED, self._context())
        else:
            self._move(ModelState.UNAVAILABLE, failure.reason(), phase=Phase.FAILED)
            _log.error(FAILED_TO_LOAD, {**self._context(), "reason": failure.reason()})

    def _move(self, state: ModelState, reason: str = "", *, phase: Phase | None = None) -> None:
        """Both what the plan sees and what everyone else sees, if that is new."""
        if phase is not None and phase is not self.phase:
            self.phase = phase
            if phase is Phase.WAITING:
                if reason == UNLOADED:
                    _log.info(SUCCESSFULLY_UNLOADED, self._context())
                else:
                    _log.error(FAILED_TO_LOAD, {**self._context(), "reason": reason})
        service = self._service
        told = ObservedVersion(
            key=self.key,
            state=state,
            reason=reason,
            config=None if service is None else service.config,
            config_revision=self._model.config_revision,
            description=None if service is None else service.served_copy.description,
        )
        if told != self._told:
            self._told = told
            self._plant.writer.move(told)

    def _serving(self) -> _Service:
        if self._service is None:
            raise Internal(f"{self.key} is not served")
        return self._service

    def _context(self) -> dict[str, object]:
        return {"model": str(self.key.model), "version": self.key.version}


def _steps(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    return () if config.ensemble_scheduling is None else config.ensemble_scheduling.step


def _engines(members: Sequence[Member]) -> list[int]:
    return [id(member.engine) for member in members]


def _read(model: DesiredModel) -> _Labels:
    """In a loader thread. Raises TpyError for a configuration that contradicts itself or a file that is not there."""
    refuse_unsupported(model.config)
    problems = errors_of(validate(normalise(model.config)))
    if problems:
        raise ConfigError(problems, message="; ".join(problem.message for problem in problems))
    return read_labels(model.config, model.directory)


def _labels_of_members(config: ModelConfig, members: Sequence[Served]) -> _Labels:
    """By output of the ensemble, the labels of the member that makes it, as in Triton."""
    scheduling = config.ensemble_scheduling
    labels = {}
    for step, member in zip(() if scheduling is None else scheduling.step, members, strict=True):
        described = member.served_copy.description.output_by_name
        for name, tensor in step.output_map.items():
            if name in described and described[name].labels:
                labels[tensor] = described[name].labels
    return labels
