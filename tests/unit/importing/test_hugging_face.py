"""`tpy import` of Hugging Face models: what becomes of each kind of folder."""

from __future__ import annotations

import ast
import io
import json
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from tpy.config.model_config import InstanceKind
from tpy_tools.commands.importing.core.hugging_face import HuggingFaceFolder, plan_hugging_face
from tpy_tools.commands.importing.core.plan import Copy, Export, ImportPlan, LinkTarget, ModelPlan, Part, Text, Unimportable
from tpy_tools.commands.importing.core.transformers_model import SCRIPTS, model_py
from tpy_tools.commands.importing.hugging_face import is_hugging_face_source, read_hugging_face
from tpy_tools.commands.importing.writing import perform

WEIGHTS = "model.safetensors"


def folder(architecture: str, *files: str, documents: Mapping[str, Any] | None = None, **config: Any) -> HuggingFaceFolder:
    said = {"architectures": [architecture], "model_type": "bert", **config}
    return HuggingFaceFolder(
        name="mine",
        path="/models/mine",
        documents={"config.json": said, **(documents or {})},
        files=frozenset({"config.json", *files}),
    )


def planned(source: HuggingFaceFolder, *, trust: bool = False) -> ModelPlan:
    plan = plan_hugging_face(source, trust=trust)
    assert not plan.refused, plan.refused
    [model] = plan.models
    return model


def refused(source: HuggingFaceFolder, *, trust: bool = False) -> str:
    plan = plan_hugging_face(source, trust=trust)
    assert not plan.models
    [part] = plan.refused
    return part.becomes


def script(model: ModelPlan) -> str:
    [text] = [file.text for file in model.files if isinstance(file, Text) and file.target == "1/model.py"]
    ast.parse(text)
    return text


def constants(model: ModelPlan) -> dict[str, object]:
    return {
        ast.unparse(each.targets[0]): ast.literal_eval(each.value)
        for each in ast.parse(script(model)).body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant | ast.Dict)
    }


def test_weights_are_exported_where_optimum_is_installed() -> None:
    texts = folder("BertForSequenceClassification", WEIGHTS, "tokenizer.json")
    model = planned(replace(texts, exports=True))
    assert Export("/models/mine", "1/onnx", "text-classification") in model.files
    assert Part("the weights", "1/onnx, as ONNX by optimum, which runs them instead of PyTorch") in model.carried
    assert "optimum.onnxruntime.ORTModelForSequenceClassification.from_pretrained(FOLDER.with_name" in script(model)
    assert model.steps[0].startswith("optimum-onnx, onnxruntime, transformers, torch must be installed")
    assert "optimum" not in script(planned(texts))
    pickled = folder("BertForSequenceClassification", "pytorch_model.bin", "tokenizer.json")
    code = folder("BertForSequenceClassification", WEIGHTS, "tokenizer.json", auto_map={"AutoModel": "code.Model"})
    several = folder("T5ForConditionalGeneration", WEIGHTS, "tokenizer.json", is_encoder_decoder=True)
    for each in (pickled, code, several):
        made = planned(replace(each, exports=True), trust=True)
        assert not [file for file in made.files if isinstance(file, Export)], "the import runs no code of the author"
        assert "optimum" not in script(made)


def test_an_export_that_fails_is_refused_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "optimum" / "exporters" / "onnx"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import sys\nsys.exit('no such task: ' + ' '.join(sys.argv[1:5]))\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    model = planned(replace(folder("BertModel", WEIGHTS, "tokenizer.json"), exports=True))
    done = perform(ImportPlan(kind="", models=[model]), tmp_path, tmp_path / "models")
    why = "optimum cannot export it as ONNX: no such task: --model /models/mine --task feature-extraction"
    assert (done.models, list(done.refused)) == ([], [Part("mine", why)])
    assert list((tmp_path / "models").iterdir()) == []


def test_language_models_are_for_engines() -> None:
    model = planned(folder("LlamaForCausalLM", WEIGHTS, "tokenizer.json"))
    [file] = model.files
    assert isinstance(file, Text)
    assert (file.target, json.loads(file.text)) == ("1/model.json", {"model": "/models/mine"})
    assert (model.config.backend, model.config.instance_group[0].kind) == ("vllm", InstanceKind.KIND_MODEL)
    model = planned(folder("LlamaForCausalLM", "a.Q4_K.gguf", WEIGHTS))
    assert (model.config.backend, list(model.files)) == (
        "openvino_genai",
        [LinkTarget("/models/mine/a.Q4_K.gguf", "1/model.gguf")],
    )
    names = ["openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml"]
    model = planned(folder("LlamaForCausalLM", *names))
    assert model.config.backend == "openvino_genai"
    assert LinkTarget("/models/mine/openvino_model.bin", "1/openvino_model.bin") in model.files
    assert "without openvino_tokenizer.xml" in refused(folder("LlamaForCausalLM", *names[:2]))
    assert "2 GGUF files (a.gguf, b.gguf)" in refused(folder("LlamaForCausalLM", "a.gguf", "b.gguf"))


def test_a_classifier_becomes_a_python_model() -> None:
    labels = {"id2label": {"1": "good\nday", "0": "bad"}, "max_position_embeddings": 512}
    model = planned(folder("BertForSequenceClassification", WEIGHTS, "tokenizer.json", **labels))
    assert LinkTarget("/models/mine", "1/hugging_face") in model.files
    assert Text("labels.txt", "bad\ngood day\n") in model.files
    assert [(each.name, each.optional) for each in model.config.input] == [("text", False), ("text_pair", True)]
    [scores] = model.config.output
    assert (scores.dims, scores.label_filename) == ((2,), "labels.txt")
    assert constants(model) == {
        "TRUSTED": False,
        "SAFE": True,
        "PROBLEM": "single_label_classification",
        "LENGTH_MAX": 512,
    }
    regression = planned(folder("RobertaForSequenceClassification", WEIGHTS, "vocab.json", num_labels=1, model_type="roberta"))
    assert constants(regression)["PROBLEM"] == "regression"


def test_embeddings_are_pooled_as_the_folder_says() -> None:
    files = (WEIGHTS, "tokenizer.json", "modules.json", "1_Pooling/config.json")
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"))
    ]
    documents: dict[str, Any] = {
        "modules.json": {"modules": modules},
        "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "sentence_bert_config.json": {"max_seq_length": 128},
    }
    model = planned(folder("BertModel", *files, documents=documents, hidden_size=384))
    assert {"POOLING": "cls", "NORMALIZE": False, "LENGTH_MAX": 128}.items() <= constants(model).items()
    assert model.config.output[0].dims == (384,)
    modules.append({"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"})
    assert constants(planned(folder("BertModel", *files, documents=documents)))["NORMALIZE"] is True
    documents["1_Pooling/config.json"] = {"pooling_mode_max_tokens": True}
    assert "expected pooling of mean or cls tokens" in refused(folder("BertModel", *files, documents=documents))
    modules.append({"type": "sentence_transformers.models.Dense", "path": "3_Dense"})
    assert "modules.json: Dense" in refused(folder("BertModel", *files, documents=documents))
    assert constants(planned(folder("BertModel", WEIGHTS, "vocab.txt")))["POOLING"] == "mean"


def test_code_of_the_author_needs_trust() -> None:
    code = {"auto_map": {"AutoModel": "modeling_x.XModel", "AutoTokenizer": ["tokenization_x.X", None]}}
    for architecture in ("BertModel", "LlamaForCausalLM"):
        source = folder(architecture, WEIGHTS, "tokenizer.json", **code)
        assert "auto_map: it runs code of its author (modeling_x.XModel, tokenization_x.X); --trust" in refused(source)
    assert constants(planned(folder("BertModel", WEIGHTS, "tokenizer.json", **code), trust=True))["TRUSTED"] is True
    [file] = planned(folder("LlamaForCausalLM", WEIGHTS, **code), trust=True).files
    assert isinstance(file, Text)
    assert json.loads(file.text)["trust_remote_code"] is True
    hidden = folder("BertModel", WEIGHTS, "tokenizer.json", documents={"tokenizer_config.json": code})
    assert "auto_map" in refused(hidden)
    fast_only = folder("BertModel", WEIGHTS, "tokenizer.json", auto_map={"AutoTokenizer": [None, "tokenization_x.Fast"]})
    assert "(tokenization_x.Fast)" in refused(fast_only)
    assert constants(planned(fast_only, trust=True))["TRUSTED"] is True


def test_pickles_need_trust() -> None:
    source = folder("BertModel", "pytorch_model.bin", "training_args.bin", "tokenizer.json")
    assert "pytorch_model.bin is a pickle" in refused(source)
    assert constants(planned(source, trust=True))["SAFE"] is False
    assert "no weights" in refused(folder("BertModel", "training_args.bin", "tokenizer.json"), trust=True)
    index = {"model.safetensors.index.json": {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}}
    assert "'x-2.safetensors' is not there" in refused(folder("BertModel", "x-1.safetensors", "vocab.txt", documents=index))


def test_onnx_beside_it() -> None:
    model = planned(folder("BertModel", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_q4.onnx", "tokenizer.json"))
    assert list(model.files) == [Copy("onnx/model.onnx", "1/model.onnx"), Copy("onnx/model.onnx_data", "1/model.onnx_data")]
    assert (model.config.backend, model.completes) == ("onnxruntime", True)
    assert model.lost[0].source == "the tokenizer"
    model = planned(folder("BertModel", WEIGHTS, "onnx/model.onnx", "tokenizer.json"))
    assert (model.config.backend, [part.source for part in model.lost]) == ("python", ["onnx/model.onnx"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (folder("CLIPModel", WEIGHTS, "tokenizer.json", vision_config={"a": 1}), "CLIPModel: expected *ForCausalLM"),
        (folder("WhisperForConditionalGeneration", WEIGHTS, "vocab.json", num_mel_bins=80), "expected *ForCausalLM"),
        (folder("BertForPreTraining", WEIGHTS, "vocab.txt"), "BertForPreTraining: expected"),
        (folder("BertModel", WEIGHTS), "without a tokenizer"),
        (folder("T5ForConditionalGeneration", WEIGHTS, "spiece.model"), "not an encoder and decoder"),
        (folder("ViTForImageClassification", WEIGHTS), "without preprocessor_config.json"),
        (folder("BertForSequenceClassification", WEIGHTS, "vocab.txt", id2label={"1": "a"}), "id2label does not number"),
        (folder("BertForSequenceClassification", WEIGHTS, "vocab.txt", num_labels=10**9), "not a number of classes"),
        (folder("", WEIGHTS), "names no architectures"),
        (HuggingFaceFolder(name="a", path="/a", documents={}, files=frozenset({"adapter_config.json"})), "an adapter"),
        (HuggingFaceFolder(name="a", path="/a", documents={}, files=frozenset({"model_index.json"})), "diffusers"),
        (HuggingFaceFolder(name="../a", path="/a", documents={}, files=frozenset()), "cannot be a model's name"),
    ],
)
def test_what_is_refused(source: HuggingFaceFolder, words: str) -> None:
    assert words in refused(source)


@pytest.mark.parametrize("task", SCRIPTS)
def test_scripts_are_python(task: str) -> None:
    settings = {"TEXT": "\"'\n\\", "NUMBER": 3}
    body = ast.parse(model_py(task, settings)).body
    found = [
        ast.literal_eval(each.value) for each in body if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
    ]
    assert found == list(settings.values())


class Processor:
    """Counts whole images in memory, each of which leaves when it has become small."""

    def __init__(self) -> None:
        self.alive = self.most = 0

    def __call__(self, *, images: Image.Image, return_tensors: str) -> dict[str, object]:
        assert (images.mode, return_tensors) == ("RGB", "pt")
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(images, self._gone)
        return {"pixel_values": images.size}

    def _gone(self) -> None:
        self.alive -= 1


def picture(*size: int, form: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.new("L", (size[0], size[1])).save(content, form)
    return content.getvalue()


def test_images_are_bounded_and_whole_ones_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = planned(folder("ViTForImageClassification", WEIGHTS, "preprocessor_config.json"))
    libraries = {name: ModuleType(name) for name in ("torch", "transformers", "triton_python_backend_utils")}
    libraries["triton_python_backend_utils"].__dict__["get_input_tensor_by_name"] = lambda request, _name: request
    for name, library in libraries.items():
        monkeypatch.setitem(sys.modules, name, library)
    namespace: dict[str, Any] = {"__file__": "/mine/1/model.py", "__name__": "model"}
    exec(compile(script(model), "model.py", "exec"), namespace)
    served = namespace["TritonPythonModel"]()
    served.read = Processor()

    def sizes(*images: bytes) -> list[object]:
        tensor = SimpleNamespace(as_numpy=lambda: np.array(images, object))
        return [row["pixel_values"] for row in served.rows_of(tensor)]

    assert sizes(picture(5, 4), picture(40, 2, form="JPEG"), picture(6, 5)) == [(5, 4), (40, 2), (6, 5)]
    assert (served.read.most, served.read.alive) == (1, 0)
    for image, words in (
        (picture(5001, 5000), "at most 25000000 pixels here, this one has 5001 x 5000"),
        (picture(1, 21), "at most 20 times the pixels of the shorter one, this one has 1 x 21"),
        (picture(16, 16, form="ICO"), "cannot identify image file"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            sizes(picture(5, 4), image)


def write(path: Path, **documents: Any) -> Path:
    path.mkdir(parents=True)
    for name, document in documents.items():
        (path / f"{name}.json").write_text(json.dumps(document))
    return path


def test_the_cache_of_the_library_is_read(tmp_path: Path) -> None:
    """Its files are links to `blobs`, which is outside of the folder."""
    place = write(tmp_path / "models--owner--small-bert" / "snapshots" / "0123", config={"architectures": ["BertModel"]})
    blobs = tmp_path / "models--owner--small-bert" / "blobs"
    blobs.mkdir()
    (blobs / "weights").write_bytes(b"\0" * 64)
    (place / WEIGHTS).symlink_to("../../blobs/weights")
    found = read_hugging_face(place)
    assert (found.name, found.path, WEIGHTS in found.files) == ("small-bert", str(place), True)
    (tmp_path / "secret").touch()
    (place / "vocab.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(Unimportable, match="leads out of the folder"):
        read_hugging_face(place)


def test_folders_are_known_by_their_files(tmp_path: Path) -> None:
    assert is_hugging_face_source(write(tmp_path / "a", config={"model_type": "bert"}))
    assert not is_hugging_face_source(write(tmp_path / "b", config={"model_config_list": []}))
    assert not is_hugging_face_source(write(tmp_path / "c"))
    assert is_hugging_face_source(write(tmp_path / "d", adapter_config={}))
    (tmp_path / "c" / "x.gguf").touch()
    assert is_hugging_face_source(tmp_path / "c")


def test_files_that_git_has_not_fetched(tmp_path: Path) -> None:
    place = write(tmp_path / "mine", config={"architectures": ["BertModel"]})
    (place / WEIGHTS).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert f"{WEIGHTS}: Git LFS has not fetched it" in refused(read_hugging_face(place))
    (place / "modules.json").write_text("{")
    with pytest.raises(Unimportable, match="not a JSON list"):
        read_hugging_face(place)
