"""Outputs: from what a backend returned to what the caller asked for. OutputCheck: warns of outputs that are not what the
configuration says, once for each kind."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tpy.config import ModelConfig
from tpy.echo import echo, echo_list
from tpy.errors import Internal
from tpy.messages import DataType, Tensor
from tpy_data.engine.admission.shapes import Dims, Reshape, fits


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


_log = logging.getLogger(__name__)

_MISSING = "a response of model '%(model)s' lacks %(found)s, which its configuration names (%(made)s); logged once"
_UNKNOWN = "a response of model '%(model)s' has %(found)s, which its configuration does not name: dropped; logged once"
_DATATYPE = (
    "output %(found)s of model '%(model)s' is %(made)s, its configuration says %(expected)s: clients get it as it is; logged once"
)
_SHAPE = (
    "output %(found)s of model '%(model)s' has the shape %(made)s, its configuration says %(expected)s: clients get it as it is; "
    "logged once"
)


class OutputCheck:
    """Compares the outputs of one model version with its configuration, and logs what differs. On the Trio thread. It changes
    nothing: as in Triton, outputs are the model's."""

    __slots__ = ("_decoupled", "_expected", "_good", "_model", "_others", "_reported")

    def __init__(self, config: ModelConfig) -> None:
        batch: Dims = (-1,) if config.max_batch_size > 0 else ()
        free = {name for entry in config.batch_output for name in entry.target_name}
        self._model = config.name
        self._decoupled = config.decoupled
        self._expected: dict[str, tuple[DataType, Dims | None]] = {
            entry.name: (
                entry.data_type,
                None if entry.name in free else batch + (entry.dims if entry.reshape is None else entry.reshape.shape),
            )
            for entry in config.output
        }
        states = () if config.sequence_batching is None else config.sequence_batching.state
        self._others = frozenset(state.output_name for state in states)
        self._good: dict[str, tuple[DataType, Dims]] = {}
        """The datatype and shape that were found right last, by name: nearly always the next ones are the same."""
        self._reported: set[str] = set()

    def look(self, outputs: Sequence[Tensor], requested: tuple[str, ...]) -> None:
        """At the outputs of one response, as the model made them; `requested` empty means all."""
        good = self._good
        for tensor in outputs:
            known = good.get(tensor.name)
            if known is None or known[0] is not tensor.datatype or known[1] != tensor.array.shape:
                self._look_at(tensor)
        if not self._decoupled and _MISSING not in self._reported:
            wanted = requested or self._expected
            if len(outputs) < len(wanted):
                made = {tensor.name for tensor in outputs}
                missing = [name for name in wanted if name not in made]
                if missing:
                    self._report(_MISSING, _quoted(missing), f"it has {_quoted(sorted(made))}" if made else "it has no outputs")

    def _look_at(self, tensor: Tensor) -> None:
        expected = self._expected.get(tensor.name)
        if expected is None:
            if tensor.name not in self._others:
                self._report(_UNKNOWN, _quoted([tensor.name]))
            return
        datatype, dims = expected
        if tensor.datatype is not datatype:
            self._report(_DATATYPE, _quoted([tensor.name]), tensor.datatype.value, datatype.value)
        elif dims is not None and not (fits(tensor.array.shape, dims) or _leaves_out_one(tensor.array.shape, dims)):
            self._report(_SHAPE, _quoted([tensor.name]), _shown(tensor.array.shape), _shown(dims))
        else:
            self._good[tensor.name] = (datatype, tensor.array.shape)

    def _report(self, text: str, found: str, made: str = "", expected: str = "") -> None:
        if text not in self._reported:
            self._reported.add(text)
            _log.warning(text, {"model": self._model, "found": found, "made": made, "expected": expected})


def _quoted(names: Sequence[str]) -> str:
    return echo_list((f"'{echo(name)}'" for name in names), ", ")


def _leaves_out_one(shape: Dims, dims: Dims) -> bool:
    """True for outputs without their last size, which is 1: those of Triton's fil backend, and of ours."""
    return dims[-1:] == (1,) and fits(shape, dims[:-1])


def _shown(shape: Dims) -> str:
    return f"[{','.join(map(str, shape))}]"
