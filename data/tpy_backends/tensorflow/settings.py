"""Settings: which keys a model's parameters and --backend-config may hold, parsed into values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from tpy.backend import ModelContext
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument, Unavailable, Unsupported
from tpy.files import read_file
from tpy.limits import MODEL_TEXT_BYTES_MAX
from tpy_backends.completion import DEFAULT_MAX_BATCH_SIZE, default_max_batch_size
from tpy_backends.parameter_values import parse_boolean, parse_integer, require_few_threads

GRAPHDEF = "tensorflow_graphdef"
SAVEDMODEL = "tensorflow_savedmodel"


class TensorFlowConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's own settings. `gpu_memory_fraction` 0 lets the memory that is taken of a GPU grow."""

    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    soft_placement: bool = True
    gpu_memory_fraction: float = 0.0


class TensorFlowModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model's parameters. Thread counts 0 leave TensorFlow's default, `session_share_max` 0 has all instances share a
    session, `jit_level` None leaves XLA to TensorFlow."""

    intra_threads: int = 0
    inter_threads: int = 0
    own_threads: bool = False
    graph_tag: str = ""
    signature: str = ""
    session_share_max: int = 0
    init_ops_file: str = ""
    jit_level: int | None = None
    mixed_precision: bool = False

    def within(self, cpu_cores: Sequence[int]) -> TensorFlowModelSettings:
        """The settings of a session whose instances are bound to these cores (none: to no cores)."""
        if not cpu_cores or self.intra_threads:
            return self
        return msgspec.structs.replace(self, intra_threads=len(cpu_cores))


def backend_config(pairs: Mapping[str, str]) -> TensorFlowConfig:
    """Parse `--backend-config` pairs; unknown keys may be meant for other backends. Raises InvalidArgument."""
    text = pairs.get("gpu-memory-fraction", "0")
    try:
        fraction = float(text)
    except ValueError:
        raise InvalidArgument(f"failed to convert '{text}' to a number") from None
    return TensorFlowConfig(
        default_max_batch_size=default_max_batch_size(pairs),
        soft_placement=parse_boolean(pairs.get("allow-soft-placement", "true")),
        gpu_memory_fraction=fraction,
    )


def model_settings(config: ModelConfig) -> TensorFlowModelSettings:
    """Parse a model's `parameters` and `optimization`. Raises InvalidArgument, with Triton's texts, for a wrong value."""
    if config.platform not in {"", GRAPHDEF, SAVEDMODEL}:
        raise InvalidArgument(f"platform {config.platform} not supported for TensorFlow model '{config.name}'")
    share = "MAX_SESSION_SHARE_COUNT"
    share_max = parse_integer(config.parameter(share)) if share in config.parameters else 0
    if share in config.parameters and share_max <= 0:
        raise InvalidArgument(f"parameter '{share}' must be positive number for TensorFlow model '{config.name}'")
    own = config.parameter("TF_USE_PER_SESSION_THREADS", "false").lower()
    graph = config.optimization.graph if config.optimization is not None else None
    return TensorFlowModelSettings(
        intra_threads=_count(config, "TF_NUM_INTRA_THREADS"),
        inter_threads=_count(config, "TF_NUM_INTER_THREADS"),
        own_threads=own == "yes" or parse_boolean("false" if own == "no" else own),  # Triton's documentation has "yes"
        graph_tag=config.parameter("TF_GRAPH_TAG", ""),
        signature=config.parameter("TF_SIGNATURE_DEF", ""),
        session_share_max=share_max,
        init_ops_file=config.parameter("TF_INIT_OPS_FILE", ""),
        jit_level=graph.level if graph is not None else None,
        mixed_precision=_mixed_precision(config),
    )


def _count(config: ModelConfig, key: str) -> int:
    count = parse_integer(config.parameter(key, "0"), bits=32)
    if count < 0:
        raise InvalidArgument(f"parameter '{key}' must be non-negative number for TensorFlow model '{config.name}'")
    return require_few_threads(config, key, count)


def _mixed_precision(config: ModelConfig) -> bool:
    accelerators = config.optimization.execution_accelerators if config.optimization is not None else None
    if accelerators is None:
        return False
    if accelerators.cpu_execution_accelerator:
        raise InvalidArgument("CPU Execution Accelerator is not supported in TensorFlow backend")
    names = {accelerator.name for accelerator in accelerators.gpu_execution_accelerator}
    if "tensorrt" in names:
        raise Unsupported(
            f"model '{config.name}': the accelerator tensorrt is not supported for TensorFlow models; convert the model to ONNX"
        )
    for name in sorted(names - {"auto_mixed_precision", "gpu_io"}):
        raise InvalidArgument(f"unknown Execution Accelerator '{name}' is requested")
    return "auto_mixed_precision" in names


def read_init_ops(context: ModelContext, name: str) -> list[str]:
    """The operations that the file of TF_INIT_OPS_FILE lists; none for "". Raises Unavailable where it is not there, and
    InvalidArgument."""
    if not name:
        return []
    model = context.config.name
    folders = (context.version_directory, context.model_directory)
    file = next((path for folder in folders if (path := folder / name).exists()), None)
    if file is None:
        raise Unavailable(f"unable to find the file '{name}' (TF_INIT_OPS_FILE) of model '{model}'")
    try:
        operations: list[str] = json.loads(read_file(file, bytes_max=MODEL_TEXT_BYTES_MAX))["init_ops"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"'{name}' of model '{model}' is not a JSON object with a list 'init_ops': {error}") from None
    return operations
