"""Configurations that fit a model, and refusals of others: the texts of Triton's onnxruntime backend."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.backends import onnx_models
from tpy.backend import BackendSettings
from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput, TensorReshape
from tpy.errors import InvalidArgument, Unsupported
from tpy.messages import DataType
from tpy.testing import HostedModel
from tpy_backends.onnxruntime import create
from tpy_backends.onnxruntime.session import tensor_info
from tpy_backends.signature import Signature, TensorInfo
from tpy_backends.validation import validate

ZIPMAP = (
    " A classifier of scikit-learn has it from ZipMap: convert it again with options={'zipmap': False}, as "
    "`tpy init NAME --from model.joblib` does"
)


def config(
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    *,
    batch: int = 0,
    datatype: DataType = DataType.FP32,
    reshape: tuple[int, ...] | None = None,
    optional: tuple[str, ...] = (),
) -> ModelConfig:
    shape = None if reshape is None else TensorReshape(shape=reshape)
    return ModelConfig(
        name="m",
        max_batch_size=batch,
        input=tuple(
            ModelInput(name=name, data_type=datatype, dims=dims, reshape=shape, optional=name in optional)
            for name, dims in inputs.items()
        ),
        output=tuple(ModelOutput(name=name, data_type=DataType.FP32, dims=dims) for name, dims in outputs.items()),
    )


def model(
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, ...]],
    initializers: dict[str, tuple[int, ...]] | None = None,
) -> Signature:
    def infos(shapes: dict[str, tuple[int, ...]]) -> dict[str, TensorInfo]:
        return {name: TensorInfo(name, DataType.FP32, shape) for name, shape in shapes.items()}

    return Signature(inputs=infos(inputs), outputs=infos(outputs), initializers=infos(initializers or {}))


ROWS = model({"X": (-1, 3)}, {"Y": (-1, 2)})


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        (config({"X": (3,)}, {"Y": (2,)}, batch=4), ROWS),
        (config({"X": (-1, 3)}, {"Y": (-1, 2)}), ROWS),
        (config({"X": (7, 3)}, {"Y": (-1, 2)}), ROWS),  # an input may be fixed where the model is not
        (config({"X": (1, 3, 1)}, {"Y": (2,)}, batch=4, reshape=(3,)), ROWS),
        (config({"X": (1,)}, {"Y": (1,)}), model({"X": ()}, {"Y": ()})),  # scalars
        (config({"X": (1,)}, {"Y": (1,)}, batch=4), model({"X": (-1, 1)}, {"Y": ()})),  # an output without a declared rank
        (config({"X": (2,), "B": (2,)}, {"Y": (2,)}, optional=("B",)), model({"X": (2,)}, {"Y": (2,)}, {"B": (2,)})),
        (config({"X": (2,)}, {"Y": (2,)}), model({"X": (2,)}, {"Y": (2,), "Z": (5,)})),  # not every output need be listed
    ],
)
def test_what_fits(given: ModelConfig, declared: Signature) -> None:
    assert validate(given, declared) is None, "it raises for what does not fit"  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("given", "declared", "text"),
    [
        (
            config({"X": (3,), "Z": (3,)}, {"Y": (2,)}, batch=4),
            ROWS,
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (config({"Z": (3,)}, {"Y": (2,)}, batch=4), ROWS, "unexpected inference input 'Z', allowed inputs are: X"),
        (
            config({"X": (2,), "Z": (2,)}, {"Y": (2,)}),
            model({"X": (2,), "B": (2,)}, {"Y": (2,)}, {"A": (2,)}),
            "unexpected inference input 'Z', allowed inputs are: A, B, X",
        ),
        (config({"X": (3,)}, {"Z": (2,)}, batch=4), ROWS, "unexpected inference output 'Z', allowed outputs are: Y"),
        (
            config({"X": (3,)}, {"Y": (2,)}, batch=4, datatype=DataType.BYTES),
            ROWS,
            "unable to load model 'm', configuration expects datatype TYPE_STRING for input 'X', model provides TYPE_FP32",
        ),
        (
            config({"X": (2,)}, {"Y": (2,)}, batch=4),
            ROWS,
            (
                "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies 2 "
                "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
                "complete shape [-1,2])"
            ),
        ),
        (
            config({"X": (3,)}, {"Y": (-1, 2)}),
            ROWS,
            (
                "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies 1 "
                "dimensions (shape [3])"
            ),
        ),
        (
            config({"X": (-1, 3)}, {"Y": (7, 2)}),  # an output must be as the model says
            ROWS,
            (
                "model 'm', tensor 'Y': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 2 "
                "dimensions (shape [7,2])"
            ),
        ),
        (
            config({"X": (3,)}, {"Y": (2,)}, batch=4),
            model({"X": (1, 3)}, {"Y": (-1, 2)}),
            (
                "model 'm', tensor 'X': for the model to support batching the shape should have at least 1 dimension and "
                "the first dimension must be -1; but shape expected by the model is [1,3]; convert it again with a dynamic first "
                "dimension, or set max_batch_size: 0"
            ),
        ),
        (
            config({"X": (1,)}, {"Y": (2,)}, batch=4),
            model({"X": ()}, {"Y": (-1, 2)}),
            (
                "model 'm', tensor 'X': for the model to support batching the shape should have at least 1 dimension and "
                "the first dimension must be -1; but shape expected by the model is []; convert it again with a dynamic first "
                "dimension, or set max_batch_size: 0"
            ),
        ),
        (
            config({"X": (1, 2)}, {"Y": (1,)}),
            model({"X": ()}, {"Y": ()}),
            (
                "unable to load model 'm', scalar tensor 'X', should only provide 1 in the model configuration when the model "
                "doesn't support batching. Model configuration provided: [1,2]."
            ),
        ),
        (
            config({"X": (3,), "B": (3,)}, {"Y": (2,)}, batch=4, optional=("B",)),
            model({"X": (-1, 3)}, {"Y": (-1, 2)}, {"B": (3,)}),
            "unable to load model 'm', optional input 'B' is not supported for models that support batching",
        ),
    ],
)
def test_what_does_not_fit(given: ModelConfig, declared: Signature, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(text)}$"):
        validate(given, declared)


@pytest.mark.parametrize(
    ("onnx_type", "text"),
    [
        (
            "seq(map(int64,tensor(float)))",
            "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'T', expected 'ONNX_TYPE_TENSOR'." + ZIPMAP,
        ),
        ("map(int64,tensor(float))", "Unsupported ONNX Type 'ONNX_TYPE_MAP' for I/O 'T', expected 'ONNX_TYPE_TENSOR'." + ZIPMAP),
        ("seq(tensor(float))", "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'T', expected 'ONNX_TYPE_TENSOR'."),
        ("sparse_tensor(float)", "Unsupported ONNX Type 'ONNX_TYPE_SPARSETENSOR' for I/O 'T', expected 'ONNX_TYPE_TENSOR'."),
        ("optional(tensor(float))", "Unsupported ONNX Type 'ONNX_TYPE_UNKNOWN' for I/O 'T', expected 'ONNX_TYPE_TENSOR'."),
        ("tensor(float8e4m3fn)", "Unsupported ONNX element type 'tensor(float8e4m3fn)' for I/O 'T': the protocol has no such"),
        ("tensor(complex64)", "Unsupported ONNX element type 'tensor(complex64)' for I/O 'T': the protocol has no such"),
    ],
)
def test_what_cannot_be_served(onnx_type: str, text: str) -> None:
    with pytest.raises(Unsupported, match=re.escape(text)):
        tensor_info("T", onnx_type, [1])


def test_named_and_unknown_sizes_are_variable() -> None:
    assert tensor_info("T", "tensor(float)", ["batch", None, 3, 0]).shape == (-1, -1, 3, 0)


def test_the_model_and_the_configuration_meet_at_load(tmp_path: Path) -> None:
    wrong = config({"INPUT": (4,)}, {"OUTPUT": (2,)}, batch=4)
    backend = create(BackendSettings(name="onnxruntime"))
    with pytest.raises(InvalidArgument, match=re.escape("the model expects 2 dimensions (shape [-1,3])")):
        HostedModel(backend, onnx_models.write(tmp_path, onnx_models.matmul(), wrong))
    right = config({"INPUT": (3,)}, {"OUTPUT": (2,)}, batch=4)
    HostedModel(backend, onnx_models.write(tmp_path, None, right)).close()
    completed = backend.auto_complete(onnx_models.write(tmp_path, None, ModelConfig(name="m")))
    assert completed == msgspec.structs.replace(right, dynamic_batching=completed.dynamic_batching)
