"""The configuration of Serve for a repository (`serve.yaml`): one application for all of it, or one for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import InvalidArgument
from tpy.ray.application import DEPLOYMENT, absolute, autoscaling_of
from tpy.ray.arguments import Arguments, read_arguments
from tpy.ray.calls import config_of
from tpy.ray.replica import server_of

PARAMETER_PREFIX = "ray."
"""Parameters of a model's configuration that begin so are arguments of its application."""

_OF_MODELS = (
    "beside",
    "calls",
    "replicas",
    "min_replicas",
    "max_replicas",
    "scale_by",
    "target",
    "upscale_delay_s",
    "downscale_delay_s",
    "cpus",
    "gpus",
    "max_ongoing_requests",
    "max_queued_requests",
    "drain_s",
    "max_surge_percent",
    "session_affinity",
)
_SERVICERS = ["tpy.ray:add_GRPCInferenceServiceServicer_to_server", "tpy.ray:add_HealthServicer_to_server"]
_PROXIES = ("EveryNode", "HeadOnly", "Disabled")


def serve_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for `serve run` and `serve deploy`. Of the arguments, `per_model` makes an application for each model;
    `http_port`, `grpc_port`, `host` and `proxy_location` are those of the proxies; `name` is that of the application. Raises
    InvalidArgument."""
    arguments = dict(given)
    is_per_model = _boolean(arguments.pop("per_model", "false"))
    host = str(arguments.pop("host", "0.0.0.0"))
    http_port, grpc_port = _port(arguments, "http_port", 8000), _port(arguments, "grpc_port", 8001)
    name = str(arguments.pop("name", "tpy"))
    proxies = str(arguments.pop("proxy_location", "EveryNode"))
    if proxies not in _PROXIES:
        raise InvalidArgument(f"tpy.ray: expected proxy_location to be one of {', '.join(_PROXIES)}, got '{proxies}'")
    read = read_arguments(arguments)
    server_of(read)
    applications = _per_model(name, arguments, read) if is_per_model else [_application(name, "/", arguments, read)]
    return {
        "proxy_location": proxies,
        "http_options": {"host": host, "port": http_port},
        "grpc_options": {"port": grpc_port, "grpc_servicer_functions": list(_SERVICERS)},
        "applications": applications,
    }


def _per_model(name: str, given: Mapping[str, Any], read: Arguments) -> list[dict[str, Any]]:
    models = _models_of(read)
    if name in models:
        raise InvalidArgument(
            f"tpy.ray: a model has the name of the application with the server's routes, '{name}': give name=..."
        )
    common = {key: value for key, value in given.items() if key not in ("models", *_OF_MODELS)}
    own = {key: value for key, value in given.items() if key in _OF_MODELS}
    found = []
    calls = {}
    for model, config in models.items():
        arguments = {**common, "model": model, **_from_groups(config), **own, **_from_parameters(model, config)}
        of_model = read_arguments(arguments)
        calls[model] = of_model.calls
        found.append(_application(model, f"/v2/models/{model}", arguments, of_model))
    _refuse_circles(calls)
    server = {**common, "applications": list(models), "cpus": 0}
    return [*found, _application(name, "/", server, read_arguments(server))]


def _refuse_circles(calls: Mapping[str, Sequence[str]]) -> None:
    """Raises InvalidArgument for applications that call each other in a circle: each may be full of requests that wait for the
    next one, and none of them sees that."""
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise InvalidArgument(f"tpy.ray: calls lead in a circle ({circle}): have one of these load the next beside it") from None


def _application(name: str, prefix: str, given: Mapping[str, Any], read: Arguments) -> dict[str, Any]:
    """One application. Whatever may change without a restart is an option of its deployment, the rest are arguments."""
    deployment: dict[str, Any] = {"name": DEPLOYMENT}
    if read.max_replicas is None:
        deployment["num_replicas"] = read.replicas
    else:
        deployment["autoscaling_config"] = autoscaling_of(read, read.max_replicas)
    deployment |= {
        "max_ongoing_requests": read.max_ongoing_requests,
        "max_queued_requests": read.max_queued_requests,
        "graceful_shutdown_timeout_s": read.drain_s,
        "max_surge_percent": read.max_surge_percent,
        "user_config": {"models": list(read.models)} if read.models else {},
        "ray_actor_options": {"num_cpus": read.cpus, "num_gpus": read.gpus},
    }
    kept = {
        key: value
        for key, value in given.items()
        if key not in (*_OF_MODELS, "repository", "models") or key in ("beside", "calls", "session_affinity")
    }
    repository = ",".join(map(absolute, read.repository))
    models = {"models": list(read.models)} if read.models else {}
    return {
        "name": name,
        "route_prefix": prefix,
        "import_path": "tpy.ray:app",
        "args": {"repository": repository, **models, **kept},
        "deployments": [deployment],
    }


def _models_of(read: Arguments) -> dict[str, ModelConfig]:
    """The models of the repository by name; those without a configuration have an empty one, which the server completes."""
    found: dict[str, ModelConfig] = {}
    for repository in read.repository:
        folder = Path(repository)
        if not folder.is_dir():
            raise InvalidArgument(f"tpy.ray: per_model reads the models' configurations, and '{repository}' is not a folder here")
        for each in sorted(folder.iterdir()):
            if each.is_dir() and not each.name.startswith(".") and (not read.models or each.name in read.models):
                found[each.name] = config_of(each)
    missing = [model for model in read.models if model not in found]
    if missing:
        raise InvalidArgument(f"tpy.ray: no folder of the repository has the models {', '.join(missing)}")
    if not found:
        raise InvalidArgument(f"tpy.ray: there are no models in {', '.join(read.repository)}")
    return found


def _from_groups(config: ModelConfig) -> dict[str, Any]:
    """The arguments that follow from `instance_group` and the size of the queue."""
    groups = [group for group in config.instance_group if not group.passive]
    count = sum(max(group.count, 1) for group in groups) or 1
    on_gpus = [group for group in groups if group.kind is InstanceKind.KIND_GPU]
    found: dict[str, Any] = {"cpus": float(sum(max(group.count, 1) for group in groups if group not in on_gpus) or 1)}
    if on_gpus:
        found["gpus"] = float(len({gpu for group in on_gpus for gpu in group.gpus}) or 1)
    batching = config.dynamic_batching
    policy = None if batching is None else batching.default_queue_policy
    if policy is not None and policy.max_queue_size:
        found["max_ongoing_requests"] = policy.max_queue_size + count * max(config.max_batch_size, 1)
    return found


def _from_parameters(model: str, config: ModelConfig) -> dict[str, Any]:
    found = {}
    for key, parameter in config.parameters.items():
        if key.startswith(PARAMETER_PREFIX):
            name = key.removeprefix(PARAMETER_PREFIX)
            if name not in _OF_MODELS:
                raise InvalidArgument(
                    f"tpy.ray: model '{model}': there is no parameter '{key}'; there are "
                    f"{', '.join(PARAMETER_PREFIX + each for each in _OF_MODELS)}"
                )
            found[name] = parameter.string_value
    return found


def _port(arguments: dict[str, Any], name: str, default: int) -> int:
    text = str(arguments.pop(name, default))
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidArgument(f"tpy.ray: expected {name} to be a port, got '{text}'")
    return int(text)


def _boolean(value: object) -> bool:
    text = str(value).lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidArgument(f"tpy.ray: expected per_model to be true or false, got '{value}'")
    return text in ("true", "1")
