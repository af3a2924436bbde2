"""TorchScript on the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tpy.backend import BackendSettings, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelInput, ModelOutput
from tpy.devices import Devices
from tpy.messages import DataType
from tpy.testing import HostedModel, request_of

torch = pytest.importorskip("torch", reason="needs PyTorch with CUDA")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_answers_as_on_the_cpu(devices: Devices, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a build of PyTorch with CUDA")
    from tpy_backends.pytorch import create

    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    network = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).eval()
    torch.jit.trace(network, torch.zeros(1, 16)).save(str(version / "model.pt"))
    config = ModelConfig(
        name="m",
        backend="pytorch",
        platform="pytorch_libtorch",
        max_batch_size=8,
        input=(ModelInput(name="INPUT__0", data_type=DataType.FP32, dims=(16,)),),
        output=(ModelOutput(name="OUTPUT__0", data_type=DataType.FP32, dims=(4,)),),
        instance_group=(InstanceGroup(name="m", kind=InstanceKind.KIND_GPU, gpus=(0,), count=2),),
    )
    places = [InstancePlacement(name=f"m_{n}", kind=InstanceKind.KIND_GPU, group="m") for n in range(2)]
    context = ModelContext(
        name="m",
        version=1,
        generation=1,
        config=config,
        model_directory=version.parent,
        version_directory=version,
        placements=places,
        devices=devices,
    )
    backend = create(BackendSettings(name="pytorch"))
    array = np.random.default_rng(0).random((3, 16), dtype=np.float32)
    with HostedModel(backend, context) as model:
        for place in places:
            result = model.instance(place).execute(request_of(config, {"INPUT__0": array}))[0]
            np.testing.assert_allclose(
                result.outputs[0].array, network(torch.from_numpy(array)).detach().numpy(), rtol=1e-3, atol=1e-3
            )
    backend.close()
