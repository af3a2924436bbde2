"""HandleReloadConfigRequest: which models are served, with which versions and labels. Models are those of the repository."""

from __future__ import annotations

from typing import Any

import msgspec

from tpy.config import ModelConfig, aliases
from tpy.config.model_config import VersionPolicy, VersionPolicyAll, VersionPolicyLatest, VersionPolicySpecific
from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound, Unavailable, Unsupported
from tpy.messages import ConfigCheck, ConfigProblem, LoadRequest, ModelState
from tpy.services import Services, offered
from tpy_platforms.tensorflow_serving.models import FailedPrecondition

_decode: Any = msgspec.json.Decoder(dict[str, Any]).decode

_PLATFORMS = ("", "tensorflow")
_NOT_EXPLICIT = "explicit model load / unload is not allowed"
"""The beginning of what a server says that looks for changes of models itself."""
_NOT_FOUND = "no model repository has"
"""The beginning of what a check of a model says that is not there."""


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
    is_as_said = (
        served is not None
        and (policy is None or served.version_policy == policy)
        and (not labels or aliases.aliases(served) == labels)
    )
    if is_as_said and policy is None:
        return None
    check = await _check(services, said.name)
    if policy is None and not labels:
        return LoadRequest(model_name=said.name)
    _require_readable(said.name, check, is_policy_given=policy is not None)
    document = _decode(check.config_json)
    if policy is not None:
        document["version_policy"] = msgspec.to_builtins(policy)
    if labels:
        text = msgspec.json.encode(labels).decode()
        document.setdefault("parameters", {})[aliases.PARAMETER] = {"string_value": text}
    given = msgspec.json.encode(document).decode()
    if is_as_said and _ready(services, said.name) == (await _check(services, said.name, given)).selected:
        return None
    return LoadRequest(model_name=said.name, config_json=given)


async def _check(services: Services, name: str, given: str | None = None) -> ConfigCheck:
    try:
        return await offered(services.checks).check_config(name, given)
    except InvalidArgument as error:
        if not error.message.startswith(_NOT_FOUND):
            raise
        raise NotFound(f"model '{echo(name)}' is not in the model repository; base_path is not read") from None


def _require_readable(name: str, check: ConfigCheck, *, is_policy_given: bool) -> None:
    """Raise InvalidArgument for a configuration with errors, which is not loaded with parts of it replaced. Only a version policy
    may be wrong that another one takes the place of."""
    for problem in check.problems:
        if problem.severity == "error" and not (is_policy_given and problem.field.startswith("version_policy")):
            raise InvalidArgument(f"model '{echo(name)}': {check.file or 'its folder'}{_place(problem)}: {problem.message}")


def _place(problem: ConfigProblem) -> str:
    line = f":{problem.line}" if problem.line else ""
    return f"{line}: {problem.field}" if problem.field else line


def _ready(services: Services, name: str) -> tuple[int, ...]:
    """The versions that are served, ascending."""
    try:
        return services.inference.ready_versions(name)
    except NotFound:
        return ()


def _policy(said: Any) -> VersionPolicy | None:
    """The version policy as the configuration has it; None: it is not said."""
    policy = said.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "specific":
            return VersionPolicy(specific=VersionPolicySpecific(versions=tuple(policy.specific.versions)))
        case "all":
            return VersionPolicy(all=VersionPolicyAll())
        case "latest":
            return VersionPolicy(latest=VersionPolicyLatest(num_versions=max(1, policy.latest.num_versions)))
        case _:
            return None
