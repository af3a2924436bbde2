"""The options of a server, and the flags of ours that they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpy.messages import LogSettings
from tpy.telemetry.logs import LogTaker
from tpy.tritonserver.enums import InstanceGroupKind, LogFormat, LogLevel, ModelControlMode, RateLimitMode
from tpy.tritonserver.errors import InvalidArgumentError

Settings = dict[str, dict[str, Any]]

LogCallback = Callable[[LogLevel, str, int, float, str], None]
"""Takes a line of the log in place of the standard error stream or a file: its level, the source file and line, seconds since the
epoch, and the message. It is called in the thread that logs, which may be the server's loop, and must not block."""

POLL_S = 1
"""The time between two looks at the repository in mode POLL, in seconds."""

_BACKENDS, _AGENTS, _CACHES = (f"/opt/tritonserver/{name}" for name in ("backends", "repoagents", "caches"))


@dataclass(slots=True)
class RateLimiterResource:
    """The count of a resource on a device."""

    name: str
    count: int
    device: int


@dataclass(slots=True)
class ModelLoadDeviceLimit:
    """The share of a device's memory that models may be loaded into."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass(slots=True)
class Options:
    """The options of a server, with Triton's names and defaults. Each is a flag of `tpy serve`, checked by `Server.start`."""

    model_repository: str | list[str] = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    strict_model_config: bool = False
    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)
    pinned_memory_pool_size: int = 1 << 28
    cuda_memory_pool_sizes: dict[int, int] = field(default_factory=dict)
    cache_config: Settings = field(default_factory=dict)
    cache_directory: str = _CACHES
    min_supported_compute_capability: float = 6.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: int = 30
    buffer_manager_thread_count: int = 0
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True
    log_file: str | None = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: int = 0
    log_callback: LogCallback | None = None
    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000
    backend_directory: str = _BACKENDS
    repo_agent_directory: str = _AGENTS
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: Settings = field(default_factory=dict)
    host_policies: Settings = field(default_factory=dict)
    metrics_configuration: Settings = field(default_factory=dict)


def repositories_of(options: Options) -> list[str]:
    """The folders of models. Raises InvalidArgumentError and TypeError."""
    if options.model_repository is None:
        raise InvalidArgumentError("Model repository must be specified.")
    found = options.model_repository if isinstance(options.model_repository, list) else [options.model_repository]
    for each in found:
        if not isinstance(each, str | Path):
            raise TypeError(f"model_repository: expected a path, got {each!r}")
    return [str(each) for each in found]


def flags_of(options: Options) -> dict[str, Any]:
    """The options as flags of `tpy serve`, but for the repository and the log. Raises TypeError for what has a wrong type."""
    for name, kind in _TYPES.items():
        value = getattr(options, name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name}: expected {kind.__name__}, got {value!r}")
    flags: dict[str, Any] = {flag: getattr(options, name) for name, flag in _SIMPLE.items()}
    flags.update(
        allow_http=False,
        allow_grpc=False,
        allow_metrics=False,
        model_control_mode=ModelControlMode(options.model_control_mode).name.lower(),
        disable_auto_complete_config=options.strict_model_config,
        rate_limit="execution_count" if options.rate_limiter_mode == RateLimitMode.EXEC_COUNT else "off",
        rate_limit_resource=[f"{each.name}:{each.count}:{each.device}" for each in options.rate_limiter_resources],
        cuda_memory_pool_byte_size=[f"{device}:{size}" for device, size in options.cuda_memory_pool_sizes.items()],
        cache_config=list(_pairs(options.cache_config)),
        model_load_gpu_limit=[f"{each.device}:{each.fraction}" for each in options.model_load_device_limits],
        backend_config=list(_pairs(options.backend_configuration)),
        host_policy=list(_pairs(options.host_policies)),
        metrics_config=list(_pairs(options.metrics_configuration)),
    )
    if options.model_control_mode == ModelControlMode.EXPLICIT:
        flags["load_model"] = list(options.startup_models)
    if options.model_control_mode == ModelControlMode.POLL:
        flags["repository_poll_secs"] = POLL_S
    for name, flag, default in (
        ("backend_directory", "backend_directory", _BACKENDS),
        ("repo_agent_directory", "repoagent_directory", _AGENTS),
        ("cache_directory", "cache_directory", _CACHES),
    ):
        if getattr(options, name) != default:
            flags[flag] = getattr(options, name)
    return {flag: value for flag, value in flags.items() if value != [] or flag == "load_model"}


def log_taker(callback: LogCallback | None) -> LogTaker | None:
    """A function that calls the callback with each record."""
    if callback is None:
        return None

    def take(record: logging.LogRecord, message: str) -> None:
        callback(_level_of(record.levelno), record.pathname, record.lineno, record.created, message)

    return take


def _level_of(number: int) -> LogLevel:
    if number >= logging.ERROR:
        return LogLevel.ERROR
    if number >= logging.WARNING:
        return LogLevel.WARN
    return LogLevel.INFO if number >= logging.INFO else LogLevel.VERBOSE


def log_settings(options: Options) -> LogSettings | None:
    """The log that the options ask for; None: none. A level has those above it with it."""
    info = options.log_info or options.log_verbose > 0
    warn = options.log_warn or info
    if not (warn or options.log_error):
        return None
    return LogSettings(
        log_file=options.log_file or "",
        log_info=info,
        log_warning=warn,
        log_error=True,
        log_verbose_level=options.log_verbose,
        log_format="ISO8601" if options.log_format == LogFormat.ISO8601 else "default",
    )


def _pairs(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """As flags write them: `name,key=value`; without name for all."""
    for name, values in settings.items():
        for key, value in values.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"{name},{key}={text}" if name else f"{key}={text}"


_SIMPLE = {
    "server_id": "id",
    "pinned_memory_pool_size": "pinned_memory_pool_byte_size",
    "min_supported_compute_capability": "min_supported_compute_capability",
    "exit_on_error": "exit_on_error",
    "strict_readiness": "strict_readiness",
    "exit_timeout": "exit_timeout_secs",
    "buffer_manager_thread_count": "buffer_manager_thread_count",
    "model_load_thread_count": "model_load_thread_count",
    "model_load_retry_count": "model_load_retry_count",
    "model_namespacing": "model_namespacing",
    "enable_peer_access": "enable_peer_access",
    "gpu_metrics": "allow_gpu_metrics",
    "cpu_metrics": "allow_cpu_metrics",
    "metrics_interval": "metrics_interval_ms",
}

_TYPES: dict[str, type] = {
    "server_id": str,
    "startup_models": list,
    "strict_model_config": bool,
    "exit_on_error": bool,
    "strict_readiness": bool,
    "exit_timeout": int,
    "model_load_thread_count": int,
    "model_namespacing": bool,
    "metrics": bool,
    "cpu_metrics": bool,
    "gpu_metrics": bool,
    "metrics_interval": int,
    "log_verbose": int,
    "cache_config": dict,
    "backend_configuration": dict,
    "host_policies": dict,
    "metrics_configuration": dict,
}
