"""The options of the whole server, made of the options of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tpy.backend import HostPolicy
from tpy.config import RequestTimeout
from tpy.devices import PINNED_POOL_BYTES_DEFAULT
from tpy.frontends.transport import ListenOptions
from tpy.messages import AuditLogOptions, LogSettings
from tpy.telemetry.access_log import AccessLogOptions
from tpy.telemetry.latencies import LatencyOptions
from tpy.telemetry.traces.options import TraceOptions
from tpy_control.options import ControlOptions
from tpy_data.cache.options import CacheOptions
from tpy_data.engine import MemoryBudgetOptions
from tpy_data.engine.instances.restarts import RestartOptions
from tpy_data.schedulers.core import NO_START_DELAY, StartDelay

if TYPE_CHECKING:
    from tpy_data.schedulers.core.rate_limiter import Supply


class MetricsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the metrics page. Every `interval_ms` the machine is sampled when `machine` is set, and its GPUs when
    `gpus` is. `counter_latencies` and `latencies` are those of --metrics-config."""

    interval_ms: int = 2000
    machine: bool = True
    gpus: bool = True
    counter_latencies: bool = True
    latencies: LatencyOptions = LatencyOptions()


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of python-based backends, and the settings of --backend-config for one backend and for all."""

    directory: Path | None = None
    config: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    config_of_all: Mapping[str, str] = msgspec.field(default_factory=dict)


class ShownOption(NamedTuple):
    """A row of the start-up table of options."""

    name: str
    value: str
    is_default: bool


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `frontends` has the options of the served ones, by their names in the table of frontends; `frontend_processes`
    separate processes serve the ones that need not be in the engine, 0: this one does; `cache` None: no response
    cache; `rate_limit` None: no rate limiter; `memory_budget` None: all models are
    loaded and stay; `start_delay` holds schedulers back, for tests. `shown` are the rows of the
    start-up table of options; `warnings` are logged once at start; `host_policies` bind instances to cores, by name; `gpu_limits`
    say, by device, to which share a GPU may be full when an instance has been made, `compute_capability_min` which GPUs are used;
    `allow_client_shm`: clients may register shared memory; `pinned_pool_bytes` and, by GPU, `cuda_pool_bytes` are the sizes of
    pools of memory; recordings of requests go to `recording_directory`, "": no recordings, without credentials:
    `restricting_headers` and the usual ones."""

    control: ControlOptions
    server_id: str = "triton"
    exit_on_error: bool = True
    serve_while_loading: bool = False
    exit_timeout_s: float = 30.0
    exit_delay_s: float = 0.0
    allow_usage_data: bool = False
    load_threads: int = 4
    load_retries: int = 0
    backends: BackendOptions = BackendOptions()
    frontends: Mapping[str, ListenOptions] = msgspec.field(default_factory=dict)
    frontend_processes: int = 0
    metrics: MetricsOptions = MetricsOptions()
    cache: CacheOptions | None = None
    rate_limit: Supply | None = None
    rollout_file: Path | None = None
    tenants_file: str = ""
    auth_file: str = ""
    curves_file: Path | None = None
    memory_budget: MemoryBudgetOptions | None = None
    start_delay: StartDelay = NO_START_DELAY
    request_timeout: RequestTimeout = RequestTimeout.QUEUE
    restarts: RestartOptions = RestartOptions(wait_s=5.0)
    log: LogSettings = LogSettings()
    access_log: AccessLogOptions = AccessLogOptions()
    audit_log: AuditLogOptions = AuditLogOptions()
    trace: TraceOptions = TraceOptions()
    recording_directory: str = ""
    restricting_headers: frozenset[str] = frozenset()
    shown: tuple[ShownOption, ...] = ()
    warnings: tuple[str, ...] = ()
    host_policies: Mapping[str, HostPolicy] = msgspec.field(default_factory=dict)
    gpu_limits: Mapping[int, float] = msgspec.field(default_factory=dict)
    allow_client_shm: bool = False
    pinned_pool_bytes: int = PINNED_POOL_BYTES_DEFAULT
    cuda_pool_bytes: Mapping[int, int] = msgspec.field(default_factory=dict)
    compute_capability_min: float = 6.0
