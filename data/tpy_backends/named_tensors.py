"""An instance of a model that takes and gives tensors by name: gathers a batch, runs it, scatters what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from tpy.backend import (
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    ModelInstance,
    batching_of,
    state_specs,
)
from tpy.config import ModelConfig
from tpy.errors import Internal
from tpy.messages import DataType, Tensor
from tpy_backends.signature import Signature
from tpy_data.backends.states import ImplicitState, StatefulInstance

Array = np.ndarray[Any, Any]


class NamedProgram(Protocol):
    """A model of some framework, ready to run in one thread."""

    def run(self, feed: Mapping[str, Array], names: Sequence[str]) -> Sequence[Array]:
        """The outputs called `names`, in that order; arrays that nothing writes any more. BYTES are objects of type bytes, in
        and out. Raises TpyError."""
        ...

    def close(self) -> None:
        """Give back what it shares with others. Called once, by the instance's thread."""
        ...


class _Output(msgspec.Struct, frozen=True):
    datatype: DataType
    scalar_shape: tuple[int, ...]


def named_instance(
    program: NamedProgram, signature: Signature, config: ModelConfig, *, any_thread: bool = False
) -> ModelInstance:
    """An instance that runs the program, with implicit state where the configuration has one. `any_thread` is as
    `AnyThreadInstance.any_thread`."""
    instance = NamedInstance(program, signature, config, any_thread=any_thread)
    specs = state_specs(config)
    return StatefulInstance(instance, ImplicitState(specs, batching=config.max_batch_size > 0)) if specs else instance


class NamedInstance:
    """Lets go of the program when it is closed, whoever still holds this object."""

    def __init__(self, program: NamedProgram, signature: Signature, config: ModelConfig, *, any_thread: bool = False) -> None:
        self.any_thread = any_thread
        self._program: NamedProgram | None = program
        self._scalars = [name for name, info in signature.inputs.items() if info.shape == ()]
        self._outputs = {
            output.name: _Output(output.data_type, tuple(1 for _ in output.dims if output.reshape is None))
            for output in config.output
        }
        self._output_names = tuple(self._outputs)
        for spec in state_specs(config):
            self._outputs.setdefault(spec.output_name, _Output(spec.datatype, ()))
        batching = batching_of(config)
        self._gather, self._scatter = batching.gather, batching.scatter

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """One run for the whole batch. Raises TpyError with the framework's text: then every request of the batch fails."""
        program = self._program
        if program is None:
            raise Internal("the instance was closed")
        requests = batch.requests
        feed = self._gather(requests)
        for name in self._scalars:
            if name in feed:
                feed[name] = feed[name].reshape(())
        names = self._wanted(requests)
        batch.times.inputs_ready()
        arrays = program.run(feed, names)
        batch.times.outputs_begin()
        return self._scatter(requests, [self._output(name, array) for name, array in zip(names, arrays, strict=True)])

    def close(self) -> None:
        """As `ModelInstance`."""
        program, self._program = self._program, None
        if program is not None:
            program.close()

    def _wanted(self, requests: Sequence[ExecutionRequest]) -> tuple[str, ...]:
        """The outputs to fetch: those asked for when all requests ask for the same, else all."""
        wanted = requests[0].requested_outputs
        for request in requests:
            if request.requested_outputs != wanted:
                return tuple(self._outputs)
        return wanted or self._output_names

    def _output(self, name: str, array: Array) -> Tensor:
        declared = self._outputs[name]
        if array.dtype != declared.datatype.numpy:
            raise Internal(
                f"the model made output '{name}' of type {array.dtype}, its configuration says {declared.datatype.config_name}"
            )
        return Tensor(name, declared.datatype, array if array.ndim else array.reshape(declared.scalar_shape))
