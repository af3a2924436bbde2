"""An instance of a model with implicit state: feeds what each sequence's last execution left, and keeps what this one leaves.

A state stays as ONNX Runtime gave it until it is fed again: a sequence that runs alone has its state copied nowhere. In a batch,
states are joined before and cut after the run, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult, StateSpec, state_specs
from tpy.config import ModelConfig
from tpy.errors import Internal, TpyError
from tpy_backends.onnxruntime.instance import OnnxInstance
from tpy_backends.onnxruntime.session import Array, OnnxSession, to_runtime
from tpy_data.backends.states import state_of


class _Kept(dict[str, Array]):
    """States in ONNX Runtime's form, which tells them from the initial ones."""


class StatefulOnnxInstance(OnnxInstance):
    """As OnnxInstance. Requests whose states differ in shape are run apart."""

    def __init__(self, session: OnnxSession, config: ModelConfig, run_entries: Mapping[str, str]) -> None:
        super().__init__(session, config, run_entries)
        self._specs = state_specs(config)
        self._kept_names = tuple(spec.output_name for spec in self._specs)
        self._joins = config.max_batch_size > 0
        self._variable = any(-1 in spec.dims for spec in self._specs)

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """One run for requests with states of equal shapes. A run that fails leaves the states of its requests as they were.

        Raises Internal with ONNX Runtime's text when there is only one run."""
        requests = batch.requests
        groups = self._groups(requests)
        if len(groups) == 1:
            return self._run_group(batch, requests)
        results: list[ExecutionResult] = [ExecutionResult()] * len(requests)
        for positions in groups:
            members = [requests[position] for position in positions]
            try:
                done = self._run_group(batch, members)
            except TpyError as error:
                done = [ExecutionResult(error=error)] * len(members)
            for position, result in zip(positions, done, strict=True):
                results[position] = result
        return results

    def _groups(self, requests: Sequence[ExecutionRequest]) -> list[list[int]]:
        """Positions of the requests that can be joined."""
        if not self._variable or len(requests) == 1:
            return [list(range(len(requests)))]
        groups: dict[object, list[int]] = {}
        for position, request in enumerate(requests):
            values = self._values(request)
            groups.setdefault(tuple([values[spec.input_name].shape for spec in self._specs]), []).append(position)
        return list(groups.values())

    def _run_group(self, batch: ExecutionBatch, requests: Sequence[ExecutionRequest]) -> Sequence[ExecutionResult]:
        feed = self._feed(requests)
        values = [self._values(request) for request in requests]
        for spec in self._specs:
            name = spec.input_name
            rows = [value[name] for value in values]
            feed[name] = rows[0] if len(rows) == 1 else np.concatenate(rows)
        wanted = self._wanted(requests)
        names = list(dict.fromkeys((*wanted, *self._kept_names)))  # a state may be an output as well, for people to look at
        batch.times.inputs_ready()
        arrays = dict(zip(names, self._run(names, feed, self._options), strict=True))
        batch.times.outputs_begin()
        results = list(self._scatter(requests, [self._output(name, arrays[name]) for name in wanted]))
        self._keep(requests, [arrays[name] for name in self._kept_names], results)
        return results

    def _values(self, request: ExecutionRequest) -> Mapping[str, Array]:
        """A request's states in ONNX Runtime's form."""
        values = state_of(request).values
        if type(values) is _Kept:
            return values
        initial = cast("Mapping[str, Array]", values)
        return {
            spec.input_name: to_runtime(initial[spec.input_name], spec.datatype, scalar=self._inputs[spec.input_name].scalar)
            for spec in self._specs
        }

    def _keep(self, requests: Sequence[ExecutionRequest], arrays: Sequence[Array | None], results: list[ExecutionResult]) -> None:
        """Hang what the model returned on the requests' sequences. A request with a state that does not fit gets an error in
        place of its result, and keeps its states."""
        columns = [self._cut(spec, array, len(requests)) for spec, array in zip(self._specs, arrays, strict=True)]
        for position, request in enumerate(requests):
            kept = _Kept()
            try:
                for spec, column in zip(self._specs, columns, strict=True):
                    row = column[position]
                    if not self._inputs[spec.input_name].scalar:
                        spec.require_fits(spec.datatype, row.shape, batching=self._joins)
                    kept[spec.input_name] = row
            except Internal as error:
                results[position] = ExecutionResult(error=error)
            else:
                state_of(request).values = kept

    def _cut(self, spec: StateSpec, array: Array | None, count: int) -> Sequence[Array]:
        """One array per request. Rows are copied: a view would keep the states of the whole batch alive."""
        if array is None:
            raise Internal(f"state output tensor '{spec.output_name}' is not found")
        if count == 1:
            return [array]
        if array.ndim == 0 or array.shape[0] != count:
            raise Internal(
                f"state '{spec.output_name}' was returned with shape {list(array.shape)}, expected first dimension {count}: the "
                "batch size"
            )
        return [array[row : row + 1].copy() for row in range(count)]
