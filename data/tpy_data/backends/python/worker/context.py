"""The model that the running code belongs to, for Logger and get_model_dir.

A worker process holds one model, set for the whole process. In-process models set it for their instance's thread; in a thread
that such a model starts itself it is found by the package that the running code belongs to.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from .missing_inputs import MissingInputs
from .ports import CallPort, MetricPort

Log = Callable[[str, str], None]
"""Level ("verbose", "info", "warning", "error") and text."""


class RunnerContext(NamedTuple):
    """`directory` is the model's version folder; `metrics` is the port to the server's metrics, `calls` that to other
    models. `missing` warns of names that are wrong."""

    directory: str
    log: Log
    metrics: MetricPort | None = None
    calls: CallPort | None = None
    missing: MissingInputs | None = None


_of_process: list[RunnerContext] = []
_of_package: dict[str, RunnerContext] = {}
_of_thread = threading.local()


def set_for_process(context: RunnerContext) -> None:
    """This process runs this one model."""
    _of_process[:] = [context]


def set_for_thread(context: RunnerContext | None) -> None:
    """The calling thread runs this model (None: no more)."""
    _of_thread.context = context


def set_for_package(package: str, context: RunnerContext | None) -> None:
    """Code of this package belongs to this model (None: no more), whatever thread runs it."""
    if context is None:
        _of_package.pop(package, None)
    else:
        _of_package[package] = context


def current() -> RunnerContext | None:
    """The model whose code is running, as far as that is known."""
    context: RunnerContext | None = getattr(_of_thread, "context", None)
    if context is None:
        return _of_process[0] if _of_process else _of_caller()
    return context


def _of_caller() -> RunnerContext | None:
    """That of the innermost caller whose package has one."""
    if not _of_package:
        return None
    frame = sys._getframe(1).f_back
    while frame is not None:
        known = _of_package.get(str(frame.f_globals.get("__name__")).partition(".")[0])
        if known is not None:
            return known
        frame = frame.f_back
    return None
