"""The application builder: from arguments to an application of Serve."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, DeploymentActorConfig, RequestRouterConfig

from tpy.ray.arguments import Arguments, read_arguments
from tpy.ray.cluster import Want, shortages
from tpy.ray.replica import Replica, server_of
from tpy.ray.replicas import CHANGES_ACTOR
from tpy.ray.scaling import LOAD_TARGET_DEFAULT

_log = logging.getLogger(__name__)

RAY_TRIED = "2.60"
DEPLOYMENT = "tpy"
_SESSIONS = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
_ONGOING_TARGET_DEFAULT = 16.0
_CHANGES = DeploymentActorConfig(
    name=CHANGES_ACTOR, actor_class="tpy.ray.replicas:RemoteChangesActor", actor_options={"num_cpus": 0}
)


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """The application for `serve run tpy.ray:app repository=FOLDER ...`, `serve deploy` and Python programs. Raises
    InvalidArgument for unknown arguments and wrong values."""
    given = read_arguments(arguments)
    given = msgspec.structs.replace(given, repository=tuple(map(absolute, given.repository)))
    server_of(given)  # refuses unknown flags here, not on every node
    options = deployment_options(given)
    _warn(arguments, given)
    deployment = serve.deployment(serve.ingress()(Replica)).options(**options)
    return deployment.bind(given)


def _warn(given: Mapping[str, Any], arguments: Arguments) -> None:
    """Log what may keep the application from starting: another Ray than was tried, and a cluster, if there is one, that is too
    small, which its autoscaler may change. Numbers that are not among the arguments are said elsewhere in a configuration."""
    if sentence := untried():
        _log.warning("%(sentence)s", {"sentence": sentence})
    if not ray.is_initialized() or not {"cpus", "gpus", "replicas", "min_replicas"}.intersection(given):
        return
    replicas = arguments.replicas if arguments.max_replicas is None else arguments.min_replicas or 1
    want = Want(arguments.model or "tpy", replicas, {"CPU": arguments.cpus, "GPU": arguments.gpus})
    for sentence in shortages([want], [node["Resources"] for node in ray.nodes() if node["Alive"]]):
        _log.warning("%(sentence)s; replicas without room wait until there is some", {"sentence": sentence})


def untried() -> str:
    """The sentence about another Ray than was tried; "" for that one."""
    if ray.__version__.startswith(f"{RAY_TRIED}."):
        return ""
    return f"tpy.ray was tested with Ray {RAY_TRIED}, this is Ray {ray.__version__}"


def deployment_options(arguments: Arguments) -> dict[str, Any]:
    """The options of the deployment."""
    options: dict[str, Any] = {
        "name": DEPLOYMENT,
        "ray_actor_options": {"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        "max_ongoing_requests": arguments.max_ongoing_requests,
        "max_queued_requests": arguments.max_queued_requests,
        "graceful_shutdown_timeout_s": arguments.drain_s,
        "max_surge_percent": arguments.max_surge_percent,
        "user_config": {"models": list(arguments.models)} if arguments.models else {},
        "deployment_actors": [_CHANGES],
    }
    if arguments.max_replicas is None:
        options["num_replicas"] = arguments.replicas
    else:
        options["autoscaling_config"] = AutoscalingConfig(**autoscaling_of(arguments, arguments.max_replicas))
    if arguments.session_affinity:
        options["request_router_config"] = RequestRouterConfig(request_router_class=_SESSIONS)
    return options


def autoscaling_of(arguments: Arguments, highest: int) -> dict[str, Any]:
    """The fields of Serve's AutoscalingConfig."""
    bounds: dict[str, Any] = {
        "min_replicas": 1 if arguments.min_replicas is None else arguments.min_replicas,
        "max_replicas": highest,
        "upscale_delay_s": arguments.upscale_delay_s,
        "downscale_delay_s": arguments.downscale_delay_s,
        "look_back_period_s": 15.0,  # tpy_load is smoothed already; more than the period of reports
    }
    if arguments.scale_by == "load":
        target = {"target": arguments.target or LOAD_TARGET_DEFAULT}
        return {**bounds, "policy": {"policy_function": "tpy.ray.scaling:ByLoad", "policy_kwargs": target}}
    return {**bounds, "target_ongoing_requests": arguments.target or _ONGOING_TARGET_DEFAULT}


def absolute(repository: str) -> str:
    """Workers have other working directories than whoever deploys."""
    return os.path.abspath(repository) if Path(repository).is_dir() else repository
