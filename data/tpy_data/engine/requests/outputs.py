"""Outputs: from what a backend returned to what the caller asked for."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.config import ModelConfig
from tpy.errors import Internal
from tpy.messages import Tensor
from tpy_data.engine.admission.shapes import Reshape
from tpy_data.engine.requests.output_check import OutputCheck


class OutputSelection:
    """Keeps the requested outputs, in the configuration's order, with `reshape` undone.

    As in Triton, an output that the configuration does not name is dropped, one that the model did not make is missing from
    the answer, one that is listed twice is there once, and datatypes and shapes are the model's: only a shape that cannot be
    turned back is an error.
    """

    __slots__ = ("_check", "_model_name", "_names", "_only", "_reshapes")

    def __init__(self, config: ModelConfig) -> None:
        self._model_name = config.name
        self._check = OutputCheck(config)
        self._names = tuple(dict.fromkeys([entry.name for entry in config.output]))
        self._reshapes = {
            entry.name: Reshape(entry.dims, entry.reshape.shape, batching=config.max_batch_size > 0)
            for entry in config.output
            if entry.reshape is not None
        }
        self._only = self._names[0] if len(self._names) == 1 and not self._reshapes else None

    def select(self, outputs: Sequence[Tensor], requested: tuple[str, ...]) -> tuple[Tensor, ...]:
        """Raises Internal for an output whose reshape cannot be undone. `requested` empty means all."""
        self._check.look(outputs, requested)
        if self._only is not None and len(outputs) == 1 and outputs[0].name == self._only:
            return tuple(outputs)  # the usual case: one output, and a caller who names outputs names this one
        made = {tensor.name: tensor for tensor in outputs}
        found = [made[name] for name in self._names if name in made and (not requested or name in requested)]
        return tuple([self._to_caller(tensor) for tensor in found] if self._reshapes else found)

    def _to_caller(self, tensor: Tensor) -> Tensor:
        reshape = self._reshapes.get(tensor.name)
        if reshape is None:
            return tensor
        try:
            array = tensor.array.reshape(reshape.to_caller(tensor.array.shape))
        except ValueError as error:
            raise Internal(f"output '{tensor.name}' of model '{self._model_name}' cannot be returned: {error}") from error
        return Tensor(tensor.name, tensor.datatype, array)
