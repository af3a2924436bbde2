"""The services in a frontend process: what is asked with every request is answered from the replica, the rest by the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpy.config import ModelConfig
from tpy.config_forms import ConfigForms
from tpy.messages import (
    ConfigCheck,
    GpuUse,
    IndexEntry,
    LoadReport,
    LoadRequest,
    LogLine,
    LogSettings,
    ModelCounters,
    ModelExplanation,
    ModelGraph,
    ModelStatistics,
    RecordingOptions,
    RecordingStatus,
    RegionKind,
    Registration,
    RolloutStatus,
    ServerMetadata,
    SystemRegistration,
    TracedRequest,
)
from tpy.refusals import Refusals
from tpy.regions import Region
from tpy.remote.core import questions as q
from tpy.remote.frontend_side import EngineLink, RemoteModel
from tpy.services import Services, TraceTexts, TraceUpdates


def remote_services(engine: EngineLink) -> Services:
    """All of them over one connection."""
    return Services(
        inference=RemoteInference(engine),
        repository=RemoteRepository(engine),
        diagnostics=RemoteDiagnostics(engine),
        shared_memory=RemoteSharedMemory(engine),
        readiness=engine,
        observers=engine.observers,
        recordings=RemoteRecordings(engine),
        log=RemoteLog(engine),
        refusals=Refusals(engine.send_refused),
        traces=RemoteTraces(engine),
        checks=RemoteChecks(engine),
        metrics=RemoteMetrics(engine),
    )


class RemoteInference:
    """Implements tpy.services.InferenceService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine

    def resolve(self, model_name: str, version: int | None = None) -> RemoteModel:
        """See InferenceService."""
        return RemoteModel(self._engine, self._engine.replica.resolve(model_name, version))

    def ready_versions(self, model_name: str) -> tuple[int, ...]:
        """See InferenceService."""
        return self._engine.replica.ready_versions(model_name)

    def config(self, model_name: str, version: int | None = None) -> ModelConfig:
        """See InferenceService."""
        return self.config_forms(model_name, version).config

    def config_forms(self, model_name: str, version: int | None = None) -> ConfigForms:
        """See InferenceService."""
        return self._engine.replica.config_forms(model_name, version)


class RemoteRepository:
    """Implements tpy.services.RepositoryService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine

    def server_live(self) -> bool:
        """See RepositoryService."""
        return self._engine.replica.server.live

    def server_ready(self) -> bool:
        """See RepositoryService."""
        return self._engine.replica.server.ready

    async def model_ready(self, model_name: str, version: int | None = None) -> bool:
        """See RepositoryService."""
        return await self._engine.ask(q.ModelReady(model_name, version), bool)

    async def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """See RepositoryService."""
        return await self._engine.ask(q.Index(ready_only), list[IndexEntry])

    async def load(self, request: LoadRequest) -> None:
        """See RepositoryService."""
        await self._engine.ask(q.Load(request), type(None))

    async def unload(self, model_name: str, *, unload_dependents: bool = False) -> None:
        """See RepositoryService."""
        await self._engine.ask(q.Unload(model_name, unload_dependents), type(None))


class RemoteDiagnostics:
    """Implements tpy.services.DiagnosticsService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine

    def server_metadata(self) -> ServerMetadata:
        """See DiagnosticsService."""
        return self._engine.replica.server.metadata

    async def statistics(self, model_name: str = "", version: int | None = None) -> Sequence[ModelStatistics]:
        """See DiagnosticsService."""
        return await self._engine.ask(q.Statistics(model_name, version), list[ModelStatistics])

    async def counters(self) -> Sequence[ModelCounters]:
        """See DiagnosticsService."""
        return await self._engine.ask(q.Counters(), list[ModelCounters])

    async def explain(self, model_name: str, version: int | None = None) -> Sequence[ModelExplanation]:
        """See DiagnosticsService."""
        return await self._engine.ask(q.Explain(model_name, version), list[ModelExplanation])

    async def graph(self, model_name: str, version: int | None = None) -> ModelGraph:
        """See DiagnosticsService."""
        return await self._engine.ask(q.Graph(model_name, version), ModelGraph)

    async def rollout(self, model_name: str, action: str = "", plan: str = "") -> RolloutStatus:
        """See DiagnosticsService."""
        return await self._engine.ask(q.Rollout(model_name, action, plan), RolloutStatus)

    def log_settings(self) -> LogSettings:
        """See DiagnosticsService."""
        return self._engine.replica.server.log

    async def update_log_settings(self, settings: LogSettings) -> None:
        """See DiagnosticsService."""
        await self._engine.ask(q.UpdateLog(settings), type(None))

    async def trace_settings(self, model_name: str = "", updates: TraceUpdates | None = None) -> TraceTexts:
        """See DiagnosticsService."""
        return await self._engine.ask(q.TraceSettings(model_name, updates), dict[str, list[str]])


class RemoteRecordings:
    """Implements tpy.services.RecordingService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine

    async def status(self) -> RecordingStatus:
        """See RecordingService."""
        return await self._engine.ask(q.RecordingState(), RecordingStatus)

    async def change(self, options: RecordingOptions | None) -> RecordingStatus:
        """See RecordingService."""
        return await self._engine.ask(q.ChangeRecording(options), RecordingStatus)


class RemoteLog:
    """Implements tpy.services.LogService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine

    def lost(self, lines: int) -> None:
        """See LogService."""
        self._engine.send_lost_lines(lines)

    async def lines_after(self, number: int) -> Sequence[LogLine]:
        """See LogService."""
        return await self._engine.ask(q.LogLines(number), list[LogLine])


class RemoteTraces:
    """Implements tpy.services.TraceService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine

    async def recent_after(self, number: int) -> Sequence[TracedRequest]:
        """See TraceService."""
        return await self._engine.ask(q.RecentTraces(number), list[TracedRequest])


class RemoteChecks:
    """Implements tpy.services.ConfigCheckService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine

    async def check_config(self, model_name: str, config: str | None = None) -> ConfigCheck:
        """See ConfigCheckService."""
        return await self._engine.ask(q.CheckConfig(model_name, config), ConfigCheck)


class RemoteMetrics:
    """Implements tpy.services.MetricsService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine

    async def page(self, *, openmetrics: bool = False) -> bytes:
        """See MetricsService."""
        return await self._engine.ask(q.Metrics(openmetrics), bytes)

    async def load(self, model_name: str = "", version: int | None = None) -> LoadReport:
        """See MetricsService."""
        return await self._engine.ask(q.ServerLoad(model_name, version), LoadReport)

    async def gpus(self) -> Sequence[GpuUse]:
        """See MetricsService."""
        return await self._engine.ask(q.Gpus(), list[GpuUse])


class RemoteSharedMemory:
    """Implements tpy.services.SharedMemoryService."""

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine
        self.regions: Mapping[str, Region] = engine.regions.opened

    def require_enabled(self) -> None:
        """See SharedMemoryService."""
        refusal = self._engine.replica.server.shared_memory
        if refusal is not None:
            raise refusal.error("", None)

    async def register(self, registration: Registration) -> None:
        """See SharedMemoryService."""
        question = q.RegisterSystem if isinstance(registration, SystemRegistration) else q.RegisterCuda
        await self._engine.ask(question(registration), type(None))  # type: ignore[arg-type]  # each has its own kind

    async def unregister(self, kind: RegionKind, name: str = "") -> None:
        """See SharedMemoryService."""
        await self._engine.ask(q.Unregister(kind, name), type(None))
