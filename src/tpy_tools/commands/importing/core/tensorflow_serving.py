"""Plans the import of what TensorFlow Serving serves: links to SavedModels, with version policies and batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tpy.config import ModelConfig, aliases
from tpy.config.model_config import (
    DynamicBatching,
    InstanceGroup,
    ModelParameter,
    QueuePolicy,
    VersionPolicy,
    VersionPolicyAll,
    VersionPolicyLatest,
    VersionPolicySpecific,
)
from tpy_tools.commands.importing.core.plan import ImportPlan, LinkTarget, ModelPlan, Part, Unimportable, require_name
from tpy_tools.commands.importing.core.serving_protos import parse

KIND: Final = "TensorFlow Serving"

_BATCH_SIZE_DEFAULT: Final = 1000
_ENQUEUED_BATCHES_DEFAULT: Final = 10
"""Those of TensorFlow Serving's scheduler, where batching_parameters.txt does not say."""

_SIZE_MAX: Final = 2**31 - 1
"""Of sizes in config.pbtxt."""

_THREADS_MAX: Final = 1024

_SAVED_MODEL: Final = ("saved_model.pb", "saved_model.pbtxt")


class ConfiguredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a configuration file names. `policy` None: the latest version."""

    name: str
    base_path: str
    platform: str = "tensorflow"
    policy: VersionPolicy | None = None
    labels: Mapping[str, int] = {}
    logs: bool = False


class BasePath(msgspec.Struct, frozen=True, kw_only=True):
    """A base path as the reader found it. `folder` is absolute, "" if it does not exist; `versions` are the names in folders
    whose name is a number, by that name."""

    folder: str
    versions: Mapping[str, frozenset[str]] = {}


def read_models(text: str, path: str) -> list[ConfiguredModel]:
    """The models of a models.config. Raises Unimportable."""
    found = parse("ModelServerConfig", text, path)
    return [
        ConfiguredModel(
            name=each.name,
            base_path=each.base_path,
            platform=each.model_platform,
            policy=_policy(each.model_version_policy),
            labels={label.key: label.value for label in each.version_labels},
            logs=each.HasField("logging_config"),
        )
        for each in found.model_config_list.config
    ]


def _policy(said: Any) -> VersionPolicy | None:
    if said.HasField("specific"):
        return VersionPolicy(specific=VersionPolicySpecific(versions=tuple(said.specific.versions)))
    if said.HasField("all"):
        return VersionPolicy(all=VersionPolicyAll())
    if said.HasField("latest") and said.latest.num_versions > 1:
        return VersionPolicy(latest=VersionPolicyLatest(num_versions=said.latest.num_versions))
    return None


class BatchingParameters(msgspec.Struct, frozen=True, kw_only=True):
    """A batching_parameters.txt: what it sets in each configuration, and its parts."""

    max_batch_size: int
    dynamic: DynamicBatching
    instances: int
    carried: Sequence[Part]
    lost: Sequence[Part]


def read_batching(text: str, path: str) -> BatchingParameters:
    """The batching of all models. Raises Unimportable."""
    said = parse("BatchingParameters", text, path)

    def number(name: str, default: int, low: int, high: int = _SIZE_MAX) -> int:
        value = getattr(said, name).value if said.HasField(name) else default
        if not low <= value <= high:
            raise Unimportable(f"{path}: {name}: {value} is not between {low} and {high}")
        return int(value)

    size = number("max_batch_size", _BATCH_SIZE_DEFAULT, 1)
    delay = number("batch_timeout_micros", 0, 0)
    batches = number("max_enqueued_batches", _ENQUEUED_BATCHES_DEFAULT, 0)
    threads = number("num_batch_threads", 0, 0, _THREADS_MAX)
    allowed = tuple(said.allowed_batch_sizes)
    if any(not 1 <= each <= size for each in allowed):
        raise Unimportable(f"{path}: allowed_batch_sizes: not all are between 1 and {size}")
    waiting = min(batches * size, _SIZE_MAX)
    carried = [
        Part("max_batch_size", f"max_batch_size: {size}"),
        Part("batch_timeout_micros", f"max_queue_delay_microseconds: {delay}"),
        Part("max_enqueued_batches", f"max_queue_size: {waiting}, in requests instead of batches"),
    ]
    if threads:
        carried.append(Part("num_batch_threads", f"instance_group: count {threads}, of each model instead of all together"))
    if allowed:
        carried.append(Part("allowed_batch_sizes", "preferred_batch_size; batches are not padded to these sizes"))
    lost = []
    if said.pad_variable_length_inputs:
        lost.append(Part("pad_variable_length_inputs", "inputs are not padded: clients send one length, or see ragged batching"))
    if said.HasField("thread_pool_name"):
        lost.append(Part("thread_pool_name", "names threads in traces only"))
    policy = QueuePolicy(max_queue_size=waiting) if waiting else None
    dynamic = DynamicBatching(preferred_batch_size=allowed, max_queue_delay_microseconds=delay, default_queue_policy=policy)
    return BatchingParameters(max_batch_size=size, dynamic=dynamic, instances=threads, carried=carried, lost=lost)


def plan_serving(
    models: Sequence[ConfiguredModel],
    base_paths: Mapping[str, BasePath],
    batching: BatchingParameters | None,
    others: Sequence[Part] = (),
) -> ImportPlan:
    """The plan for the models, each with what was found at its base path; `others` are files beside that are not carried over."""
    planned: list[ModelPlan] = []
    refused: list[Part] = []
    for model in models:
        try:
            if any(each.name == model.name for each in planned):
                raise Unimportable("two models have this name")
            planned.append(_model(model, base_paths[model.base_path], batching, others))
        except Unimportable as error:
            refused.append(Part(model.name, str(error)))
    return ImportPlan(kind=KIND, models=planned, refused=refused)


def _model(model: ConfiguredModel, base: BasePath, batching: BatchingParameters | None, others: Sequence[Part]) -> ModelPlan:
    name = require_name(model.name)
    if model.platform not in ("", "tensorflow"):
        raise Unimportable(f"model_platform: '{model.platform}'; expected tensorflow")
    versions = _versions(model, base)
    config = ModelConfig(
        platform="tensorflow_savedmodel",
        backend="tensorflow",
        version_policy=model.policy,
        default_model_filename="model.savedmodel",
    )
    carried = [Part(f"{base.folder}/{folder}", f"{version}/model.savedmodel, a link") for version, folder in versions.items()]
    if model.policy is not None:
        carried.append(Part("model_version_policy", "version_policy"))
    labels = msgspec.json.encode(model.labels, order="sorted").decode()
    labelled = msgspec.structs.replace(config, parameters={aliases.PARAMETER: ModelParameter(string_value=labels)})
    lost: list[Part] = []
    if model.labels and aliases.aliases(labelled) is None:
        lost.append(Part(f"version_labels: {labels}", f"parameters.{aliases.PARAMETER} is {aliases.EXPECTED}"))
    elif model.labels:
        config = labelled
        carried += [
            Part(f"version_labels: {label}", f"parameters.{aliases.PARAMETER}: ask for {name}@{label}")
            for label in sorted(model.labels)
        ]
    if model.logs:
        lost.append(Part("logging_config", "requests are recorded by tpy record"))
    if per_model := [folder for folder in versions.values() if "batching_params.pbtxt" in base.versions[folder]]:
        lost.append(Part(f"{per_model[-1]}/batching_params.pbtxt", "set dynamic_batching in config.pbtxt"))
    if batching is not None:
        groups = (InstanceGroup(count=batching.instances),) if batching.instances else ()
        config = msgspec.structs.replace(
            config, max_batch_size=batching.max_batch_size, dynamic_batching=batching.dynamic, instance_group=groups
        )
        carried += batching.carried
        lost += batching.lost
    step = f"versions that {base.folder} gets later need a link, too: ln -s {base.folder}/N {{model}}/N/model.savedmodel"
    return ModelPlan(
        name=name,
        config=config,
        files=[LinkTarget(f"{base.folder}/{folder}", f"{version}/model.savedmodel") for version, folder in versions.items()],
        carried=carried,
        lost=[*lost, *others],
        header=f"Imported from {KIND}; the versions are links.",
        completes=True,
        steps=[step],
    )


def _versions(model: ConfiguredModel, base: BasePath) -> dict[int, str]:
    """The folders of SavedModels by version. Raises Unimportable without versions, or without one that the policy names."""
    if "://" in model.base_path:
        raise Unimportable(f"base_path: '{model.base_path}' is in the cloud; fetch it, and import the folder")
    if not base.folder:
        raise Unimportable(f"base_path: there is no folder '{model.base_path}', nor one of that name beside the configuration")
    found: dict[int, str] = {}
    for folder, names in sorted(base.versions.items()):
        if any(each in names for each in _SAVED_MODEL):
            if int(folder) in found:
                raise Unimportable(f"{base.folder}: {found[int(folder)]} and {folder} are the same version")
            found[int(folder)] = folder
    if not found:
        raise Unimportable(f"{base.folder}: no version with a saved_model.pb")
    if model.policy is not None and model.policy.specific is not None:
        if not model.policy.specific.versions:
            raise Unimportable("model_version_policy: specific names no versions")
        missing = sorted(set(model.policy.specific.versions) - set(found))
        if missing:
            raise Unimportable(f"{base.folder}: there is no version {missing[0]}, which model_version_policy names")
    return dict(sorted(found.items()))
