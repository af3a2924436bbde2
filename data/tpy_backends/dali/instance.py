"""An instance: the samples of a batch's requests go through one pipeline, and its outputs back to the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult
from tpy.config import ModelConfig
from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.messages import DataType, Tensor
from tpy_backends.dali.pipeline import Array, Pipeline, Samples
from tpy_backends.dali.settings import DaliModelSettings


class _Output(NamedTuple):
    name: str
    splits: bool


class DaliInstance:
    """A ModelInstance. The requests of a batch run together; where that fails, each by itself, so that one that cannot be decoded
    costs the others nothing. A decoupled model runs one request at a time, and answers as often as its pipeline gives
    something."""

    def __init__(self, pipeline: Pipeline, config: ModelConfig, settings: DaliModelSettings) -> None:
        self._pipeline = pipeline
        self._decoupled = config.decoupled
        self._outputs = [_Output(each.name, each.name in settings.split) for each in config.output]

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """As `ModelInstance`."""
        if self._decoupled:
            for request in batch.requests:
                self._send_all(request)
            return ()
        try:
            return self._run(batch.requests, batch.times.inputs_ready, batch.times.outputs_begin)
        except TpyError as error:
            if len(batch.requests) == 1:
                return [ExecutionResult(error=error)]
        return [self._run_alone(request) for request in batch.requests]

    def close(self) -> None:
        """As `ModelInstance`."""
        self._pipeline.close()

    def _run_alone(self, request: ExecutionRequest) -> ExecutionResult:
        try:
            return self._run([request])[0]
        except TpyError as error:
            return ExecutionResult(error=error)

    def _run(
        self,
        requests: Sequence[ExecutionRequest],
        inputs_ready: Callable[[], None] = lambda: None,
        outputs_begin: Callable[[], None] = lambda: None,
    ) -> list[ExecutionResult]:
        rows = self._feed(requests)
        inputs_ready()
        made = self._pipeline.run()
        if not self._pipeline.consumed:
            self._pipeline.close()
            raise Internal(
                "the pipeline gives several outputs for one input: set max_batch_size: 0 and "
                "model_transaction_policy { decoupled: true }"
            )
        outputs_begin()
        return self._results(made, rows)

    def _send_all(self, request: ExecutionRequest) -> None:
        """Answers the request until its inputs are used up."""
        sender = request.sender
        if sender is None:
            raise Internal("a request of a decoupled model has no sender")
        try:
            rows = self._feed([request])
            while not self._pipeline.consumed:
                made = self._pipeline.run()
                # Each answer is what the pipeline gave, however many samples that is.
                result = self._results(made, [len(made[0].shapes)] if made else rows)[0]
                sender.send(result, final=self._pipeline.consumed)
                if request.is_cancelled() and not self._pipeline.consumed:
                    self._pipeline.close()
                    sender.send(None, final=True)
        except TpyError as error:
            sender.send(ExecutionResult(error=error), final=True)

    def _feed(self, requests: Sequence[ExecutionRequest]) -> list[int]:
        """Feed the inputs of all; the number of samples of each. Raises InvalidArgument, Internal."""
        feed = {}
        rows: list[int] = []
        for name in requests[0].inputs:
            tensors = [request.inputs[name] for request in requests]
            parts = [list(_samples_of(tensor)) for tensor in tensors]
            counts = [len(part) for part in parts]
            if rows and counts != rows:
                raise InvalidArgument("Each input in a request must have the same batch size.")
            rows = counts
            datatype = tensors[0].datatype
            feed[name] = (
                DataType.UINT8 if datatype is DataType.BYTES else datatype,
                [sample for part in parts for sample in part],
            )
        rows_max = self._pipeline.max_batch_size
        if not 0 < sum(rows) <= rows_max:
            raise InvalidArgument(f"the pipeline takes batches of 1 to {rows_max} samples, got {sum(rows)}")
        self._pipeline.feed(feed)
        return rows

    def _results(self, made: Sequence[Samples], rows: Sequence[int]) -> list[ExecutionResult]:
        """Raises Internal for outputs that have more or fewer samples than the requests."""
        per_request: list[list[Tensor]] = [[] for _ in rows]
        for output, samples in zip(self._outputs, made, strict=True):
            if len(samples.shapes) != sum(rows):
                raise Internal(
                    f"Cannot split a shape list with {len(samples.shapes)} samples to list shapes of total {sum(rows)} samples."
                )
            for tensors, array in zip(per_request, _cut(output, samples, rows), strict=True):
                tensors.append(Tensor(output.name, samples.datatype, array))  # as Triton, whatever the configuration says
        return [ExecutionResult(tensors) for tensors in per_request]


def _samples_of(tensor: Tensor) -> Iterator[Array]:
    """The rows of an array; of strings, the bytes of each."""
    array: Any = tensor.array
    if tensor.datatype is DataType.BYTES:
        return (np.frombuffer(text, np.uint8) for text in array.ravel().tolist())
    return iter(array if array.flags.c_contiguous else np.ascontiguousarray(array))


def _cut(output: _Output, samples: Samples, rows: Sequence[int]) -> Iterator[Array]:
    """Each request's part. Raises Internal for samples of one request that differ in shape."""
    sizes = samples.shapes.prod(axis=1) if samples.shapes.shape[1] else np.ones(len(samples.shapes), np.int64)
    row = element = 0
    for count in rows:
        shapes = samples.shapes[row : row + count]
        size = int(sizes[row : row + count].sum())
        part = samples.flat[element : element + size]
        row, element = row + count, element + size
        inner = shapes[:, 1:] if output.splits else shapes
        if (inner != inner[0]).any():
            texts = ", ".join(str(shape) for shape in np.unique(inner, axis=0).tolist())
            raise Internal(
                f"the samples of a request differ in shape in output '{output.name}' ({texts}): a tensor has one shape for all; "
                "resize or pad them in the pipeline, or send one sample in a request"
            )
        if output.splits:
            yield part.reshape(int(shapes[:, 0].sum()), *inner[0].tolist())
        else:
            yield part.reshape(count, *inner[0].tolist())
