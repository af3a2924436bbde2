"""Engines of TensorRT, built and served on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tpy.backend import BackendSettings, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceGroup, InstanceKind, Optimization, OptimizationCuda
from tpy.devices import Devices
from tpy.errors import Unavailable
from tpy.testing import HostedModel, request_of
from tpy_backends.tensorrt import create
from tpy_backends.tensorrt.library import find_library, make_logger

WEIGHTS = np.arange(64, dtype=np.float32).reshape(16, 4)


@pytest.fixture(scope="module")
def library() -> Any:
    try:
        return find_library("tensorrt")
    except Unavailable as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def engine(library: Any) -> bytes:
    """y = x W, with profiles up to 4 and up to 32 rows."""
    builder = library.Builder(make_logger(library, lambda level, message: None))
    network = builder.create_network(0)
    x = network.add_input("x", library.float32, (-1, 16))
    weights = network.add_constant((16, 4), WEIGHTS).get_output(0)
    none = library.MatrixOperation.NONE
    y = network.add_matrix_multiply(x, none, weights, none).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    for sizes in ((1, 2, 4), (1, 16, 32)):
        profile = builder.create_optimization_profile()
        profile.set_shape("x", *((size, 16) for size in sizes))
        config.add_optimization_profile(profile)
    return bytes(builder.build_serialized_network(network, config))


@pytest.mark.parametrize("graphs", [False, True])
def test_an_engine_is_completed_and_answers(devices: Devices, engine: bytes, tmp_path: Path, graphs: bool) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.plan").write_bytes(engine)
    group = InstanceGroup(name="m", kind=InstanceKind.KIND_GPU, gpus=(0,), count=2, profile=("0", "1"))
    config = ModelConfig(name="m", backend="tensorrt", platform="tensorrt_plan", instance_group=(group,))
    config = msgspec.structs.replace(config, optimization=Optimization(cuda=OptimizationCuda(graphs=graphs)))
    places = [InstancePlacement(name=f"m_{n}", kind=InstanceKind.KIND_GPU, group="m", profiles=group.profile) for n in range(2)]
    warnings: list[str] = []
    context = ModelContext(
        name="m",
        version=1,
        generation=1,
        config=config,
        model_directory=version.parent,
        version_directory=version,
        placements=places,
        devices=devices,
        log=lambda level, message: warnings.append(message) if level == "warning" else None,
    )
    backend = create(BackendSettings(name="tensorrt"))
    config = backend.auto_complete(context)
    assert (config.max_batch_size, config.input[0].dims, config.output[0].dims) == (32, (16,), (4,))
    random = np.random.default_rng(0)
    with HostedModel(backend, msgspec.structs.replace(context, config=config)) as model:
        for instance in [model.instance(place) for place in places]:
            for count in (1, 2, 5, 32):
                arrays = [random.random((count, 16), dtype=np.float32)]
                result = instance.execute(*(request_of(config, {"x": array}) for array in arrays))[0]
                np.testing.assert_allclose(result.outputs[0].array, arrays[0] @ WEIGHTS, rtol=1e-2)
    assert not [text for text in warnings if "CUDA graph" in text]
    backend.close()
