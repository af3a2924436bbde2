"""Plans the import of MLServer's models: by the backend for the runtime, or a Python model that runs MLServer's class unchanged,
by a package `mlserver` beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import (
    EXECUTION_ENVIRONMENT,
    DynamicBatching,
    ModelParameter,
    VersionPolicy,
    VersionPolicyAll,
)
from tpy_tools.commands.importing.core.mlflow import TREES, MlflowFolder, plan_mlflow
from tpy_tools.commands.importing.core.mlserver_settings import (
    PARAMETERS,
    ROWS_MAX,
    MLServerSettings,
    inputs_of,
    outputs_of,
    parameter,
    parameters_of,
    read_settings,
    tensors_of,
)
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

SETTINGS: Final = "model-settings.json"

_MODEL_PY: Final = '''"""Runs a model of MLServer: its files are in `folder`, what runs it in `mlserver`."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from mlserver.triton_model import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
'''

_WELL_KNOWN: Final[Mapping[str, Sequence[str]]] = {
    "sklearn": ("model.joblib", "model.pickle", "model.pkl"),
    "xgboost": ("model.bst", "model.json", "model.ubj"),
    "lightgbm": ("model.bst",),
}
"""Files that a runtime looks for in a folder."""

_RUNTIMES: Final = {
    "mlserver_sklearn": "sklearn",
    "mlserver_xgboost": "xgboost",
    "mlserver_lightgbm": "lightgbm",
    "mlserver_mlflow": "mlflow",
}
_REFUSED: Final = {
    "mlserver_alibi_detect": "detectors of Alibi: write a Python model that calls alibi_detect",
    "mlserver_alibi_explain": "explainers of Alibi: write a Python model that calls alibi",
    "mlserver_catboost": "save the model as ONNX: model.save_model('model.onnx', format='onnx'), then tpy init",
    "mlserver_huggingface": "serve language models by an engine (docs/how-to/serve-a-language-model.md), others as ONNX",
    "mlserver_mllib": "models of Spark: save them as ONNX, then tpy init",
}
_SKLEARN_NAMES: Final = {".joblib": "model.joblib", ".pickle": "model.pkl", ".pkl": "model.pkl"}
_TARBALL: Final = "environment.tar.gz"


class ModelFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the folder of a model-settings.json. `place` is its path in the source, `path` the absolute one; `files` are
    relative to it, without folders of other models. `imports` are the modules of MLServer's packages that each Python file
    imports, `streams` the classes with a predict_stream; `trees` is the format of files of XGBoost and LightGBM; `mlflow` is
    there where the model is one of MLflow; `environment` is the absolute path of `environment_path`, "" where there is no such
    folder."""

    place: str
    path: str
    settings: Mapping[str, Any]
    files: frozenset[str]
    imports: Mapping[str, frozenset[str]] = {}
    streams: frozenset[str] = frozenset()
    trees: Mapping[str, str] = {}
    mlflow: MlflowFolder | None = None
    environment: str = ""


class MLServerPackage(msgspec.Struct, frozen=True, kw_only=True):
    """The package that is put beside a model: where it is, and its modules."""

    folder: str
    modules: frozenset[str]


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that can be imported."""

    name: str
    version: str
    folder: ModelFolder
    settings: MLServerSettings


def name_of(folder: ModelFolder) -> str:
    """The name of the model: as settings say, else that of the folder."""
    return text_of(folder.settings.get("name")) or folder.path.rpartition("/")[2]


def uri_of(settings: Mapping[str, Any]) -> str:
    """The file or folder of a model, relative to its settings; "." without a `uri`. Raises Unimportable."""
    uri = parameter(settings, "uri")
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise Unimportable(f"parameters.uri: '{uri}' is not an address") from None
    if parts.scheme not in ("", "file") or parts.netloc:
        raise Unimportable(f"parameters.uri: '{uri}' is an address: fetch it, and name the file")
    path = parts.path if parts.scheme else uri
    return require_inside(path, "parameters.uri") if path else "."


def plan_mlserver(
    folders: Sequence[ModelFolder],
    server: Mapping[str, Any],
    package: MLServerPackage,
    refused: Sequence[Part] = (),
    *,
    trust: bool,
) -> ImportPlan:
    """The plan; `trust`: code that comes with models may run in the server. Folders of one name are versions of one model."""
    refusals = list(refused)
    models: dict[str, list[_Model]] = {}
    for folder in folders:
        try:
            model = _model(folder, server)
            models.setdefault(model.name, []).append(model)
        except Unimportable as error:
            refusals.append(Part(folder.place, str(error)))
    plans = []
    for name, versions in models.items():
        try:
            plans.append(_combined([_planned(each, package, trust=trust) for each in versions], versions))
        except Unimportable as error:
            refusals.append(Part(name, str(error)))
    return ImportPlan(kind="MLServer", models=plans, refused=refusals)


def _model(folder: ModelFolder, server: Mapping[str, Any]) -> _Model:
    return _Model(
        name=require_name(name_of(folder)),
        version=parameter(folder.settings, "version"),
        folder=folder,
        settings=read_settings(folder.settings, server),
    )


def _combined(plans: Sequence[ModelPlan], models: Sequence[_Model]) -> ModelPlan:
    """One plan of all versions: each has its files, all have the configuration of the newest. Raises Unimportable."""
    numbers = _numbers([each.version for each in models])
    newest = max(range(len(models)), key=lambda at: numbers[models[at].version])
    lost, files = list(plans[newest].lost), []
    for at, (plan, model) in enumerate(zip(plans, models, strict=True)):
        number = numbers[model.version]
        for file in plan.files:
            files.append(msgspec.structs.replace(file, target=file.target.replace("1/", f"{number}/", 1)))
        if model.version not in ("", str(number)):
            lost.append(Part(f"version {model.version}", f"its number is {number}: ask for versions/{number}"))
        if at != newest and msgspec.structs.replace(plan.config, parameters={}) != msgspec.structs.replace(
            plans[newest].config, parameters={}
        ):
            lost.append(Part(f"settings of version {model.version}", "settings hold for all versions: those of the newest one"))
    config = plans[newest].config
    if len(models) > 1:
        config = msgspec.structs.replace(config, version_policy=VersionPolicy(all=VersionPolicyAll()))
    carried = [part for plan in plans for part in plan.carried] if len(models) == 1 else _by_version(plans, models, numbers)
    return msgspec.structs.replace(plans[newest], config=config, files=files, carried=carried, lost=lost)


def _by_version(plans: Sequence[ModelPlan], models: Sequence[_Model], numbers: Mapping[str, int]) -> list[Part]:
    return [
        Part(f"{model.folder.place}: {part.source}", part.becomes.replace("1/", f"{numbers[model.version]}/", 1))
        for plan, model in zip(plans, models, strict=True)
        for part in plan.carried
    ]


def _numbers(versions: Sequence[str]) -> dict[str, int]:
    """The number of each version: its own if all have one, else its place in MLServer's order. Raises Unimportable."""
    if len(set(versions)) != len(versions):
        raise Unimportable("two folders have the same name and version")
    own = {text: int(text) for text in versions if text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0}
    if len(own) == len(versions) == len(set(own.values())):
        return own
    return {text: at for at, text in enumerate(sorted(versions, key=lambda text: (text == "", text)), 1)}


def _planned(model: _Model, package: MLServerPackage, *, trust: bool) -> ModelPlan:
    """The plan of one folder, as version 1. Raises Unimportable."""
    settings = model.folder.settings
    implementation = text_of(settings.get("implementation"))
    if not implementation:
        raise Unimportable("implementation: expected the name of a class, such as mlserver_sklearn.SKLearnModel")
    module = implementation.partition(".")[0]
    if module in _REFUSED:
        raise Unimportable(f"implementation: {implementation}: {_REFUSED[module]}")
    runtime = _RUNTIMES.get(module, "")
    if runtime == "mlflow":
        return _mlflow(model, trust=trust)
    if runtime == "sklearn":
        return _sklearn(model, trust=trust)
    if runtime:
        return _trees(model, runtime, package, trust=trust)
    return _custom(model, implementation, package, trust=trust)


def _file_of(model: _Model, runtime: str) -> str:
    """The file that a runtime loads. Raises Unimportable."""
    uri = uri_of(model.folder.settings)
    files = model.folder.files
    if uri in files:
        return uri
    prefix = "" if uri == "." else f"{uri}/"
    for name in _WELL_KNOWN[runtime]:
        if f"{prefix}{name}" in files:
            return f"{prefix}{name}"
    raise Unimportable(f"parameters.uri: there is no file '{uri}'; expected one, or {', '.join(_WELL_KNOWN[runtime])} there")


def _native(
    model: _Model, config: ModelConfig, file: str, target: str, *, lost: Sequence[Part], steps: Sequence[str], completes: bool
) -> ModelPlan:
    """The plan of a model that a backend of the server reads."""
    settings, folder = model.settings, model.folder
    dynamic = settings.dynamic or DynamicBatching()
    rows = [Part("max_batch_size", f"rows of a request, and of a batch: {ROWS_MAX} at most")]
    config = msgspec.structs.replace(
        config,
        max_batch_size=ROWS_MAX,
        dynamic_batching=dynamic,
        instance_group=(settings.group,),
        response_cache=settings.cache,
    )
    environments = [
        Part(f"parameters.{key}", "the backend runs in the server's own environment")
        for key in ("environment_path", "environment_tarball")
        if parameter(folder.settings, key)
    ]
    return ModelPlan(
        name=model.name,
        config=config,
        files=[Copy(f"{folder.path}/{file}", f"1/{target}")],
        carried=[Part(file, f"1/{target}, for the {config.backend} backend"), *settings.carried],
        lost=[*lost, *rows, *environments, *_extra(folder, ("predict_fn",)), *settings.lost],
        header=_header(folder),
        steps=[*steps, *settings.steps],
        completes=completes,
    )


def _header(folder: ModelFolder) -> str:
    return f"Imported from MLServer: {folder.place}."


def _extra(folder: ModelFolder, read: Sequence[str] = ()) -> list[Part]:
    """Parts of `parameters` that a runtime of MLServer reads, and a backend does not."""
    parameters = parameters_of(folder.settings)
    extra = parameters.get("extra")
    said = [f"parameters.extra.{key}" for key in extra if key not in read] if isinstance(extra, Mapping) else []
    said += [f"parameters.{key}" for key in parameters if key not in PARAMETERS and not key.endswith("inference_pool_gid")]
    return [Part(each, "the backend does not read it") for each in said]


def _content_type(folder: ModelFolder) -> list[Part]:
    kind = parameter(folder.settings, "content_type")
    return [Part(f"parameters.content_type {kind}", "the backend takes tensors as they are")] if kind not in ("", "np") else []


def _sklearn(model: _Model, *, trust: bool) -> ModelPlan:
    file = _file_of(model, "sklearn")
    suffix = f".{file.rpartition('.')[2]}"
    if suffix not in _SKLEARN_NAMES:
        raise Unimportable(f"'{file}': the sklearn backend reads {', '.join(_SKLEARN_NAMES)}")
    if not trust:
        raise Unimportable(
            f"{file} is a pickle, which runs whatever code it holds when it is loaded; --trust imports it all the same"
        )
    settings = model.folder.settings
    inputs, outputs = tensors_of(settings, "inputs"), tensors_of(settings, "outputs")
    lost: list[Part] = []
    if not inputs:
        lost.append(
            Part("names and types of inputs", "MLServer takes any; here X, FP64. Declare `inputs`, and import again, for others")
        )
    if not outputs:
        lost.append(
            Part("outputs", "requests that name none get predict and predict_proba, or transform; MLServer answers predict alone")
        )
    extra = parameters_of(settings).get("extra")
    function = text_of(extra.get("predict_fn")) if isinstance(extra, Mapping) else ""
    if function not in ("", "predict"):
        lost.append(Part("parameters.extra.predict_fn", f"ask for the output '{function}'"))
    name = _SKLEARN_NAMES[suffix]
    config = ModelConfig(
        backend="sklearn",
        default_model_filename=name,
        input=inputs_of(inputs, batches=True),
        output=outputs_of(outputs, batches=True),
    )
    if parameter(settings, "content_type") != "pd":
        lost += _content_type(model.folder)
    steps = ["start the server with --backend-config=sklearn,allow-pickle=true: the model is a pickle"]
    return _native(model, config, file, name, lost=lost, steps=steps, completes=False)


def _trees(model: _Model, runtime: str, package: MLServerPackage, *, trust: bool) -> ModelPlan:
    """Declared inputs are kept, by MLServer's runtime in a Python model; without them the fil backend names its own."""
    file = _file_of(model, runtime)
    if tensors_of(model.folder.settings, "inputs"):
        return _by_runtime(model, runtime, file, package, trust=trust)
    kind = model.folder.trees.get(file, "")
    if kind not in TREES:
        raise Unimportable(
            f"'{file}' is of no format that the fil backend reads; save it by save_model of a newer version, or declare `inputs` "
            f"in {SETTINGS}, which the library itself will serve"
        )
    text = (
        "the fil backend has input__0, FP32, and output__0. Declare `inputs` and `outputs`, and import again, for other names "
        f"and the answers of {runtime} itself"
    )
    lost = [Part("names and types of inputs and outputs", text), *_content_type(model.folder)]
    return _native(model, ModelConfig(backend="fil"), file, TREES[kind], lost=lost, steps=(), completes=True)


def _by_runtime(model: _Model, runtime: str, file: str, package: MLServerPackage, *, trust: bool) -> ModelPlan:
    settings = model.folder.settings
    if parameter(settings, "environment_path") or parameter(settings, "environment_tarball"):
        _require_trust("its environment", trust=trust)
    if not tensors_of(settings, "outputs"):
        example = '{"name": "predict", "datatype": "FP32", "shape": [-1, 1]}'
        raise Unimportable(f"declare `outputs`, too, as {example}, or neither, for the fil backend")
    plan = _python(model, package, [file, SETTINGS], f"{runtime} loads {file}")
    needs = f"{runtime} must be installed where the server runs"
    return plan if EXECUTION_ENVIRONMENT in plan.config.parameters else msgspec.structs.replace(plan, steps=[needs, *plan.steps])


def _require_trust(what: str, *, trust: bool) -> None:
    if not trust:
        raise Unimportable(f"{what} is code that runs in the server; --trust imports it all the same")


def _custom(model: _Model, implementation: str, package: MLServerPackage, *, trust: bool) -> ModelPlan:
    folder = model.folder
    module, _, name = implementation.rpartition(".")
    path = module.replace(".", "/")
    if not module or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise Unimportable(f"implementation: '{implementation}' names no class; expected module.Class")
    if not folder.files & {f"{path}.py", f"{path}/__init__.py"}:
        raise Unimportable(
            f"implementation: there is no {path}.py beside {SETTINGS}, and {module} is not a runtime that is known"
        )
    _require_trust(f"its class, {implementation},", trust=trust)
    for side in ("inputs", "outputs"):
        if not tensors_of(folder.settings, side):
            raise Unimportable(
                f"{SETTINGS} declares no {side}, so their names are unknown: MLServer takes any. Add them as clients send them: "
                f'"{side}": [{{"name": "x", "datatype": "FP32", "shape": [-1, 4]}}]; MLServer takes that, too'
            )
    lost = [
        Part(f"{path}: import {each}", "the package beside the model does not have it")
        for path, modules in sorted(folder.imports.items())
        for each in sorted(modules)
        if each not in package.modules
    ]
    if any("mlserver.handlers" in modules for modules in folder.imports.values()):
        lost.append(Part("custom_handler", "routes of a model are not served"))
    if implementation in folder.streams:
        lost.append(Part("predict_stream", "requests are answered by predict; a decoupled model has to be written for streams"))
    return _python(model, package, sorted(folder.files), f"1/model.py runs {implementation} by 1/mlserver", lost)


def _python(model: _Model, package: MLServerPackage, files: Sequence[str], runs: str, lost: Sequence[Part] = ()) -> ModelPlan:
    """The plan of a Python model that runs a class of MLServer's kind."""
    folder, settings = model.folder, model.settings
    batches = settings.dynamic is not None
    inputs, outputs = tensors_of(folder.settings, "inputs"), tensors_of(folder.settings, "outputs")
    tarball = parameter(folder.settings, "environment_tarball")
    copies: list[Copy | Text] = [Text("1/model.py", _MODEL_PY), Copy(package.folder, "1/mlserver")]
    copies += [Copy(f"{folder.path}/{each}", f"1/folder/{each}") for each in files if each != tarball.removeprefix("./")]
    parameters, carried = _environment(folder, copies)
    shapes = [
        Part(f"{each.name}: shape {list(each.shape)}", "batches have rows first: clients send [N,1]")
        for each in (*inputs, *outputs)
        if batches and len(each.shape) == 1
    ]
    config = ModelConfig(
        backend="python",
        max_batch_size=ROWS_MAX if batches else 0,
        input=inputs_of(inputs, batches=batches),
        output=outputs_of(outputs, batches=batches),
        dynamic_batching=settings.dynamic,
        instance_group=(settings.group,),
        response_cache=settings.cache,
        parameters=parameters,
    )
    return ModelPlan(
        name=model.name,
        config=config,
        files=copies,
        carried=[Part(folder.place, "1/folder"), Part("implementation", runs), *carried, *settings.carried],
        lost=[*lost, *shapes, *settings.lost],
        header=_header(folder),
        steps=settings.steps,
    )


def _environment(folder: ModelFolder, copies: list[Copy | Text]) -> tuple[Mapping[str, ModelParameter], list[Part]]:
    """The parameter with the environment, whose archive joins `copies`. Raises Unimportable."""
    path = parameter(folder.settings, "environment_path")
    tarball = parameter(folder.settings, "environment_tarball")
    if path:
        if not folder.environment:
            raise Unimportable(f"parameters.environment_path: there is no folder '{path}'")
        return {EXECUTION_ENVIRONMENT: ModelParameter(string_value=folder.environment)}, [
            Part("parameters.environment_path", f"EXECUTION_ENV_PATH: {folder.environment}, where it is")
        ]
    if not tarball:
        return {}, []
    inside = require_inside(tarball, "parameters.environment_tarball")
    if inside not in folder.files:
        raise Unimportable(f"parameters.environment_tarball: there is no file '{tarball}'")
    copies.append(Copy(f"{folder.path}/{inside}", _TARBALL))
    value = f"$$TRITON_MODEL_DIRECTORY/{_TARBALL}"
    return {EXECUTION_ENVIRONMENT: ModelParameter(string_value=value)}, [
        Part("parameters.environment_tarball", f"EXECUTION_ENV_PATH: {_TARBALL}")
    ]


def _mlflow(model: _Model, *, trust: bool) -> ModelPlan:
    """As the import of an MLflow model, with the settings of MLServer."""
    folder = model.folder
    if folder.mlflow is None:
        raise Unimportable(f"parameters.uri: '{uri_of(folder.settings)}' is not the folder of an MLflow model: it has no MLmodel")
    found = plan_mlflow(msgspec.structs.replace(folder.mlflow, name=model.name), trust=trust)
    if found.refused:
        raise Unimportable(found.refused[0].becomes)
    [plan] = found.models
    uri = uri_of(folder.settings)
    root = folder.path if uri == "." else f"{folder.path}/{uri}"
    files = [
        msgspec.structs.replace(each, source=f"{root}/{each.source}".rstrip("/")) if isinstance(each, Copy) else each
        for each in plan.files
    ]
    settings = model.settings
    config = msgspec.structs.replace(plan.config, instance_group=(settings.group,), response_cache=settings.cache)
    if settings.dynamic is not None and config.max_batch_size > 0:
        config = msgspec.structs.replace(config, dynamic_batching=settings.dynamic, max_batch_size=ROWS_MAX)
    text = "inputs and outputs are those of the import of MLflow, by names of the signature or the file"
    return msgspec.structs.replace(
        plan,
        config=config,
        files=files,
        carried=[*plan.carried, *settings.carried],
        lost=[*plan.lost, Part("names of inputs and outputs", text), *_extra(folder), *settings.lost],
        header=f"{_header(folder)} {plan.header}",
        steps=[*plan.steps, *settings.steps],
    )
