"""An instance: gathers a batch into device memory, runs it, scatters what comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult, batching_of, drain, state_specs
from tpy.config import ModelConfig
from tpy.devices import Array, Bytes, Device, DeviceArray, Devices
from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.messages import MemoryType, Place, Tensor
from tpy_backends.tensorrt.buffers import Gathered, gathered
from tpy_backends.tensorrt.execution import EngineExecution, Produced
from tpy_backends.tensorrt.profiles import Shapes
from tpy_backends.tensorrt.signature import EngineSignature


class TensorRTInstance:
    """Runs in one thread. Everything of a batch is queued in one stream, and waited for once; its times tell the copies to and
    from the device as inference."""

    def __init__(
        self, execution: EngineExecution, signature: EngineSignature, devices: Devices, device: Device, config: ModelConfig
    ) -> None:
        """To be called in the instance's thread, with the device as the current one."""
        self._execution: EngineExecution | None = execution
        self._signature = signature
        self._devices = devices
        self._device = device
        self._config = config
        self._batches = config.max_batch_size > 0
        self._batching = batching_of(config)
        self._flat = bool(config.batch_input) or any(given.allow_ragged_batch for given in config.input)
        self._shape_inputs = frozenset(name for name, info in signature.inputs.items() if info.is_shape_tensor)
        self._states = tuple(spec.output_name for spec in state_specs(config))
        self._cut = frozenset(name for made in config.batch_output for name in made.target_name)
        self._served = frozenset((*(output.name for output in config.output), *self._states))
        on_host = self._flat or self._states or self._shape_inputs
        self.takes = frozenset() if on_host else frozenset({Place(MemoryType.GPU, device.id)})

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """One run for the whole batch. Raises TpyError: then every request of the batch fails; InstanceFailure when the device
        does."""
        execution = self._execution
        if execution is None:
            raise Internal("the instance was closed")
        requests = batch.requests
        with self._device.current():
            try:
                produced, staged = execution.run(self._gather(requests), self._shape_values(requests))
                batch.times.inputs_ready()
                copies = self._copy_out(execution, requests, produced)
                execution.stream.synchronize()
            except TpyError:
                drain(execution.stream, self._device.id)  # it uses memory that is about to be let go
                raise
            del staged
            execution.settle()
        batch.times.outputs_begin()
        rows = sum(request.batch_size for request in requests)
        return self._batching.scatter(requests, [self._tensor(name, array, rows) for name, array in copies.items()])

    def close(self) -> None:
        """Lets go of contexts, graphs and memory, whoever still holds this object."""
        if self._execution is not None:
            with self._device.current():
                self._execution.close()
            self._execution = None

    def _gather(self, requests: Sequence[ExecutionRequest]) -> dict[str, Gathered]:
        """All inputs but shape tensors, in the engine's order."""
        names = [name for name in self._signature.inputs if name not in self._shape_inputs]
        try:
            if self._flat:
                feed: Mapping[str, Array] = self._batching.gather(requests)
                return {name: gathered(name, [feed[name]]) for name in names}
            return {name: gathered(name, [request.inputs[name].array for request in requests]) for name in names}
        except KeyError as error:
            raise InvalidArgument(f"input {error} was not given, which the engine needs") from error

    def _shape_values(self, requests: Sequence[ExecutionRequest]) -> Shapes:
        """The values of shape tensors, which all requests of a batch have in common; with the size of the batch in front, where
        the model batches."""
        first = requests[0]
        front = (sum(request.batch_size for request in requests),) if self._batches else ()
        return {name: (*front, *map(int, first.inputs[name].array.ravel())) for name in self._shape_inputs}

    def _copy_out(
        self, execution: EngineExecution, requests: Sequence[ExecutionRequest], produced: Mapping[str, Produced]
    ) -> dict[str, Any]:
        """Queue copies of the outputs that somebody wants: to the host, or to memory of the device that is the request's."""
        wanted = _wanted(requests)
        made: dict[str, Any] = {}
        for name, output in produced.items():
            if name not in self._served or (wanted is not None and name not in wanted and name not in self._states):
                continue
            dtype = self._signature.outputs[name].datatype.numpy
            if output.values is not None:
                made[name] = output.values
                continue
            size = math.prod(output.shape) * dtype.itemsize
            if self._stays(name, requests):
                memory = self._devices.allocate(self._device.id, size)
                if size:
                    self._device.copy_within(memory.address, output.address, size, execution.stream)
                made[name] = DeviceArray(memory, output.shape, dtype)
            else:
                staging: Bytes = self._devices.pinned.allocate(size)
                if size:
                    self._device.copy_out(staging, output.address, execution.stream)
                made[name] = staging.view(dtype).reshape(output.shape)
        return made

    def _stays(self, name: str, requests: Sequence[ExecutionRequest]) -> bool:
        """True for an output that every request of the batch takes on the device."""
        return (
            name not in self._states
            and name not in self._cut
            and all(request.residency is not None and request.residency.keeps(name) for request in requests)
        )

    def _tensor(self, name: str, array: Any, rows: int) -> Tensor:
        """An output of the whole batch. One of a graph that had room to spare has rows behind those of the batch; the values of a
        shape tensor are the same in each row, and have the batch size in front."""
        info = self._signature.outputs[name]
        if info.is_shape_tensor:
            if self._batches and array.size:
                array = np.broadcast_to(array[1:], (rows, array.size - 1))
        elif self._batches and name not in self._cut and array.ndim and array.shape[0] > rows:
            array = array[:rows]
        return Tensor(name, info.datatype, array)


def _wanted(requests: Sequence[ExecutionRequest]) -> frozenset[str] | None:
    """The outputs that any of the requests asks for; None: all."""
    names: set[str] = set()
    for request in requests:
        if not request.requested_outputs:
            return None
        names.update(request.requested_outputs)
    return frozenset(names)
