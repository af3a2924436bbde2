"""Which model the running code belongs to: what Logger and get_model_dir need to know.

A worker process holds one model, set for the whole process. In-process models set it for their instance's thread; a thread that
such a model starts itself has none, and logs without the instance's name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .metrics import MetricPort

Log = Callable[[str, str], None]
"""Level ("verbose", "info", "warning", "error") and text."""


class ModelContext(NamedTuple):
    """`directory` is the model's version folder; `metrics` is the way to the server's metrics."""

    directory: str
    log: Log
    metrics: MetricPort | None = None


_of_process: list[ModelContext] = []
_of_thread = threading.local()


def set_for_process(context: ModelContext) -> None:
    """This process runs this one model."""
    _of_process[:] = [context]


def set_for_thread(context: ModelContext | None) -> None:
    """The calling thread runs this model (None: no more)."""
    _of_thread.context = context


def current() -> ModelContext | None:
    """The model whose code is running, as far as that is known."""
    context: ModelContext | None = getattr(_of_thread, "context", None)
    if context is None and _of_process:
        return _of_process[0]
    return context
