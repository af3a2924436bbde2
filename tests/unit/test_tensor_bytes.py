"""The bytes of a tensor are counted in one place: `nbytes` of an array of strings counts pointers."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from tpy.messages import DataType, Tensor, held_bytes
from tpy.messages.tensors import ELEMENT_BYTES

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "control", "data")
COUNTS = "src/tpy/messages/tensors.py"
_DEVICES = "memory of a device, which has no strings"
_NUMBERS = "behind a look at the datatype: numbers only"
_VIEWS = "views over bytes"
NUMBERS_ONLY = {
    "data/tpy_backends/onnxruntime/device_instance.py": _DEVICES,
    "data/tpy_backends/onnxruntime/graphs.py": _DEVICES,
    "data/tpy_backends/openvino/model.py": _NUMBERS,
    "data/tpy_data/backends/python/protocol/device_tensors.py": _DEVICES,
    "data/tpy_data/backends/python/protocol/small.py": _NUMBERS,
    "data/tpy_data/backends/python/worker/wire/core/batch.py": _NUMBERS,
    "data/tpy_data/backends/python/worker/wire/core/datatypes.py": _DEVICES,
    "data/tpy_data/backends/python/worker/pb_utils/dlpack.py": _DEVICES,
    "data/tpy_data/backends/python/worker/wire/segments.py": _VIEWS,
    "data/tpy_backends/pytorch/transfer.py": _DEVICES,
    "data/tpy_backends/tensorrt/buffers.py": _DEVICES,
    "src/tpy/devices/array.py": _DEVICES,
    "src/tpy/devices/devices.py": _DEVICES,
    "src/tpy/frontends/grpc/codec/response.py": _NUMBERS,
    "src/tpy/frontends/shared_memory.py": _DEVICES,
    "src/tpy/regions/array.py": _DEVICES,
    "src/tpy/regions/registry.py": _DEVICES,
    "src/tpy/remote/core/tensors.py": _NUMBERS,
    "src/tpy/sending.py": _VIEWS,
    "src/tpy/tritonserver/tensor.py": _NUMBERS,
}
"""Files that use `nbytes`, and why what they count has no strings."""


def uses(source: str) -> list[ast.Attribute]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr == "nbytes"]


def of_tensors(source: str) -> list[int]:
    """The lines with `tensor.array.nbytes`."""
    return [node.lineno for node in uses(source) if isinstance(node.value, ast.Attribute) and node.value.attr == "array"]


def test_the_lint_sees_it() -> None:
    assert of_tensors("size = sum([tensor.array.nbytes for tensor in outputs])") == [1]
    assert not of_tensors("size = view.nbytes")


def test_bytes_of_tensors_are_counted_in_one_place() -> None:
    found, of_arrays = [], set()
    for file in (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))):
        name, source = str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
        if "nbytes" in source and name != COUNTS:
            found += [f"{name}:{line}" for line in of_tensors(source)]
            if uses(source):
                of_arrays.add(name)
    assert not found, "held_bytes counts what strings hold"
    assert of_arrays <= NUMBERS_ONLY.keys()
    assert of_arrays >= NUMBERS_ONLY.keys(), "no longer needed in the list"


def texts(*elements: bytes) -> Tensor:
    array = np.empty(len(elements), object)
    array[:] = elements
    return Tensor("x", DataType.BYTES, array)


def test_strings_count_with_their_content() -> None:
    assert held_bytes([texts(b"abc", b"")], 1000) == 3 + 2 * ELEMENT_BYTES
    assert held_bytes([texts(b"x" * 500), Tensor("n", DataType.INT32, np.zeros(5, np.int32))], 1000) == 520 + ELEMENT_BYTES


def test_what_is_enough_already_is_not_looked_at() -> None:
    elements = np.empty(1000, object)  # None has no length
    assert held_bytes([Tensor("x", DataType.BYTES, elements)], 1000 * ELEMENT_BYTES) == 1000 * ELEMENT_BYTES
    with pytest.raises(TypeError):
        held_bytes([Tensor("x", DataType.BYTES, elements)], 1000 * ELEMENT_BYTES + 1)
