"""The services that belong to no plane: statistics and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from tpy import __version__
from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound
from tpy.messages import LogSettings, ModelCounters, ModelExplanation, ModelGraph, ModelStatistics, RolloutStatus, ServerMetadata
from tpy.services import TraceTexts, TraceUpdates
from tpy.telemetry.logs import LogController
from tpy.telemetry.traces.options import TraceOptions
from tpy_data.engine import DataPlane

if TYPE_CHECKING:
    from tpy.telemetry.traces.tracer import Tracer

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""The protocol extensions that this server has: Triton's. As there, no flag and no GPU changes them."""


class Diagnostics:
    """Implements tpy.services.DiagnosticsService."""

    def __init__(
        self, data: DataPlane, logs: LogController, tracer: Tracer | None, trace: TraceOptions, *, server_id: str
    ) -> None:
        """`tracer` None: nothing is traced, whatever the settings say, which begin as those of `trace`."""
        self._data = data
        self._logs = logs
        self._tracer = tracer
        self._trace = trace
        self._reading = trio.CapacityLimiter(1)
        self._metadata = ServerMetadata(name=server_id, version=__version__, extensions=EXTENSIONS)

    def server_metadata(self) -> ServerMetadata:
        """See DiagnosticsService."""
        return self._metadata

    async def statistics(self, model_name: str = "", version: int | None = None) -> Sequence[ModelStatistics]:
        """See DiagnosticsService."""
        return self._data.statistics(model_name, version)

    async def counters(self) -> Sequence[ModelCounters]:
        """See DiagnosticsService."""
        return self._data.counters()

    async def explain(self, model_name: str, version: int | None = None) -> Sequence[ModelExplanation]:
        """See DiagnosticsService."""
        return [self._with_rollout(each) for each in self._data.explain(model_name, version)]

    def _with_rollout(self, found: ModelExplanation) -> ModelExplanation:
        try:
            rollout = self._data.rollouts.status(found.name, found.namespace)
        except NotFound:
            return found
        takes_part = found.version in (rollout.old.version, rollout.new.version)
        return msgspec.structs.replace(found, rollout=rollout) if takes_part else found

    async def graph(self, model_name: str, version: int | None = None) -> ModelGraph:
        """See DiagnosticsService. One file is read at a time; on a disk that hangs the thread is left behind."""
        path = self._data.model_path(model_name, version)
        return await trio.to_thread.run_sync(_graph, path, abandon_on_cancel=True, limiter=self._reading)

    async def rollout(self, model_name: str, action: str = "", plan: str = "") -> RolloutStatus:
        """See DiagnosticsService."""
        rollouts = self._data.rollouts
        if action == "start":
            return rollouts.start(model_name, plan)
        actions = {"": rollouts.status, "promote": rollouts.promote, "roll_back": rollouts.roll_back}
        if action not in actions:
            raise InvalidArgument(f"unexpected action '{echo(action)}' for a rollout, expected start, promote or roll_back")
        if plan:
            raise InvalidArgument(f"unexpected plan with action '{action}' for a rollout, expected it with start only")
        return actions[action](model_name)

    def log_settings(self) -> LogSettings:
        """See DiagnosticsService."""
        return self._logs.settings

    async def update_log_settings(self, settings: LogSettings) -> None:
        """See DiagnosticsService."""
        self._logs.update(settings)

    async def trace_settings(self, model_name: str = "", updates: TraceUpdates | None = None) -> TraceTexts:
        """See DiagnosticsService."""
        if updates is not None:
            self._traces().update(model_name, updates)
        return self._traces().settings(model_name)

    def _traces(self) -> Tracer:
        if self._tracer is None:
            from tpy.telemetry.traces.tracer import Tracer  # most servers are never asked

            self._tracer = Tracer(self._trace, None)
        return self._tracer


def _graph(path: Path) -> ModelGraph:
    """In a thread."""
    from tpy_data.onnx_graph import read_graph  # most servers are never asked

    return read_graph(path)
