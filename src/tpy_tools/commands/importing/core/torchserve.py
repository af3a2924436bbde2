"""Plans the import of TorchServe's archives: Python models that run the handler unchanged, by a package `ts` beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput, ModelParameter, VersionPolicy, VersionPolicyAll
from tpy.messages import DataType
from tpy_tools.commands.importing.core.plan import (
    Copy,
    ImportPlan,
    ModelPlan,
    Part,
    Text,
    Unimportable,
    Unpack,
    require_inside,
    require_name,
    text_of,
)
from tpy_tools.commands.importing.core.torchserve_settings import TorchServeSettings, read_settings
from tpy_tools.commands.importing.core.torchserve_workflows import ensemble_of, read_workflow

STOCK: Final = ("base_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier")
"""Handlers that an archive can name without having them."""

_ENVELOPES: Final = ("body", "json")
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_VERSION = re.compile(r"([1-9][0-9]{0,17})(\.0)*")

_MODEL_PY: Final = '''"""Runs the handler of a TorchServe archive: its files are in `archive`, what runs it in `ts`."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ts.triton_model import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
'''

_PROPERTIES: Final = {
    "inference_address": "--allow-torchserve and --torchserve-port of tpy serve",
    "management_address": "--allow-torchserve: one port has both APIs",
    "metrics_address": "--metrics-port of tpy serve",
    "grpc_inference_port": "TorchServe's own gRPC is not served; --grpc-port has that of Triton",
    "grpc_management_port": "TorchServe's own gRPC is not served; --grpc-port has that of Triton",
    "keystore": "--http-use-ssl, --http-server-cert and --http-server-key of tpy serve",
    "certificate_file": "--http-use-ssl and --http-server-cert of tpy serve",
    "private_key_file": "--http-use-ssl and --http-server-key of tpy serve",
    "max_request_size": "--http-max-input-size of tpy serve",
    "cors_allowed_origin": "--allowed-origin of tpy serve",
    "install_py_dep_per_model": "environments are made by hand: see the steps",
    "allowed_urls": "models are not fetched while the server runs",
    "metrics_config": "metrics of handlers appear as they are made, without a list of them",
    "decode_input_request": "bodies of JSON and text are always decoded",
    "limit_max_image_pixels": "the limit of Pillow holds",
    "model_snapshot": "the models of the snapshot are not restored: the folder says what is served",
}
"""Keys of config.properties that are not carried over, and what to do."""

_READ_PROPERTIES: Final = frozenset(
    {
        *("model_store", "load_models", "models", "default_workers_per_model", "default_response_timeout", "job_queue_size"),
        *("service_envelope", "version", "workflow_store"),
    }
)


class ArchivedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an archive. `archive` is its name; `config` its model-config.yaml, or the specification of a workflow;
    `imports` are the modules of TorchServe's package that each of its Python files imports; `contents` makes its files the folder
    `archive`; `parts` are the archives of a workflow's models, by name."""

    archive: str
    manifest: Mapping[str, Any]
    files: frozenset[str]
    config: Mapping[str, Any]
    imports: Mapping[str, frozenset[str]]
    contents: Copy | Unpack
    parts: Mapping[str, ArchivedModel] = {}


class TorchServeProperties(msgspec.Struct, frozen=True, kw_only=True):
    """A config.properties; `models` is what it says there of single models, by name and version."""

    properties: Mapping[str, str] = {}
    models: Mapping[str, Any] = {}


class TorchServePackage(msgspec.Struct, frozen=True, kw_only=True):
    """The package `ts` that is put beside a model: where it is, and its modules."""

    folder: str
    modules: frozenset[str]


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    """An archive that can be imported."""

    name: str
    text: str
    model: Mapping[str, Any]
    archive: ArchivedModel
    settings: TorchServeSettings


def plan_torchserve(
    archives: Sequence[ArchivedModel],
    server: TorchServeProperties,
    package: TorchServePackage,
    refused: Sequence[Part] = (),
    *,
    trust: bool,
) -> ImportPlan:
    """The plan; `trust`: handlers may run in the server. Archives of one name are versions of one model."""
    refusals = list(refused)
    models: dict[str, list[_Version]] = {}
    plans: list[ModelPlan] = []
    for archive in archives:
        try:
            if not trust:
                handler = text_of(_about(archive).get("handler"))
                raise Unimportable(f"its handler, {handler}, is code that runs in the server; --trust imports it all the same")
            if "workflow" in archive.manifest:
                made = _workflow(archive, server, package)
                if twice := {each.name for each in plans} & {each.name for each in made}:
                    raise Unimportable(f"another workflow has models of these names, too: {', '.join(sorted(twice))}")
                plans += made
            else:
                version = _version(archive, server)
                models.setdefault(version.name, []).append(version)
        except Unimportable as error:
            refusals.append(Part(archive.archive, str(error)))
    of_workflows = {each.name for each in plans}
    for name, versions in models.items():
        try:
            if name in of_workflows:
                raise Unimportable("a workflow has a model of this name, too")
            plans.append(_model(name, versions, server, package))
        except Unimportable as error:
            refusals.append(Part(name, str(error)))
    return ImportPlan(kind="TorchServe", models=plans, refused=refusals)


def _about(archive: ArchivedModel) -> Mapping[str, Any]:
    """The manifest about the model, or the workflow. Raises Unimportable."""
    for key in ("workflow", "model"):
        if isinstance(said := archive.manifest.get(key), Mapping):
            return said
    raise Unimportable("MAR-INF/MANIFEST.json says nothing about a model")


def _workflow(archive: ArchivedModel, server: TorchServeProperties, package: TorchServePackage) -> list[ModelPlan]:
    """Models of the nodes, whose names begin with that of the workflow, as in TorchServe, and the ensemble. Raises
    Unimportable."""
    workflow = read_workflow(archive.manifest, archive.config, archive.files)
    plans = []
    for node in workflow.nodes:
        name = require_name(f"{workflow.name}__{node.name}")
        parameters = {} if node is workflow.nodes[-1] else {"TORCHSERVE_ANSWERS": "successes"}
        if node.archive:
            used = archive.parts.get(node.archive)
            if used is None:
                raise Unimportable(f"models: '{node.name}': there is no {node.archive} beside it")
            try:
                version = _version(used, TorchServeProperties(properties=server.properties), name, node.settings)
            except Unimportable as error:
                raise Unimportable(f"{node.archive}: {error}") from None
        else:
            handler = f"{workflow.handler}:{node.name}"
            parameters["TORCHSERVE_HANDLER"] = handler
            version = _Version(
                name=name,
                text="1.0",
                model={"handler": handler},
                archive=msgspec.structs.replace(archive, config={}),
                settings=read_settings({"minWorkers": 1}, {}, {}),
            )
        plans.append(_model(name, [version], server, package, parameters))
    return [*plans, ensemble_of(workflow, archive.archive, lambda node: f"{workflow.name}__{node}")]


def _version(
    archive: ArchivedModel, server: TorchServeProperties, name: str = "", settings_of_node: Mapping[str, Any] | None = None
) -> _Version:
    """The version of an archive; in a workflow under another name, with the settings there. Raises Unimportable."""
    model = _about(archive)
    name = require_name(name or text_of(model.get("modelName")))
    runtime = text_of(archive.manifest.get("runtime")) or "python"
    if runtime not in ("python", "python3"):
        raise Unimportable(f"runtime: '{runtime}': only handlers in Python can be imported")
    _require_handler(text_of(model.get("handler")), archive.files)
    for key in ("serializedFile", "modelFile", "requirementsFile", "configFile"):
        path = text_of(model.get(key))
        if path and require_inside(path, key) not in archive.files:
            raise Unimportable(f"{key}: there is no file '{path}'")
    text = text_of(model.get("modelVersion")) or "1.0"
    said = server.models.get(name)
    own = settings_of_node or (said.get(text) if isinstance(said, Mapping) else None)
    settings = read_settings(archive.config, own if isinstance(own, Mapping) else {}, server.properties)
    return _Version(name=name, text=text, model=model, archive=archive, settings=settings)


def _require_handler(handler: str, files: frozenset[str]) -> None:
    """Raise Unimportable for a handler that is neither in the archive nor one of ours."""
    file, separator, function = handler.partition(":")
    if separator and not _FUNCTION.fullmatch(function):
        raise Unimportable(f"handler: '{handler}' names no function")
    name = file.rpartition("/")[2].removesuffix(".py")
    if f"{name}.py" in files:
        return
    if name not in STOCK:
        raise Unimportable(f"handler: '{handler}' is neither in the archive nor one of {', '.join(STOCK)}")


def _model(
    name: str,
    versions: Sequence[_Version],
    server: TorchServeProperties,
    package: TorchServePackage,
    more: Mapping[str, str] | None = None,
) -> ModelPlan:
    numbers = _numbers([each.text for each in versions])
    newest = max(versions, key=lambda each: numbers[each.text])
    files: list[Copy | Text | Unpack] = []
    carried: list[Part] = []
    for version in versions:
        number = numbers[version.text]
        contents = msgspec.structs.replace(version.archive.contents, target=f"{number}/archive")
        files += [Text(f"{number}/model.py", _MODEL_PY), contents, Copy(package.folder, f"{number}/ts")]
        if text := _json(version.archive.config):
            files.append(Text(f"{number}/model-config.json", text))
        carried.append(Part(f"{version.archive.archive}, modelVersion {version.text}", f"{number}/archive"))
        carried.append(
            Part(f"handler {text_of(version.model.get('handler'))}", f"{number}/model.py, which runs it by {number}/ts")
        )
    settings = newest.settings
    envelope, lost = _envelope(server)
    lost += [*settings.lost, *_missing_modules(versions, package), *_others(versions, newest), *_properties(server)]
    if more is None and "minWorkers" not in newest.archive.config and not server.properties.get("default_workers_per_model"):
        lost.append(Part("default_workers_per_model", "TorchServe starts a worker for each GPU or core; see instance_group"))
    steps, footer = _environment(newest, numbers[newest.text])
    parameters = {
        **settings.parameters,
        "TORCHSERVE_VERSIONS": ModelParameter(string_value=" ".join(f"{numbers[each.text]}={each.text}" for each in versions)),
        **({"TORCHSERVE_ENVELOPE": ModelParameter(string_value=envelope)} if envelope else {}),
        **{key: ModelParameter(string_value=value) for key, value in (more or {}).items()},
    }
    config = ModelConfig(
        backend="python",
        max_batch_size=settings.max_batch_size,
        version_policy=VersionPolicy(all=VersionPolicyAll()) if len(versions) > 1 else None,
        input=(
            ModelInput(name="body", data_type=DataType.BYTES, dims=(1,)),
            ModelInput(name="headers", data_type=DataType.BYTES, dims=(1,), optional=True),
        ),
        output=(
            ModelOutput(name="response", data_type=DataType.BYTES, dims=(1,)),
            ModelOutput(name="status", data_type=DataType.INT32, dims=(1,)),
            ModelOutput(name="response_headers", data_type=DataType.BYTES, dims=(1,)),
        ),
        instance_group=(settings.group,),
        dynamic_batching=settings.dynamic,
        parameters=parameters,
    )
    header = f"Imported from TorchServe: {', '.join(each.archive.archive for each in versions)}."
    return ModelPlan(
        name=name,
        config=config,
        files=files,
        carried=[*carried, *settings.carried],
        lost=lost,
        header=header,
        footer=footer,
        steps=steps,
    )


def _json(config: Mapping[str, Any]) -> str:
    """A model-config.yaml as JSON, which the Python that runs the model can read without PyYAML; "" where JSON has no such value,
    as a date."""
    try:
        text = json.dumps(config, indent=2)
    except (TypeError, ValueError):
        return ""
    return text if config and json.loads(text) == config else ""


def _numbers(texts: Sequence[str]) -> dict[str, int]:
    """The number of each version: its own, if it is one, as 2.0 is, else its place among the others. Raises Unimportable."""
    if len(set(texts)) != len(texts):
        raise Unimportable("two archives have the same modelName and modelVersion")
    if any(not text.isascii() or not text.isprintable() or set(text) & set(" =/") for text in texts):
        raise Unimportable("modelVersion: expected letters, digits and punctuation without '=' and '/'")
    plain = {text: int(found[1]) for text in texts if (found := _PLAIN_VERSION.fullmatch(text))}
    if len(plain) == len(texts) == len(set(plain.values())):
        return plain
    ordered = sorted(texts, key=lambda text: [(0, int(each), "") if each.isdigit() else (1, 0, each) for each in text.split(".")])
    return {text: at for at, text in enumerate(ordered, 1)}


def _envelope(server: TorchServeProperties) -> tuple[str, list[Part]]:
    envelope = server.properties.get("service_envelope", "")
    if envelope and envelope not in _ENVELOPES:
        text = "not among body and json; KServe's requests are served by the HTTP port itself"
        return "", [Part(f"service_envelope: {envelope}", text)]
    return envelope, []


def _missing_modules(versions: Sequence[_Version], package: TorchServePackage) -> list[Part]:
    missing = {
        (path, module)
        for version in versions
        for path, modules in version.archive.imports.items()
        for module in modules
        if module not in package.modules
    }
    return [Part(f"{path}: import {module}", "the package beside the model does not have it") for path, module in sorted(missing)]


def _others(versions: Sequence[_Version], newest: _Version) -> list[Part]:
    text = f"settings hold for all versions: those of {newest.text}"
    return [
        Part(f"settings of {each.text}", text)
        for each in versions
        if (each.settings.group, each.settings.dynamic, each.settings.max_batch_size)
        != (newest.settings.group, newest.settings.dynamic, newest.settings.max_batch_size)
    ] + [
        Part(f"defaultVersion {each.text}", "requests without a version go to the newest one")
        for each in versions
        if each is not newest and _is_default(each)
    ]


def _is_default(version: _Version) -> bool:
    return version.archive.config.get("defaultVersion") is True


def _properties(server: TorchServeProperties) -> list[Part]:
    return [
        Part(f"{key}", _PROPERTIES.get(key, "unknown, or a matter of TorchServe's own threads"))
        for key in server.properties
        if key not in _READ_PROPERTIES
    ]


def _environment(version: _Version, number: int) -> tuple[list[str], str]:
    """Steps that are left, and the comment at the end of config.pbtxt."""
    steps = []
    config = version.archive.config
    packages = ["PyYAML"] if config and not _json(config) else []
    handler = text_of(version.model.get("handler"))
    if handler in STOCK:
        packages.append(
            "torch" if handler == "base_handler" else "torch, torchvision and Pillow" if "text" not in handler else "torch"
        )
    requirements = text_of(version.model.get("requirementsFile"))
    if not requirements:
        if packages:
            steps.append(f"{', '.join(packages)} must be installed where the server runs")
        return steps, ""
    make = (
        "python -m venv {model}/environment && {model}/environment/bin/pip install numpy "
        f"-r {{model}}/{number}/archive/{requirements}"
    )
    steps = [f"make the environment: {make}", "then uncomment its parameter at the end of config.pbtxt"]
    if packages:
        steps.insert(1, f"it needs {', '.join(packages)}, too")
    place = 'value { string_value: "$$TRITON_MODEL_DIRECTORY/environment" }'
    return steps, f'The environment of model.py, once it is made.\nparameters {{ key: "EXECUTION_ENV_PATH" {place} }}'
