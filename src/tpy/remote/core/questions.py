"""The questions to services that take their time, and what each is answered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tpy.messages import CudaRegistration, LoadRequest, LogSettings, RecordingOptions, RegionKind, SystemRegistration


class RegionOffset(msgspec.Struct, frozen=True, array_like=True):
    """A place in a region in a GPU's memory, by the number that the engine gave to the region."""

    number: int
    offset: int


class ModelReady(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """RepositoryService.model_ready; answered with bool."""

    model_name: str
    version: int | None


class Index(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """RepositoryService.index; answered with rows."""

    ready_only: bool


class Load(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """RepositoryService.load; answered with None."""

    load: LoadRequest


class Unload(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """RepositoryService.unload; answered with None."""

    model_name: str
    unload_dependents: bool


class Statistics(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """DiagnosticsService.statistics; answered with rows."""

    model_name: str
    version: int | None


class UpdateLog(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """DiagnosticsService.update_log_settings; answered with None."""

    settings: LogSettings


class RegisterSystem(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """SharedMemoryService.register; answered with None."""

    registration: SystemRegistration


class RegisterCuda(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The same for memory of a GPU."""

    registration: CudaRegistration


class Unregister(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """SharedMemoryService.unregister; answered with None."""

    kind: RegionKind
    name: str


class TraceSettings(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """DiagnosticsService.trace_settings; answered with the settings."""

    model_name: str
    updates: Mapping[str, Sequence[str]] | None


class ReadRegion(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Region.read, of one in a GPU's memory; answered with the bytes."""

    place: RegionOffset
    size: int


class WriteRegion(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Region.write, of one in a GPU's memory; answered with None."""

    place: RegionOffset
    data: bytes


class Explain(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """DiagnosticsService.explain; answered with rows."""

    model_name: str
    version: int | None


class RecordingState(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """RecordingService.status; answered with the status."""


class ChangeRecording(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """RecordingService.change; answered with the status."""

    options: RecordingOptions | None


class Counters(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """DiagnosticsService.counters; answered with a list."""


class LogLines(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """LogService.lines_after; answered with a list."""

    after: int


class RecentTraces(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """TraceService.recent_after; answered with a list."""

    after: int


class CheckConfig(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """ConfigCheckService.check_config; answered with the check."""

    model_name: str
    config: str | None


class Metrics(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """MetricsService.page; answered with the page."""

    openmetrics: bool


class Gpus(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """MetricsService.gpus; answered with a list."""


class Graph(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """DiagnosticsService.graph; answered with the graph."""

    model_name: str
    version: int | None


class ServerLoad(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """MetricsService.load; answered with the report."""

    model_name: str
    version: int | None


class Rollout(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """DiagnosticsService.rollout; answered with the status."""

    model_name: str
    action: str
    plan: str


Question = (
    ModelReady
    | Index
    | Load
    | Unload
    | Statistics
    | Counters
    | Explain
    | UpdateLog
    | TraceSettings
    | RegisterSystem
    | RegisterCuda
    | Unregister
    | ReadRegion
    | WriteRegion
    | RecordingState
    | ChangeRecording
    | LogLines
    | RecentTraces
    | CheckConfig
    | Metrics
    | Gpus
    | Graph
    | ServerLoad
    | Rollout
)
