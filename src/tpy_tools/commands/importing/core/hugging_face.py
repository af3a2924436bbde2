"""Plans the import of the folder of a Hugging Face model: language models for an engine, others for ONNX Runtime, or as a Python
model around the library transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import orjson

from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, InstanceGroup, InstanceKind, ModelInput, ModelOutput
from tpy.messages import DataType
from tpy_tools.commands.importing.core.plan import (
    Copy,
    Export,
    ImportPlan,
    LinkTarget,
    ModelPlan,
    Part,
    Text,
    Unimportable,
    require_name,
    text_of,
)
from tpy_tools.commands.importing.core.transformers_model import FOLDER, ONNX, SCRIPTS, model_py

_KIND: Final = "Hugging Face"
_BATCH_SIZE: Final = 64
"""As `tpy init` writes it for models that take rows."""

_LABELS_MAX: Final = 100_000

_IMAGE_BOUNDS: Final = {
    "FORMATS": ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"),
    "PIXELS_MAX": 25_000_000,
    "SIDES_RATIO_MAX": 20,
}
"""The headers of these formats say how large the image will be. A small file may hold a huge one: this many pixels are 75 MB
as RGB. Cameras' 24 megapixels fit."""

_SUFFIXES: Final = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForConditionalGeneration": "text2text-generation",
    "ForImageClassification": "image-classification",
    "Model": "feature-extraction",
}
"""The task of an architecture, by how its name ends."""

_OTHER_SENSES: Final = ("vision_config", "audio_config", "speech_config", "num_mel_bins")
"""Keys in the configuration of models that take more than texts."""

_OPENVINO: Final = ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml")
_ONNX_BESIDE: Final = "onnx/model.onnx"
"""Many folders have it beside their weights: it takes tokens, while what is made of the weights takes texts."""

_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
_TOKENIZERS: Final = frozenset(
    {"tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"}
)
_SILENT: Final = frozenset({".gitattributes", "README.md", "LICENSE", "LICENSE.txt", "config.json", "model_index.json"})


class HuggingFaceFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a folder: `path` is absolute; `files` are all, by path; `documents` are its JSON files that are read, by path;
    `stubs` are files that Git LFS has not fetched; `exports`: optimum's exporter of ONNX is installed."""

    name: str
    path: str
    documents: Mapping[str, Mapping[str, Any]]
    files: frozenset[str]
    stubs: frozenset[str] = frozenset()
    exports: bool = False

    @property
    def config(self) -> Mapping[str, Any]:
        return self.documents.get("config.json", {})


def plan_hugging_face(folder: HuggingFaceFolder, *, trust: bool) -> ImportPlan:
    """The plan; `trust`: code and pickles that come with the model may run in the server. A model that cannot be imported is
    `refused`."""
    try:
        return ImportPlan(kind=_KIND, models=[_model(folder, trust=trust)])
    except Unimportable as error:
        return ImportPlan(kind=_KIND, models=[], refused=[Part(folder.name, str(error))])


def _model(folder: HuggingFaceFolder, *, trust: bool) -> ModelPlan:
    require_name(folder.name)
    if folder.stubs:
        raise Unimportable(f"{', '.join(sorted(folder.stubs))}: Git LFS has not fetched it; run git lfs pull there")
    if "adapter_config.json" in folder.files and "config.json" not in folder.files:
        raise Unimportable("an adapter, which runs on another model only: merge them, or see multi_lora.json of the vllm backend")
    if "model_index.json" in folder.files:
        raise Unimportable("a pipeline of diffusers: load it in a model.py, see docs/reference/python-backend.md")
    for plan in (_gguf, _openvino, _onnx):
        if (found := plan(folder)) is not None:
            return found
    architecture = _architecture(folder)
    code = _remote_code(folder)
    if code and not trust:
        raise Unimportable(f"auto_map: it runs code of its author ({', '.join(code)}); --trust imports it all the same")
    safe = _require_weights(folder, trust=trust)
    if architecture.endswith("ForCausalLM"):
        return _vllm(folder, architecture, code)
    return _transformers(folder, architecture, code, safe=safe)


def _architecture(folder: HuggingFaceFolder) -> str:
    found = folder.config.get("architectures")
    if not isinstance(found, list) or not found or not text_of(found[0]):
        raise Unimportable("config.json names no architectures, so what the model does is unknown")
    return text_of(found[0])


def _remote_code(folder: HuggingFaceFolder) -> list[str]:
    """The modules that the library would run, by `auto_map` of any file."""
    maps = [document["auto_map"] for document in folder.documents.values() if isinstance(document.get("auto_map"), dict)]
    values = [value for each in maps for value in each.values()]
    # A tokenizer has two: the slow one and the fast one, either of which may be null.
    texts = [text_of(text) for value in values for text in (value if isinstance(value, list) else [value])]
    return sorted({text for text in texts if text})


def _require_weights(folder: HuggingFaceFolder, *, trust: bool) -> bool:
    """Returns True for safetensors. Raises Unimportable for weights that are missing, and for pickles without `trust`."""
    index = folder.documents.get("model.safetensors.index.json", {}).get("weight_map")
    if isinstance(index, dict):
        lacking = sorted({text_of(name) for name in index.values()} - folder.files)
        if lacking:
            raise Unimportable(f"model.safetensors.index.json: '{lacking[0]}' is not there, of {len(lacking)} missing files")
    if any("/" not in path and path.endswith(".safetensors") for path in folder.files):
        return True
    pickles = sorted(path for path in folder.files if "/" not in path and path.endswith(_PICKLES) and path != "training_args.bin")
    if not pickles:
        raise Unimportable("no weights: expected model.safetensors")
    if not trust:
        raise Unimportable(
            f"{pickles[0]} is a pickle, which may run code of its author when it is loaded; save it again with "
            "save_pretrained(safe_serialization=True), or import it with --trust"
        )
    return False


def _gguf(folder: HuggingFaceFolder) -> ModelPlan | None:
    found = sorted(path for path in folder.files if path.endswith(".gguf"))
    if not found:
        return None
    if len(found) > 1:
        raise Unimportable(f"{len(found)} GGUF files ({', '.join(found[:4])}): put the one to serve into another folder")
    return ModelPlan(
        name=folder.name,
        config=ModelConfig(backend="openvino_genai"),
        files=[LinkTarget(f"{folder.path}/{found[0]}", "1/model.gguf")],
        carried=[Part(found[0], "1/model.gguf, a link, for the openvino_genai backend")],
        lost=_others(folder, {found[0]}),
        header=f"Imported from {_KIND}: {found[0]}.",
    )


def _openvino(folder: HuggingFaceFolder) -> ModelPlan | None:
    if "openvino_model.xml" not in folder.files:
        return None
    missing = [name for name in _OPENVINO if name not in folder.files]
    if missing:
        raise Unimportable(
            f"openvino_model.xml without {missing[0]}: export it with its tokenizer by optimum-cli export openvino"
        )
    top = sorted(path for path in folder.files if "/" not in path and path not in (".gitattributes", "README.md"))
    return ModelPlan(
        name=folder.name,
        config=ModelConfig(backend="openvino_genai"),
        files=[LinkTarget(f"{folder.path}/{name}", f"1/{name}") for name in top],
        carried=[Part("openvino_model.xml and the files beside it", "1, by links, for the openvino_genai backend")],
        header=f"Imported from {_KIND}: an export for OpenVINO.",
    )


def _onnx(folder: HuggingFaceFolder) -> ModelPlan | None:
    places = ("model.onnx",) if "model.safetensors" in folder.files else ("model.onnx", _ONNX_BESIDE)
    found = [path for path in places if path in folder.files]
    if not found:
        return None
    parent = found[0].rpartition("/")[0]
    weights = [path for path in sorted(folder.files) if path.startswith(f"{found[0]}_") or path.startswith(f"{found[0]}.")]
    copies = [Copy(found[0], "1/model.onnx"), *(Copy(path, f"1/{path.rpartition('/')[2]}") for path in weights)]
    lost = [Part("the tokenizer", "clients send tokens; docs/examples/embeddings has a model that makes them")]
    return ModelPlan(
        name=folder.name,
        config=ModelConfig(backend="onnxruntime"),
        files=copies,
        carried=[Part(each.source, f"{each.target}, for the onnxruntime backend") for each in copies],
        lost=[
            *(lost if _TOKENIZERS & folder.files else []),
            *_others(folder, {each.source for each in copies}, within=parent),
        ],
        header=f"Imported from {_KIND}: {found[0]}.",
        completes=True,
    )


def _vllm(folder: HuggingFaceFolder, architecture: str, code: list[str]) -> ModelPlan:
    settings: dict[str, Any] = {"model": folder.path}
    carried = [Part(architecture, f"1/model.json, which names {folder.path}, for the vllm backend")]
    if code:
        settings["trust_remote_code"] = True
        carried.append(Part("auto_map", f'"trust_remote_code": true, for {", ".join(code)}'))
    group = InstanceGroup(count=1, kind=InstanceKind.KIND_MODEL)
    return ModelPlan(
        name=folder.name,
        config=ModelConfig(backend="vllm", instance_group=(group,)),
        files=[Text("1/model.json", orjson.dumps(settings, option=orjson.OPT_INDENT_2).decode() + "\n")],
        carried=carried,
        header=f"Imported from {_KIND}: {architecture}.",
        steps=[
            "vLLM must be installed where the server runs, or in an environment: docs/how-to/serve-a-language-model.md",
            f"or, for CPUs, optimum-cli export openvino --model {folder.path} DIRECTORY, and tpy import that",
        ],
    )


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs, outputs and constants of model.py, of one task and one configuration."""

    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelOutput, ...]
    settings: Mapping[str, Any]
    files: tuple[Text, ...] = ()
    carried: tuple[Part, ...] = ()


_TEXT = ModelInput(name="text", data_type=DataType.BYTES, dims=(1,))
_RESULT = ModelOutput(name="result", data_type=DataType.BYTES, dims=(1,))


def _transformers(folder: HuggingFaceFolder, architecture: str, code: list[str], *, safe: bool) -> ModelPlan:
    task = next((task for suffix, task in _SUFFIXES.items() if architecture.endswith(suffix)), "")
    if not task or (task != "image-classification" and any(folder.config.get(key) for key in _OTHER_SENSES)):
        known = ", ".join(f"*{suffix}" for suffix in _SUFFIXES)
        raise Unimportable(f"{architecture}: expected *ForCausalLM, {known}; load others in a model.py")
    if task != "image-classification" and not _TOKENIZERS & folder.files:
        raise Unimportable(f"{architecture} without a tokenizer: expected tokenizer.json")
    if task == "image-classification" and "preprocessor_config.json" not in folder.files:
        raise Unimportable(f"{architecture} without preprocessor_config.json, which says how images are scaled")
    if task == "text2text-generation" and folder.config.get("is_encoder_decoder") is not True:
        raise Unimportable(f"{architecture} is not an encoder and decoder of texts; load it in a model.py")
    found = _TASKS[task](folder)
    settings = {"TRUSTED": bool(code), "SAFE": safe, **found.settings}
    onnx = folder.exports and safe and not code and bool(SCRIPTS[task].onnx)  # the exporter would run code, and load pickles
    packages = "transformers, torch" + (", torchvision and pillow" if task == "image-classification" else "")
    if onnx:
        packages = f"optimum-onnx, onnxruntime, {packages}"
    method = folder.config.get("quantization_config")
    lost = [Part("quantization_config", "its package must be installed where the model runs")] if method else []
    if _ONNX_BESIDE in folder.files:
        lost.append(Part(_ONNX_BESIDE, f"takes tokens: tpy init NAME --from {folder.path}/{_ONNX_BESIDE} serves it"))
    return ModelPlan(
        name=folder.name,
        config=ModelConfig(
            backend="python",
            max_batch_size=_BATCH_SIZE,
            input=found.inputs,
            output=found.outputs,
            dynamic_batching=DynamicBatching(),
        ),
        files=[
            Text("1/model.py", model_py(task, settings, onnx=onnx)),
            LinkTarget(folder.path, f"1/{FOLDER}"),
            *([Export(folder.path, f"1/{ONNX}", task)] if onnx else []),
            *found.files,
        ],
        carried=[
            Part(architecture, f"1/model.py, which loads 1/{FOLDER} by transformers: {task}"),
            Part("the folder", f"1/{FOLDER}, a link: copy it there to have it in the repository"),
            *([Part("the weights", f"1/{ONNX}, as ONNX by optimum, which runs them instead of PyTorch")] if onnx else []),
            *([Part("auto_map", f"trust_remote_code, for {', '.join(code)}")] if code else []),
            *found.carried,
        ],
        lost=lost,
        header=f"Imported from {_KIND}: {architecture}.",
        footer=(
            "An environment for model.py, if the server's has no transformers.\n"
            'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/environment" } }'
        ),
        steps=[f"{packages} must be installed where the server runs, or in the environment at the end of config.pbtxt"],
    )


def _scored(folder: HuggingFaceFolder, *inputs: ModelInput) -> _Task:
    """Scores, and their names in labels.txt."""
    names = _labels(folder.config)
    problem = text_of(folder.config.get("problem_type"))
    if not problem:
        problem = "regression" if len(names) == 1 else "single_label_classification"
    scores = ModelOutput(name="scores", data_type=DataType.FP32, dims=(len(names),), label_filename="labels.txt")
    return _Task(
        inputs=inputs,
        outputs=(scores,),
        settings={"PROBLEM": problem},
        files=(Text("labels.txt", "".join(f"{name}\n" for name in names)),),
        carried=(Part("id2label", "labels.txt, for classification"), Part("problem_type", problem)),
    )


def _labels(config: Mapping[str, Any]) -> list[str]:
    """The names of classes in their order. Raises Unimportable."""
    named = config.get("id2label")
    if not isinstance(named, dict) or not named:
        count = config.get("num_labels", 2)
        if type(count) is not int or not 0 < count <= _LABELS_MAX:
            raise Unimportable("config.json: num_labels is not a number of classes")
        return [f"LABEL_{at}" for at in range(count)]
    if len(named) > _LABELS_MAX or set(named) != {str(at) for at in range(len(named))}:
        raise Unimportable("config.json: id2label does not number classes from 0")
    return [" ".join(str(text_of(named[str(at)])).split()) or f"LABEL_{at}" for at in range(len(named))]


def _text_classification(folder: HuggingFaceFolder) -> _Task:
    pair = ModelInput(name="text_pair", data_type=DataType.BYTES, dims=(1,), optional=True)
    task = _scored(folder, _TEXT, pair)
    return msgspec.structs.replace(task, settings={**task.settings, "LENGTH_MAX": _length_max(folder)})


def _image_classification(folder: HuggingFaceFolder) -> _Task:
    found = _scored(folder, ModelInput(name="image", data_type=DataType.BYTES, dims=(1,)))
    return msgspec.structs.replace(found, settings={**found.settings, **_IMAGE_BOUNDS})


def _feature_extraction(folder: HuggingFaceFolder) -> _Task:
    pooling, normalize, said = _pooling(folder)
    size = folder.config.get("hidden_size")
    dims = (size,) if type(size) is int and size > 0 else (-1,)
    limit = _length_max(folder)
    return _Task(
        inputs=(_TEXT,),
        outputs=(ModelOutput(name="embedding", data_type=DataType.FP32, dims=dims),),
        settings={"LENGTH_MAX": limit, "POOLING": pooling, "NORMALIZE": normalize},
        carried=(Part(said, f"{pooling} of the tokens" + (", normalised" if normalize else "")),),
    )


def _pooling(folder: HuggingFaceFolder) -> tuple[str, bool, str]:
    """The way from tokens to an embedding, True if that is normalised, and the file that says so. Raises Unimportable."""
    modules = folder.documents.get("modules.json", {}).get("modules")
    if not isinstance(modules, list):
        return "mean", False, "without modules.json"
    kinds = [text_of(each.get("type")).rpartition(".")[2] for each in modules if isinstance(each, dict)]
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise Unimportable(f"modules.json: {unknown[0]}: expected Transformer, Pooling, Normalize")
    places = [text_of(each.get("path")) for each in modules if isinstance(each, dict) and "Pooling" in text_of(each.get("type"))]
    said = folder.documents.get(f"{places[0]}/config.json", {}) if places else {}
    ways = {key for key, value in said.items() if key.startswith("pooling_mode_") and value is True}
    if ways not in ({"pooling_mode_mean_tokens"}, {"pooling_mode_cls_token"}):
        raise Unimportable(
            f"{places[0] if places else 'modules.json'}: expected pooling of mean or cls tokens, got {sorted(ways)}"
        )
    return "cls" if "pooling_mode_cls_token" in ways else "mean", "Normalize" in kinds, "modules.json"


def _length_max(folder: HuggingFaceFolder) -> int:
    """Tokens of a text, the rest of which is cut off; 0: what the tokenizer says."""
    for document, key in (("sentence_bert_config.json", "max_seq_length"), ("config.json", "max_position_embeddings")):
        limit = folder.documents.get(document, {}).get(key)
        if type(limit) is int and limit > 0:
            # RoBERTa and its kin count two positions for padding.
            pads = document == "config.json" and text_of(folder.config.get("model_type")) in (
                "roberta",
                "xlm-roberta",
                "camembert",
            )
            return limit - 2 if pads else limit
    return 0


def _generation(folder: HuggingFaceFolder) -> _Task:
    output = ModelOutput(name="generated_text", data_type=DataType.BYTES, dims=(1,))
    settings = (Part("generation_config.json", "lengths and sampling, as it says"),)
    carried = settings if "generation_config.json" in folder.files else ()
    return _Task(inputs=(_TEXT,), outputs=(output,), settings={"LENGTH_MAX": _length_max(folder)}, carried=carried)


def _tokens(folder: HuggingFaceFolder) -> _Task:
    options = {"aggregation_strategy": "simple"}
    return _Task(inputs=(_TEXT,), outputs=(_RESULT,), settings={"TASK": "token-classification", "OPTIONS": options})


def _fill_mask(folder: HuggingFaceFolder) -> _Task:
    return _Task(inputs=(_TEXT,), outputs=(_RESULT,), settings={"TASK": "fill-mask", "OPTIONS": {}})


_TASKS: Final[Mapping[str, Callable[[HuggingFaceFolder], _Task]]] = {
    "text-classification": _text_classification,
    "image-classification": _image_classification,
    "feature-extraction": _feature_extraction,
    "text2text-generation": _generation,
    "token-classification": _tokens,
    "fill-mask": _fill_mask,
}


def _others(folder: HuggingFaceFolder, taken: set[str], within: str = "") -> list[Part]:
    """The files that stay behind, in one line."""
    left = sorted(path for path in folder.files - taken if path not in _SILENT and path not in _TOKENIZERS)
    if not left:
        return []
    shown = ", ".join(left[:6]) + (f" and {len(left) - 6} more" if len(left) > 6 else "")
    return [Part(shown, f"not needed{' beside ' + within if within else ''}")]
