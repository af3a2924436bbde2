"""The native codec's functions, or, where it was not built, is switched off or does not fit, functions that leave all to Python.

`TPY_NATIVE_CODEC=0` switches it off. `tpy doctor` says which form runs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import orjson

from tpy.hot.source import source_hash

SWITCH: Final = "TPY_NATIVE_CODEC"
"""The environment variable that switches the native codec off with the value 0."""

TensorT = TypeVar("TensorT")
ResultT = TypeVar("ResultT")
ChoiceT = TypeVar("ChoiceT")

Head = tuple[bytes, bytes, list[tuple[bytes, bytes]], dict[bytes, bytes], bool, int, bytes]
"""A request of HTTP/1.1: method, target, headers, the same by name in small letters, True to keep the connection, the length of
its body, and as much of that as there is."""

Entries = tuple[tuple[bytes, bytes], ...]
"""Fields of a header block, or of a table: (name, value)."""

Infer = tuple[str, tuple[TensorT, ...], tuple[tuple[str, bool], ...], bool, bytes]
"""An inference request: id, tensors, named outputs with True for those wanted as blobs, True if all others are, and the text of
its parameters, which may be no JSON; b"" where that is all that they say."""

ModelInfer = tuple[str, str, str, tuple[TensorT, ...], tuple[str, ...], bytes]
"""A ModelInferRequest: model, version, id, tensors, names of outputs, and its parameters: a message that may be wrong."""

Result = tuple[tuple[int, int, int], list[ResultT]]
"""A message of kind RESULT: when the batch was handed to the model, came back, and was sent, in ns; a result for each request."""


def read_head(data: bytes | memoryview, body_max: int) -> Head | None:
    """None: as for whatever is not in the standard form."""
    return None


def read_fields(
    block: bytes, static: Entries, dynamic: Iterable[tuple[bytes, bytes]], table_max: int, huffman: bytes, list_max: int
) -> tuple[Entries, list[tuple[bytes, bytes]]] | None:
    """None: as for whatever is not in the standard form."""
    return None


def read_infer(
    body: bytes,
    header_length: int,
    datatypes: dict[bytes, tuple[Any, int]],
    make_tensor: Callable[[str, Any, np.ndarray[Any, Any]], TensorT],
) -> Infer[TensorT] | None:
    """None: as for whatever is not in the standard form."""
    return None


def write_infer(
    identifier: str,
    model: str,
    version: int,
    outputs: tuple[Any, ...],
    choices: dict[str, ChoiceT],
    default: ChoiceT,
    json: ChoiceT,
    binary: ChoiceT,
    elements_max: int,
    bytes_max: int,
) -> tuple[bytes, int | None] | None:
    """None: as for whatever is not in the standard form."""
    return None


def read_model_infer(
    message: memoryview,
    datatypes: dict[bytes, tuple[Any, int]],
    make_tensor: Callable[[str, Any, np.ndarray[Any, Any]], TensorT],
) -> ModelInfer[TensorT] | None:
    """None: as for whatever is not in the standard form."""
    return None


def write_model_infer(
    identifier: str, model: str, version: int, outputs: tuple[Any, ...], bytes_max: int, parameters: bytes
) -> bytes | None:
    """None: as for whatever is not in the standard form."""
    return None


def write_batches(
    magic: int, kind: int, version: int, stream: int, batches: list[Sequence[Any]], data_bytes_max: int
) -> bytes | None:
    """None: as for whatever is not in the standard form."""
    return None


def read_result(
    header: memoryview,
    data: memoryview,
    datatypes: tuple[Any, ...],
    make_tensor: Callable[[str, Any, np.ndarray[Any, Any]], Any],
    make_result: Callable[[list[Any]], ResultT],
    text_bytes_max: int,
) -> Result[ResultT] | None:
    """None: as for whatever is not in the standard form."""
    return None


def load() -> str:
    """Take the native functions, if they are there and fit. Returns the form that runs."""
    if os.environ.get(SWITCH, "").strip() == "0":
        return f"Python: {SWITCH}=0"
    if sys.byteorder != "little":
        return "Python: the native codec is for little-endian processors"
    try:
        native = importlib.import_module("tpy.hot._codec")
        if source_hash() != native.SOURCE:
            return "Python: the native codec was built from another source"
        if not native.write_numbers_like(orjson.dumps(1e16)):
            return "Python: orjson writes numbers in a form that the native codec does not know"
        functions = {name: getattr(native, name) for name in FUNCTIONS}
    except ImportError as error:
        return f"Python: the native codec is not built, or not for this interpreter ({error})"
    except (OSError, AttributeError) as error:  # without its source, or another module of that name
        return f"Python: the native codec cannot be used ({error})"
    globals().update(functions)
    return NATIVE


NATIVE: Final = "native"
FUNCTIONS: Final = (
    "read_head",
    "read_fields",
    "read_infer",
    "write_infer",
    "read_model_infer",
    "write_model_infer",
    "write_batches",
    "read_result",
)

FORM: Final = load()
"""The form that runs: NATIVE, or `Python: ` and why."""
