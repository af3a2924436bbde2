"""EnsembleRuntime: the runtime of an ensemble's version. It has no backend and no instances; it serves as long as its members
allow.

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

from tpy.config import ConfigError, ModelConfig, describe, enforces_timeouts, errors_of, normalise, validate
from tpy.config.model_config import EnsembleStep, TransactionPolicy
from tpy.config.validation.ensemble_members import check_members
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.limits import ENSEMBLE_NESTING_MAX
from tpy.messages import ModelState
from tpy.state import UNLOADED, DesiredModel, ModelStateStore, ObservedKey
from tpy_data.engine.caching.caching import ensemble_with_cache, forget_ensemble
from tpy_data.engine.ensembles.ensemble_engine import EnsembleEngine
from tpy_data.engine.ensembles.ensemble_members import EnsembleMember, Lack, Unmet, accepting_members, find_members
from tpy_data.engine.loading.model_files import read_labels
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.engine.runtimes.core import Phase
from tpy_data.engine.runtimes.runtime import FAILED_TO_LOAD, SUCCESSFULLY_LOADED, SUCCESSFULLY_UNLOADED, Runtime, Shared
from tpy_data.engine.serving.served_copy import ServedCopy
from tpy_data.engine.serving.serving_table import Answering
from tpy_data.executors.executor import call

_log = logging.getLogger(__name__)

_Labels = Mapping[str, tuple[str, ...]]


class _Service:
    """One engine of an ensemble: from when its members are found until it has ended the last request that it took."""

    def __init__(self, engine: EnsembleEngine, copy: ServedCopy) -> None:
        self.engine = engine
        self.copy = copy
        self.retired = trio.Event()

    async def run(self) -> None:
        """Until it is retired and drained. A task in its runtime's nursery."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.copy.engine.run)
                await self.retired.wait()
                await self.copy.engine.drain.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.copy.engine.stop()
            self.engine.let_go()


class EnsembleRuntime(Runtime):
    """See `Runtime`. Its copy is another one whenever its members change."""

    def __init__(self, key: ObservedKey, model: DesiredModel, shared: Shared, store: ModelStateStore) -> None:
        super().__init__(key, model, shared)
        self._store = store
        self._statistics = VersionStatistics(shared.latencies_of(model.config))
        self._names = tuple(dict.fromkeys(step.model_name for step in _steps(model.config)))
        self._labels: _Labels = {}
        self._service: _Service | None = None
        self._services: set[_Service] = set()
        self._nursery: trio.Nursery | None = None
        self._has_served = False
        self._changes = 0

    async def check_ready(self) -> bool:
        """Always True: an ensemble has no readiness check."""
        await trio.lowlevel.checkpoint()
        return True

    def stop(self) -> None:
        """As `Runtime.stop`."""
        self._loading.cancel()
        super().stop()

    def resize(self, model: DesiredModel) -> None:
        """As `Runtime.resize`, which in an ensemble changes nothing."""
        self._model = model
        self._applied_revision = model.config_revision
        self._move(
            ModelState.READY if self.ready else ModelState.UNAVAILABLE, "" if self._reported is None else self._reported.reason
        )

    def abandon(self) -> None:
        """As `Runtime.abandon`."""
        for service in list(self._services):
            service.copy.engine.stop(executing=True)

    async def _live(self) -> TpyError | None:
        with self._loading as loading:
            try:
                self._labels = await call(self._shared.loaders, functools.partial(_read, self._model))
            except TpyError as error:
                return error
        if loading.cancelled_caught:
            return Unavailable("the server ends")
        table = self._shared.table
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            table.watch(self._names, self.reconsider)
            try:
                self.reconsider()
                while not self._stopping:
                    await self._wake.wait()
            finally:
                table.unwatch(self._names, self.reconsider)
                self._retire()
                self._nursery = None
        return None

    def reconsider(self) -> None:
        """A member may have come, gone or changed. Called by the serving table, and by the reconciler."""
        if self._nursery is None or self._stopping:
            return
        try:
            self._reconsider()
        except Exception as bug:  # in the middle of some member's switch: that must not fail
            self._fall(bug)

    def _reconsider(self) -> None:
        if self._service is not None and not self._is_switched_in():
            return  # a newer copy has taken its place, and this one only ends its requests
        found = find_members(self._model.config, self.id, self._shared.table, self._store.snapshot())
        if not isinstance(found, Unmet):
            found = self._serve_with(found) or found
        if isinstance(found, Unmet):
            self._serve_not(found)

    def _serve_with(self, members: Sequence[EnsembleMember]) -> Unmet | None:
        """Serve with these members. They may turn out not to fit."""
        answering = [member.answering for member in members]
        if self._service is None or _numbers(self._service.engine.answering) != _numbers(answering):
            try:
                self._change([member.served.served_copy for member in members], answering)
            except InvalidArgument as error:
                return Unmet(Lack.INVALID, error.message)
        if not self.ready:
            self.ready, self._is_awaited = True, False
            self._shared.table.refresh(self)
        if not self._has_served:
            self._has_served = True
            self.load_duration_ns = self._shared.clock.now_ns() - self._began_ns
        if self.phase is Phase.WAITING:
            _log.info(SUCCESSFULLY_LOADED, self._about())
        self._was_loaded = True
        self._move(ModelState.READY, phase=Phase.SERVING)
        return None

    def _change(self, members: Sequence[ServedCopy], answering: Sequence[Answering]) -> None:
        """Another engine, for these members, whose labels are those of outputs without a label file of the ensemble's own. Raises
        InvalidArgument when the ensemble does not fit them."""
        nesting = 1 + max((member.nesting for member in members), default=0)
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
        labels = {**_labels_of_members(config, members), **self._labels}
        engine = EnsembleEngine(config, self.version, members, answering, self._shared.clock, self._statistics)
        self._changes += 1
        copy = self._shared.make_copy(
            ensemble_with_cache(engine, self.key, config, self._shared.cache, change=self._changes),
            self.version,
            config,
            describe(config, self.version, labels, namespace=self.id.namespace, gpus=_gpus_of(config, members)),
            self._shared.clock,
            enforces_timeouts=enforces_timeouts(config, self._shared.request_timeout),
            nesting=nesting,
        )
        before, self._service, self._copy = self._service, _Service(engine, copy), copy
        self.ready, self._is_awaited = True, False
        self._start(self._service)
        self._shared.table.switch_in(self)
        if before is not None:
            before.retired.set()

    def _serve_not(self, unmet: Unmet) -> None:
        if unmet.lack is Lack.PENDING and self.phase is Phase.LOADING:
            return
        if unmet.lack is Lack.DOWN and self._service is not None:
            members = accepting_members(self._model.config, self.id, self._shared.table, self._store.snapshot())
            awaited = _numbers([member.answering for member in members]) == _numbers(self._service.engine.answering)
            if self.ready or awaited is not self._is_awaited:
                self.ready, self._is_awaited = False, awaited
                self._shared.table.refresh(self)
            self._move(ModelState.UNAVAILABLE, Unavailable(unmet.message).reason())
            return
        is_gone = self._has_served and unmet.lack is not Lack.INVALID
        reason = UNLOADED if is_gone else InvalidArgument(unmet.message).reason()
        if self.phase is not Phase.WAITING:
            if is_gone:
                _log.info(SUCCESSFULLY_UNLOADED, self._about())
            else:
                _log.error(FAILED_TO_LOAD, {**self._about(), "reason": reason})
        self._retire()
        self._was_loaded = False
        self._move(ModelState.UNAVAILABLE, reason, phase=Phase.WAITING)

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
            forget_ensemble(service.copy.engine, self._shared.cache)

    def _retire(self) -> None:
        """As `Runtime._retire`; the engine ends its requests."""
        super()._retire()
        service, self._service, self._copy = self._service, None, None
        if service is not None:
            service.retired.set()

    def _is_switched_in(self) -> bool:
        model = self._shared.table.model(self.id)
        return model is not None and model.versions.get(self.version) is self


def _steps(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    return () if config.ensemble_scheduling is None else config.ensemble_scheduling.step


def _numbers(answering: Sequence[Answering]) -> list[int]:
    return [each.copy for each in answering]


def _read(model: DesiredModel) -> _Labels:
    """In a loader thread. Raises TpyError for a configuration that contradicts itself or a file that is not there."""
    problems = errors_of(validate(normalise(model.config)))
    if problems:
        raise ConfigError(problems, message="; ".join(problem.message for problem in problems))
    return read_labels(model.config, model.directory)


def _gpus_of(config: ModelConfig, members: Sequence[ServedCopy]) -> tuple[int, ...]:
    """Returns the GPUs that its members are on; none with a response cache, which looks at inputs."""
    if config.response_cache is not None and config.response_cache.enable:
        return ()
    return tuple({gpu: None for member in members for gpu in member.description.gpus})


def _labels_of_members(config: ModelConfig, members: Sequence[ServedCopy]) -> _Labels:
    """By output of the ensemble, the labels of the member that makes it, as in Triton."""
    labels = {}
    for step, member in zip(_steps(config), members, strict=True):
        described = member.description.output_by_name
        for name, tensor in step.output_map.items():
            if name in described and described[name].labels:
                labels[tensor] = described[name].labels
    return labels
