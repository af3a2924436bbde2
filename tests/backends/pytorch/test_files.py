"""Files of all kinds, right and wrong: what loads them, what they are refused with, and what is completed from them."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tpy.backend import Backend, BackendSettings, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, InstanceKind, ModelOperations, TensorReshape
from tpy.errors import Internal, InvalidArgument, Unavailable, Unsupported
from tpy.messages import DataType
from tpy.testing import HostedModel

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

from tests.backends.pytorch import models  # noqa: E402  # imports torch
from tests.backends.pytorch.models import completed, config, context_of, inputs, outputs, run  # noqa: E402
from tpy_backends.pytorch import create  # noqa: E402
from tpy_backends.pytorch.archive import FileKind, file_kind  # noqa: E402
from tpy_backends.pytorch.exported import ExportedProgram  # noqa: E402

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
IMAGE = (3, 8, 8)
NET = config(
    max_batch_size=8,
    input=inputs(("image", DataType.FP32, IMAGE)),
    output=outputs(("OUTPUT__0", DataType.FP32, (5,))),
)


@pytest.fixture(scope="module")
def backend() -> Any:
    backend = models.make_backend()
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def exported_net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program takes 1 to 8 images."""
    path = tmp_path_factory.mktemp("net") / "model.pt2"
    batch = torch.export.Dim("batch", min=1, max=8)
    models.save_exported(models.Net(), path, torch.zeros(2, *IMAGE), dynamic_shapes={"image": {0: batch}})
    return path


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nested") / "model.pt2"
    pair = {"a": torch.zeros(2, dtype=torch.int64), "b": torch.zeros(2)}
    models.save_exported(models.Nested(), path, torch.zeros(2), pair, kwargs={"mask": torch.zeros(2, dtype=torch.int64)})
    return path


def put(context: ModelContext, content: bytes, filename: str = "model.pt") -> ModelContext:
    path = context.version_directory / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return context


def images(count: int) -> np.ndarray[Any, Any]:
    return np.linspace(-1, 1, count * 192, dtype=np.float32).reshape(count, *IMAGE)


def expected(array: np.ndarray[Any, Any]) -> Any:
    with torch.no_grad():
        return models.Net().eval()(torch.tensor(array)).numpy()


class TestKinds:
    @pytest.mark.parametrize("filename", ["model.pt", "model.pt2", "other.bin"])
    @pytest.mark.parametrize("kind", ["scripted", "traced", "exported"])
    def test_the_content_tells_not_the_name(
        self, backend: Backend, tmp_path: Path, exported_net: Path, kind: str, filename: str
    ) -> None:
        context = context_of(tmp_path, msgspec.structs.replace(NET, default_model_filename=filename))
        path = context.version_directory / filename
        if kind == "scripted":
            models.save_script(models.Net(), path)
        elif kind == "traced":
            models.save_trace(models.Net(), path, torch.zeros(2, *IMAGE))
        else:
            path.write_bytes(exported_net.read_bytes())
        assert (file_kind(path) is FileKind.EXPORTED_PROGRAM) == (kind == "exported")
        with HostedModel(backend, context) as model:
            for count in (1, 3):
                given = run(model.instance(ON_CPU), context, image=images(count))["OUTPUT__0"]
                np.testing.assert_allclose(given, expected(images(count)), rtol=1e-5, atol=1e-5)

    def test_a_pt2_beside_where_a_pt_is_meant(self, backend: Backend, tmp_path: Path, exported_net: Path) -> None:
        context = context_of(tmp_path, msgspec.structs.replace(NET, default_model_filename="model.pt"))
        put(context, exported_net.read_bytes(), "model.pt2")
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, image=images(1))["OUTPUT__0"].shape == (1, 5)


def _weights() -> bytes:
    buffer = io.BytesIO()
    torch.save(models.Net().state_dict(), buffer)
    return buffer.getvalue()


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("notes/readme.txt", "no model")
    return buffer.getvalue()


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"", r"'.*model\.pt' is not a model of PyTorch: it is not a zip archive"),
            (
                b"\x80\x02}q\x00.",
                r"is not a zip archive, as all models have been since PyTorch 1\.6; it is a pickle: .*; save the model with",
            ),
            (_weights(), r'was written by `torch\.save`: it holds weights .*`runtime: "model\.py"`'),
            (_zip(), r"is a zip archive, but not a model of PyTorch"),
        ],
        ids=["empty", "pickle", "weights", "zip"],
    )
    def test_what_is_no_model(self, backend: Backend, tmp_path: Path, content: bytes, text: str) -> None:
        with pytest.raises(InvalidArgument, match=text):
            backend.load(put(context_of(tmp_path, NET), content))

    @pytest.mark.parametrize("kind", ["script", "exported"])
    def test_a_file_that_is_damaged(self, backend: Backend, tmp_path: Path, exported_net: Path, kind: str) -> None:
        whole = tmp_path / "whole"
        if kind == "script":
            models.save_script(models.Net(), whole)
        else:
            whole.write_bytes(exported_net.read_bytes())
        damaged = io.BytesIO()
        with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(damaged, "w") as copy:
            for name in archive.namelist():
                copy.writestr(name, archive.read(name)[: len(archive.read(name)) // 2])
        with pytest.raises(Internal, match=r"^failed to load model 'm': \S"), models.quiet():
            backend.load(put(context_of(tmp_path, NET), damaged.getvalue()))

    @pytest.mark.parametrize(
        ("change", "kind", "text"),
        [
            ("truncated", InvalidArgument, r"is not a model of PyTorch: it is not a zip archive"),
            (
                "newer",
                Internal,
                r"^failed to load model 'm': .*with version 9999, but the maximum supported version",
            ),
        ],
    )
    def test_a_part_of_a_file_and_one_of_a_later_version(
        self, backend: Backend, tmp_path: Path, change: str, kind: type[Exception], text: str
    ) -> None:
        whole, changed = tmp_path / "whole", io.BytesIO()
        models.save_script(models.Net(), whole)
        if change == "truncated":
            changed.write(whole.read_bytes()[: whole.stat().st_size // 2])
        else:
            with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(changed, "w") as copy:
                for name in archive.namelist():
                    copy.writestr(name, b"9999\n" if name.endswith("/version") else archive.read(name))
        with pytest.raises(kind, match=text):
            backend.load(put(context_of(tmp_path, NET), changed.getvalue()))

    def test_an_operator_that_is_not_there(self, backend: Backend, tmp_path: Path) -> None:
        whole = tmp_path / "whole"
        models.save_script(models.Net(), whole)
        changed = io.BytesIO()
        with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(changed, "w") as copy:
            for name in archive.namelist():
                copy.writestr(name, archive.read(name).replace(b"torch.relu(", b"ops.nonesuch.relu("))
        with pytest.raises(Internal, match=r"^failed to load model 'm': [\s\S]*The operators `nonesuch` are not there"):
            backend.load(put(context_of(tmp_path, NET), changed.getvalue()))

    def test_a_library_of_operators_that_is_not_there(self, backend: Backend, tmp_path: Path) -> None:
        libraries = ModelOperations(op_library_filename=("libnone.so",))
        context = context_of(tmp_path, msgspec.structs.replace(NET, model_operations=libraries))
        models.save_script(models.Net(), context.version_directory / "model.pt")
        with pytest.raises(Internal, match=r"^failed to load model 'm': .*libnone\.so"):
            backend.load(context)

    def test_a_missing_file(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, NET)
        with pytest.raises(Unavailable) as refusal:
            backend.load(context)
        where = f"unable to find '{context.version_directory}/model.pt' for model instance 'm'"
        assert str(refusal.value) == f"{where}; the folder holds nothing"
        (context.version_directory / "model.py").touch()
        with pytest.raises(Unavailable, match=r'the folder holds model\.py; add `runtime: "model\.py"` to config\.pbtxt'):
            backend.load(context)

    def test_a_pipe_is_no_model(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, NET)
        os.mkfifo(context.version_directory / "model.pt")
        with pytest.raises(Unavailable, match="is not a file, for model instance 'm'"):
            backend.load(context)

    @pytest.mark.parametrize("filename", ["../../secret.pt", "/etc/secret.pt", "a/../../b.pt"])
    def test_a_name_that_leaves_the_version_directory(self, backend: Backend, tmp_path: Path, filename: str) -> None:
        context = context_of(tmp_path, msgspec.structs.replace(NET, default_model_filename=filename))
        with pytest.raises(InvalidArgument, match=f"model filename '{filename}' must be inside the version directory"):
            backend.load(context)

    def test_pytorch_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in [name for name in sys.modules if name.startswith("tpy_backends.pytorch.")]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(Unavailable, match=r"backend 'pytorch' needs PyTorch, .* install it with tpy's extra `torch`"):
            create(BackendSettings(name="pytorch"))


def loaded(backend: Backend, root: Path, module: Any, model_config: ModelConfig) -> None:
    context = context_of(root, model_config)
    models.save_script(module, context.version_directory / "model.pt")
    backend.load(context).unload()


class TestAgainstTheConfiguration:
    """TorchScript knows kinds and numbers, an exported program everything."""

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            (
                {"input": inputs(("x__0", DataType.FP32, (2,)))},
                r"expects 1 inputs, model provides 4: forward\(x: Tensor, times: int, offset: .*; nothing is given for times$",
            ),
            (
                {"input": inputs(("x", DataType.FP32, (2,)), ("times", DataType.FP32, (1,)))},
                "configuration expects datatype TYPE_FP32 for input 'times', model provides int times",
            ),
            (
                {"input": inputs(("x", DataType.BYTES, (2,)), ("times", DataType.INT64, (1,)))},
                "configuration expects datatype TYPE_STRING for input 'x', model provides Tensor x",
            ),
            (
                {"output": outputs(("OUTPUT__1", DataType.FP32, (2,)))},
                r"refers to an output index which doesn't exist\. This model has 1 outputs$",
            ),
        ],
    )
    def test_what_torch_script_contradicts(self, backend: Backend, tmp_path: Path, changes: dict[str, Any], text: str) -> None:
        whole = config(
            input=inputs(("x", DataType.FP32, (2,)), ("times", DataType.INT64, (1,))),
            output=outputs(("OUTPUT__0", DataType.FP32, (2,))),
        )
        loaded(backend, tmp_path / "right", models.Scaled(), whole)
        with pytest.raises(InvalidArgument, match=text):
            loaded(backend, tmp_path / "wrong", models.Scaled(), msgspec.structs.replace(whole, **changes))

    def test_strings_have_one_dimension(self, backend: Backend, tmp_path: Path) -> None:
        whole = config(input=inputs(("texts", DataType.BYTES, (2, 2))), output=outputs(("OUTPUT__0", DataType.BYTES, (-1,))))
        with pytest.raises(InvalidArgument, match=r"^Triton only supports 1 dimensional List of String as input for 'texts'"):
            loaded(backend, tmp_path, models.Same(), whole)

    def test_arguments_of_other_types(self, backend: Backend, tmp_path: Path) -> None:
        class Listed(torch.nn.Module):
            def forward(self, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
                return x.reshape(sizes)

        with pytest.raises(Unsupported, match=r"^An input of type 'List\[int\]' was detected in the model\. Only a single input"):
            loaded(backend, tmp_path, Listed(), NET)

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            (
                {"input": inputs(("image", DataType.FP64, IMAGE))},
                "configuration expects datatype TYPE_FP64 for input 'image', model provides TYPE_FP32",
            ),
            (
                {"input": inputs(("image", DataType.FP32, (3, 8, 9)))},
                r"configuration expects shape \[-1,3,8,9\] for input 'image', model provides \[-1,3,8,8\]",
            ),
            (
                {"output": outputs(("OUTPUT__0", DataType.FP32, (6,)))},
                r"configuration expects shape \[-1,6\] for output 'OUTPUT__0', model provides \[-1,5\]",
            ),
            (
                {"output": outputs(("OUTPUT__0", DataType.INT32, (5,)))},
                "configuration expects datatype TYPE_INT32 for output 'OUTPUT__0', model provides TYPE_FP32",
            ),
            ({"max_batch_size": 9}, "configuration has max_batch_size 9, model takes at most 8 in the first dimension"),
        ],
    )
    def test_what_an_exported_program_contradicts(
        self, backend: Backend, tmp_path: Path, exported_net: Path, changes: dict[str, Any], text: str
    ) -> None:
        context = context_of(tmp_path, msgspec.structs.replace(NET, **changes))
        with pytest.raises(InvalidArgument, match=text):
            backend.load(put(context, exported_net.read_bytes()))

    def test_a_program_of_fixed_size_does_not_batch(self, backend: Backend, tmp_path: Path, nested: Path) -> None:
        context = context_of(
            tmp_path,
            config(
                max_batch_size=2,
                input=inputs(
                    ("x", DataType.FP32, (1,)),
                    ("KWARGS[mask]", DataType.INT64, (1,)),
                    ("ARGS[1][b]", DataType.FP32, (1,)),
                    ("ARGS[1][a]", DataType.INT64, (1,)),
                ),
                output=outputs(("sum", DataType.FP32, (1,))),
            ),
        )
        with pytest.raises(InvalidArgument, match=r"the first dimension must be -1; but shape expected by the model is \[2\]"):
            backend.load(put(context, nested.read_bytes()))


class TestCompletion:
    @pytest.mark.parametrize("batch", [torch.export.Dim("batch"), torch.export.Dim("batch", min=1), torch.export.Dim.DYNAMIC])
    def test_a_batch_without_an_end_is_as_large_as_the_server_makes_them(
        self, backend: Backend, tmp_path: Path, batch: Any
    ) -> None:
        path = tmp_path / "open.pt2"
        models.save_exported(models.Net(), path, torch.zeros(2, *IMAGE), dynamic_shapes={"image": {0: batch}})
        context = completed(backend, put(context_of(tmp_path, config()), path.read_bytes(), "model.pt2"))
        assert context.config.max_batch_size == 4

    def test_an_exported_program_tells_everything(self, backend: Backend, tmp_path: Path, exported_net: Path) -> None:
        context = completed(backend, put(context_of(tmp_path, config()), exported_net.read_bytes(), "model.pt2"))
        whole = context.config
        assert whole.max_batch_size == 4
        assert whole.dynamic_batching == DynamicBatching()
        assert whole.input == NET.input
        assert whole.output == NET.output
        with HostedModel(backend, context) as model:
            assert run(model.instance(ON_CPU), context, image=images(4))["OUTPUT__0"].shape == (4, 5)

    def test_no_more_than_the_program_takes(self, tmp_path: Path, exported_net: Path) -> None:
        backend = models.make_backend(**{"default-max-batch-size": "32"})
        context = completed(backend, put(context_of(tmp_path, config()), exported_net.read_bytes(), "model.pt2"))
        assert context.config.max_batch_size == 8
        backend.close()

    def test_arguments_and_results_of_many_forms(self, backend: Backend, tmp_path: Path, nested: Path) -> None:
        context = completed(backend, put(context_of(tmp_path, config()), nested.read_bytes(), "model.pt2"))
        whole = context.config
        assert whole.max_batch_size == 0
        assert [(entry.name, entry.data_type, entry.dims) for entry in whole.input] == [
            ("x", DataType.FP32, (2,)),
            ("pair_a", DataType.INT64, (2,)),
            ("pair_b", DataType.FP32, (2,)),
            ("mask", DataType.INT64, (2,)),
        ]
        assert [entry.name for entry in whole.output] == ["sum", "product"]
        with HostedModel(backend, context) as model:
            given = run(
                model.instance(ON_CPU),
                context,
                x=np.array([1, 2], np.float32),
                pair_a=np.array([3, 4]),
                pair_b=np.array([5, 6], np.float32),
                mask=np.array([0, 2]),
            )
        assert {name: array.tolist() for name, array in given.items()} == {"sum": [6, 8], "product": [0, 8]}

    def test_a_batch_of_numbers_has_an_empty_reshape(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config())
        path = context.version_directory / "model.pt2"
        models.save_exported(models.Difference(), path, torch.zeros(2), torch.zeros(2), dynamic_shapes=[{0: _dim()}, {0: _dim()}])
        context = completed(backend, context)
        assert [(entry.dims, entry.reshape) for entry in context.config.input] == [((1,), TensorReshape(shape=()))] * 2
        with HostedModel(backend, context) as model:
            given = run(model.instance(ON_CPU), context, first=np.ones(3, np.float32), second=np.zeros(3, np.float32))
        assert given["OUTPUT__0"].tolist() == [1, 1, 1]

    def test_a_batch_size_on_what_does_not_batch(self, backend: Backend, tmp_path: Path, nested: Path) -> None:
        context = put(context_of(tmp_path, config(max_batch_size=2)), nested.read_bytes(), "model.pt2")
        with pytest.raises(
            InvalidArgument, match=r"^autofill failed for model 'm': model does not support batching while non-zero"
        ):
            completed(backend, context)

    def test_torch_script_does_not_tell_types_and_shapes(self, backend: Backend, tmp_path: Path) -> None:
        context = context_of(tmp_path, config())
        models.save_script(models.Scaled(), context.version_directory / "model.pt")
        text = r"must list inputs and outputs with data_type and dims.*forward\(x: Tensor, times: int, offset: float = \.\.\."
        with pytest.raises(InvalidArgument, match=text):
            completed(backend, context)

    def test_numbers_are_fixed_in_an_exported_program(self, tmp_path: Path) -> None:
        path = tmp_path / "model.pt2"
        models.save_exported(models.Scaled(), path, torch.zeros(2), 3)
        with pytest.raises(Unsupported, match="a number is fixed when a program is exported"):
            ExportedProgram(path, "m", None, None)


def _dim() -> Any:
    return torch.export.Dim("batch", min=1, max=64)
