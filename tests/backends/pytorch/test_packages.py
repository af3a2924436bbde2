"""AOTInductor packages, compiled on the spot: needs a C++ compiler, and half a minute."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tpy.backend import InstancePlacement, ModelContext
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType
from tpy.testing import HostedModel
from tpy.testing.resources import NOTHING, left_since, measure

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

from tests.backends.pytorch import models  # noqa: E402  # imports torch
from tests.backends.pytorch.models import config, context_of, inputs, outputs, run  # noqa: E402
from tpy_backends.pytorch.archive import FileKind, file_kind  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
WHOLE = config(
    max_batch_size=8,
    platform="torch_aoti",
    input=inputs(("ARGS[0]", DataType.FP32, (2,)), ("KWARGS[mask]", DataType.FP32, (2,))),
    output=outputs(("sum", DataType.FP32, (2,)), ("RESULT[rest][0]", DataType.FP32, (2,))),
)

_QUICKLY = {"aot_inductor.precompile_headers": False, "cpp.simdlen": 1, "aot_inductor.compile_wrapper_opt_level": "O0"}
"""Settings of the compiler for one small package: no headers for the next ones, no vectors, no optimization."""


class Masked(torch.nn.Module):
    """A dict with a tensor and a tuple of two."""

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> dict[str, Any]:
        return {"sum": x + mask, "rest": (x * mask, mask * 2)}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    batch = torch.export.Dim("batch", min=1, max=8)
    samples = torch.zeros(3, 2), torch.zeros(3, 2)  # one for both would be compiled as one
    with pytest.MonkeyPatch.context() as patch, models.quiet():
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(path.parent / "cache"))
        shapes = {"x": {0: batch}, "mask": {0: batch}}
        program = torch.export.export(Masked(), samples[:1], {"mask": samples[1]}, dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=_QUICKLY)
    return path


@pytest.fixture
def context(tmp_path: Path, package: Path) -> ModelContext:
    made = context_of(tmp_path, WHOLE)
    shutil.copy(package, made.version_directory)
    return made


def rows(count: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"ARGS[0]": np.ones((count, 2), np.float32), "KWARGS[mask]": np.full((count, 2), 3, np.float32)}


def test_a_package_runs(package: Path, context: ModelContext) -> None:
    assert file_kind(package) is FileKind.AOT_PACKAGE
    backend = models.make_backend()
    with HostedModel(backend, context) as model:
        instances = [model.instance(ON_CPU) for _ in range(2)]
        for instance in instances:
            for count in (1, 5, 8):
                given = run(instance, context, **rows(count))
                assert given["sum"].tolist() == [[4, 4]] * count
                assert given["RESULT[rest][0]"].tolist() == [[3, 3]] * count
    backend.close()


def test_what_a_package_leaves_open_is_asked_for(context: ModelContext) -> None:
    backend = models.make_backend()
    bare = msgspec.structs.replace(context, config=msgspec.structs.replace(context.config, input=(), output=()))
    text = r"must list inputs and outputs with data_type and dims.*forward\(INPUT__0: Tensor, mask: Tensor\) -> \(sum: Tensor, "
    with pytest.raises(InvalidArgument, match=text):
        backend.auto_complete(bare)
    backend.close()


def test_a_damaged_package(context: ModelContext) -> None:
    path = context.version_directory / "model.pt2"
    content = bytearray(path.read_bytes())
    start = content.find(b"\x7fELF")
    content[start : start + 4] = b"none"
    path.write_bytes(content)
    backend = models.make_backend()
    with pytest.raises(Internal, match=r"^failed to load model 'm': \S"):
        backend.load(context)
    backend.close()


def test_loading_and_unloading_leave_nothing(context: ModelContext) -> None:
    backend = models.make_backend()

    def use() -> None:
        with HostedModel(backend, context) as model:
            run(model.instance(ON_CPU), context, **rows(2))

    use()
    before = measure()
    for _ in range(3):
        use()
    assert left_since(before) == NOTHING
    backend.close()
