"""An instance on a device: inputs are copied there by its own stream, or taken where they are, and outputs stay there when all
who want them take them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult, drain, gather_where_it_is, stays_on_device
from tpy.config import ModelConfig
from tpy.devices import Array, DeviceArray, Devices, Stream
from tpy.errors import Internal
from tpy.messages import DataType, MemoryType, Place, Tensor
from tpy_backends.onnxruntime.binding import Binding
from tpy_backends.onnxruntime.graphs import NO_CAPTURE, Graphs
from tpy_backends.onnxruntime.instance import OnnxInstance
from tpy_backends.onnxruntime.session import OnnxSession, RunOptions, to_runtime

_ASYNCHRONOUS = {"disable_synchronize_execution_providers": "1"}
"""A run returns when all its work is in the stream, not when it is done."""


class OnDevice(NamedTuple):
    """The place of an instance: a device, and the stream in which its session computes. `captures`: runs are CUDA graphs."""

    devices: Devices
    device_id: int
    stream: Stream
    captures: bool = False


class DeviceOnnxInstance(OnnxInstance):
    """As OnnxInstance, a `DeviceInstance`. Copies in, computing and copies out are queued one behind the other in one stream,
    which is waited for once."""

    def __init__(self, session: OnnxSession, config: ModelConfig, run_entries: Mapping[str, str], place: OnDevice) -> None:
        super().__init__(session, config, run_entries)
        self.takes = frozenset({Place(MemoryType.GPU, place.device_id)})
        self._session: OnnxSession | None = session
        self._place = place
        self._device = place.devices.get(place.device_id)
        entries = {**run_entries, **NO_CAPTURE} if place.captures else run_entries
        self._waiting = RunOptions(entries)
        self._asynchronous = RunOptions({**entries, **_ASYNCHRONOUS})
        self._graphs: Graphs | None = None
        if place.captures:
            self._graphs = Graphs(session, place.devices, place.device_id, {**run_entries, **_ASYNCHRONOUS})
        self._types = {name: each.datatype for name, each in self._inputs.items()}
        self._types.update((name, each.datatype) for name, each in self._outputs.items())

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """One run for the whole batch. Raises Internal with ONNX Runtime's text, Unavailable when the device has no memory: then
        every request of the batch fails; InstanceFailure when the device does."""
        requests = batch.requests
        session = self._session
        if session is None:
            raise Internal("the instance was closed")
        names = self._wanted(requests)
        staged: list[object] = []  # what the stream still reads or writes
        try:
            feed = self._stage(session, requests, staged)
            batch.times.inputs_ready()
            made = self._run_on_device(session, names, feed)
            batch.times.outputs_begin()
            staged.append(made)
            arrays = [self._fetched(name, array, requests, staged) for name, array in zip(names, made, strict=True)]
        finally:
            drain(self._place.stream, self._place.device_id)
        return self._scatter(requests, [self._tensor(name, array) for name, array in zip(names, arrays, strict=True)])

    def close(self) -> None:
        self._session = None
        self._graphs = None
        super().close()

    def _stage(
        self, session: OnnxSession, requests: Sequence[ExecutionRequest], staged: list[object]
    ) -> dict[str, Array | DeviceArray]:
        """The inputs of the batch, on the device, except what the model reads on the host."""
        feed = gather_where_it_is(requests, self._place.devices, self._place.device_id)
        for name, array in feed.items():
            expected = self._inputs[name]
            on_host = name in session.host_inputs
            if isinstance(array, DeviceArray):
                array = array.reshape(()) if expected.scalar else array
                feed[name] = to_runtime(array.to_host(), expected.datatype, scalar=expected.scalar) if on_host else array
            elif on_host:
                feed[name] = to_runtime(array, expected.datatype, scalar=expected.scalar)
            else:
                feed[name] = self._to_device(array.reshape(()) if expected.scalar else array, staged)
        return feed

    def _to_device(self, array: Array, staged: list[object]) -> DeviceArray:
        """Queue the copy, through memory that the device reads by itself."""
        devices = self._place.devices
        made = DeviceArray(devices.allocate(self._place.device_id, array.nbytes), array.shape, array.dtype)
        if array.nbytes:
            source = devices.pinned.allocate(array.nbytes)
            np.copyto(source.view(array.dtype).reshape(array.shape), array)
            staged.extend((source, made))
            self._device.copy_in(made.address, source, self._place.stream)
        return made

    def _run_on_device(
        self, session: OnnxSession, names: Sequence[str], feed: Mapping[str, Array | DeviceArray]
    ) -> list[Array | DeviceArray | None]:
        """The outputs, on the device, except what the model makes on the host."""
        on_device = [name not in session.host_outputs and self._outputs[name].datatype is not DataType.BYTES for name in names]
        inputs = {name: array for name, array in feed.items() if isinstance(array, DeviceArray)}
        graphs = self._graphs if all(on_device) and len(inputs) == len(feed) else None
        if graphs is not None:
            replayed = graphs.run(names, inputs, self._place.stream)
            if replayed is not None:
                return list(replayed)
        binding = Binding(session, self._device)
        for name, array in feed.items():
            binding.bind_input(name, self._inputs[name].datatype, array)
        for name, stays in zip(names, on_device, strict=True):
            binding.bind_output(name, self._outputs[name].datatype, on_device=stays)
        binding.run(self._asynchronous if all(on_device) else self._waiting)
        made = binding.outputs()
        if graphs is not None:
            graphs.add(names, inputs, made, self._types)
        return made

    def _fetched(
        self, name: str, array: Array | DeviceArray | None, requests: Sequence[ExecutionRequest], staged: list[object]
    ) -> Array | DeviceArray | None:
        """The output where it is wanted; a copy to the host is queued."""
        if not isinstance(array, DeviceArray) or stays_on_device(requests, name):
            return array
        target = self._place.devices.pinned.allocate(array.nbytes)
        staged.append(target)
        return array.to_host(target, self._place.stream)

    def _tensor(self, name: str, array: Array | DeviceArray | None) -> Tensor:
        if not isinstance(array, DeviceArray):
            return self._output(name, array)
        declared = self._outputs[name]
        shaped = array if array.ndim else array.reshape(declared.scalar_shape)
        return Tensor(name, declared.datatype, shaped.as_array())
