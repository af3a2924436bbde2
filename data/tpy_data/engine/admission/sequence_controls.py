"""SequenceControls: the control tensors of a sequence model (`sequence_batching.control_input`). Pure.

They are inputs of the model that the server makes: nobody may send them, and no description names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpy.backend import control_datatype
from tpy.config import ModelConfig
from tpy.config.model_config import ControlKind, SequenceControl
from tpy.errors import InvalidArgument
from tpy.messages import DataType, SequencePosition, Tensor

_UINT64_MASK = 2**64 - 1


class SequenceControls:
    """Each control is one value: shape [1], or [1, 1] when the model batches. All but the correlation id are made once."""

    __slots__ = ("_correlation_id", "_flags", "_idle", "_model_name", "_shape")

    def __init__(self, config: ModelConfig) -> None:
        batching = config.sequence_batching
        self._model_name = config.name
        self._shape = (1, 1) if config.max_batch_size > 0 else (1,)
        self._correlation_id: tuple[str, DataType] | None = None
        self._flags: dict[tuple[bool, bool], dict[str, Tensor]] = {}
        self._idle: dict[str, Tensor] = {}
        pairs: dict[ControlKind, list[tuple[Tensor, Tensor]]] = {}
        for entry in batching.control_input if batching is not None else ():
            for control in entry.control:
                if control.kind is ControlKind.CONTROL_SEQUENCE_CORRID:
                    self._correlation_id = (entry.name, control.data_type)
                else:
                    pairs.setdefault(control.kind, []).append(self._pair(entry.name, control))
        for start in (False, True):
            for end in (False, True):
                self._flags[start, end] = _chosen(pairs, start=start, end=end, ready=True)
        self._idle = _chosen(pairs, start=False, end=False, ready=False)
        if self._correlation_id is not None:
            name, datatype = self._correlation_id
            self._idle[name] = self._tensor(name, datatype, b"" if datatype is DataType.BYTES else 0)

    @property
    def idle(self) -> Mapping[str, Tensor]:
        """The controls of an empty place in a batch."""
        return self._idle

    def fit(self, position: SequencePosition) -> bool:
        """True when the model can be given the id."""
        return (
            not isinstance(position.correlation_id, str)
            or self._correlation_id is None
            or self._correlation_id[1] is DataType.BYTES
        )

    def of(self, position: SequencePosition) -> dict[str, Tensor]:
        """The controls of a request; a new dictionary. Raises InvalidArgument for an id that the model cannot be given.

        A number too large for the control's type is cut to its low bits, as in Triton; for a control of strings a number is
        written out.
        """
        controls = self._flags[position.start, position.end].copy()
        if self._correlation_id is None:
            return controls
        name, datatype = self._correlation_id
        given = position.correlation_id
        if datatype is DataType.BYTES:
            controls[name] = self._tensor(name, datatype, str(given).encode())
        elif isinstance(given, str):
            raise InvalidArgument(
                f"sequence batching control '{name}' data-type is '{DataType.BYTES.value}', "
                f"but model '{self._model_name}' expects '{datatype.value}'"
            )
        else:
            controls[name] = self._tensor(name, datatype, given)
        return controls

    def flags(self, *, start: bool, end: bool) -> Mapping[str, Tensor]:
        """START, END and READY alone, of a request that stands there in its sequence."""
        return self._flags[start, end]

    def _tensor(self, name: str, datatype: DataType, value: bytes | int) -> Tensor:
        array: np.ndarray[Any, Any]
        if isinstance(value, bytes):
            array = np.empty(1, dtype=object)
            array[0] = value
        else:
            array = np.array([value & _UINT64_MASK], dtype=np.uint64).astype(datatype.numpy)
        return Tensor(name, datatype, array.reshape(self._shape))

    def _pair(self, name: str, control: SequenceControl) -> tuple[Tensor, Tensor]:
        """The tensors for false and for true."""
        values = control.fp32_false_true or control.bool_false_true or control.int32_false_true
        datatype = control_datatype(control)
        no, yes = (Tensor(name, datatype, np.full(self._shape, value, datatype.numpy)) for value in values)
        return no, yes


def _chosen(
    pairs: Mapping[ControlKind, list[tuple[Tensor, Tensor]]], *, start: bool, end: bool, ready: bool
) -> dict[str, Tensor]:
    wanted = {
        ControlKind.CONTROL_SEQUENCE_START: start,
        ControlKind.CONTROL_SEQUENCE_END: end,
        ControlKind.CONTROL_SEQUENCE_READY: ready,
    }
    return {pair[0].name: pair[1] if wanted[kind] else pair[0] for kind, given in pairs.items() for pair in given}
