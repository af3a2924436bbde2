"""Checks of a cluster for a configuration of Serve: it answers, has room for the replicas, and its nodes read the models."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tpy.limits.ray import RAY_CLUSTER_TIMEOUT_S


class Want(NamedTuple):
    """The replicas of an application, and what Ray is to reserve for each, by Ray's names of resources."""

    application: str
    replicas: int
    each: Mapping[str, float]


def wants_of(config: Mapping[str, Any]) -> list[Want]:
    """The wants of the applications in a configuration of Serve that `tpy.ray.config` has made."""
    found = []
    for application in config["applications"]:
        (deployment,) = application["deployments"]
        bounds = deployment.get("autoscaling_config")
        replicas = deployment["num_replicas"] if bounds is None else max(bounds["min_replicas"], 1)
        options = deployment["ray_actor_options"]
        found.append(Want(application["name"], replicas, {"CPU": options["num_cpus"], "GPU": options["num_gpus"]}))
    return found


def shortages(wants: Sequence[Want], nodes: Sequence[Mapping[str, float]]) -> list[str]:
    """The sentences about what the nodes lack, whose resources these are: for one application, or for all together."""
    found = []
    for want in wants:
        for what, each in want.each.items():
            room = sum(int(node.get(what, 0.0) / each + 1e-6) for node in nodes) if each else want.replicas
            if room < want.replicas:
                found.append(
                    f"too few {what}s: the application '{want.application}' wants {each:g} for each of {want.replicas} replicas, "
                    f"the cluster (nodes: {len(nodes)}) has room for {room}"
                )
    if found:
        return found
    for what in ("CPU", "GPU"):
        needed = {want.application: want.replicas * want.each[what] for want in wants if want.each[what]}
        there = sum(node.get(what, 0.0) for node in nodes)
        if sum(needed.values()) > there:
            told = ", ".join(f"{name} {count:g}" for name, count in needed.items())
            found.append(f"too few {what}s: the applications want {sum(needed.values()):g} ({told}), the cluster has {there:g}")
    return found


def problems(config: Mapping[str, Any], address: str) -> list[str]:
    """The reasons, in sentences, for which the cluster at `HOST:PORT` ("auto": this machine's) cannot serve a configuration."""
    if address != "auto" and (refused := _unreachable(address)):
        return [refused]
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, RayError) as error:
        return [f"the Ray cluster at {address} does not take this program: {' '.join(str(error).split())}"]
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        found = shortages(wants_of(config), [node["Resources"] for node in nodes])
        repositories = {each for application in config["applications"] for each in application["args"]["repository"].split(",")}
        return found + _unreadable(sorted(each for each in repositories if "://" not in each), nodes)
    finally:
        ray.shutdown()


def _unreachable(address: str) -> str:
    """Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return f"expected the address of a Ray cluster as HOST:PORT (that of its GCS, 6379 as a rule), got '{address}'"
    try:
        socket.create_connection((host.strip("[]"), int(port)), RAY_CLUSTER_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        return f"no Ray cluster at {address}: {error}"
    return ""


def _unreadable(repositories: Sequence[str], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The repositories that nodes cannot read, and nodes that cannot say so."""
    ask = ray.remote(num_cpus=0, max_retries=0)(reading)
    asked = {
        node["NodeManagerAddress"]: ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        ).remote(repositories)
        for node in nodes
    }
    found = []
    for node, answer in asked.items():
        try:
            found += [f"the node {node} cannot read the repository: {problem}" for problem in ray.get(answer)]
        except RayError as error:
            lines = str(error).strip().splitlines()
            found.append(f"the node {node} cannot run tpy: {lines[-1] if lines else type(error).__name__}")
    return found


def reading(repositories: Sequence[str]) -> list[str]:
    """The folders that this node cannot read, with the reasons."""
    found = []
    for repository in repositories:
        try:
            os.listdir(repository)
        except OSError as error:
            found.append(f"{repository}: {error.strerror}")
    return found
