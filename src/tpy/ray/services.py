"""The services of a replica's server for its frontends: what changes something, the index and the statistics are those of all
replicas; the rest is this one's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tpy.config import ModelConfig
from tpy.config_forms import ConfigForms
from tpy.errors import InvariantViolation, NotFound, TpyError, Unsupported
from tpy.messages import (
    IndexEntry,
    LoadRequest,
    LogSettings,
    ModelCounters,
    ModelExplanation,
    ModelGraph,
    ModelState,
    ModelStatistics,
    RegionKind,
    Registration,
    RolloutStatus,
    ServerMetadata,
)
from tpy.ray.core.changes import Action, Load, Log, Models, Register, Trace, Unload, Unregister
from tpy.ray.crossing import on_loop
from tpy.ray.replicas import Replicas
from tpy.regions import Region
from tpy.services import (
    DiagnosticsService,
    InferenceService,
    RepositoryService,
    ResolvedModel,
    Services,
    SharedMemoryService,
    TraceTexts,
    TraceUpdates,
)

T = TypeVar("T")

Ask = Callable[[Callable[[], Coroutine[Any, Any, T]]], Awaitable[T]]


def of_all_replicas(services: Services, replicas: Replicas, loop: asyncio.AbstractEventLoop) -> Services:
    """The services for the frontends of a replica; `loop` is Ray's."""
    return Services(
        inference=_Inference(services.inference, replicas.members) if replicas.members else services.inference,
        repository=_Repository(services.repository, replicas, loop),
        diagnostics=_Diagnostics(services.diagnostics, replicas, loop),
        shared_memory=_SharedMemory(services.shared_memory, replicas, loop),
        readiness=services.readiness,
        deliveries=services.deliveries,
        metrics=services.metrics,
        observers=services.observers,
        recordings=services.recordings,
        log=services.log,
        refusals=services.refusals,
        traces=services.traces,
        checks=services.checks,
    )


async def perform(services: Services, action: Action) -> None:
    """Perform an action on this replica alone; `services` are its own. In a task of Trio."""
    match action:
        case Load():
            await services.repository.load(action.request)
        case Unload():
            await services.repository.unload(action.model_name, unload_dependents=action.dependents)
        case Models():
            await _have_models(services.repository, action.names)
        case Log():
            await services.diagnostics.update_log_settings(action.settings)
        case Trace():
            await services.diagnostics.trace_settings(action.model_name, action.updates)
        case Register():
            await services.shared_memory.register(action.registration)
        case Unregister():
            await services.shared_memory.unregister(action.kind, action.name)
        case _:
            raise InvariantViolation(f"an unknown change: {action!r}")


async def _have_models(repository: RepositoryService, names: Sequence[str]) -> None:
    """Load these models as far as they are not, and unload the others. All are tried; raises the first error."""
    ready = {entry.name for entry in await repository.index() if entry.state is ModelState.READY}
    for name in sorted(ready.difference(names)):
        await repository.unload(name)
    errors: list[TpyError] = []
    for name in names:
        if name not in ready:
            try:
                await repository.load(LoadRequest(model_name=name))
            except TpyError as error:
                errors.append(error)
    if errors:
        raise errors[0]


class _Inference:
    """Implements InferenceService where other applications serve the models. Their requests do not come this way: Ray sends them
    to those by their URL, over gRPC by their metadata."""

    def __init__(self, local: InferenceService, members: Sequence[str]) -> None:
        self._local = local
        self._members = frozenset(members)

    def resolve(self, model_name: str, version: int | None = None) -> ResolvedModel:
        """See InferenceService."""
        self._require_here(model_name)
        return self._local.resolve(model_name, version)

    def ready_versions(self, model_name: str) -> tuple[int, ...]:
        """See InferenceService."""
        self._require_here(model_name)
        return self._local.ready_versions(model_name)

    def config(self, model_name: str, version: int | None = None) -> ModelConfig:
        """See InferenceService."""
        self._require_here(model_name)
        return self._local.config(model_name, version)

    def config_forms(self, model_name: str, version: int | None = None) -> ConfigForms:
        """See InferenceService."""
        self._require_here(model_name)
        return self._local.config_forms(model_name, version)

    def _require_here(self, model: str) -> None:
        if model in self._members:
            raise NotFound(
                f"model '{model}' is served by its own application: ask below /v2/models/{model}, over gRPC with the "
                f"metadata 'application: {model}'"
            )


class _Repository:
    """Implements RepositoryService."""

    def __init__(self, local: RepositoryService, replicas: Replicas, loop: asyncio.AbstractEventLoop) -> None:
        self._local = local
        self._replicas = replicas
        self._loop = loop
        self.server_live = local.server_live
        self.server_ready = local.server_ready
        self.model_ready = local.model_ready

    async def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """See RepositoryService."""
        own = await self._local.index()
        entries = await on_loop(self._loop, lambda: self._replicas.index(own))
        return [entry for entry in entries if not ready_only or entry.state is ModelState.READY]

    async def load(self, request: LoadRequest) -> None:
        """See RepositoryService."""
        await on_loop(self._loop, lambda: self._replicas.change(Load(request)))

    async def unload(self, model_name: str, *, unload_dependents: bool = False) -> None:
        """See RepositoryService."""
        await on_loop(self._loop, lambda: self._replicas.change(Unload(model_name, unload_dependents)))


class _Diagnostics:
    """Implements DiagnosticsService."""

    def __init__(self, local: DiagnosticsService, replicas: Replicas, loop: asyncio.AbstractEventLoop) -> None:
        self._local = local
        self._replicas = replicas
        self._loop = loop

    def server_metadata(self) -> ServerMetadata:
        """See DiagnosticsService."""
        return self._local.server_metadata()

    async def statistics(self, model_name: str = "", version: int | None = None) -> Sequence[ModelStatistics]:
        """See DiagnosticsService."""
        own: Sequence[ModelStatistics] | TpyError
        try:
            own = await self._local.statistics(model_name, version)
        except TpyError as error:
            own = error.with_traceback(None)
        return await on_loop(self._loop, lambda: self._replicas.statistics(model_name, version, own))

    async def counters(self) -> Sequence[ModelCounters]:
        """See DiagnosticsService."""
        return await self._local.counters()

    async def explain(self, model_name: str, version: int | None = None) -> Sequence[ModelExplanation]:
        """See DiagnosticsService."""
        return await self._local.explain(model_name, version)

    async def graph(self, model_name: str, version: int | None = None) -> ModelGraph:
        """See DiagnosticsService."""
        return await self._local.graph(model_name, version)

    async def rollout(self, model_name: str, action: str = "", plan: str = "") -> RolloutStatus:
        """See DiagnosticsService: of this replica. Raises Unsupported for an action, which would be this replica's alone."""
        if action:
            raise Unsupported(
                "on Ray each replica decides on its rollouts by what it sees; end one by the model's version_policy"
            )
        return await self._local.rollout(model_name)

    def log_settings(self) -> LogSettings:
        """See DiagnosticsService."""
        return self._local.log_settings()

    async def update_log_settings(self, settings: LogSettings) -> None:
        """See DiagnosticsService."""
        await on_loop(self._loop, lambda: self._replicas.change(Log(settings)))

    async def trace_settings(self, model_name: str = "", updates: TraceUpdates | None = None) -> TraceTexts:
        """See DiagnosticsService."""
        if updates is not None:
            plain = {name: tuple(texts) for name, texts in updates.items()}
            await on_loop(self._loop, lambda: self._replicas.change(Trace(model_name, plain)))
        return await self._local.trace_settings(model_name)


class _SharedMemory:
    """Implements SharedMemoryService. A region is registered on every replica, which has to be on the client's machine."""

    def __init__(self, local: SharedMemoryService, replicas: Replicas, loop: asyncio.AbstractEventLoop) -> None:
        self._local = local
        self._replicas = replicas
        self._loop = loop
        self.require_enabled = local.require_enabled

    @property
    def regions(self) -> Mapping[str, Region]:
        """See SharedMemoryService."""
        return self._local.regions

    async def register(self, registration: Registration) -> None:
        """See SharedMemoryService."""
        self._local.require_enabled()
        await on_loop(self._loop, lambda: self._replicas.change(Register(registration)))

    async def unregister(self, kind: RegionKind, name: str = "") -> None:
        """See SharedMemoryService."""
        self._local.require_enabled()
        await on_loop(self._loop, lambda: self._replicas.change(Unregister(kind, name)))
