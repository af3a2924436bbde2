"""One infer request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpy.errors import Internal
from tpy.messages import DataType
from tpy_data.backends.named_tensors import Array
from tpy_data.backends.openvino.network import Network, failure
from tpy_data.backends.openvino.tensors import from_runtime, from_strings, to_runtime


class InferRequest:
    """A `NamedProgram`. Variables of the network (its state between runs) are reset before each run: one run has requests of
    many callers."""

    def __init__(self, compiled: Any, network: Network, *, pads: bool) -> None:
        """Raises Internal."""
        try:
            self._request = compiled.create_infer_request()
            self._remembers = bool(self._request.query_state())
        except Exception as error:
            raise failure("failed to create an infer request", error) from error
        self._inputs = network.input_indices
        self._outputs = {
            name: (index, network.signature.outputs[name].datatype) for name, index in network.output_indices.items()
        }
        self._lends = all(datatype is not DataType.BYTES for _, datatype in self._outputs.values())  # strings it only copies
        self._fixed_batch = network.fixed_batch
        self._pads = pads

    def run(self, feed: Mapping[str, Array], names: Sequence[str]) -> Sequence[Array]:
        """As `NamedProgram`."""
        rows = self._fixed_batch
        if rows is not None:
            rows = next((array.shape[0] for array in feed.values()), rows)
            feed = self._filled(feed, rows)
        inputs = self._inputs
        try:
            if self._remembers:
                self._request.reset_state()
            values = {inputs[name]: to_runtime(array) for name, array in feed.items()}
            made = self._request.infer(values, share_inputs=True, share_outputs=self._lends, decode_strings=False)
            arrays = [
                from_strings(self._request.get_output_tensor(index))
                if datatype is DataType.BYTES
                else from_runtime(made[index], datatype)
                for index, datatype in map(self._outputs.__getitem__, names)
            ]
        except Exception as error:
            raise failure("running inference", error) from error
        return arrays if rows is None else [array[:rows] for array in arrays]

    def close(self) -> None:
        """As `NamedProgram`: the request is the instance's alone, and the compiled model is the model's."""

    def _filled(self, feed: Mapping[str, Array], rows: int) -> Mapping[str, Array]:
        """The batch with rows of zeros behind it, where the model takes batches of one size only."""
        size = self._fixed_batch or rows
        if rows == size:
            return feed
        if not self._pads:
            raise Internal(
                f"expected requests with batch size '{size}', got '{rows}'... this error can be avoided by setting "
                "'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
            )
        return {
            name: np.concatenate([array, np.zeros((size - rows, *array.shape[1:]), array.dtype)]) for name, array in feed.items()
        }
