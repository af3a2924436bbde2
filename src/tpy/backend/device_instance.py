"""Instances that take tensors where they are, and what they need to gather a batch of those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tpy.backend.contract import InstanceFailure
from tpy.backend.execution import ExecutionRequest
from tpy.devices import Array, DeviceArray, Devices, Stream
from tpy.errors import TpyError
from tpy.messages import Place


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
