"""Settings that PyTorch has once for a process. The first model that has one sets it; a later one with another value is told
so."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from tpy_data.backends.pytorch.settings import ModelSettings

Log = Callable[[str, str], None]

_lock = threading.Lock()
_set: dict[str, tuple[object, str]] = {}
"""By parameter: its value, and the model that set it."""

_JIT_SETTERS = {
    "ENABLE_JIT_EXECUTOR": torch._C._jit_set_profiling_executor,
    "ENABLE_JIT_PROFILING": torch._C._jit_set_profiling_mode,
    "ENABLE_TENSOR_FUSER": torch._C._jit_set_texpr_fuser_enabled,
}


def apply(model_name: str, settings: ModelSettings, log: Log) -> None:
    """Set what the model asks for, unless another model has set it before. Any thread."""
    with _lock:
        if settings.interop_threads > 0:
            _once("INTER_OP_THREAD_COUNT", settings.interop_threads, model_name, torch.set_num_interop_threads, log)
        for key, enabled in settings.jit_switches.items():
            _once(key, enabled, model_name, _JIT_SETTERS[key], log)


def _once(key: str, value: object, model_name: str, set_value: Callable[..., object], log: Log) -> None:
    if key in _set:
        first, owner = _set[key]
        if first != value:
            text = f"it holds for the whole process, where model '{owner}' set it to {first}"
            log("warning", f"model '{model_name}': {key} {value} has no effect: {text}")
        return
    try:
        set_value(value)
    except RuntimeError as error:
        log("warning", f"model '{model_name}': {key} {value} has no effect: {error}")
        return
    _set[key] = (value, model_name)
