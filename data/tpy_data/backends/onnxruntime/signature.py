"""Translates the types and shapes of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.errors import Unsupported
from tpy.messages import DataType
from tpy_data.backends.signature import VARIABLE, TensorInfo

_DATATYPES: dict[str, DataType] = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
    "tensor(bfloat16)": DataType.BF16,
}

_ONNX_TYPE_NAMES = {"seq": "ONNX_TYPE_SEQUENCE", "map": "ONNX_TYPE_MAP", "sparse_tensor": "ONNX_TYPE_SPARSETENSOR"}
"""By the word before the parenthesis, as Triton prints them; any other is ONNX_TYPE_UNKNOWN."""


_ZIPMAP = (
    " A classifier of scikit-learn has it from ZipMap: convert it again with options={'zipmap': False}, as "
    "`tpy init NAME --from model.joblib` does"
)


def tensor_info(name: str, onnx_type: str, shape: Sequence[object]) -> TensorInfo:
    """From what ONNX Runtime says: type such as "tensor(float)", sizes that are numbers, names or None.

    Raises Unsupported for anything but a tensor of a type that the inference protocol knows.
    """
    datatype = _DATATYPES.get(onnx_type)
    if datatype is None:
        kind = onnx_type.partition("(")[0]
        if kind == "tensor":
            raise Unsupported(f"Unsupported ONNX element type '{onnx_type}' for I/O '{name}': the protocol has no such datatype.")
        onnx_name = _ONNX_TYPE_NAMES.get(kind, "ONNX_TYPE_UNKNOWN")
        advice = _ZIPMAP if "map" in onnx_type else ""
        raise Unsupported(f"Unsupported ONNX Type '{onnx_name}' for I/O '{name}', expected 'ONNX_TYPE_TENSOR'.{advice}")
    return TensorInfo(name, datatype, tuple(size if isinstance(size, int) and size >= 0 else VARIABLE for size in shape))
