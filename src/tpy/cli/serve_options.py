"""From the checked values of the flags to the options of the server."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tpy.assembly.options import BackendOptions, MetricsOptions, ServerOptions, ShownOption
from tpy.backend import HostPolicy
from tpy.backend.host_policy import parse_host_policies
from tpy.cli.cache_options import cache_options, without_password
from tpy.cli.flags import FLAGS
from tpy.cli.parsing import UsageError
from tpy.cli.trace_options import trace_options
from tpy.config import RequestTimeout
from tpy.errors import InvalidArgument, TpyError
from tpy.flag import Flag, Support, Value, read_values
from tpy.frontends.restrictions import restricting_headers
from tpy.frontends.table import frontends
from tpy.frontends.tls_flags import unused_tls_files
from tpy.frontends.transport import UNIX, ListenOptions
from tpy.limits import SUMMARY_QUANTILES_MAX
from tpy.messages import AuditLogOptions, LogSettings
from tpy.telemetry.access_log import AccessLogOptions
from tpy.telemetry.latencies import LatencyOptions
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_control.address import RemoteAddress
from tpy_control.options import ControlMode, ControlOptions, Readiness
from tpy_control.sources import HiddenEnvironment, RemoteOptions, parse_address
from tpy_data.engine import MemoryBudgetOptions
from tpy_data.engine.instances.gpu_limits import parse_gpu_limits
from tpy_data.engine.instances.restarts import RestartOptions
from tpy_data.schedulers.core import StartDelay

if TYPE_CHECKING:
    from tpy_data.schedulers.core.rate_limiter import Supply

ON_DEMAND = "on-demand"
"""The value of --model-control-mode that the data plane follows: the control plane does not know it."""

_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_NAMES = ("counter_latencies", "histogram_latencies", "summary_latencies", "summary_quantiles")


def _read_metrics_config(pairs: Sequence[str]) -> tuple[bool, LatencyOptions]:
    """Returns whether there are counters of latencies, and the distributions. Raises UsageError for a pair that means nothing."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--metrics-config: expected <name>=<value>, got '{pair}'")
        if name not in _NAMES:
            raise UsageError(f"--metrics-config {pair}: expected one of {', '.join(_NAMES)}")
        if name != "summary_quantiles" and text.lower() not in _TRUTHS:
            raise UsageError(f"--metrics-config {pair}: expected true or false")
        found[name] = text
    truths = {name: _TRUTHS[text.lower()] for name, text in found.items() if name != "summary_quantiles"}
    latencies = LatencyOptions(
        histograms=truths.get("histogram_latencies", False), summaries=truths.get("summary_latencies", False)
    )
    if "summary_quantiles" in found:
        latencies = msgspec.structs.replace(latencies, quantiles=_quantiles(found["summary_quantiles"]))
    return truths.get("counter_latencies", True), latencies


def _quantiles(text: str) -> tuple[float, ...]:
    """The quantiles, each with a permitted error that is not used: quantiles here are exact."""
    found = []
    for part in text.split(","):
        quantile, colon, error = part.partition(":")
        try:
            numbers = float(quantile), float(error)
        except ValueError:
            numbers = (-1.0, -1.0)
        if not colon or not all(0 <= number <= 1 for number in numbers):
            raise UsageError(
                f"--metrics-config summary_quantiles: expected <quantile>:<error>, two numbers from 0 to 1, got '{part}', as in "
                "summary_quantiles=0.5:0.05,0.99:0.001"
            )
        found.append(numbers[0])
    if len(found) > SUMMARY_QUANTILES_MAX:
        raise UsageError(
            f"--metrics-config summary_quantiles: {len(found)} quantiles, at most {SUMMARY_QUANTILES_MAX} are allowed"
        )
    return tuple(dict.fromkeys(found))


_COUNT_MAX = 2**32 - 1
"""Counts are uint32 in a model's configuration."""


def _rate_limit_supply(mode: str, resources: Sequence[str]) -> Supply | None:
    """The resources of the rate limiter; None: nothing is rate limited. Raises UsageError, also where it is off."""
    counts: dict[tuple[str, int | None], int] = {}
    for text in resources:
        name, *rest = text.split(":")
        numbers = [int(part) for part in rest if part.isascii() and part.isdigit() and len(part) <= 10]
        if not name or len(numbers) != len(rest) or len(rest) not in (1, 2) or numbers[0] > _COUNT_MAX:
            raise UsageError(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
                f"Got {text}"
            )
        key = (name, numbers[1] if len(numbers) == 2 else None)
        if key in counts:
            raise UsageError(f"--rate-limit-resource: '{text}' gives a count that was given before")
        counts[key] = numbers[0]
    if mode != "execution_count":
        return None
    from tpy_data.schedulers.core.rate_limiter import Supply  # most servers limit no rates

    return Supply(counts=counts)


NO_ENVIRONMENT: Mapping[str, str] = {}


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the honoured flags that no frontend reads: each by the name of its flag, with the type of the value."""

    id: str
    exit_timeout_secs: int
    exit_delay_secs: int
    allow_usage_data: bool
    exit_on_error: bool
    serve_while_loading: bool
    strict_readiness: bool
    readiness: Readiness
    log_verbose: int
    log_info: bool
    log_warning: bool
    log_error: bool
    log_format: str
    log_file: str
    access_log: str
    access_log_format: str
    access_log_sample: int
    slow_request_ms: int
    audit_log: str
    audit_log_required: bool
    trace_config: tuple[str, ...]
    trace_file: str
    trace_level: tuple[str, ...]
    trace_rate: int
    trace_count: int
    trace_log_frequency: int
    recording_directory: str
    model_repository: tuple[str, ...]
    model_control_mode: str
    repository_poll_secs: int
    repository_settle_ms: int
    repository_hold_losses: bool
    repository_cache: str
    repository_cache_byte_size: int
    repository_start_secs: int
    load_model: tuple[str, ...]
    model_config_name: str
    disable_auto_complete_config: bool
    strict_model_config: bool
    model_load_thread_count: int
    model_load_retry_count: int
    model_namespacing: bool
    frontend_processes: int
    allow_cpu_metrics: bool
    allow_gpu_metrics: bool
    metrics_interval_ms: int
    metrics_config: tuple[str, ...]
    backend_directory: str
    repoagent_directory: str
    repoagent_timeout_secs: int
    backend_config: tuple[str, ...]
    cache_config: tuple[str, ...]
    cache_directory: str
    response_cache_byte_size: int
    request_timeout: str
    instance_restart_wait: int
    crash_loop_failures: int
    crash_loop_minutes: int
    rollout_file: str
    tenants_file: str
    auth_config: str
    batching_curves_file: str
    model_memory_budget: str
    model_gpu_memory_budget: tuple[str, ...]
    model_load_wait_secs: int
    model_sizes_file: str
    rate_limit: str
    rate_limit_resource: tuple[str, ...]
    host_policy: tuple[str, ...]
    model_load_gpu_limit: tuple[str, ...]
    pinned_memory_pool_byte_size: int
    cuda_memory_pool_byte_size: tuple[str, ...]
    allow_client_shm: bool
    min_supported_compute_capability: str


def server_options(
    values: dict[str, Value], warnings: list[str], environment: Mapping[str, str] = NO_ENVIRONMENT
) -> ServerOptions:
    """The server options of these values; `environment` may hold credentials.

    Raises UsageError for values that contradict each other.
    """
    v = read_values(values, _Values)
    if not v.model_repository:
        raise UsageError("--model-repository must be specified; for one folder: tpy serve DIRECTORY")
    trace, trace_warnings = trace_options(_trace_config(v), environment)
    found = _frontends(values)
    _require_different_ports(found)
    start_delay, delay_warnings = _start_delay(environment)
    return ServerOptions(
        server_id=v.id,
        exit_on_error=v.exit_on_error,
        serve_while_loading=v.serve_while_loading,
        exit_timeout_s=float(v.exit_timeout_secs),
        exit_delay_s=float(v.exit_delay_secs),
        allow_usage_data=v.allow_usage_data,
        load_threads=v.model_load_thread_count,
        load_retries=v.model_load_retry_count,
        control=_control(v, environment),
        backends=_backends(v),
        frontends=found,
        frontend_processes=v.frontend_processes,
        metrics=_metrics(v),
        cache=cache_options(v.cache_config, v.response_cache_byte_size, environment, v.cache_directory),
        rollout_file=Path(v.rollout_file).absolute() if v.rollout_file else None,
        tenants_file=v.tenants_file,
        auth_file=v.auth_config,
        curves_file=Path(v.batching_curves_file).absolute() if v.batching_curves_file else None,
        memory_budget=_memory_budget(v),
        rate_limit=_rate_limit_supply(v.rate_limit, v.rate_limit_resource),
        request_timeout=RequestTimeout(v.request_timeout),
        restarts=RestartOptions(
            wait_s=float(v.instance_restart_wait),
            loop_failures=v.crash_loop_failures,
            loop_window_s=60.0 * v.crash_loop_minutes,
        ),
        log=LogSettings(
            log_file=v.log_file,
            log_info=v.log_info,
            log_warning=v.log_warning,
            log_error=v.log_error,
            log_verbose_level=v.log_verbose,
            log_format=v.log_format,
        ),
        access_log=AccessLogOptions(
            file=v.access_log, format=v.access_log_format, sample=v.access_log_sample, slow_ms=v.slow_request_ms
        ),
        audit_log=_audit_log(v),
        shown=tuple(
            ShownOption(flag.field, _shown(flag, values[flag.field]), values[flag.field] == flag.default)
            for flag in FLAGS
            if _worth_showing(flag)
        ),
        trace=trace,
        recording_directory=v.recording_directory,
        restricting_headers=restricting_headers(values),
        warnings=(*warnings, *delay_warnings, *trace_warnings, *unused_tls_files(values)),
        start_delay=start_delay,
        host_policies=_host_policies(v),
        gpu_limits=_gpu_limits(v),
        allow_client_shm=v.allow_client_shm,
        pinned_pool_bytes=max(0, v.pinned_memory_pool_byte_size),
        cuda_pool_bytes=_cuda_pool_bytes(v),
        compute_capability_min=_compute_capability_min(v),
    )


def _memory_budget(v: _Values) -> MemoryBudgetOptions | None:
    all_on_demand = v.model_control_mode == ON_DEMAND
    sizes, gpu_sizes = v.model_memory_budget, v.model_gpu_memory_budget
    if not (sizes or gpu_sizes or v.model_sizes_file or all_on_demand):
        return None
    from tpy.cli.memory_budget import memory_budget_options  # most servers have no budget

    wait_s, file = v.model_load_wait_secs, v.model_sizes_file
    return memory_budget_options(sizes, gpu_sizes, wait_s=wait_s, all_on_demand=all_on_demand, file=file)


def _trace_config(v: _Values) -> list[str]:
    """The settings of --trace-config, behind those of the older flags."""
    older = [
        f"triton,file={v.trace_file}" if v.trace_file else "",
        *(f"level={level}" for level in v.trace_level),
        f"rate={v.trace_rate}",
        f"count={v.trace_count}",
        f"triton,log-frequency={v.trace_log_frequency}",
    ]
    return [*filter(None, older), *v.trace_config]


def _start_delay(environment: Mapping[str, str]) -> tuple[StartDelay, list[str]]:
    """The start delay of Triton's two environment variables for tests, with the warnings for the log."""
    counts = []
    for variable in ("TRITONSERVER_DELAY_SCHEDULER", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"):
        text = environment.get(variable, "") or "0"
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise UsageError(f"{variable}: expected a number of requests, got '{text}'")
        counts.append(int(text))
    delay = StartDelay(queued=counts[0], backlogged=counts[1])
    if not delay.queued:
        return delay, []
    backlog = f" and {delay.backlogged} backlog queued requests" if delay.backlogged else ""
    return delay, [f"Delaying every scheduler until {delay.queued} queued requests{backlog}: TRITONSERVER_DELAY_SCHEDULER is set"]


def _worth_showing(flag: Flag) -> bool:
    return flag.support is Support.HONOURED


def _shown(flag: Flag, value: Value) -> str:
    if flag.name == "cache-config" and isinstance(value, tuple):
        return "\n".join(without_password(text) for text in value)
    if isinstance(value, tuple):
        # More people read logs than may know a key.
        texts = [f"{text.partition('=')[0]}=***" for text in value] if flag.secret else value
        return "\n".join(texts)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _control(v: _Values, environment: Mapping[str, str]) -> ControlOptions:
    mode = ControlMode.NONE if v.model_control_mode == ON_DEMAND else ControlMode(v.model_control_mode)
    if v.load_model and mode is not ControlMode.EXPLICIT:
        raise UsageError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in v.load_model and len(v.load_model) > 1:
        raise UsageError("--load-model=* loads all models and cannot be combined with names")
    if mode is ControlMode.POLL and not v.repository_poll_secs:
        raise UsageError("--repository-poll-secs: expected at least 1 with --model-control-mode=poll, got 0")
    try:
        repositories = tuple(parse_address(path) for path in v.model_repository)
    except TpyError as error:
        raise UsageError(error.message) from None
    in_the_cloud = any(isinstance(one, RemoteAddress) for one in repositories)
    return ControlOptions(
        repositories=repositories,
        cloud=_cloud(v, environment) if in_the_cloud else None,
        mode=mode,
        poll_interval_ns=v.repository_poll_secs * NS_PER_S,
        settle_ns=v.repository_settle_ms * NS_PER_MS,
        hold_losses=v.repository_hold_losses,
        load_models=v.load_model,
        strict_readiness=v.strict_readiness,
        readiness=v.readiness,
        require_repositories=v.exit_on_error,
        model_config_name=v.model_config_name,
        auto_complete=not (v.disable_auto_complete_config or v.strict_model_config),
        namespacing=v.model_namespacing,
        agent_command=(sys.executable, "-m", "tpy_data.agents", v.repoagent_directory),
        agent_timeout_s=float(v.repoagent_timeout_secs),
    )


def _cloud(v: _Values, environment: Mapping[str, str]) -> RemoteOptions:
    """The options of repositories in the cloud. Without --repository-cache copies are made in a folder of this server alone."""
    kept = Path(v.repository_cache) if v.repository_cache else None
    scratch = Path(tempfile.gettempdir()) / f"tpy-repository-{secrets.token_hex(8)}"
    return RemoteOptions(
        directory=kept or scratch,
        keep=kept is not None,
        bytes_max=v.repository_cache_byte_size,
        start_ns=v.repository_start_secs * NS_PER_S,
        settle_ns=v.repository_settle_ms * NS_PER_MS,
        environment=HiddenEnvironment(environment),
    )


def _frontends(values: Mapping[str, Value]) -> dict[str, ListenOptions]:
    """The options of all frontends that are to be served, by name."""
    found = {}
    for name, frontend in frontends().items():
        if frontend.switch and not values[frontend.switch.replace("-", "_")]:
            continue
        try:
            options = frontend.load().read_options(values)
        except InvalidArgument as error:
            raise UsageError(error.message) from None
        if options is not None:
            for flag in ("auth_config", "tenants_file"):
                if values[flag] and not frontend.checks_access:
                    raise UsageError(
                        f"--{flag.replace('_', '-')}: the {frontend.name} port does not support it and would serve "
                        "everybody: switch that port off"
                    )
            found[name] = options
    return found


def _require_different_ports(found: Mapping[str, ListenOptions]) -> None:
    """Raises UsageError for two frontends at one place; port 0 has no number, and a Unix socket is a path."""
    taken: dict[tuple[str, int], str] = {}
    for name, options in found.items():
        is_unix = options.address.startswith(UNIX)
        if not is_unix and not options.port:
            continue
        address = UNIX + os.path.realpath(options.address.removeprefix(UNIX)) if is_unix else options.address
        place = address, 0 if is_unix else options.port
        if place in taken:
            where = f"Unix socket {options.address}" if is_unix else f"address and port {place[0]}:{place[1]}"
            flags = ", ".join(_place_flag(each, is_unix=is_unix) for each in (taken[place], name))
            raise UsageError(
                f"The server cannot listen to {taken[place].upper()} requests and {name.upper()} requests at the same "
                f"{where} ({flags})"
            )
        taken[place] = name


def _place_flag(name: str, *, is_unix: bool) -> str:
    """The flag that says where this frontend is served."""
    flag = f"--{name.replace('_', '-')}"
    return f"{flag}-address" if is_unix or name == "management" else f"{flag}-port"


def _metrics(v: _Values) -> MetricsOptions:
    counter_latencies, latencies = _read_metrics_config(v.metrics_config)
    return MetricsOptions(
        interval_ms=v.metrics_interval_ms,
        machine=v.allow_cpu_metrics,
        gpus=v.allow_gpu_metrics,
        counter_latencies=counter_latencies,
        latencies=latencies,
    )


def _backends(v: _Values) -> BackendOptions:
    config: dict[str, dict[str, str]] = {}
    config_of_all: dict[str, str] = {}
    for text in v.backend_config:
        backend, comma, pair = text.partition(",")
        if comma and not backend:
            raise UsageError(
                "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or <setting>=<value>. "
                f"Got {text}"
            )
        if not comma:
            backend, pair = "", text
        key, _, value = pair.partition("=")
        if not key or not value:
            raise UsageError(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}")
        (config.setdefault(backend, {}) if backend else config_of_all)[key] = value
    return BackendOptions(directory=Path(v.backend_directory), config=config, config_of_all=config_of_all)


def _host_policies(v: _Values) -> dict[str, HostPolicy]:
    try:
        return parse_host_policies(v.host_policy)
    except TpyError as error:
        raise UsageError(error.message) from None


def _gpu_limits(v: _Values) -> dict[int, float]:
    try:
        return parse_gpu_limits(v.model_load_gpu_limit)
    except TpyError as error:
        raise UsageError(f"--model-load-gpu-limit: {error.message}") from None


def _cuda_pool_bytes(v: _Values) -> dict[int, int]:
    """Sizes by device; the last size of a device counts. Sizes below 1 mean no pool, as in Triton."""
    sizes = {}
    for text in v.cuda_memory_pool_byte_size:
        found = re.fullmatch(r"(-?\d{1,9}):(-?\d{1,18})", text)
        if found is None:
            raise UsageError(f"--cuda-memory-pool-byte-size option format is '<GPU device ID>:<pool byte size>'. Got {text}")
        sizes[int(found[1])] = max(0, int(found[2]))
    return sizes


def _compute_capability_min(v: _Values) -> float:
    text = v.min_supported_compute_capability
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3})?", text):
        raise UsageError(f"--min-supported-compute-capability: expected a number such as 7.5, got '{text}'")
    return float(text)


def _audit_log(v: _Values) -> AuditLogOptions:
    """Raises UsageError where lines are required that go nowhere."""
    if v.audit_log_required and not v.audit_log:
        raise UsageError("--audit-log-required: expected --audit-log FILE, too, to which lines are written")
    return AuditLogOptions(file=v.audit_log, required=v.audit_log_required)
