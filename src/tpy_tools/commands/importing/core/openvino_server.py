"""Plans the import of OpenVINO Model Server's models: links to their files, for the openvino backend; pipelines as ensembles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import (
    InstanceGroup,
    InstanceKind,
    ModelParameter,
    VersionPolicy,
    VersionPolicyAll,
    VersionPolicyLatest,
    VersionPolicySpecific,
)
from tpy_tools.commands.importing.core.pipelines import ensemble_of
from tpy_tools.commands.importing.core.plan import ImportPlan, LinkTarget, ModelPlan, Part, Unimportable, require_name, text_of
from tpy_tools.commands.importing.core.tensorflow_serving import BasePath

KIND: Final = "OpenVINO Model Server"

_BATCH_SIZE: Final = 64
"""Of `batch_size: auto`, which takes any: as `tpy init` writes it."""

_SIZE_MAX: Final = 2**31 - 1
_INSTANCES_MAX: Final = 1024
_DIMS_MAX: Final = 32

_FORMATS: Final = (".xml", ".onnx", ".pdmodel", ".tflite")
_WEIGHTS: Final = {".xml": ".bin", ".pdmodel": ".pdiparams"}
_SIZE: Final = re.compile(r"-1|[1-9][0-9]{0,9}(?::[1-9][0-9]{0,9})?")

_REFUSED: Final = {
    "color_format": "changes pixels: put it into the model, by openvino.preprocess",
    "custom_loader_options": "a custom loader: save the model as a file",
    "graph_path": "a graph of MediaPipe: write a Python model",
    "mean": "changes values: put it into the model, by openvino.preprocess",
    "precision": "changes types: put it into the model, by openvino.preprocess",
    "resize_algorithm": "changes pixels: put it into the model, by openvino.preprocess",
    "scale": "changes values: put it into the model, by openvino.preprocess",
}
"""Settings without which a model gives other answers."""

_STATEFUL: Final = ("idle_sequence_cleanup", "low_latency_transformation", "max_sequence_number")
_NAMED: Final = {
    "allow_cache": "the parameter CACHE_DIR of the backend",
    "cache_dir": "the parameter CACHE_DIR of the backend",
}
_READ: Final = frozenset(
    {
        *("name", "base_path", "batch_size", "layout", "model_version_policy", "nireq", "plugin_config", "shape"),
        *("stateful", "target_device"),
    }
)
_TOP: Final = {
    "custom_loader_config_list": "loaders are not carried over, nor models that need one",
    "custom_node_library_config_list": "custom nodes are not carried over, nor pipelines that need one",
    "monitoring": "metrics are on port 8002, /metrics",
}


class ServedNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a config.json: its settings, and what was found at its base path."""

    settings: Mapping[str, Any]
    base: BasePath


def settings_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings of each model in a config.json. Raises Unimportable."""
    found = [each.get("config") if isinstance(each, Mapping) else None for each in entries(document, "model_config_list")]
    if not all(isinstance(each, Mapping) for each in found):
        raise Unimportable("config.json: model_config_list: expected objects with a `config`")
    return [each for each in found if isinstance(each, Mapping)]


def entries(document: Mapping[str, Any], name: str) -> list[Any]:
    """A list of a document; empty if missing. Raises Unimportable."""
    found = document.get(name, [])
    if not isinstance(found, list):
        raise Unimportable(f"config.json: {name}: expected a list")
    return found


def plan_openvino_server(document: Mapping[str, Any], networks: Sequence[ServedNetwork]) -> ImportPlan:
    """The plan for a config.json. Raises Unimportable."""
    others = [Part(name, _TOP.get(name, "unknown")) for name in document if document[name] and name not in _LISTS]
    planned: list[ModelPlan] = []
    refused: list[Part] = []
    for network in networks:
        name = text_of(network.settings.get("name"))
        try:
            if any(each.name == name for each in planned):
                raise Unimportable("two models have this name")
            planned.append(_model(network, others))
        except Unimportable as error:
            refused.append(Part(name or "a model without a name", str(error)))
    models = {each.name for each in planned}
    for pipeline in entries(document, "pipeline_config_list"):
        name = text_of(pipeline.get("name")) if isinstance(pipeline, Mapping) else ""
        try:
            planned.append(ensemble_of(pipeline, models))
        except Unimportable as error:
            refused.append(Part(name or "a pipeline without a name", str(error)))
    for graph in entries(document, "mediapipe_config_list"):
        name = text_of(graph.get("name")) if isinstance(graph, Mapping) else ""
        refused.append(Part(name or "a graph without a name", "a graph of MediaPipe: write a Python model or an ensemble"))
    return ImportPlan(kind=KIND, models=planned, refused=refused)


_LISTS: Final = ("model_config_list", "pipeline_config_list", "mediapipe_config_list")


def _model(network: ServedNetwork, others: Sequence[Part]) -> ModelPlan:
    settings, base = network.settings, network.base
    name = require_name(text_of(settings.get("name")))
    for key, why in _REFUSED.items():
        if settings.get(key):
            raise Unimportable(f"{key}: {why}")
    unknown = [key for key in settings if key not in _READ and key not in _NAMED and key not in _STATEFUL]
    if unknown:
        raise Unimportable(f"unknown: {', '.join(map(str, unknown))[:200]}; without them the model would be another")
    if settings.get("stateful"):
        raise Unimportable("stateful: keep the state by sequences: docs/how-to/keep-state-between-requests.md")
    versions = _versions(settings, base)
    files, filename = _files(base, versions)
    carried = [Part(f"{base.folder}/{folder}", f"{version}, by links") for version, folder in versions.items()]
    lost = [Part(key, why) for key, why in _NAMED.items() if settings.get(key)]
    lost += [Part(key, "models with state are not imported") for key in _STATEFUL if settings.get(key)]
    parameters = _parameters(settings, carried)
    group = _group(settings, parameters, carried)
    shapes = _shapes(settings, carried, lost)
    rows = _rows(settings, shapes, carried, lost)
    _layout(settings, lost)
    policy = _policy(settings, versions)
    if policy is not None:
        carried.append(Part("model_version_policy", "version_policy"))
    config = ModelConfig(
        backend="openvino",
        default_model_filename=filename,
        max_batch_size=rows,
        version_policy=policy,
        instance_group=(group,) if group is not None else (),
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )
    return ModelPlan(
        name=name,
        config=config,
        files=files,
        carried=carried,
        lost=[*lost, *others],
        header=f"Imported from {KIND}; the files are links.",
        completes=True,
        shapes=shapes,
        steps=[f"versions that {base.folder} gets later need links, too: in {{model}}/N"],
    )


def _versions(settings: Mapping[str, Any], base: BasePath) -> dict[int, str]:
    """The folders by version. Raises Unimportable for a missing folder."""
    path = text_of(settings.get("base_path"))
    if "://" in path:
        raise Unimportable(f"base_path: '{path}' is in the cloud; fetch it, and import the folder")
    if not base.folder:
        raise Unimportable(f"base_path: there is no folder '{path}', nor one of that name beside the configuration")
    found = {int(folder): folder for folder, names in sorted(base.versions.items()) if int(folder) > 0 and names}
    if not found:
        raise Unimportable(f"{base.folder}: no version: expected folders 1, 2, ... with a model")
    return dict(sorted(found.items()))


def _files(base: BasePath, versions: Mapping[int, str]) -> tuple[list[LinkTarget], str]:
    """Links to the files, and the name that they have in all versions. Raises Unimportable."""
    links: list[LinkTarget] = []
    names: set[str] = set()
    for version, folder in versions.items():
        place, there = f"{base.folder}/{folder}", base.versions[folder]
        if "saved_model.pb" in there:
            links.append(LinkTarget(place, f"{version}/model.savedmodel"))
            names.add("model.savedmodel")
            continue
        file, suffix = _file(place, there)
        links.append(LinkTarget(f"{place}/{file}", f"{version}/model{suffix}"))
        names.add(f"model{suffix}")
        weights = file.removesuffix(suffix) + _WEIGHTS.get(suffix, "")
        if suffix in _WEIGHTS and weights in there:
            links.append(LinkTarget(f"{place}/{weights}", f"{version}/model{_WEIGHTS[suffix]}"))
        elif suffix not in _WEIGHTS:  # weights beside a model are named in it
            links += [LinkTarget(f"{place}/{each}", f"{version}/{each}") for each in sorted(there) if each != file]
    if len(names) > 1:
        raise Unimportable(f"{base.folder}: versions of several formats ({', '.join(sorted(names))}); import them one by one")
    return links, names.pop()


def _file(place: str, there: frozenset[str]) -> tuple[str, str]:
    for suffix in _FORMATS:
        found = sorted(each for each in there if each.endswith(suffix))
        if len(found) > 1:
            raise Unimportable(f"{place}: several files end in {suffix}: {', '.join(found)[:200]}")
        if found:
            return found[0], suffix
    raise Unimportable(f"{place}: no file that ends in {', '.join(_FORMATS)}, nor a saved_model.pb")


def _number(settings: Mapping[str, Any], name: str, high: int) -> int:
    value = settings.get(name) or 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(high)):
        value = int(value)
    if type(value) is not int or not 0 <= value <= high:
        raise Unimportable(f"{name}: expected a number between 0 and {high}")
    return value


def _parameters(settings: Mapping[str, Any], carried: list[Part]) -> dict[str, str]:
    said = settings.get("plugin_config") or {}
    if not isinstance(said, Mapping):
        raise Unimportable("plugin_config: expected an object of names and values")
    found: dict[str, str] = {}
    for key, value in said.items():
        if not isinstance(value, str | int | float):
            raise Unimportable(f"plugin_config: {key}: expected a number, text, true or false")
        if not key.isupper() or not key.isascii() or not key.replace("_", "").isalnum():
            raise Unimportable(f"plugin_config: '{key}' is not the name of a property of OpenVINO")
        found[key] = ("NO", "YES")[value] if isinstance(value, bool) else str(value)
        carried.append(Part(f"plugin_config.{key}", f"the parameter {key}: {found[key]}"))
    return found


def _group(settings: Mapping[str, Any], parameters: dict[str, str], carried: list[Part]) -> InstanceGroup | None:
    device = text_of(settings.get("target_device"))
    count = _number(settings, "nireq", _INSTANCES_MAX)
    if count:
        carried.append(Part("nireq", f"instance_group: count {count}, with an infer request each"))
    if device == "CPU":
        carried.append(Part("target_device", "instance_group: kind KIND_CPU"))
        return InstanceGroup(count=max(count, 1), kind=InstanceKind.KIND_CPU)
    if device:
        parameters["TARGET_DEVICE"] = device
        carried.append(Part("target_device", f"the parameter TARGET_DEVICE: {device}"))
    return InstanceGroup(count=count) if count else None


def _rows(settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], carried: list[Part], lost: list[Part]) -> int:
    said = settings.get("batch_size")
    rows = _BATCH_SIZE if said == "auto" else _number(settings, "batch_size", _SIZE_MAX)
    if not rows:
        return 0
    if shapes:
        lost.append(Part("batch_size", "`shape` says it, as in OpenVINO Model Server"))
        return 0
    carried.append(Part("batch_size", f"max_batch_size: {rows}; requests may have fewer rows"))
    return rows


def _shapes(settings: Mapping[str, Any], carried: list[Part], lost: list[Part]) -> dict[str, tuple[int, ...]]:
    """Shapes by input, "" for the only one."""
    said = settings.get("shape")
    if isinstance(said, str) and said.lstrip().startswith("{"):
        try:
            said = msgspec.json.decode(said)
        except (msgspec.DecodeError, RecursionError):
            raise Unimportable("shape: not JSON") from None
    given = {"": said} if isinstance(said, str) else said or {}
    if not isinstance(given, Mapping):
        raise Unimportable("shape: expected a shape, or shapes by name")
    found: dict[str, tuple[int, ...]] = {}
    for name, text in given.items():
        place = f"shape of {name}" if name else "shape"
        if text == "auto":
            lost.append(Part(f"{place}: auto", "the model's own shape; sizes that are open there stay open"))
            continue
        sizes = text_of(text).strip().strip("()").replace(" ", "").rstrip(",").split(",")
        if not all(map(_SIZE.fullmatch, sizes)) or len(sizes) > _DIMS_MAX:
            raise Unimportable(f"{place}: expected sizes such as (1,3,224,224), or auto")
        if any(":" in each for each in sizes):
            lost.append(Part(f"{place}: {text}", "the bounds of a size; it is open"))
        found[str(name)] = tuple(-1 if ":" in each else int(each) for each in sizes)
        carried.append(Part(place, f"dims: {list(found[str(name)])}"))
    return found


def _layout(settings: Mapping[str, Any], lost: list[Part]) -> None:
    """Raises Unimportable for a layout that transposes."""
    said = settings.get("layout") or {}
    given = {"": said} if isinstance(said, str) else said
    if not isinstance(given, Mapping):
        raise Unimportable("layout: expected a layout, or layouts by name")
    for name, text in given.items():
        ours, separator, models = text_of(text).partition(":")
        place = f"layout of {name}" if name else "layout"
        if not ours or (separator and ours != models):
            raise Unimportable(
                f"{place}: '{text_of(text)[:40]}' transposes tensors: put it into the model, by openvino.preprocess"
            )
        lost.append(Part(f"{place}: {ours}", "rows are the first size"))


def _policy(settings: Mapping[str, Any], versions: Mapping[int, str]) -> VersionPolicy | None:
    said = settings.get("model_version_policy")
    if said is None:
        return None
    if not isinstance(said, Mapping) or len(said) != 1:
        raise Unimportable("model_version_policy: expected one of latest, specific, all")
    [(kind, value)] = said.items()
    value = value if isinstance(value, Mapping) else {}
    if kind == "all":
        return VersionPolicy(all=VersionPolicyAll())
    if kind == "latest":
        count = value.get("num_versions", 1)
        if type(count) is int and 1 <= count <= _SIZE_MAX:
            return VersionPolicy(latest=VersionPolicyLatest(num_versions=count))
        raise Unimportable("model_version_policy: latest: num_versions: expected a number above 0")
    listed = value.get("versions")
    if kind != "specific" or not isinstance(listed, list) or not listed or not all(type(each) is int for each in listed):
        raise Unimportable("model_version_policy: expected one of latest, specific with versions, all")
    missing = sorted(set(listed) - set(versions))
    if missing:
        raise Unimportable(f"model_version_policy: there is no version {missing[0]}")
    return VersionPolicy(specific=VersionPolicySpecific(versions=tuple(listed)))


def is_config(document: Mapping[str, Any]) -> bool:
    """Returns True for a config.json of OpenVINO Model Server: other programs have files of that name, too."""
    return any(name in document for name in _LISTS)
