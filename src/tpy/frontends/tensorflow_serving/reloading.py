"""HandleReloadConfigRequest: which models are served, with which versions and labels. Models are those of the repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tpy.config import ModelConfig, aliases
from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound, Unavailable, Unsupported
from tpy.frontends.tensorflow_serving.models import FailedPrecondition
from tpy.messages import LoadRequest, ModelState
from tpy.services import Services, offered

_decode: Any = msgspec.json.Decoder(dict[str, Any]).decode

_PLATFORMS = ("", "tensorflow")
_NOT_EXPLICIT = "explicit model load / unload is not allowed"
"""The beginning of what a server says that looks for changes of models itself."""


async def reload_models(services: Services, config: Any) -> None:
    """Load the models that a ModelServerConfig names, and unload all others. A model that is served as it says is left alone.
    Raises InvalidArgument before anything is changed for a configuration that cannot be followed; whatever a load fails with."""
    if config.WhichOneof("config") == "custom_model_config":
        raise Unsupported("custom_model_config: expected model_config_list")
    if config.WhichOneof("config") is None:
        raise InvalidArgument("config: expected model_config_list")
    loads = [each for said in config.model_config_list.config if (each := await _load_of(services, said)) is not None]
    wanted = _names(config)
    try:
        for load in loads:
            await services.repository.load(load)
        kept = _with_steps(services, wanted)
        for name in sorted({entry.name for entry in await services.repository.index() if entry.state is ModelState.READY}):
            if name not in kept:
                await services.repository.unload(name)
    except Unavailable as error:
        if error.message.startswith(_NOT_EXPLICIT):
            raise FailedPrecondition(f"{error.message}: start the server with --model-control-mode=explicit") from None
        raise


def _names(config: Any) -> set[str]:
    names = [said.name for said in config.model_config_list.config]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"model_config_list: two models are named '{echo(name)}'")
    return set(names)


def _with_steps(services: Services, names: set[str]) -> set[str]:
    """The models, and the steps of the ensembles among them."""
    kept, pending = set[str](), list(names)
    while pending:
        name = pending.pop()
        if name in kept:
            continue
        kept.add(name)
        config = _served(services, name)
        if config is not None and config.ensemble_scheduling is not None:
            pending += [step.model_name for step in config.ensemble_scheduling.step]
    return kept


def _served(services: Services, name: str) -> ModelConfig | None:
    try:
        return services.inference.config(name)
    except NotFound:
        return None


async def _load_of(services: Services, said: Any) -> LoadRequest | None:
    """The load that a model needs; None: it is served as it should be."""
    if not said.name:
        raise InvalidArgument("model_config_list: a model has no name")
    if said.model_platform not in _PLATFORMS:
        raise InvalidArgument(f"model_platform of '{echo(said.name)}': expected tensorflow, got '{echo(said.model_platform)}'")
    policy = _policy(said)
    labels = {key: said.version_labels[key] for key in sorted(said.version_labels)}
    served = _served(services, said.name)
    if served is not None and policy is None and (not labels or aliases.aliases(served) == labels):
        return None
    try:
        check = await offered(services.checks).check_config(said.name)
    except InvalidArgument:
        raise NotFound(f"model '{echo(said.name)}' is not in the model repository; base_path is not read") from None
    if policy is None and not labels:
        return LoadRequest(model_name=said.name)
    document = _decode(check.config_json) if check.config_json else {}
    if policy is not None:
        document["version_policy"] = policy
    if labels:
        text = msgspec.json.encode(labels).decode()
        document.setdefault("parameters", {})[aliases.PARAMETER] = {"string_value": text}
    return LoadRequest(model_name=said.name, config_json=msgspec.json.encode(document).decode())


def _policy(said: Any) -> Mapping[str, Any] | None:
    """The version policy as the configuration has it; None: it is not said."""
    policy = said.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "specific":
            return {"specific": {"versions": list(policy.specific.versions)}}
        case "all":
            return {"all": {}}
        case "latest":
            return {"latest": {"num_versions": max(1, policy.latest.num_versions)}}
        case _:
            return None
