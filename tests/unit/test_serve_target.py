"""The meaning of the path in `tpy serve PATH`."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tpy.cli.parsing import UsageError
from tpy.cli.serve_target import serve_target


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as refused, serve_target(path):
        pass
    return str(refused.value)


def test_a_repository_is_served_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1" / "model.onnx")
    write(tmp_path / "b" / "config.pbtxt")
    write(tmp_path / "notes.onnx")  # beside models it is no model
    with serve_target(tmp_path) as target:
        assert (target.repository, target.taken) == (tmp_path, "")


def test_a_folder_that_cannot_be_read_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost+found").mkdir()
    write(tmp_path / "m" / "config.pbtxt")
    exists = Path.exists

    def without_permission(path: Path) -> bool:
        if path.parent.name == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", without_permission)
    with serve_target(tmp_path) as target:
        assert target.repository == tmp_path


def test_an_empty_folder_is_an_empty_repository(tmp_path: Path) -> None:
    with serve_target(tmp_path) as target:
        assert target == (tmp_path, "")


def test_models_whose_names_are_numbers_are_a_repository(tmp_path: Path) -> None:
    write(tmp_path / "7" / "1" / "model.onnx")
    with serve_target(tmp_path) as target:
        assert target.repository == tmp_path


@pytest.mark.parametrize("file", ["config.pbtxt", "1/model.onnx", "configs/a.pbtxt"])
def test_a_folder_that_is_a_model(tmp_path: Path, file: str) -> None:
    write(tmp_path / "iris" / file)
    with serve_target(tmp_path / "iris") as target:
        assert (target.repository / "iris" / file).read_text() == "x"
        assert f"{tmp_path / 'iris'} is taken for one model, 'iris'" in target.taken
    assert not target.repository.exists()


@pytest.mark.parametrize("file", ["model.onnx", "model.py", "model.pt"])
def test_a_folder_with_one_model_file_is_version_1(tmp_path: Path, file: str) -> None:
    write(tmp_path / "iris" / file)
    write(tmp_path / "iris" / "weights.joblib")
    with serve_target(tmp_path / "iris") as target:
        version = target.repository / "iris" / "1"
        assert {entry.name for entry in version.iterdir()} == {file, "weights.joblib"}
        assert f"taken for model 'iris': {file} in it is version 1" in target.taken


def test_a_file_of_any_name(tmp_path: Path) -> None:
    file = write(tmp_path / "my iris.onnx")
    write(tmp_path / "my iris.onnx.data")
    write(tmp_path / "other.csv")
    with serve_target(file) as target:
        model = target.repository / "my_iris"
        assert {entry.name for entry in (model / "1").iterdir()} == {"my iris.onnx", "my iris.onnx.data"}
        assert (model / "config.pbtxt").read_text() == 'backend: "onnxruntime"\ndefault_model_filename: "my iris.onnx"\n'
        assert f"{file} is taken for model 'my_iris' (backend onnxruntime)" in target.taken
    with serve_target(tmp_path) as target:
        assert (target.repository / "my_iris" / "1" / "my iris.onnx").exists()


def test_what_to_do_with_files_that_nothing_serves(tmp_path: Path) -> None:
    file = write(tmp_path / "model.joblib")
    told = refusal(tmp_path)
    assert "model.joblib is a pickle, of scikit-learn perhaps, which is not served as it is" in told
    assert f"tpy init NAME --from {tmp_path}/model.joblib" in told
    assert told == refusal(file).replace(f"{file}: ", f"{tmp_path}: ", 1)


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "no such file or folder; expected a model repository" in refusal(tmp_path / "nosuch")


def test_two_files_are_not_guessed(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx")
    write(tmp_path / "b.onnx")
    assert "holds 2 model files and no model folder: a.onnx, b.onnx" in refusal(tmp_path)


def test_the_folder_above_a_repository(tmp_path: Path) -> None:
    write(tmp_path / "models" / "iris" / "1" / "model.onnx")
    write(tmp_path / "data" / "iris.csv")
    assert f"did you mean: tpy serve {tmp_path}/models" in refusal(tmp_path)


@pytest.mark.parametrize("file", ["config.pbtxt", "1/model.onnx", "model.onnx", "net.onnx", "sole/net.onnx"])
def test_one_model_has_the_name_that_it_is_given(tmp_path: Path, file: str) -> None:
    """Platforms put one model into a folder of their own, and ask for it by the name of the service."""
    written = write(tmp_path / "mnt" / file)
    path = written if file.startswith("sole") else tmp_path / "mnt"
    with serve_target(path, "my-service") as target:
        assert [entry.name for entry in target.repository.iterdir()] == ["my-service"]
        assert "'my-service'" in target.taken


def test_a_repository_keeps_its_names(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1" / "model.onnx")
    with serve_target(tmp_path, "b") as target:
        assert target.repository == tmp_path
        assert target.taken == f"--model-name b is not used: {tmp_path} is a repository, whose models are named as their folders"


def test_a_name_that_no_model_can_have(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--model-name: expected letters"), serve_target(tmp_path, "a/b"):
        pass
