"""Settings: which keys a model's parameters and --backend-config may hold, parsed into values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import orjson

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy_backends.completion import DEFAULT_MAX_BATCH_SIZE, default_max_batch_size
from tpy_backends.parameter_values import parse_boolean, parse_integer
from tpy_backends.pytorch.archive import FileKind

RUNTIME = "model.py"
"""The value of the configuration's `runtime` for models that are Python classes."""

COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"

_JIT_SWITCHES = ("ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER")
_ONLY_TORCH_SCRIPT = ("DISABLE_OPTIMIZED_EXECUTION", *_JIT_SWITCHES)
_ONLY_CUDA = ("DISABLE_CUDNN", "ENABLE_CACHE_CLEANING")


class PyTorchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's own settings."""

    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE


class PyTorchModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model's parameters. Thread counts 0 leave PyTorch's default.

    `jit_switches` are the ones that were given; they and `interop_threads` belong to the whole process. `compile_options` None:
    the program is not compiled again.
    """

    intraop_threads: int = 0
    interop_threads: int = 0
    optimized_execution: bool = True
    inference_mode: bool = True
    weight_sharing: bool = False
    cudnn: bool = True
    cache_cleaning: bool = False
    jit_switches: Mapping[str, bool] = msgspec.field(default_factory=dict)
    compile_options: Mapping[str, object] | None = None


def backend_config(pairs: Mapping[str, str]) -> PyTorchConfig:
    """Parse `--backend-config` pairs; unknown keys may be meant for other backends. Raises InvalidArgument."""
    size = default_max_batch_size(pairs)
    return PyTorchConfig(default_max_batch_size=size)


def model_settings(config: ModelConfig) -> PyTorchModelSettings:
    """Parse a model's `parameters`; those with other names are not ours to judge. Raises InvalidArgument for a wrong value."""
    return PyTorchModelSettings(
        intraop_threads=_count(config, "INTRA_OP_THREAD_COUNT", "NUM_THREADS"),
        interop_threads=_count(config, "INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS"),
        optimized_execution=not _switch(config, "DISABLE_OPTIMIZED_EXECUTION", default=False),
        inference_mode=_switch(config, "INFERENCE_MODE", default=True),
        weight_sharing=_switch(config, "ENABLE_WEIGHT_SHARING", default=False),
        cudnn=not _switch(config, "DISABLE_CUDNN", default=False),
        cache_cleaning=_switch(config, "ENABLE_CACHE_CLEANING", default=False),
        jit_switches={key: _switch(config, key, default=True) for key in _JIT_SWITCHES if key in config.parameters},
        compile_options=_compile_options(config),
    )


def without_meaning(config: ModelConfig, kind: FileKind, *, on_gpu: bool) -> list[str]:
    """The model's parameters that Triton's backend knows, and that change nothing for a model of this kind on these devices."""
    keys = [] if kind is FileKind.TORCH_SCRIPT else list(_ONLY_TORCH_SCRIPT)
    if kind is not FileKind.EXPORTED_PROGRAM:
        keys.append(COMPILE)
    if not on_gpu:
        keys.extend(_ONLY_CUDA)
    return [key for key in keys if key in config.parameters]


def _switch(config: ModelConfig, key: str, *, default: bool) -> bool:
    return parse_boolean(config.parameter(key)) if key in config.parameters else default


def _count(config: ModelConfig, *keys: str) -> int:
    """The first of the keys that is given; what is not above 0 leaves the default, as in Triton."""
    return next((max(0, parse_integer(config.parameter(key))) for key in keys if key in config.parameters), 0)


def _compile_options(config: ModelConfig) -> Mapping[str, object] | None:
    if COMPILE not in config.parameters:
        return None
    text = config.parameter(COMPILE)
    try:
        options = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"parameter {COMPILE} of model '{config.name}' is not JSON: {error}") from None
    if not isinstance(options, dict) or "model" in options:
        raise InvalidArgument(
            f"parameter {COMPILE} of model '{config.name}' must be a JSON object of arguments of torch.compile, without 'model'"
        )
    return options
