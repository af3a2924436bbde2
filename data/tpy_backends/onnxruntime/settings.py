"""Settings of sessions: which keys a model's configuration and --backend-config may hold, parsed into values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy_backends.completion import DEFAULT_MAX_BATCH_SIZE, default_max_batch_size
from tpy_backends.parameter_values import parse_boolean, parse_integer

ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_SESSION_ENTRY_PREFIX = "session."


class OnnxRuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's own settings. With `global_thread_pool` all sessions share one pool of `intra_op_thread_count` and
    `inter_op_thread_count` threads (0: one per core), and the models' own thread counts are ignored, as in Triton."""

    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    global_thread_pool: bool = False
    intra_op_thread_count: int = 0
    inter_op_thread_count: int = 0


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model's session options. Thread counts 0 and memory switches None leave ONNX Runtime's default.

    `graph_level` is Triton's: 0 everything, -1 basic, 1 basic and extended, 2 nothing. `session_entries` and `run_entries` go to
    ONNX Runtime as they are. `shared`: the instances of a GPU share a session, too, as those of the CPU always do.
    """

    intra_op_thread_count: int = 0
    inter_op_thread_count: int = 0
    parallel_execution: bool = False
    graph_level: int = 0
    memory_arena: bool | None = None
    memory_pattern: bool | None = None
    shared: bool = False
    session_entries: Mapping[str, str] = msgspec.field(default_factory=dict)
    run_entries: Mapping[str, str] = msgspec.field(default_factory=dict)

    def within(self, cpu_cores: Sequence[int]) -> SessionSettings:
        """The settings of a session whose threads are bound to these cores (none: to no cores). Left to itself ONNX Runtime makes
        a thread for each core of the machine and binds it there, whatever the thread that makes them is bound to."""
        if not cpu_cores or self.intra_op_thread_count > 0:
            return self
        return msgspec.structs.replace(self, intra_op_thread_count=len(cpu_cores))

    def without_threads(self) -> SessionSettings:
        """The settings of a session that is not to run: it makes no threads."""
        return msgspec.structs.replace(self, intra_op_thread_count=1, inter_op_thread_count=1)


def backend_config(pairs: Mapping[str, str]) -> OnnxRuntimeConfig:
    """Parse `--backend-config` pairs; unknown keys may be meant for other backends. Raises InvalidArgument."""
    return OnnxRuntimeConfig(
        default_max_batch_size=default_max_batch_size(pairs),
        global_thread_pool=parse_boolean(pairs.get("enable-global-threadpool", "0")),
        intra_op_thread_count=parse_integer(pairs.get("intra_op_thread_count", "0"), bits=32),
        inter_op_thread_count=parse_integer(pairs.get("inter_op_thread_count", "0"), bits=32),
    )


def session_settings(config: ModelConfig) -> SessionSettings:
    """Parse a model's `parameters` and `optimization.graph`; parameters with other names are not ours to judge.

    Raises InvalidArgument, with Triton's texts, for a value that is neither a number nor a switch.
    """
    execution_mode = parse_integer(config.parameter("execution_mode", "0"))
    if execution_mode not in {0, 1}:
        raise InvalidArgument(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {execution_mode} ."
        )
    graph = config.optimization.graph if config.optimization is not None else None
    return SessionSettings(
        intra_op_thread_count=parse_integer(config.parameter("intra_op_thread_count", "0"), bits=32),
        inter_op_thread_count=parse_integer(config.parameter("inter_op_thread_count", "0"), bits=32),
        parallel_execution=execution_mode == 1,
        graph_level=graph.level if graph is not None else 0,
        memory_arena=_switch(config, "enable_mem_arena"),
        memory_pattern=_switch(config, "enable_mem_pattern"),
        shared=parse_boolean(config.parameter("share_session_between_instances", "0")),
        session_entries={
            key: value.string_value for key, value in config.parameters.items() if key.startswith(_SESSION_ENTRY_PREFIX)
        },
        run_entries={ARENA_SHRINKAGE: config.parameter(ARENA_SHRINKAGE)} if ARENA_SHRINKAGE in config.parameters else {},
    )


def _switch(config: ModelConfig, key: str) -> bool | None:
    return parse_boolean(config.parameter(key)) if key in config.parameters else None
