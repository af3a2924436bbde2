"""Input data from a folder: a file for each input, as perf_analyzer has it, or images or texts, each a request."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tpy.cli.infer import picture_of
from tpy.limits import LOAD_FILES_MAX
from tpy.load.data import DataError, DataOptions, Entry, Streams, read_tensor
from tpy.load.server import ModelFacts, TensorFacts
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_WORD

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"})


def read_folder(folder: Path, model: ModelFacts, options: DataOptions) -> Streams:
    """The requests of a folder. Raises DataError."""
    needed = [tensor for tensor in model.inputs if tensor.name not in model.optional]
    if needed and all((folder / tensor.name).is_file() for tensor in needed):
        tensors = tuple(_of_file(folder / tensor.name, tensor, options) for tensor in needed)
        return ((Entry(inputs=tuple(_repeated(each, model, options) for each in tensors)),),)
    if len(needed) != 1:
        raise DataError(f"{folder}: expected a file for each of the inputs: {', '.join(tensor.name for tensor in needed)}")
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))[:LOAD_FILES_MAX]
    if not files:
        raise DataError(f"{folder}: there are no files")
    entries = [Entry(inputs=(_repeated(_of_sample(path, needed[0], options), model, options),)) for path in files]
    return (tuple(entries),)


def _of_file(path: Path, tensor: TensorFacts, options: DataOptions) -> Tensor:
    """The raw elements of an input; texts: one in each line."""
    if tensor.datatype == "BYTES":
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: expected texts in UTF-8: {error}") from None
        return read_tensor(str(path), lines, tensor, options)
    datatype = BY_WORD[tensor.datatype]
    content = path.read_bytes()
    if len(content) % datatype.itemsize:
        raise DataError(f"{path}: expected a multiple of {datatype.itemsize} bytes for {tensor.datatype}, got {len(content)}")
    return read_tensor(str(path), np.frombuffer(content, datatype.numpy), tensor, options)


def _of_sample(path: Path, tensor: TensorFacts, options: DataOptions) -> Tensor:
    """A file as the only input: a picture as numbers, else its content."""
    if tensor.datatype == "BYTES":
        array = np.empty(1, dtype=object)
        array[0] = path.read_bytes()
        shape = tuple(1 if size < 0 else size for size in tensor.shape)
        if any(size != 1 for size in shape):
            raise DataError(f"{path}: the input {tensor.name} takes {list(tensor.shape)} texts, a file is one")
        return Tensor(tensor.name, DataType.BYTES, array.reshape(shape))
    if path.suffix.lower() not in _PICTURES:
        return _of_file(path, tensor, options)
    try:
        array, _ = picture_of(tensor.name, options.shapes.get(tensor.name, tensor.shape), BY_WORD[tensor.datatype], path)
    except OSError as error:
        raise DataError(f"{path}: not a picture: {error}") from None
    return read_tensor(str(path), array, tensor, options)


def _repeated(tensor: Tensor, model: ModelFacts, options: DataOptions) -> Tensor:
    """The tensor as a batch of equal ones."""
    if not model.max_batch_size:
        return tensor
    return Tensor(tensor.name, tensor.datatype, np.stack([tensor.array] * options.batch))
