"""Settings: `--backend-config` pairs and the parts of a configuration that are TensorRT's own."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import ModelPriority
from tpy.errors import InvalidArgument
from tpy_backends.parameter_values import parse_boolean
from tpy_backends.tensorrt.library import MODULES

ALLOCATION_STRATEGY = "execution_context_allocation_strategy"
_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
MULTI_DEVICE = "enable_multi_device"


class TensorRTConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's own settings. `plugins` are libraries that are loaded before the first engine; `version_compatible` allows
    engines that contain their own runtime, which is code; `library` is the package to use, an addition of ours."""

    plugins: tuple[str, ...] = ()
    version_compatible: bool = False
    library: str = ""


class TensorRTModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model's. `allocation_strategy` is the name of one of TensorRT's ExecutionContextAllocationStrategy; `stream_priority`
    is 1 for work that goes first, -1 for work that comes last."""

    allocation_strategy: str = "STATIC"
    stream_priority: int = 0


def backend_config(pairs: Mapping[str, str]) -> TensorRTConfig:
    """Parse `--backend-config` pairs; unknown keys may be meant for other backends. Raises InvalidArgument."""
    library = pairs.get("library", "")
    if library and library not in MODULES:
        raise InvalidArgument(f"unknown library '{library}' for the tensorrt backend: one of {', '.join(MODULES)}")
    return TensorRTConfig(
        plugins=tuple(path for path in pairs.get("plugins", "").split(";") if path),
        version_compatible=parse_boolean(pairs.get("version-compatible", "false")),
        library=library,
    )


def model_settings(config: ModelConfig) -> TensorRTModelSettings:
    """Parse a model's `parameters` and `optimization`. Raises InvalidArgument, with Triton's texts."""
    strategy = config.parameter(ALLOCATION_STRATEGY, "STATIC")
    if strategy not in _STRATEGIES:
        raise InvalidArgument(
            f"Invalid value for '{ALLOCATION_STRATEGY}': '{strategy}' for model instance '{config.name}'. Supported values are "
            "'STATIC' and 'ON_PROFILE_CHANGE'."
        )
    if MULTI_DEVICE in config.parameters and parse_boolean(config.parameter(MULTI_DEVICE)):
        raise InvalidArgument(f"model '{config.name}': engines that span several GPUs ('{MULTI_DEVICE}') are not served")
    priority = config.optimization.priority if config.optimization is not None else ModelPriority.PRIORITY_DEFAULT
    return TensorRTModelSettings(allocation_strategy=strategy, stream_priority=_PRIORITIES[priority])


_PRIORITIES = {ModelPriority.PRIORITY_DEFAULT: 0, ModelPriority.PRIORITY_MAX: 1, ModelPriority.PRIORITY_MIN: -1}
