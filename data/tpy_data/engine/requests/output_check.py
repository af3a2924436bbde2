"""OutputCheck: warns of outputs that are not what the configuration says, once for each kind."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tpy.config import ModelConfig
from tpy.echo import echo, echo_list
from tpy.messages import DataType, Tensor
from tpy_data.engine.admission.shapes import Dims, fits

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
    """Of one model version. On the Trio thread. Nothing is changed by it: as in Triton, outputs are the model's."""

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
                    self._report(_MISSING, _quoted(missing), f"it has {_quoted(sorted(made))}" if made else "it has none")

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
