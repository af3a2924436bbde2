"""ONNX Runtime's CUDA provider with tensors on the device, a stream of the instance's own, and CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpy.backend import InstancePlacement, ModelContext, ModelInstance
from tpy.config import ModelConfig
from tpy.config.model_config import (
    ExecutionAccelerator,
    ExecutionAccelerators,
    InstanceKind,
    ModelInput,
    ModelOutput,
    Optimization,
)
from tpy.devices import Devices
from tpy.messages import DataType, MemoryType, Residency, Tensor
from tpy.testing import SampleRequest, batch_of

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnx_models = pytest.importorskip("tests.backends.onnx_models")

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="the installed ONNX Runtime has no CUDAExecutionProvider: pip install 'onnxruntime-gpu[cuda,cudnn]'",
)

ON_GPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_GPU)
KEEP = Residency(outputs=None)


def instance_of(devices: Devices, tmp_path: Path, content: bytes, **options: str) -> ModelInstance:
    """An instance of a model with one input and one output of three floats; `options` are those of the CUDA provider."""
    from tpy_backends.onnxruntime.model import OnnxModel
    from tpy_backends.onnxruntime.session import start_runtime
    from tpy_backends.onnxruntime.settings import OnnxRuntimeConfig

    start_runtime(OnnxRuntimeConfig())
    accelerators = ExecutionAccelerators(gpu_execution_accelerator=(ExecutionAccelerator(name="cuda", parameters=options),))
    given, made = (value.name for value in onnx_models_io(content))
    config = ModelConfig(
        name="m",
        max_batch_size=8,
        input=(ModelInput(name=given, data_type=DataType.FP32, dims=(3,)),),
        output=(ModelOutput(name=made, data_type=DataType.FP32, dims=(3,)),),
        optimization=Optimization(execution_accelerators=accelerators),
    )
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(content)
    context = ModelContext(
        name="m",
        version=1,
        generation=1,
        config=config,
        model_directory=tmp_path,
        version_directory=tmp_path / "1",
        devices=devices,
    )
    return OnnxModel(context, OnnxRuntimeConfig()).create_instance(ON_GPU)


def onnx_models_io(content: bytes) -> tuple[Any, Any]:
    """The model's only input and output."""
    graph = onnx.load_model_from_string(content).graph
    return graph.input[0], graph.output[0]


def run(instance: ModelInstance, name: str, array: Any, residency: Residency | None = None) -> Any:
    """The output of one request."""
    request = SampleRequest(inputs={name: Tensor(name, DataType.FP32, array)}, batch_size=array.shape[0], residency=residency)
    (result,) = instance.execute(batch_of([request]))
    assert result.error is None
    return result.outputs[0].array


def rows(count: int, begin: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(begin, begin + 3 * count, dtype=np.float32).reshape(count, 3)


def test_answers_and_tensors_that_stay(devices: Devices, tmp_path: Path) -> None:
    content = onnx_models.affine(2, 1)
    name = onnx_models_io(content)[0].name
    instance = instance_of(devices, tmp_path, content)
    for count in (1, 8, 3):
        assert run(instance, name, rows(count)).tolist() == (rows(count) * 2 + 1).tolist()
    kept = run(instance, name, rows(2), KEEP)
    assert kept.place.memory is MemoryType.GPU
    assert run(instance, name, kept).tolist() == ((rows(2) * 2 + 1) * 2 + 1).tolist()
    instance.close()
    assert kept.to_host().tolist() == (rows(2) * 2 + 1).tolist()


def test_graphs_of_several_shapes_in_turns(devices: Devices, tmp_path: Path) -> None:
    content = onnx_models.affine(2, 1)
    name = onnx_models_io(content)[0].name
    instance = instance_of(devices, tmp_path, content, enable_cuda_graph="1")
    for turn in range(6):
        for count in (1, 4, 8):
            given = rows(count, begin=100 * turn)
            assert run(instance, name, given).tolist() == (given * 2 + 1).tolist(), (turn, count)
    instance.close()
