"""Settings that PyTorch has once for a process. The first model that has one sets it; a later one with another value is told
so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import torch

from tpy_data.backends.pytorch.settings import ModelSettings

Log = Callable[[str, str], None]
Setter = Callable[..., object]

INTEROP_THREADS = "INTER_OP_THREAD_COUNT"
SETTERS: Mapping[str, Setter] = {
    INTEROP_THREADS: torch.set_num_interop_threads,
    "ENABLE_JIT_EXECUTOR": torch._C._jit_set_profiling_executor,
    "ENABLE_JIT_PROFILING": torch._C._jit_set_profiling_mode,
    "ENABLE_TENSOR_FUSER": torch._C._jit_set_texpr_fuser_enabled,
}


class ProcessSettings:
    """The values that were set, and the models that set them. Any thread."""

    def __init__(self, setters: Mapping[str, Setter] = SETTERS) -> None:
        self._setters = setters
        self._lock = threading.Lock()
        self._set: dict[str, tuple[object, str]] = {}

    def apply(self, model_name: str, settings: ModelSettings, log: Log) -> None:
        """Set what the model asks for, unless another model has set it before."""
        wanted: dict[str, object] = dict(settings.jit_switches)
        if settings.interop_threads > 0:
            wanted[INTEROP_THREADS] = settings.interop_threads
        with self._lock:
            for key, value in wanted.items():
                problem = self._apply_one(key, value, model_name)
                if problem:
                    log("warning", f"model '{model_name}': {key} {value} has no effect: {problem}")

    def _apply_one(self, key: str, value: object, model_name: str) -> str:
        """Returns why the value has no effect; empty when it has."""
        if key in self._set:
            first, owner = self._set[key]
            return "" if first == value else f"it holds for the whole process, where model '{owner}' set it to {first}"
        try:
            self._setters[key](value)
        except RuntimeError as error:
            return str(error)
        self._set[key] = (value, model_name)
        return ""


PROCESS = ProcessSettings()
"""Those of this process."""
