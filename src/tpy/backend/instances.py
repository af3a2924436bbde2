"""The optional parts of a ModelInstance: tensors on devices, several batches at a time, a queue, a readiness
check, an end that can be watched. And what instances that take tensors where they are need to gather a batch of those."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from tpy.backend.contract import InstanceFailure
from tpy.backend.execution import ExecutionBatch, ExecutionRequest, ExecutionResult
from tpy.devices import Array, DeviceArray, Devices, Stream
from tpy.errors import TpyError
from tpy.messages import Place

if TYPE_CHECKING:
    from tpy.backend.engine import EngineLimits


@runtime_checkable
class DeviceInstance(Protocol):
    """A ModelInstance may have this as well: one that takes tensors on devices, whose `array` is a `tpy.devices.DeviceArray`. All
    others get copies in host memory. Whatever an instance takes, an output may stay on a device only where its request's
    `residency` says so (`stays_on_device`)."""

    @property
    def takes(self) -> frozenset[Place]:
        """The places of inputs, beside the host's memory, that it takes. It is read once, when the instance is made."""
        ...


def gather_where_it_is(requests: Sequence[ExecutionRequest], devices: Devices, device_id: int) -> dict[str, Array | DeviceArray]:
    """As `gather`, for an instance that takes tensors of this device: an input that is there in any request is joined there, and
    is ready when this returns; all others in host memory. A batch of one is not copied."""
    feed: dict[str, Array | DeviceArray] = {}
    for name, first in requests[0].inputs.items():
        if len(requests) == 1:
            feed[name] = first.array
            continue
        arrays: list[Any] = [request.inputs[name].array for request in requests]
        if any(isinstance(array, DeviceArray) for array in arrays):
            feed[name] = devices.concatenate(arrays, device_id)
        else:
            feed[name] = np.concatenate(arrays)
    return feed


def stays_on_device(requests: Sequence[ExecutionRequest], output: str) -> bool:
    """Returns whether this output of the batch may be left on the device: all who get a part of it take it there."""
    return all(request.residency is not None and request.residency.keeps(output) for request in requests)


def drain(stream: Stream, device_id: int) -> None:
    """Wait for what is queued. Raises InstanceFailure when the device fails: nothing can be run there any more."""
    try:
        stream.synchronize()
    except TpyError as error:
        raise InstanceFailure(f"GPU {device_id} failed: {error.message}") from error


@runtime_checkable
class AnyThreadInstance(Protocol):
    """A ModelInstance may have this as well: one that only computes, in host memory."""

    @property
    def any_thread(self) -> bool:
        """Returns whether `execute` may be called on any thread, one call at a time: it asks nothing of the server, runs no code
        of a user's, and inputs of the same size take about the same time. The server may call it on its loop then, when most
        took at most QUICK_BATCHES_NS_MAX. It is read once, when the instance is made."""
        ...


@runtime_checkable
class HasHostMemory(Protocol):
    """A ModelInstance may have this as well: one in a separate process does. Of others the growth of this process counts."""

    def host_memory_bytes(self) -> int:
        """Returns its memory on the host, now; 0 when that cannot be known. Called in the instance's thread when it has been made
        and warmed up; then about once a minute in another one, also beside `execute`, and after `close`."""
        ...


@runtime_checkable
class HasProcess(Protocol):
    """An instance in a separate process (`HasHostMemory`) may have this as well: its memory on GPUs is looked up by the id."""

    @property
    def pid(self) -> int | None:
        """The id of the process; None once it has ended."""
        ...


@runtime_checkable
class GivesMemoryBack(Protocol):
    """An instance in a separate process (`HasHostMemory`) may have this as well: one that keeps memory for its next batches."""

    def give_memory_back(self) -> None:
        """Give the system what is not in use. Called when the server has had no requests for a minute or two, in another thread,
        maybe beside `execute` and after `close`."""
        ...


@runtime_checkable
class OverlappingInstance(Protocol):
    """A ModelInstance may have this as well: one that copies a batch to its device while it computes another one does."""

    @property
    def credit(self) -> int:
        """The number of batches that a dynamic batcher should give it at a time, at least 1. It is read once, when the instance
        is made."""
        ...


@runtime_checkable
class LimitedInstance(Protocol):
    """A ModelInstance may have this as well: that of an engine, which is given no more than it has room for."""

    @property
    def engine_limits(self) -> EngineLimits | None:
        """The room of the engine; None for an instance that is not an engine's."""
        ...


class StepHost(Protocol):
    """The process around an instance that computes in steps."""

    def is_quiet(self) -> bool:
        """Returns True when it has handled all that has come. Any thread; takes microseconds."""
        ...

    def sending_together(self) -> AbstractContextManager[None]:
        """The responses that this thread sends inside are sent when it leaves, or before."""
        ...

    def limit_step(self, seconds: float) -> None:
        """A step begins, and the process is ended if it takes so long, also where it holds the GIL; 0: it is over."""
        ...


@runtime_checkable
class HostedSteps(Protocol):
    """A ModelInstance may have this as well: one with a thread that computes in steps, and may hold the GIL in each."""

    def step_in(self, host: StepHost) -> None:
        """From now on it lets the host take what has come before a step, and sends together what a step brings. Called once."""
        ...


Outcome = Sequence[ExecutionResult] | TpyError
"""The end of a batch: one result per request, in order, or an error for all of them."""


class BatchListener(Protocol):
    """Is told what becomes of batches. Any thread; must not block."""

    def completed(self, batch: Any, outcome: Outcome, following: Any) -> None:
        """The oldest batch that the instance held is completed; all four of its times are set. It turns to `following`, None if
        it holds no more."""
        ...

    def failed(self, failure: InstanceFailure, held: Sequence[Any]) -> None:
        """Nothing can be executed any more, while the instance held these. The failure is what became of the oldest, if there is
        one; those behind it were not started (with `begun` False, nor was that one)."""
        ...

    def settled(self) -> None:
        """That is all for the moment; others may be begun if no batch is open."""
        ...


@runtime_checkable
class QueuedInstance(Protocol):
    """A ModelInstance may have this as well. Nothing here blocks. While batches are open there is no `execute`.

    `held` are the batches that were begun, and are neither completed nor revoked, in order. Another thread may take from it.
    """

    held: deque[Any]

    @property
    def is_busy(self) -> bool:
        """True while it holds batches, or has not confirmed a revocation."""
        ...

    @property
    def end_reason(self) -> str:
        """As `WatchedInstance`."""
        ...

    def begin(self, batches: Sequence[ExecutionBatch], listener: BatchListener) -> int:
        """Have the first of these batches executed, one after the other. Returns how many of them. It is not busy now, unless
        it is an engine's. 0: the instance has failed, which the listener is not told."""
        ...

    def revoke(self) -> Sequence[Any]:
        """Start nothing more. Returns the last of the batches that it holds, which are thereby not started."""
        ...

    def check(self) -> float:
        """Look whether the instance still lives, and whether it takes longer than it may. Returns after how many seconds to look
        again, while a batch is open."""
        ...


@runtime_checkable
class ChecksReadiness(Protocol):
    """A ModelInstance may have this as well."""

    @property
    def has_readiness_check(self) -> bool:
        """Returns True if the model has a readiness check."""
        ...

    def check_ready(self, timeout_s: float) -> bool:
        """Returns True if the model would serve a request well. Called in a thread of the server's, beside `execute`, one call
        at a time.

        False, with a log line, when it cannot be known within `timeout_s`. After `close` it must still return.
        """
        ...


@runtime_checkable
class WatchedInstance(Protocol):
    """A ModelInstance may have this as well: one in a separate process does. It is replaced as soon as it has ended."""

    @property
    def end_reason(self) -> str:
        """The reason for which it can run nothing any more, for logs and for the index of models."""
        ...

    def end_fileno(self) -> int:
        """A descriptor that is readable from the moment that the instance can run nothing any more, whatever else it is doing.
        Valid until `close`. -1: this one cannot be watched."""
        ...


@runtime_checkable
class ShowsStack(Protocol):
    """An instance that can say where its model is, in the log."""

    def show_stack(self) -> None:
        """Have the stacks of its threads written into the log. Returns at once; any thread."""
        ...
