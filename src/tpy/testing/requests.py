"""Requests as backends see them, without an engine behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpy.backend import ExecutionBatch, ExecutionResult, PhaseTimes, ResponseSender, SequenceState
from tpy.config import ModelConfig
from tpy.messages import ParameterValue, RequestRecord, Residency, SequencePosition, Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """An ExecutionRequest made of plain values. `cancelled` answers `is_cancelled`."""

    inputs: Mapping[str, Tensor]
    batch_size: int = 1
    id: str = ""
    requested_outputs: tuple[str, ...] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    record: RequestRecord | None = None
    residency: Residency | None = None
    sequence: SequencePosition | None = None
    timeout_us: int = 0
    sender: ResponseSender | None = None
    state: SequenceState | None = None
    cancelled: Callable[[], bool] = lambda: False

    def is_cancelled(self) -> bool:
        return self.cancelled()


class RecordingSender:
    """A ResponseSender that keeps what a decoupled model sends. Any thread."""

    def __init__(self) -> None:
        self.sent: list[tuple[ExecutionResult | None, bool]] = []
        """Results with their `final` flags, in order."""
        self.finished = threading.Event()
        self.takes = True
        self.cancelled = False
        self._taken: Callable[[int], None] | None = None
        self._ended: Callable[[], None] | None = None

    def send(self, result: ExecutionResult | None, *, final: bool, wait: bool = True) -> None:
        """Keep one response; never waits. Raises ValueError after the final one."""
        if self.finished.is_set():
            raise ValueError("the final response was sent already")
        self.sent.append((result, final))
        if final:
            self.finished.set()
        elif self._taken is not None and self.takes:
            self._taken(1)

    def is_full(self) -> bool:
        """True when the test does not take what is sent."""
        return not self.takes

    def watch(self, taken: Callable[[int], None], ended: Callable[[], None]) -> None:
        """Tell `taken` of each response as long as `takes`, and `ended` when the test calls `cancel`."""
        self._taken, self._ended = taken, ended
        if self.cancelled:
            ended()

    def take(self, count: int) -> None:
        """Take responses that were not taken because `takes` was False."""
        if self._taken is not None:
            self._taken(count)

    def cancel(self) -> None:
        """Nobody waits any more."""
        self.cancelled = True
        if self._ended is not None:
            self._ended()


def request_of(
    config: ModelConfig,
    inputs: Mapping[str, Array],
    *,
    id: str = "",
    requested_outputs: tuple[str, ...] = (),
    sender: ResponseSender | None = None,
) -> SampleRequest:
    """A request with these arrays (in the model's shapes) as read-only views; datatypes are the configuration's.

    Raises KeyError for an input that the configuration does not list.
    """
    datatypes = {given.name: given.data_type for given in config.input}
    tensors = {name: Tensor(name, datatypes[name], _read_only(array)) for name, array in inputs.items()}
    sizes = [array.shape[0] for array in inputs.values() if array.ndim] if config.max_batch_size > 0 else []
    return SampleRequest(
        inputs=tensors,
        batch_size=max([1, *sizes[:1]]),
        id=id,
        requested_outputs=requested_outputs,
        sender=sender,
    )


def batch_of(requests: Sequence[SampleRequest]) -> ExecutionBatch:
    """The requests as one batch, with fresh times."""
    return ExecutionBatch(requests, PhaseTimes())


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
