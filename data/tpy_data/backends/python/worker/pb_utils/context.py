"""The model that the running code belongs to, and the ports through which it reaches the server: metrics, and calls of other
models.

A worker process holds one model, set for the whole process. In-process models set it for their instance's thread; in a thread
that such a model starts itself it is found by the package that the running code belongs to.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from .pending_call import PendingCall

CalledRequest = Any
"""A pb_utils.InferenceRequest. Its class cannot be named here, as its methods lead to these calls."""


class MetricPort(Protocol):
    """The connection of one instance to the server's metrics. Any thread. Every method raises TritonModelException with the
    reason."""

    def family(self, name: str, description: str, kind: int) -> int:
        """Hold a family; its number."""
        ...

    def metric(self, family: int, labels: dict[str, str], buckets: list[float]) -> int:
        """A series of a family; its number."""
        ...

    def change(self, metric: int, operation: str, value: float) -> None:
        """`operation` is "increment", "set" or "observe", one that the metric's kind has."""
        ...

    def observe(self, metric: int, values: list[float]) -> None:
        """Several observations of a histogram at once, all finite."""
        ...

    def value(self, metric: int) -> float:
        """The value, with every change that was made before."""
        ...

    def close_family(self, family: int) -> None:
        """Let go of a family and its series. Never raises."""
        ...

    def refusal(self, text: str) -> str:
        """`text` as an error of this instance."""
        ...


LOADING, SERVING, FINALIZING = "initialize", "execute", "finalize"
"""The phases of a model."""


class CallPort(Protocol):
    """The connection of one model to other models and the repository. Any thread of the model."""

    phase: str

    @property
    def has_devices(self) -> bool:
        """True if tensors of devices can be passed."""
        ...

    def infer(self, request: CalledRequest, *, streams: bool) -> PendingCall:
        """Make a call; its errors come as responses."""
        ...

    def prepare_waiting_elsewhere(self) -> None:
        """The call that follows is not waited for in the thread that makes it."""
        ...

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Blocks until the model serves. Raises TritonModelException."""
        ...

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """Raises TritonModelException."""
        ...

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """Returns True if a request to it would be taken."""
        ...


NAMES_MAX = 100
"""Wrong names that are logged for one instance: a model may make them up."""

NAME_TEXT_MAX = 200
"""Characters of a wrong name in the log."""


class MissingInputs:
    """Of one instance. `config` is its configuration as JSON, which is read when a name is missing."""

    def __init__(self, config: str, log: Callable[[str, str], None]) -> None:
        self._config = config
        self._log = log
        self._told: set[str] = set()

    def look(self, name: str) -> None:
        """A request has no input of this name: maybe it is optional, maybe no request can have it."""
        if name in self._told or len(self._told) >= NAMES_MAX:
            return
        self._told.add(name)
        config: dict[str, Any] = json.loads(self._config)
        if name in _names(config):
            return
        there = ", ".join(f"{each['name']} ({_type(each)})" for each in config.get("input", ()))
        asked = f"get_input_tensor_by_name(request, {str(name)[:NAME_TEXT_MAX]!r})"
        self._log("warning", f"{asked} returns None: the model has no such input; its inputs are {there}; logged once")


def _names(config: dict[str, Any]) -> Iterator[str]:
    """All inputs that a request may have, including the ones that the server makes."""
    for each in config.get("input", ()):
        yield each["name"]
    sequences = config.get("sequence_batching", {})
    for each in sequences.get("control_input", ()):
        yield each["name"]
    for each in sequences.get("state", ()):
        yield each["input_name"]
    for each in config.get("batch_input", ()):
        yield from each.get("target_name", ())


def _type(entry: dict[str, Any]) -> str:
    dims = ",".join(str(extent) for extent in entry.get("dims", ()))
    return f"{str(entry.get('data_type', '')).removeprefix('TYPE_')} [{dims}]"


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
