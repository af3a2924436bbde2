"""Files that a backend cannot read: those of other frameworks, pointers of Git LFS, pages of HTML, empty ones, damaged ones. Each
is refused with a sentence that says what was expected, what the file is, and the next step."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends import onnx_models
from tests.backends.hosted import context_of
from tpy.backend import Backend, BackendSettings
from tpy.config import ModelConfig
from tpy.errors import Internal, InvalidArgument, TpyError
from tpy_backends.contents import contents_of, other_contents

ONNX = onnx_models.matmul()
TFLITE = b"\x1c\0\0\0TFL3" + bytes(200)
NETWORK = b'<?xml version="1.0"?>\n<net name="m" version="11">\n<layers></layers></net>\n'
PIPELINE = b"\x08\x01\x10\x08\x1a\x00"
LIGHTGBM = b"tree\nversion=v4\nnum_class=1\n"
SAVED_MODEL = b"\x08\x01\x12\xe6\x95B\n\xc8$\x12\x9e$"
FROZEN = b"\x0a\x26\x0a\x01x\x12\x0bPlaceholder*\x0b\x0a\x05dtype\x12\x020\x01"
XGBOOST = b'{"learner":{"attributes":{}'
PICKLE = b"\x80\x04\x95\xd9\0\0\0\0\0\0\0}\x94."

OTHERS: dict[bytes, str] = {
    b"": "the file is empty: copy it again",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n": r"it is a pointer of Git LFS: fetch .*git lfs pull",
    b"<!DOCTYPE html>\n<html>404</html>": "it is a page of HTML: the download of the model went wrong",
    b"\x1f\x8b\x08\0": "it is compressed by gzip: decompress it",
    b"\x89HDF\r\n\x1a\n": "it is a model of Keras: export it as a SavedModel",
    b"ftrt\0\0": 'it is an engine of TensorRT: it is served with backend: "tensorrt"',
    ONNX: 'it is a model of ONNX: it is served with backend: "onnxruntime" or "openvino"',
    TFLITE: 'it is a model of TensorFlow Lite: it is served with backend: "litert" or "openvino"',
    NETWORK: 'it is a network of OpenVINO: it is served with backend: "openvino"',
    PIPELINE: 'it is a pipeline of DALI: it is served with backend: "dali"',
    LIGHTGBM: 'it is a model of LightGBM: it is served with backend: "fil"',
    XGBOOST: 'it is a model of XGBoost: it is served with backend: "fil"',
    b"{L\0\0\0\0\0\0\0\x07learner{L": 'it is a model of XGBoost: it is served with backend: "fil"',
    SAVED_MODEL: "it is a SavedModel: put it into a folder as saved_model.pb",
    FROZEN: 'it is a graph of TensorFlow: it is served with backend: "tensorflow"',
    PICKLE: 'it is a pickle: only those of scikit-learn are served, with backend: "sklearn"',
    b"PK\x03\x04": 'it is a zip archive: it is served with backend: "pytorch" or "sklearn"',
}


class Wrong(NamedTuple):
    """A backend, its framework's module, the file that it reads, the beginning of its refusal, and contents of its own kind that
    are damaged."""

    backend: str
    module: str
    filename: str
    refusal: str
    damaged: bytes


WRONG = (
    Wrong("onnxruntime", "onnxruntime", "model.onnx", "onnx runtime error .*model.onnx failed", ONNX[:-20]),
    Wrong("openvino", "openvino", "model.xml", "openvino error: failed to read 'model.xml' of model 'm'", NETWORK[:-20]),
    Wrong("openvino", "openvino", "model.onnx", "openvino error: failed to read 'model.onnx' of model 'm'", ONNX[:-20]),
    Wrong("openvino", "openvino", "model.tflite", "openvino error: failed to read 'model.tflite' of model 'm'", TFLITE),
    Wrong("litert", "ai_edge_litert", "model.tflite", "unable to load model 'm': LiteRT cannot read 'model.tflite'", TFLITE),
    Wrong(
        "tensorflow",
        "tensorflow",
        "model.graphdef",
        "unable to load model 'm': 'model.graphdef' is not a TensorFlow graph",
        FROZEN[:-1],
    ),
    Wrong(
        "tensorflow",
        "tensorflow",
        "model.savedmodel/saved_model.pb",
        "unable to read the SavedModel of model 'm': 'model.savedmodel/saved_model.pb'",
        SAVED_MODEL,
    ),
    Wrong(
        "dali", "nvidia.dali", "model.dali", "'model.dali' is neither a serialized pipeline of DALI nor a Python", PIPELINE[:-1]
    ),
    Wrong("fil", "treelite", "model.txt", r"treelite \S+ cannot read 'model.txt' as model_type lightgbm: [A-Z]", LIGHTGBM),
    Wrong("fil", "treelite", "xgboost.json", r"treelite \S+ cannot read 'xgboost.json' as model_type xgboost_json", XGBOOST),
    Wrong("sklearn", "skops", "model.joblib", r"scikit-learn \S+ cannot read 'model.joblib': \w+", PICKLE[:-1]),
    Wrong("sklearn", "skops", "model.skops", r"scikit-learn \S+ cannot read 'model.skops': BadZipFile", b"PK\x03\x04 cut"),
    Wrong("pytorch", "torch", "model.pt", "model.pt' is not a model of PyTorch: it is not a zip archive", b"PK\x03\x04 cut"),
)


@pytest.mark.parametrize(("content", "text"), OTHERS.items(), ids=list(OTHERS.values()))
def test_a_kind_is_told_by_the_first_bytes(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{text}"):
        raise ValueError(other_contents(file, "none"))


def test_what_is_nothing_known_gets_the_other_advice(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"this is no model")
    assert (other_contents(file, "none"), contents_of(file, "none")) == ("", "")
    assert contents_of(file, "none", "look again") == "; look again"


def test_what_a_backend_reads_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(TFLITE)
    assert other_contents(file, "litert") == ""
    assert contents_of(file, "litert").startswith("; it begins as a model of TensorFlow Lite, so it is damaged, truncated")


def made(wrong: Wrong) -> Backend:
    """The backend, where its framework is installed."""
    pytest.importorskip(wrong.module, reason=f"needs {wrong.module}: make test-backends")
    create: Callable[[BackendSettings], Backend] = import_module(f"tpy_backends.{wrong.backend}").create
    return create(BackendSettings(name=wrong.backend, config={"allow-pickle": "true"} if wrong.backend == "sklearn" else {}))


def refusal(backend: Backend, folder: Path, wrong: Wrong, content: bytes) -> str:
    config = ModelConfig(name="m", backend=wrong.backend, default_model_filename=wrong.filename.partition("/")[0])
    context = context_of(folder, config)
    file = context.version_directory / wrong.filename
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    with pytest.raises((Internal, InvalidArgument), match=wrong.refusal) as refused:
        backend.load(context) if wrong.backend == "pytorch" else backend.auto_complete(context)
    assert isinstance(refused.value, TpyError)
    return refused.value.message


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.backend} {wrong.filename}")
def test_a_file_that_cannot_be_read_is_named_with_what_it_is(tmp_path: Path, wrong: Wrong) -> None:
    backend = made(wrong)
    lines = {content: refusal(backend, tmp_path / str(number), wrong, content) for number, content in enumerate(OTHERS_ASKED)}
    assert {content: text for content, text in OTHERS_ASKED.items() if text not in lines[content]} == {}
    damaged = refusal(backend, tmp_path / "damaged", wrong, wrong.damaged)
    assert "; it begins as " in damaged or wrong.backend == "pytorch", damaged
    assert all("\n" not in line for line in lines.values())


OTHERS_ASKED: dict[bytes, str] = {
    b"": "; the file is empty: copy it again",
    b"version https://git-lfs.github.com/spec/v1\n": "; it is a pointer of Git LFS: fetch the file itself (git lfs pull)",
    b"<html><body>Not found</body></html>": "; it is a page of HTML: the download of the model went wrong",
    b"\x89HDF\r\n\x1a\n": "; it is a model of Keras: export it as a SavedModel",
}
