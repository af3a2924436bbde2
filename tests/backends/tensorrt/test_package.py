"""TensorRT's own package: the recorded one agrees with it, and engines that it builds, which needs no GPU with that for RTX,
are read as far as they can be without one."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends import onnx_models
from tests.backends.tensorrt import fake
from tests.backends.tensorrt.models import FP32, Machine, double_config, placement
from tpy.backend import BackendSettings
from tpy.devices.cuda import load_driver
from tpy.errors import TpyError, Unavailable
from tpy.messages import DataType
from tpy_backends.tensorrt import create
from tpy_backends.tensorrt.library import MODULES, find_library, make_logger
from tpy_backends.tensorrt.plan import FLAGS, built_by, deserialize, read_plan
from tpy_backends.tensorrt.signature import DATATYPES

pytestmark = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in MODULES),
    reason="needs TensorRT: pip install tensorrt-rtx-cu13 (300 MB; builds engines without a GPU), or tensorrt on a machine "
    "with one",
)

_CLASSES = (
    fake.ICudaEngine,
    fake.IExecutionContext,
    fake.Runtime,
    fake.ILogger,
    fake.IOutputAllocator,
    fake.TensorIOMode,
    fake.ExecutionContextAllocationStrategy,
    fake.IPluginRegistry,
)


@pytest.fixture(scope="module")
def library() -> Any:
    return find_library("tensorrt")


def real_class(library: Any, name: str) -> Any:
    return type(library.get_plugin_registry()) if name == "IPluginRegistry" else getattr(library, name)


@pytest.mark.parametrize("recorded", _CLASSES, ids=lambda recorded: recorded.__name__)
def test_the_recorded_classes_have_nothing_that_the_package_has_not(library: Any, recorded: Any) -> None:
    real = real_class(library, recorded.__name__)
    own = {"library", "loaded"}  # of the recorded ones
    for name, member in vars(recorded).items():
        if name.startswith("_") or name in own:
            continue
        assert hasattr(real, name), name
        if inspect.isfunction(member):
            documented = getattr(real, name).__doc__
            given = len(inspect.signature(member).parameters) - 1
            signatures = re.findall(rf"{name}\(self: [^,)]+(.*?)\) ->", documented)
            assert given in [len(re.findall(r"\b\w+: ", found)) for found in signatures], documented


def test_the_names_of_types_and_flags_are_the_packages(library: Any) -> None:
    for name in DATATYPES:
        assert getattr(library.DataType, name).name == name
    assert library.TensorFormat.LINEAR.name == "LINEAR"
    if hasattr(library, "EngineInvalidityDiagnostics"):
        for name in FLAGS:
            assert hasattr(library.EngineInvalidityDiagnostics, name)
    for severity in fake.Severity:
        assert hasattr(library.ILogger.Severity, severity.name)


@pytest.fixture(scope="module")
def engine(library: Any) -> bytes:
    """y = relu(x W) with two profiles, for compute capability 8.9, built without a GPU."""
    if library.__name__ != "tensorrt_rtx":
        pytest.skip("only TensorRT for RTX builds engines without a GPU: pip install tensorrt-rtx-cu13")
    builder = library.Builder(make_logger(library, lambda level, message: None))
    network = builder.create_network(0)
    x = network.add_input("x", library.float32, (-1, 16))
    weights = network.add_constant((16, 4), np.arange(64, dtype=np.float32).reshape(16, 4)).get_output(0)
    none = library.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, none, weights, none).get_output(0)
    y = network.add_activation(product, library.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    assert config.set_compute_capability(library.ComputeCapability.SM89, 0)
    for extent in ((1, 4, 8), (8, 16, 32)):
        profile = builder.create_optimization_profile()
        profile.set_shape("x", *((size, 16) for size in extent))
        config.add_optimization_profile(profile)
    return bytes(builder.build_serialized_network(network, config))


def test_an_engine_is_built_and_says_who_built_it(library: Any, engine: bytes, tmp_path: Path) -> None:
    assert built_by(engine) == library.__version__
    (tmp_path / "model.plan").write_bytes(engine)
    assert read_plan(tmp_path / "model.plan", "m") == engine
    (tmp_path / "model.plan").write_bytes(engine[:-1])
    with pytest.raises(TpyError, match=f"it is cut off: {len(engine) - 1} of {len(engine)} bytes"):
        read_plan(tmp_path / "model.plan", "m")


def test_the_real_logger_and_runtime_explain_a_refusal(library: Any, engine: bytes) -> None:
    logger = make_logger(library, lambda level, message: None)
    runtime = library.Runtime(logger)
    for content in (engine[:100], b"garbage" * 50):
        with pytest.raises(
            TpyError, match=r"unable to create TensorRT engine for model 'm': .* (finds no GPU|is not a TensorRT engine)"
        ):
            deserialize(library, runtime, logger, content, "m")


def test_without_a_gpu_the_sentence_says_so(library: Any, engine: bytes, tmp_path: Path) -> None:
    try:
        load_driver()
    except Unavailable:
        pass
    else:
        pytest.skip("there is a driver here: tests/gpu runs engines")
    backend = create(BackendSettings(name="tensorrt", config={"library": library.__name__}))
    machine = Machine()
    config = double_config()
    assert config.input[0].data_type is FP32
    with pytest.raises(
        Unavailable, match=f"{library.__name__} {library.__version__} finds no GPU with a driver that is new enough"
    ):
        backend.load(machine.context(tmp_path, config, engine)).create_instance(placement(config))
    assert backend.capabilities.version == f"{library.__name__} {library.__version__}"
    backend.close()


def test_the_program_of_the_how_to_builds_an_engine_of_several_profiles(library: Any, tmp_path: Path) -> None:
    if library.__name__ != "tensorrt_rtx":
        pytest.skip("only TensorRT for RTX builds engines without a GPU: pip install tensorrt-rtx-cu13")
    model, plan = tmp_path / "model.onnx", tmp_path / "models" / "m" / "1" / "model.plan"
    model.write_bytes(onnx_models.identity(DataType.FP32, ["N", 4]))
    program = Path(__file__).parents[3] / "docs" / "examples" / "tensorrt" / "build.py"
    batches = ["--batch", "1", "1", "4", "--batch", "1", "32", "64"]
    done = subprocess.run(
        [sys.executable, program, model, plan, *batches], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {plan} ({plan.stat().st_size} bytes) with tensorrt_rtx {library.__version__}\n"
    assert built_by(plan.read_bytes()) == library.__version__
