"""Files beside the model that its configuration names: labels, warmup data, initial states. Blocking; runs in a loader thread."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np

from tpy.backend import SequenceState
from tpy.config import ModelConfig
from tpy.config.model_config import InitialState, ModelParameter
from tpy.config.model_config import SequenceState as StateConfig
from tpy.errors import Internal, InvalidArgument
from tpy.files import read_file
from tpy.limits import MODEL_DATA_BYTES_MAX, MODEL_TEXT_BYTES_MAX
from tpy.messages import DataType

_LENGTH_BYTES = 4
_ADAPTERS, _ADAPTERS_FILE = "lora_adapters", "multi_lora.json"
_DECODER = msgspec.json.Decoder(dict[str, Any])


def read_labels(config: ModelConfig, model_directory: Path) -> dict[str, tuple[str, ...]]:
    """The lines of each output's label file, by output name. Raises InvalidArgument or Internal as `read_beside`."""
    labels = {}
    for output in config.output:
        if output.label_filename:
            text = read_beside(model_directory, output.label_filename, bytes_max=MODEL_TEXT_BYTES_MAX).decode(
                "utf-8", errors="replace"
            )
            labels[output.name] = _lines(text)
    return labels


def with_adapters(config: ModelConfig, version_directory: Path) -> ModelConfig:
    """The configuration with the names of LoRA adapters as a parameter, where the version has the file of Triton's vllm backend
    that lists them. A file that is something else is for the model to report."""
    file = version_directory / _ADAPTERS_FILE
    if _ADAPTERS in config.parameters or not file.is_file():
        return config
    try:
        names = list(_DECODER.decode(read_file(file, bytes_max=MODEL_TEXT_BYTES_MAX)))
    except (OSError, msgspec.DecodeError):
        return config
    added = {_ADAPTERS: ModelParameter(string_value=",".join(name for name in names if "," not in name))}
    return msgspec.structs.replace(config, parameters={**config.parameters, **added})


def _lines(text: str) -> tuple[str, ...]:
    """Only a newline ends a label. `splitlines` would also cut at form feeds and the line separators of Unicode, which may be
    labels themselves, of a model that classifies characters, and every later label would be wrong."""
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")) if text else ()


def strings_in(content: bytes, count: int) -> list[bytes]:
    """The first `count` BYTES elements of a file, each behind its length (4 bytes, little-endian); as many as are whole."""
    strings: list[bytes] = []
    at = 0
    while len(strings) < count:
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(content[at:begin], "little")
        if begin > len(content) or at > len(content):
            break
        strings.append(content[begin:at])
    return strings


def read_beside(directory: Path, name: str, *, bytes_max: int = MODEL_DATA_BYTES_MAX) -> bytes:
    """The content of the regular file `directory/name`.

    Raises InvalidArgument for a name that leads out of the directory: configurations come from load requests too, and what
    is read here can be asked for over the network. Raises Internal, with Triton's text, for a file that cannot be read.
    """
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise InvalidArgument(f"file '{name}' in the model configuration must stay inside the model's directory")
    path = directory / relative
    try:
        return read_file(path, bytes_max=bytes_max)
    except OSError as error:
        raise Internal(f"failed to open text file for read {path}: {error.strerror or error}") from error


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
