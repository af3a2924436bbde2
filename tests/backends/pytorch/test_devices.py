"""The way of tensors to a GPU and back, on a fake device."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tpy.backend import ExecutionResult, InstanceFailure, InstancePlacement
from tpy.config.model_config import InstanceKind
from tpy.devices import DeviceArray, Devices
from tpy.errors import Internal
from tpy.messages import DataType, Residency, Tensor
from tpy.testing import FakeDevice, HostedModel, batch_of, request_of

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

from tests.backends.pytorch import models  # noqa: E402  # imports torch
from tests.backends.pytorch.models import config, context_of, inputs, outputs  # noqa: E402
from tpy_backends.pytorch.script import ScriptProgram  # noqa: E402
from tpy_backends.pytorch.transfer import DeviceTransfer  # noqa: E402

ON_GPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_GPU)
NET = config(
    max_batch_size=4, input=inputs(("image", DataType.FP32, (3, 8, 8))), output=outputs(("OUTPUT__0", DataType.FP32, (5,)))
)
ONES = np.ones((1, 3, 8, 8), np.float32)


@pytest.fixture
def empties(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever PyTorch's allocator gives its cache back."""
    seen: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(1))
    return seen


def make(*, cudnn: bool = True, cleans_cache: bool = False) -> tuple[DeviceTransfer, FakeDevice]:
    device = FakeDevice(0)
    return DeviceTransfer(Devices([device]), 0, cudnn=cudnn, cleans_cache=cleans_cache), device


def test_what_comes_back_is_on_the_host_and_nobody_elses() -> None:
    transfer, device = make()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array.flags.writeable = False
    with transfer.entered():
        tensor = transfer.put(array, may_be_written=True)
        tensor.add_(1)
        given = transfer.fetch([tensor, tensor.to(torch.bfloat16)], [False, False])
        tensor.zero_()
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [each.tolist() for each in given if isinstance(each, np.ndarray)] == [[[1, 2, 3], [4, 5, 6]]] * 2
    assert given[1].dtype == DataType.BF16.numpy
    assert {name: device.counts[name] for name in ("streams", "in", "out", "synchronize")} == {
        "streams": 1,
        "in": 1,
        "out": 2,
        "synchronize": 1,
    }


def test_what_stays_is_used_where_it_is() -> None:
    transfer, device = make()
    with transfer.entered():
        (there,) = transfer.fetch([transfer.put(np.ones((2, 2), np.float32), may_be_written=False)], [True])
        assert isinstance(there, DeviceArray)
        same = transfer.put(there, may_be_written=False)
        changed = transfer.put(there, may_be_written=True)
    changed.zero_()
    assert (same.data_ptr(), same.tolist()) == (there.address, [[1, 1], [1, 1]])
    assert (device.counts["in"], device.counts["out"]) == (1, 0)


def test_the_cache_is_cleaned_when_that_was_asked_for(empties: list[int]) -> None:
    for cleans in (False, True):
        transfer, _ = make(cleans_cache=cleans)
        transfer.after()
        assert len(empties) == cleans


def test_cudnn_is_as_the_instance_that_runs_wants_it() -> None:
    seen = []
    for wanted in (False, True):
        transfer, _ = make(cudnn=wanted)
        with transfer.entered():
            seen.append(torch.backends.cudnn.enabled)
    assert seen == [False, True]


def test_what_the_allocator_holds_is_given_back_when_memory_ran_out(empties: list[int]) -> None:
    transfer, _ = make()
    failure = transfer.failure(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert isinstance(failure, Internal)
    assert failure.message == "PyTorch execute failure: out of memory on GPU 0: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert len(empties) == 1
    assert transfer.failure(RuntimeError("other")).message == "PyTorch execute failure: other"
    assert len(empties) == 1


def test_weights_that_do_not_fit_say_so_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empties: list[int]
) -> None:
    context = msgspec.structs.replace(context_of(tmp_path, NET), devices=Devices([FakeDevice(0)]))
    models.save_script(models.Net(), context.version_directory / "model.pt")
    backend = models.make_backend()

    def fails(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(torch.jit, "load", fails)
        with pytest.raises(Internal) as refusal:
            backend.load(context)
    assert "failed to load model 'm': CUDA out of memory. Tried to allocate 2.00 GiB." in refusal.value.message
    assert "weights do not fit into the memory that the GPU has left" in refusal.value.message
    assert len(empties) == 1
    with HostedModel(backend, context) as model:
        request = request_of(NET, {"image": ONES})
        assert model.instance(ON_GPU).execute(request)[0].error is None, "when there is room again"
    backend.close()


def test_a_run_without_memory_fails_its_batch_and_a_device_that_is_lost_ends_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empties: list[int]
) -> None:
    device = FakeDevice(0)
    context = msgspec.structs.replace(context_of(tmp_path, NET), devices=Devices([device]))
    models.save_script(models.Net(), context.version_directory / "model.pt")
    backend = models.make_backend()
    request = request_of(NET, {"image": ONES})

    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with HostedModel(backend, context) as model:
        instance = model.instance(ON_GPU)
        with monkeypatch.context() as patch:
            patch.setattr(ScriptProgram, "run", fails)
            with pytest.raises(Internal, match="PyTorch execute failure: out of memory on GPU 0: CUDA out of memory"):
                instance.execute(request)
        assert len(empties) == 1
        assert instance.execute(request)[0].error is None
        device.lost = True
        with pytest.raises(InstanceFailure, match="GPU 0 failed: the device was lost"):
            instance.execute(request)
        device.lost = False
    backend.close()


def run(folder: Path, devices: Devices, *, residency: Residency | None, given: Tensor | None = None) -> list[ExecutionResult]:
    """Two requests in one batch, to an instance on the fake device."""
    context = msgspec.structs.replace(context_of(folder, NET), devices=devices)
    models.save_script(models.Net(), context.version_directory / "model.pt")
    request = request_of(NET, {"image": ONES})
    second = request if given is None else type(request)(inputs={"image": given})
    requests = [type(each)(inputs=each.inputs, residency=residency) for each in (request, second)]
    backend = models.make_backend()
    try:
        with HostedModel(backend, context) as model:
            return list(model.instance(ON_GPU).start(batch_of(requests)).result())
    finally:
        backend.close()


def expected() -> np.ndarray:  # type: ignore[type-arg]
    with torch.no_grad():
        return models.Net()(torch.ones(1, 3, 8, 8)).numpy()  # type: ignore[no-any-return]


def test_an_instance_on_the_device(tmp_path: Path) -> None:
    device = FakeDevice(0)
    for result in run(tmp_path, Devices([device]), residency=None):
        np.testing.assert_allclose(result.outputs[0].array, expected(), rtol=1e-5)
    assert (device.counts["in"], device.counts["out"], device.counts["synchronize"]) == (1, 1, 1)


def test_an_instance_takes_and_leaves_tensors_on_the_device(tmp_path: Path) -> None:
    device = FakeDevice(0)
    devices = Devices([device])
    there = devices.to_device(ONES, 0)
    given = Tensor("image", DataType.FP32, there.as_array())
    results = run(tmp_path, devices, residency=Residency(inputs=True, outputs=None), given=given)
    assert (device.counts["in"], device.counts["out"], device.counts["within"]) == (2, 0, 1)
    for result in results:
        array: object = result.outputs[0].array
        assert isinstance(array, DeviceArray)
        np.testing.assert_allclose(devices.to_host(array), expected(), rtol=1e-5)
