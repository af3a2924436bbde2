"""Settings: parameters of a model and of the backend, with the names of Triton's dali backend."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy_backends.parameter_values import parse_integer, require_few_threads

_SEPARATOR = ":"


class DaliConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`--backend-config=dali,...`."""

    plugin_libraries: tuple[str, ...] = ()
    release_after_unload: bool = False


class DaliModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model's parameters. `threads` None leaves them to the pipeline; outputs in `split` lose their outer axis."""

    threads: int | None = None
    split: frozenset[str] = frozenset()


def backend_config(pairs: Mapping[str, str]) -> DaliConfig:
    """Only `true`, in any case, switches something on, as in Triton."""
    return DaliConfig(
        plugin_libraries=_list(pairs.get("plugin_libs", "")),
        release_after_unload=pairs.get("release_after_unload", "").lower() == "true",
    )


def model_settings(config: ModelConfig) -> DaliModelSettings:
    """Parse a model's `parameters`. Raises InvalidArgument for a wrong number."""
    threads = None
    if "num_threads" in config.parameters:
        threads = require_few_threads(config, "num_threads", parse_integer(config.parameter("num_threads"), bits=32))
        if threads < 1 and threads != -1:  # -1 is Triton's word for "as the pipeline says"
            raise InvalidArgument(f"parameter 'num_threads' of model '{config.name}' must be a positive number, got {threads}")
    split = frozenset(_list(config.parameter("split_along_outer_axis", "")))
    return DaliModelSettings(threads=None if threads == -1 else threads, split=split)


def _list(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(_SEPARATOR) if name)
