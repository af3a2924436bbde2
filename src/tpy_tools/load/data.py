"""The input data of requests: zeros, random values, or a JSON file in perf_analyzer's format."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson

from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_WORD
from tpy_tools.load.arrays import array_of
from tpy_tools.load.server import ModelFacts, TensorFacts

_INTEGERS_END = 128
"""Random integers are from 0 to below this: fits each type, and vocabularies of models of text."""


class DataError(Exception):
    """Data that do not fit the model. `str()` says which entry, what was expected, and what is there."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one request, and the outputs that are expected, None: any."""

    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...] | None = None


Streams = tuple[tuple[Entry, ...], ...]
"""Entries in order; several streams: each is the data of a sequence."""


class DataOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The making of inputs. `shapes`: sizes of inputs, where the model leaves them open. `batch` 0: the model does not batch."""

    shapes: Mapping[str, tuple[int, ...]] = {}
    batch: int = 1
    string_length: int = 128
    string_data: str | None = None
    seed: int = 0


def generated(model: ModelFacts, options: DataOptions, *, zero: bool) -> Streams:
    """One entry of zeros, or of random values. Raises DataError."""
    random = np.random.default_rng(options.seed)
    tensors = []
    for tensor in model.inputs:
        if tensor.name in model.optional and tensor.name not in options.shapes:
            continue
        shape = _batched(model, options, _shape(tensor, options))
        tensors.append(Tensor(tensor.name, _datatype(tensor), _values(tensor, shape, options, None if zero else random)))
    return ((Entry(inputs=tuple(tensors)),),)


def read_files(paths: Sequence[Path], model: ModelFacts, options: DataOptions) -> Streams:
    """The streams of some JSON files. Raises DataError, and OSError."""
    streams: list[tuple[Entry, ...]] = []
    for path in paths:
        streams.extend(_read_file(path, model, options))
    return tuple(streams)


def _read_file(path: Path, model: ModelFacts, options: DataOptions) -> list[tuple[Entry, ...]]:
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if isinstance(document, dict) and "inputs" in document and "data" not in document:
        document = {"data": _rows_of_request(str(path), document["inputs"], model)}
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list) or not data:
        raise DataError(f'{path}: expected an object with a list "data" that is not empty, or a request with "inputs"')
    expected = document.get("validation_data")
    if expected is not None and (not isinstance(expected, list) or len(expected) != len(data)):
        got = len(expected) if isinstance(expected, list) else type(expected).__name__
        raise DataError(f'{path}: expected {len(data)} entries in "validation_data", as in "data", got {got}')
    nested = isinstance(data[0], list)
    streams = data if nested else [data]
    wanted = (expected if nested else [expected]) if expected is not None else [None] * len(streams)
    found = []
    for number, (steps, answers) in enumerate(zip(streams, wanted, strict=True)):
        where = f"{path}: data[{number}]" if nested else f"{path}: data"
        if not isinstance(steps, list) or not steps:
            raise DataError(f"{where}: expected a list of entries that is not empty")
        if answers is not None and (not isinstance(answers, list) or len(answers) != len(steps)):
            raise DataError(f'{where}: expected as many entries in "validation_data": {len(steps)}')
        found.append(_stream(where, steps, answers, model, options))
    return found


def _rows_of_request(where: str, inputs: object, model: ModelFacts) -> list[dict[str, object]]:
    """The entries of a request as /v2/models/NAME/infer takes it, and `tpy init` writes it: one for each row, where the model
    batches. Raises DataError."""
    found: list[dict[str, object]] = []
    for tensor in inputs if isinstance(inputs, list) else [None]:
        if not isinstance(tensor, dict) or not {"name", "datatype", "shape", "data"} <= tensor.keys():
            raise DataError(f"{where}: expected inputs with name, datatype, shape and data, got {str(tensor)[:60]}")
        datatype, shape = BY_WORD.get(str(tensor["datatype"])), tensor["shape"]
        if datatype is None or not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise DataError(f"{where}: input {tensor['name']}: expected a type and a list of sizes")
        try:
            array = array_of(tensor["data"], datatype).reshape(shape)
        except ValueError as error:
            raise DataError(f"{where}: input {tensor['name']}: {error}") from None
        rows = list(array) if model.max_batch_size and shape else [array]
        found += [{} for _ in rows[len(found) :]]
        if len(rows) != len(found):
            raise DataError(f"{where}: expected inputs of as many rows, got {len(rows)} of {tensor['name']} and {len(found)}")
        for entry, row in zip(found, rows, strict=True):
            entry[str(tensor["name"])] = row
    return found


def _stream(
    where: str, steps: Sequence[object], answers: Sequence[object] | None, model: ModelFacts, options: DataOptions
) -> tuple[Entry, ...]:
    """The requests of one stream: request n has the entries from n on, as many as the batch, and begins again at the end."""
    entries = [_tensors(f"{where}[{at}]", step, model.inputs, options, model.optional) for at, step in enumerate(steps)]
    outputs = tuple(_unbatched(model, tensor) for tensor in model.outputs)
    expected = None
    if answers is not None:
        place = (
            where.replace("data", "validation_data", 1) if ": data" not in where else where.replace(": data", ": validation_data")
        )
        checked = [
            None if answer is None else _tensors(f"{place}[{at}]", answer, outputs, options, {tensor.name for tensor in outputs})
            for at, answer in enumerate(answers)
        ]
        expected = checked
    made = []
    for first in range(len(entries)):
        numbers = [(first + more) % len(entries) for more in range(max(1, options.batch))]
        inputs = _together(where, [entries[number] for number in numbers], model, options)
        outcome = None
        if expected is not None:
            parts = [expected[number] for number in numbers]
            known = [part for part in parts if part is not None]
            outcome = _together(where, known, model, options) if len(known) == len(parts) else None
        made.append(Entry(inputs=inputs, expected=outcome))
    return tuple(made)


def _together(where: str, parts: Sequence[Mapping[str, Tensor]], model: ModelFacts, options: DataOptions) -> tuple[Tensor, ...]:
    """The tensors of several entries as one batch."""
    if not model.max_batch_size:
        return tuple(parts[0].values())
    found = []
    for name, first in parts[0].items():
        arrays = [part[name].array for part in parts if name in part]
        if len({array.shape for array in arrays}) > 1 or len(arrays) != len(parts):
            shapes = ", ".join(str(list(array.shape)) for array in arrays)
            raise DataError(f"{where}: entries of one batch must have the same shapes: {name} has {shapes}")
        found.append(Tensor(name, first.datatype, np.stack(arrays)))
    return tuple(found)


def _tensors(
    where: str, step: object, known: Sequence[TensorFacts], options: DataOptions, optional: frozenset[str] | set[str]
) -> dict[str, Tensor]:
    if not isinstance(step, dict):
        raise DataError(f"{where}: expected an object of names and values, got {type(step).__name__}")
    by_name = {tensor.name: tensor for tensor in known}
    for name in step:
        if name not in by_name:
            raise DataError(f"{where}: there is no tensor {name!r}; the model has {', '.join(by_name)}")
    missing = [name for name in by_name if name not in step and name not in optional]
    if missing:
        raise DataError(f"{where}: no data for {', '.join(missing)}")
    return {name: read_tensor(f"{where}.{name}", value, by_name[name], options) for name, value in step.items()}


def read_tensor(where: str, value: object, tensor: TensorFacts, options: DataOptions) -> Tensor:
    """One tensor without its batch: a JSON value, or an array of the elements. Raises DataError."""
    datatype = _datatype(tensor)
    declared: object = None
    if isinstance(value, dict):
        declared = value.get("shape")
        value = value if "b64" in value else value.get("content")
    if declared is not None and not (
        isinstance(declared, list) and all(isinstance(size, int) and size >= 0 for size in declared)
    ):
        raise DataError(f"{where}: expected a list of sizes as shape, got {str(declared)[:60]}")
    try:
        if isinstance(value, np.ndarray):
            flat = value.reshape(-1)
        else:
            flat = _decoded(value["b64"], datatype) if isinstance(value, dict) else array_of(value, datatype)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    open_sizes = [size for size in tensor.shape if size < 0]
    if isinstance(declared, list):
        shape = tuple(declared)
    elif isinstance(value, np.ndarray) and value.ndim == len(tensor.shape):
        shape = value.shape
    elif tensor.name in options.shapes:
        shape = options.shapes[tensor.name]
    elif len(open_sizes) == 1:
        fixed = math.prod(size for size in tensor.shape if size >= 0)
        shape = tuple(flat.size // fixed if size < 0 else size for size in tensor.shape) if fixed else tensor.shape
    else:
        shape = _shape(tensor, options)
    if len(shape) != len(tensor.shape) or any(size not in (-1, given) for size, given in zip(tensor.shape, shape, strict=True)):
        raise DataError(f"{where}: expected the shape {list(tensor.shape)}, got {list(shape)}")
    if math.prod(shape) != flat.size:
        raise DataError(f"{where}: expected {math.prod(shape)} elements for the shape {list(shape)}, got {flat.size}")
    return Tensor(tensor.name, datatype, flat.reshape(shape))


def _decoded(text: object, datatype: DataType) -> np.ndarray[Any, Any]:
    """Base64: the elements of numbers, or the one element of BYTES (perf_analyzer: with its length in front)."""
    if not isinstance(text, str):
        raise ValueError(f"expected base64 as text, got {type(text).__name__}")
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
    if datatype is DataType.BYTES:
        array = np.empty(1, dtype=object)
        array[0] = content
        return array
    if len(content) % datatype.itemsize:
        raise ValueError(f"expected a multiple of {datatype.itemsize} bytes for {datatype.value}, got {len(content)}")
    return np.frombuffer(content, datatype.numpy)


def _shape(tensor: TensorFacts, options: DataOptions) -> tuple[int, ...]:
    given = options.shapes.get(tensor.name)
    if given is None:
        if any(size < 0 for size in tensor.shape):
            raise DataError(
                f"input {tensor.name} has the shape {list(tensor.shape)}: say which sizes to send with --shape "
                f"{tensor.name}:{','.join(str(size) if size >= 0 else 'N' for size in tensor.shape)}"
            )
        return tensor.shape
    if len(given) != len(tensor.shape) or any(size not in (-1, had) for size, had in zip(tensor.shape, given, strict=True)):
        raise DataError(f"--shape of {tensor.name}: expected {list(tensor.shape)} (without the batch), got {list(given)}")
    return given


def _batched(model: ModelFacts, options: DataOptions, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (options.batch, *shape) if model.max_batch_size else shape


def _unbatched(model: ModelFacts, tensor: TensorFacts) -> TensorFacts:
    return msgspec.structs.replace(tensor, shape=tensor.shape[1:]) if model.max_batch_size else tensor


def _datatype(tensor: TensorFacts) -> DataType:
    found = BY_WORD.get(tensor.datatype)
    if found is None:
        raise DataError(f"{tensor.name}: unknown type {tensor.datatype}")
    return found


def _values(
    tensor: TensorFacts, shape: tuple[int, ...], options: DataOptions, random: np.random.Generator | None
) -> np.ndarray[Any, Any]:
    datatype = _datatype(tensor)
    count = math.prod(shape)
    if datatype is DataType.BYTES:
        array = np.empty(count, dtype=object)
        if options.string_data is not None:
            array[:] = [options.string_data.encode()] * count
        elif random is None:
            array[:] = [b""] * count
        else:
            letters = random.integers(97, 123, (count, options.string_length), np.uint8)
            array[:] = [row.tobytes() for row in letters]
        return array.reshape(shape)
    if random is None:
        return np.zeros(shape, datatype.numpy)
    if datatype is DataType.BOOL:
        return random.integers(0, 2, shape).astype(np.bool_)
    if datatype.numpy.kind in "iu":
        return random.integers(0, _INTEGERS_END, shape).astype(datatype.numpy)
    return random.random(shape, np.float32).astype(datatype.numpy)
