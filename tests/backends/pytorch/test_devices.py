"""The way of tensors to a GPU and back, on host memory that stands for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpy.backend import InstancePlacement
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal
from tpy.messages import DataType
from tpy.testing import HostedModel, batch_of, request_of

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

from tests.backends.pytorch import models  # noqa: E402  # imports torch
from tests.backends.pytorch.models import config, context_of, inputs, outputs  # noqa: E402
from tpy_data.backends.pytorch import model as model_module  # noqa: E402
from tpy_data.backends.pytorch.device import CudaDevice  # noqa: E402

HOST = torch.device("cpu")
ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)


class FakeStream:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def synchronize(self) -> None:
        self._cuda.events.append("synchronize")


class FakeCuda:
    """In place of torch.cuda: says what was done in which order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def Stream(self, device: Any) -> FakeStream:
        self.events.append(f"stream on {device}")
        return FakeStream(self)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.events.append("enter")
        yield
        self.events.append("leave")

    def empty_cache(self) -> None:
        self.events.append("empty cache")


def make(*, cudnn: bool = True, cleans_cache: bool = False) -> tuple[CudaDevice, FakeCuda]:
    cuda = FakeCuda()
    return CudaDevice(HOST, cudnn=cudnn, cleans_cache=cleans_cache, cuda=cuda, pinned=False), cuda


def test_what_comes_back_is_on_the_host_and_nobody_elses() -> None:
    device, cuda = make()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array.flags.writeable = False
    with device.entered():
        tensor = device.put(array, may_be_written=True)
        tensor.add_(1)
        given = device.fetch([tensor, tensor.to(torch.bfloat16)])
        tensor.zero_()
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [each.tolist() for each in given] == [[[1, 2, 3], [4, 5, 6]]] * 2
    assert given[1].dtype == DataType.BF16.numpy
    assert cuda.events == ["stream on cpu", "enter", "synchronize", "leave"]


def test_the_cache_is_cleaned_when_that_was_asked_for() -> None:
    for cleans in (False, True):
        device, cuda = make(cleans_cache=cleans)
        device.after()
        assert cuda.events[1:] == ["empty cache"] * cleans


def test_cudnn_is_as_the_instance_that_runs_wants_it() -> None:
    seen = []
    for wanted in (False, True):
        device, _ = make(cudnn=wanted)
        with device.entered():
            seen.append(torch.backends.cudnn.enabled)
    assert seen == [False, True]


def test_what_the_allocator_holds_is_given_back_when_memory_ran_out() -> None:
    device, cuda = make()
    failure = device.failure(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert isinstance(failure, Internal)
    assert failure.message == "PyTorch execute failure: out of memory on cpu: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert cuda.events[1:] == ["empty cache"]
    assert device.failure(RuntimeError("other")).message == "PyTorch execute failure: other"
    assert cuda.events[1:] == ["empty cache"]


def test_an_instance_runs_within_its_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device, cuda = make()
    monkeypatch.setattr(model_module, "HostDevice", lambda **options: device)
    whole = config(
        max_batch_size=4, input=inputs(("image", DataType.FP32, (3, 8, 8))), output=outputs(("OUTPUT__0", DataType.FP32, (5,)))
    )
    context = context_of(tmp_path, whole)
    models.save_script(models.Net(), context.version_directory / "model.pt")
    request = request_of(whole, {"image": np.ones((1, 3, 8, 8), np.float32)})
    backend = models.make_backend()
    with HostedModel(backend, context) as model:
        batch = batch_of([request, request])
        results = model.instance(ON_CPU).start(batch).result()
    backend.close()
    with torch.no_grad():
        expected = models.Net()(torch.ones(1, 3, 8, 8)).numpy()
    for result in results:
        np.testing.assert_allclose(result.outputs[0].array, expected, rtol=1e-5)
    assert cuda.events == ["stream on cpu", "enter", "synchronize", "leave"]
