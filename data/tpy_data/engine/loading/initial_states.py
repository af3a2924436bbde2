"""InitialStates: what the state of a new sequence is, read when its model is loaded. Blocking; runs in a loader thread."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tpy.backend import SequenceState
from tpy.config import ModelConfig
from tpy.config.model_config import InitialState
from tpy.config.model_config import SequenceState as StateConfig
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_data.engine.loading.model_files import read_beside, strings_in

_FOLDER = "initial_state"

Array = np.ndarray[Any, Any]


class InitialStates:
    """One value per state; all sequences share its memory, which is read-only."""

    __slots__ = ("_values",)

    def __init__(self, config: ModelConfig, model_directory: Path) -> None:
        """Reads the files that `data_file` names in `<model>/initial_state`. Raises TpyError when one cannot be read, or holds
        too few bytes for its shape.

        A state without `initial_state` begins with zeros (empty strings), with 1 for each variable size; in Triton its content
        is undefined.
        """
        batching = config.sequence_batching
        self._values: Mapping[str, object] = {
            state.input_name: _value(state, model_directory, batching=config.max_batch_size > 0)
            for state in (batching.state if batching is not None else ())
        }

    def __bool__(self) -> bool:
        """True when the model has implicit state at all."""
        return bool(self._values)

    def begin(self) -> SequenceState:
        """The state of a new sequence."""
        return SequenceState(self._values)


def _value(state: StateConfig, model_directory: Path, *, batching: bool) -> Array:
    initial = state.initial_state[0] if state.initial_state else None
    dims = initial.dims if initial is not None else tuple(1 if dim == -1 else dim for dim in state.dims)
    shape = (1, *dims) if batching else dims
    if initial is not None and initial.data_file is not None:
        flat = _from_file(state, initial, initial.data_file, model_directory)
    elif state.data_type is DataType.BYTES:
        flat = np.full(prod(dims), b"", dtype=object)
    else:
        flat = np.zeros(prod(dims), state.data_type.numpy)
    value = flat.reshape(shape)
    value.setflags(write=False)
    return value


def _from_file(state: StateConfig, initial: InitialState, name: str, model_directory: Path) -> Array:
    """Raw little-endian values; for BYTES, elements with a length in front. More than needed is left alone, as in Triton."""
    content = read_beside(model_directory / _FOLDER, name)
    elements = prod(initial.dims)
    about = f"initial_state setting expects state '{state.input_name}' to have"
    if state.data_type is not DataType.BYTES:
        expected = elements * state.data_type.itemsize
        if len(content) < expected:
            raise InvalidArgument(f"{about} {expected} bytes, but the data provided from {name} only has {len(content)} bytes")
        return np.frombuffer(content[:expected], state.data_type.numpy)
    strings = strings_in(content, elements)
    if len(strings) < elements:
        raise InvalidArgument(f"{about} {elements} string elements, but the data provided from {name} only has {len(strings)}")
    flat = np.empty(elements, dtype=object)
    flat[:] = strings
    return flat
