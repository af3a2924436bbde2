"""An instance: gathers a batch, runs the session, scatters what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult, batching_of
from tpy.config import ModelConfig
from tpy.errors import Internal
from tpy.messages import DataType, Tensor
from tpy_backends.onnxruntime.session import Array, OnnxSession, RunOptions, from_runtime, to_runtime

_Run = Callable[[Sequence[str], Mapping[str, Array], RunOptions], list[Array | None]]


class _Input(msgspec.Struct, frozen=True):
    datatype: DataType
    scalar: bool


class _Output(msgspec.Struct, frozen=True):
    datatype: DataType
    scalar_shape: tuple[int, ...]


class OnnxInstance:
    """Owns nothing but its run options: the session belongs to the loaded model, and may be run in any thread."""

    def __init__(self, session: OnnxSession, config: ModelConfig, run_entries: Mapping[str, str]) -> None:
        accelerators = config.optimization.execution_accelerators if config.optimization is not None else None
        # Operators of others may do anything, accelerators use other devices.
        self.any_thread = config.model_operations is None and accelerators is None
        signature = session.signature
        declared = {**signature.inputs, **signature.initializers}
        self._inputs = {name: _Input(info.datatype, not info.shape) for name, info in declared.items()}
        self._outputs = {
            output.name: _Output(output.data_type, output.dims if output.reshape is None else output.reshape.shape)
            for output in config.output
        }
        self._output_names = tuple(self._outputs)
        batching = batching_of(config)
        self._gather, self._scatter = batching.gather, batching.scatter
        self._options = RunOptions(run_entries)
        bfloat16 = any(info.datatype is DataType.BF16 for info in (*declared.values(), *signature.outputs.values()))
        self._run: _Run = session.run_values if bfloat16 else session.run

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """One run for the whole batch. Raises Internal with ONNX Runtime's text: then every request of the batch fails."""
        requests = batch.requests
        feed = self._feed(requests)
        names = self._wanted(requests)
        batch.times.inputs_ready()
        arrays = self._run(names, feed, self._options)
        batch.times.outputs_begin()
        outputs = [self._output(name, array) for name, array in zip(names, arrays, strict=True)]
        return self._scatter(requests, outputs)

    def close(self) -> None:
        self._run = _closed  # lets go of the session, whoever still holds this object

    def _feed(self, requests: Sequence[ExecutionRequest]) -> dict[str, Array]:
        """The inputs of the batch as ONNX Runtime takes them."""
        feed = self._gather(requests)
        for name, array in feed.items():
            expected = self._inputs[name]
            feed[name] = to_runtime(array, expected.datatype, scalar=expected.scalar)
        return feed

    def _wanted(self, requests: Sequence[ExecutionRequest]) -> tuple[str, ...]:
        """The outputs to fetch: those asked for when all requests ask for the same, else all."""
        wanted = requests[0].requested_outputs
        for request in requests:
            if request.requested_outputs != wanted:
                return self._output_names
        return wanted or self._output_names

    def _output(self, name: str, array: Array | None) -> Tensor:
        if array is None:
            raise Internal(f"output tensor '{name}' is not found")
        declared = self._outputs[name]
        return Tensor(name, declared.datatype, from_runtime(array, declared.datatype, scalar_shape=declared.scalar_shape))


def _closed(output_names: Sequence[str], feed: Mapping[str, Array], options: RunOptions) -> list[Array | None]:
    raise Internal("the instance was closed")
