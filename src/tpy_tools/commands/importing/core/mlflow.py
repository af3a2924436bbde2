"""Plans the import of an MLflow model: by the flavour with the best backend, or python_function in a Python model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching
from tpy_tools.commands.importing.core.plan import (
    Copy,
    ImportPlan,
    ModelPlan,
    Part,
    Text,
    Unimportable,
    require_inside,
    require_name,
    text_of,
)
from tpy_tools.commands.importing.core.python_function import model_py
from tpy_tools.commands.importing.core.scoring import as_parameter
from tpy_tools.commands.importing.core.signature import inputs_of, outputs_of, read_signature

_BATCH_SIZE: Final = 64
"""As `tpy init` writes it for models that take rows."""

TREES: Final = {"xgboost-json": "xgboost.json", "xgboost-ubj": "xgboost.ubj", "lightgbm": "model.txt"}
"""Kinds of files, as the reader finds them, and the names by which the fil backend reads them."""

_SKLEARN_NAMES: Final = {".skops": "model.skops", ".joblib": "model.joblib", ".pkl": "model.pkl"}

_TOP: Final = {
    "artifact_path": "a place at the tracking server",
    "auth_policy": "belongs to Databricks",
    "metadata": "free text; add what clients are to see to `parameters` of config.pbtxt",
    "prompts": "belongs to the tracking server",
    "resources": "belongs to Databricks",
}
"""Keys of an MLmodel that are not carried over."""

_SILENT: Final = frozenset(
    {
        *("flavors", "is_signature_from_type_hint", "mlflow_version", "model_id", "model_size_bytes", "model_uuid", "run_id"),
        *("saved_input_example_info", "signature", "type_hint_from_example", "utc_time_created"),
    }
)
"""Keys that are read elsewhere, or only say when and where the model was made."""


class MlflowFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a folder: `document` is its MLmodel; `files` are all others, by path; `kinds` says what a file of many formats is
    (`xgboost-json`, `xgboost-ubj`, `lightgbm`, `torchscript`). `name` is that of the registered model, or of the folder."""

    name: str
    document: Mapping[str, Any]
    files: frozenset[str]
    kinds: Mapping[str, str]


class _Flavour(msgspec.Struct, frozen=True, kw_only=True):
    """One that a backend reads. `runs_code`: what is in the file runs when it is loaded."""

    config: ModelConfig
    files: tuple[Copy, ...]
    completes: bool = False
    steps: tuple[str, ...] = ()
    lost: tuple[Part, ...] = ()
    runs_code: bool = False


def plan_mlflow(folder: MlflowFolder, *, trust: bool) -> ImportPlan:
    """The plan; `trust`: code that comes with the model may run in the server. A model that cannot be imported is `refused`."""
    kind = f"MLflow {text_of(folder.document.get('mlflow_version'))}".strip()
    try:
        return ImportPlan(kind=kind, models=[_model(folder, kind, trust=trust)])
    except Unimportable as error:
        return ImportPlan(kind=kind, models=[], refused=[Part(folder.name, str(error))])


def _model(folder: MlflowFolder, kind: str, *, trust: bool) -> ModelPlan:
    name = require_name(folder.name)
    flavours = folder.document.get("flavors")
    if not isinstance(flavours, Mapping) or not flavours:
        raise Unimportable("MLmodel names no flavors")
    reasons = []
    for flavour, read in _READERS.items():
        said = flavours.get(flavour)
        if not isinstance(said, Mapping):
            continue
        try:
            found = read(said, folder)
        except Unimportable as error:
            reasons.append(Part(f"flavors.{flavour}", str(error)))
            continue
        if found.runs_code and not trust:
            raise Unimportable(
                f"flavors.{flavour}: {found.files[0].source} is a pickle, which runs whatever code it holds when it is loaded; "
                "--trust imports it all the same"
            )
        return _native(name, kind, flavour, found, folder)
    said = flavours.get("python_function")
    if not isinstance(said, Mapping):
        why = "; ".join(f"{each.source}: {each.becomes}" for each in reasons) or f"flavors are {', '.join(map(str, flavours))}"
        raise Unimportable(f"no flavor that can be served: {why}")
    return _python_function(name, kind, said, folder, reasons, trust=trust)


def _native(name: str, kind: str, flavour: str, found: _Flavour, folder: MlflowFolder) -> ModelPlan:
    flavours = folder.document["flavors"]
    others = [Part(f"flavors.{other}", f"{flavour} is served by a backend") for other in flavours if other != flavour]
    general = flavours.get("python_function")
    predict = text_of(general.get("predict_fn")) if flavour == "sklearn" and isinstance(general, Mapping) else ""
    asked = [Part("python_function.predict_fn", f"ask for the output '{predict}'")] if predict not in ("", "predict") else []
    return ModelPlan(
        name=name,
        config=_with_scoring(found.config, flavour, folder, predict or ("predict" if found.config.backend == "sklearn" else "")),
        files=found.files,
        carried=[Part(each.source, f"{each.target}, for the {found.config.backend} backend") for each in found.files],
        lost=[*found.lost, *asked, *others, *_environment(folder), *_signature_and_top(folder)],
        header=f"Imported from {kind}, flavor {flavour}.",
        completes=found.completes,
        steps=found.steps,
    )


def _with_scoring(config: ModelConfig, flavour: str, folder: MlflowFolder, output: str = "") -> ModelConfig:
    """The configuration, with what the MLflow port needs to know of the model."""
    parameter = as_parameter(flavour, folder.document.get("signature"), output)
    return msgspec.structs.replace(config, parameters={**config.parameters, **parameter})


def _signature_and_top(folder: MlflowFolder) -> list[Part]:
    parts = []
    if folder.document.get("signature"):
        parts.append(Part("signature", "inputs and outputs are those of the file: names and types may differ"))
    return parts + _top(folder)


def _top(folder: MlflowFolder) -> list[Part]:
    known = [Part(key, why) for key, why in _TOP.items() if folder.document.get(key)]
    return known + [
        Part(str(key), "unknown") for key, value in folder.document.items() if value and key not in _TOP and key not in _SILENT
    ]


def _environment(folder: MlflowFolder) -> list[Part]:
    found = [name for name in ("conda.yaml", "python_env.yaml", "requirements.txt") if name in folder.files]
    return [Part(", ".join(found), "the backend runs in the server's own environment")] if found else []


def _file_of(said: Mapping[str, Any], key: str, folder: MlflowFolder) -> str:
    path = require_inside(text_of(said.get(key)), f"MLmodel: {key}")
    if path not in folder.files:
        raise Unimportable(f"MLmodel: {key}: there is no file '{path}'")
    return path


def _without_code(said: Mapping[str, Any]) -> None:
    if said.get("code"):
        raise Unimportable("it needs the code beside it (`code`)")


def _onnx(said: Mapping[str, Any], folder: MlflowFolder) -> _Flavour:
    path = _file_of(said, "data", folder)
    parent = path.rpartition("/")[0]
    beside = [each for each in sorted(folder.files) if each.rpartition("/")[0] == parent] if parent else _weights(path, folder)
    copies = [Copy(path, "1/model.onnx")]
    copies += [Copy(each, f"1/{each.rpartition('/')[2]}") for each in beside if each != path]
    lost = []
    if said.get("providers"):
        lost.append(Part("flavors.onnx.providers", "instance_group says where it runs: a GPU if the server sees one"))
    if said.get("onnx_session_options"):
        lost.append(Part("flavors.onnx.onnx_session_options", "see `parameters` of the onnxruntime backend"))
    return _Flavour(config=ModelConfig(backend="onnxruntime"), files=tuple(copies), completes=True, lost=tuple(lost))


def _weights(path: str, folder: MlflowFolder) -> list[str]:
    """Weights beside a large model at the top of the folder, where MLflow's own files are, too."""
    return [each for each in sorted(folder.files) if each.startswith(path) or each.endswith((".data", ".weight", ".bin"))]


def _sklearn(said: Mapping[str, Any], folder: MlflowFolder, key: str = "pickled_model") -> _Flavour:
    path = _file_of(said, key, folder)
    _without_code(said)
    suffix = f".{path.rpartition('.')[2]}"
    if suffix not in _SKLEARN_NAMES:
        raise Unimportable(f"'{path}': the sklearn backend reads {', '.join(_SKLEARN_NAMES)}")
    pickled = suffix != ".skops"
    steps, types = [], said.get("skops_trusted_types")
    if pickled:
        steps.append("start the server with --backend-config=sklearn,allow-pickle=true: the model is a pickle")
    elif isinstance(types, list) and types:
        trusted = ";".join(map(text_of, types))
        steps.append(f"if you trust these types, start the server with '--backend-config=sklearn,trusted-types={trusted}'")
    name = _SKLEARN_NAMES[suffix]
    config = ModelConfig(
        backend="sklearn", default_model_filename=name, max_batch_size=_BATCH_SIZE, dynamic_batching=DynamicBatching()
    )
    return _Flavour(config=config, files=(Copy(path, f"1/{name}"),), steps=tuple(steps), runs_code=pickled)


def _trees(said: Mapping[str, Any], folder: MlflowFolder) -> _Flavour:
    path = _file_of(said, "data", folder)
    if path.endswith(tuple(_SKLEARN_NAMES)):
        return _sklearn(said, folder, "data")
    kind = folder.kinds.get(path, "")
    if kind not in TREES:
        raise Unimportable(f"'{path}' is of no format that the fil backend reads; save it by save_model of a newer version")
    target = f"1/{TREES[kind]}"
    lost: tuple[Part, ...] = ()
    if text_of(said.get("model_class")).endswith("Booster"):
        text = "classifiers answer the number of the class; probabilities, as Booster.predict has them: see docs/reference/fil.md"
        lost = (Part("model_class", text),)
    config = ModelConfig(backend="fil", max_batch_size=_BATCH_SIZE, dynamic_batching=DynamicBatching())
    return _Flavour(config=config, files=(Copy(path, target),), completes=True, lost=lost)


def _pytorch(said: Mapping[str, Any], folder: MlflowFolder) -> _Flavour:
    _without_code(said)
    data = require_inside(text_of(said.get("model_data")), "MLmodel: model_data")
    exported, saved = f"{data}/model.pt2", f"{data}/model.pth"
    if exported in folder.files:
        return _Flavour(
            config=ModelConfig(backend="pytorch", default_model_filename="model.pt2"), files=(Copy(exported, "1/model.pt2"),)
        )
    if saved not in folder.files:
        raise Unimportable(f"there is no file '{saved}'")
    if folder.kinds.get(saved) != "torchscript":
        raise Unimportable(f"'{saved}' is a pickled module, which only its own code can load; save torch.jit.script(model)")
    signature = read_signature(folder.document.get("signature"))
    if signature.in_columns or not signature.has_rows:
        raise Unimportable("TorchScript says no inputs, and the signature says no tensors whose first size is -1")
    inputs = tuple(msgspec.structs.replace(each, name=f"INPUT__{at}") for at, each in enumerate(inputs_of(signature)))
    outputs = tuple(msgspec.structs.replace(each, name=f"OUTPUT__{at}") for at, each in enumerate(outputs_of(signature)))
    config = ModelConfig(
        backend="pytorch", max_batch_size=_BATCH_SIZE, dynamic_batching=DynamicBatching(), input=inputs, output=outputs
    )
    return _Flavour(config=config, files=(Copy(saved, "1/model.pt"),))


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], MlflowFolder], _Flavour]]] = {
    "onnx": _onnx,
    "sklearn": _sklearn,
    "xgboost": _trees,
    "lightgbm": _trees,
    "pytorch": _pytorch,
}
"""In the order in which they are tried."""


def _python_function(
    name: str, kind: str, said: Mapping[str, Any], folder: MlflowFolder, reasons: list[Part], *, trust: bool
) -> ModelPlan:
    signature = read_signature(folder.document.get("signature"))
    loader = text_of(said.get("loader_module"))
    if not trust:
        why = "".join(f" ({each.source}: {each.becomes})" for each in reasons)
        raise Unimportable(f"flavors.python_function runs code of the model, by {loader}{why}; --trust imports it all the same")
    config = ModelConfig(
        backend="python",
        max_batch_size=_BATCH_SIZE if signature.has_rows else 0,
        input=inputs_of(signature),
        output=outputs_of(signature),
    )
    carried = [
        Part("python_function", "1/model.py, which loads 1/mlflow_model by mlflow.pyfunc"),
        Part("signature.inputs, signature.outputs", "input, output"),
    ]
    if signature.parameters:
        carried.append(Part("signature.params", f"parameters of a request: {', '.join(signature.parameters)}"))
    steps, footer = ["mlflow, and what the model needs, must be installed where the server runs"], ""
    if "requirements.txt" in folder.files:
        python = f", by Python {version}" if (version := text_of(said.get("python_version"))) else ""
        make = (
            "python -m venv {model}/environment && {model}/environment/bin/pip install -r {model}/1/mlflow_model/requirements.txt"
        )
        carried.append(Part("requirements.txt", "an environment to be made: see the end of config.pbtxt"))
        steps = [f"make the environment{python}: {make}", "then uncomment its parameter at the end of config.pbtxt"]
        place = 'value { string_value: "$$TRITON_MODEL_DIRECTORY/environment" }'
        footer = f'The environment of model.py, once it is made.\nparameters {{ key: "EXECUTION_ENV_PATH" {place} }}'
    return ModelPlan(
        name=name,
        config=_with_scoring(config, "python_function", folder),
        files=[Text("1/model.py", model_py(signature)), Copy("", "1/mlflow_model")],
        carried=carried,
        lost=[*reasons, *_top(folder)],
        header=f"Imported from {kind}, flavor python_function ({loader}).",
        footer=footer,
        steps=steps,
    )
