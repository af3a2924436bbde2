"""Times of a handler's methods, as metrics."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of methods: their time in ms is a metric, ts_handler_METHOD, if model-config.yaml says `handler: profile`."""

    @functools.wraps(method)
    def measured(self: Any, *args: Any, **options: Any) -> Any:
        config = getattr(self.context, "model_yaml_config", None) or {}
        if not (config.get("handler") or {}).get("profile"):
            return method(self, *args, **options)
        begun = time.perf_counter()
        result = method(self, *args, **options)
        _wait_for_gpu()
        self.context.metrics.add_time(f"ts_handler_{method.__name__}", (time.perf_counter() - begun) * 1000)
        return result

    return measured


def _wait_for_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
