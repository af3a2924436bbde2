"""Settings: parameters of a model, with Triton's names and OpenVINO's own, parsed into values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy_backends.parameter_values import checked_library

_COUNTS = ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS")
_OWN = frozenset({"PERFORMANCE_HINT", "NUM_STREAMS", *_COUNTS})
"""Properties of OpenVINO that Triton's backend names; those of the device at hand may be given, too."""


class OpenVinoModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model's parameters. `device` "" leaves the choice to the instance group. `properties` may be OpenVINO's: the ones that
    the device knows are."""

    device: str = ""
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    extensions: tuple[str, ...] = ()
    dynamic_batch: bool = True
    batch_padding: bool = False
    reshapes: bool = False


def model_settings(config: ModelConfig, libraries: tuple[str, ...]) -> OpenVinoModelSettings:
    """Parse a model's `parameters`; `libraries` are those of its custom operators. Raises InvalidArgument for a wrong value."""
    extension = config.parameter("CPU_EXTENSION_PATH", "")
    return OpenVinoModelSettings(
        device=config.parameter("TARGET_DEVICE", ""),
        properties=_properties(config),
        extensions=(*((checked_library(extension, config.name),) if extension else ()), *libraries),
        dynamic_batch=not _yes(config, "SKIP_OV_DYNAMIC_BATCHSIZE"),
        batch_padding=_yes(config, "ENABLE_BATCH_PADDING"),
        reshapes=_yes(config, "RESHAPE_IO_LAYERS"),
    )


def _properties(config: ModelConfig) -> dict[str, str]:
    properties = {key: value.string_value for key, value in config.parameters.items() if key.isupper()}
    for old, new in (("CPU_THREADS_NUM", "INFERENCE_NUM_THREADS"), ("CPU_THROUGHPUT_STREAMS", "NUM_STREAMS")):
        if old in properties:  # names of Triton's backend before 22.08
            properties.setdefault(new, properties.pop(old).upper())
    for key in _COUNTS:
        if key in properties and not properties[key].isdecimal():
            raise InvalidArgument(f"expected the parameter '{key}' to be a non-negative number, got {properties[key]}")
    streams = properties.get("NUM_STREAMS", "1").upper()
    if not (streams.isdecimal() or streams in {"AUTO", "NUMA"}):
        raise InvalidArgument(f"expected the parameter 'NUM_STREAMS' to be a non-negative number or AUTO/NUMA, got {streams}")
    if "NUM_STREAMS" in properties:
        properties["NUM_STREAMS"] = streams
    if _yes(config, "HINT_BF16") or _yes(config, "ENFORCE_BF16"):
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    return properties


def named_by_triton(properties: Mapping[str, str]) -> frozenset[str]:
    """Those of the properties that a user of Triton's backend gives."""
    return _OWN & properties.keys()


def _yes(config: ModelConfig, key: str) -> bool:
    """YES in any case, as Triton; what is neither YES nor NO is an error here, and NO there."""
    word = config.parameter(key, "no").lower()
    if word not in {"yes", "no"}:
        raise InvalidArgument(f"expected the parameter '{key}' to be either YES or NO, got {config.parameter(key)}")
    return word == "yes"
