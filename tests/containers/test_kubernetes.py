"""deploy/kubernetes: every overlay as kubectl renders it, by the schemas of Kubernetes' API and of the operators', and by the
server that it starts. Each check finds a mistake that is made in a manifest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.containers.test_files import MANIFESTS, TOOLS, changed, need, problems
from tests.docs.pages import ROOT
from tpy.cli.flags import FLAG_BY_NAME
from tpy.telemetry.host import SERVER_FAMILIES

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
KINDS = {
    "cpu": {"HorizontalPodAutoscaler", "PersistentVolumeClaim", "PodMonitor", "PrometheusRule"},
    "gpu": {"PersistentVolumeClaim", "PodMonitor", "PrometheusRule"},
    "llm": {"HorizontalPodAutoscaler", "PersistentVolumeClaim", "PodMonitor", "PrometheusRule"},
    "bucket": {"PodMonitor", "PrometheusRule", "ScaledObject"},
}
BASE = {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"}
Pod = dict[str, Any]


def render(folder: Path) -> str:
    """The manifests of a kustomization."""
    kubectl = shutil.which("kubectl", path=f"{TOOLS / 'bin'}:{os.environ['PATH']}")
    if kubectl is None:
        pytest.skip("needs kubectl: make test-containers")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@cache
def overlay(name: str) -> str:
    return render(KUBERNETES / "overlays" / name)


def by_kind(name: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(overlay(name))}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_fields_are_those_of_the_apis(name: str) -> None:
    need("kubernetes_validate", "cloudcoil/models/keda", "cloudcoil/models/prometheus_operator")
    assert by_kind(name).keys() == BASE | KINDS[name]
    mistakes = {
        "runAsUser: ": "runAsUserr: ",
        "containerPort: 8000": "containerPort: http",
        "port: 8001": "port: grpc",
        "maxUnavailable: 1": "maxUnavailable: [1]",
        "policyTypes": "policies",
        "whenUnsatisfiable": "unless",
        "podMetricsEndpoints": "endpoints",
        "expr: up": "expression: up",
    }
    mistakes |= {"cpu": {"maxReplicas: 8": "replicas: 8"}, "bucket": {"pollingInterval: 5": "pollingInterval: often"}}.get(
        name, {}
    )
    sound, *broken = problems(MANIFESTS, changed(overlay(name), mistakes))
    assert sound == ""
    assert [text for text, found in zip(mistakes.values(), broken, strict=True) if not found] == []


def unfit(documents: dict[str, dict[str, Any]]) -> list[str]:
    """The points in which manifests fit neither each other nor the server."""
    deployment, service = documents["Deployment"], documents["Service"]
    template = deployment["spec"]["template"]
    pod: Pod = template["spec"]
    [container] = pod["containers"]
    labels = template["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    flags = dict(text.removeprefix("--").split("=") for text in container["args"])
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    selectors = [
        service["spec"]["selector"],
        *(documents[kind]["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor")),
        documents["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        *(spread["labelSelector"]["matchLabels"] for spread in pod["topologySpreadConstraints"]),
    ]
    opened = {port["port"] for rule in documents["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]}
    security = {**pod["securityContext"], **container["securityContext"]}
    scaled = "HorizontalPodAutoscaler" in documents or "ScaledObject" in documents
    checks = {
        "flags": flags.keys() <= FLAG_BY_NAME.keys(),
        "a repository": "model-repository" in flags,
        "ports": {name: str(port) for name, port in ports.items()}
        == {
            name: str(FLAG_BY_NAME[f"{name}-port"].default)
            for name in ("http", "grpc", "metrics", "openai")
            if flags.get(f"allow-{name}", str(FLAG_BY_NAME[f"allow-{name}"].default)).lower() == "true"
        },
        "selectors": all(selector and selector.items() <= labels for selector in selectors),
        "the ports of the service": {port["targetPort"] for port in service["spec"]["ports"]} == ports.keys() == opened,
        "paths of probes": all(probe["httpGet"]["path"] in ("/v2/health/live", "/v2/health/ready") for probe in probes.values()),
        "the exit delay": int(flags["exit-delay-secs"]) > 3 * probes["readiness"]["periodSeconds"],
        "the grace period": pod["terminationGracePeriodSeconds"]
        > int(flags["exit-delay-secs"]) + int(flags["exit-timeout-secs"]),
        "volumes": {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]},
        "claims": all(
            volume["persistentVolumeClaim"]["claimName"] == documents["PersistentVolumeClaim"]["metadata"]["name"]
            for volume in pod["volumes"]
            if "persistentVolumeClaim" in volume
        ),
        "the user": (security["runAsUser"], security["runAsNonRoot"]) == (10001, True),
        "privileges": (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True),
        "capabilities": security["capabilities"] == {"drop": ["ALL"]},
        "seccomp": security["seccompProfile"] == {"type": "RuntimeDefault"},
        "no token": not pod["automountServiceAccountToken"],
        "one who counts the pods": ("replicas" in deployment["spec"]) != scaled,
        "what is scaled": all(
            documents[kind]["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
            for kind in ("HorizontalPodAutoscaler", "ScaledObject")
            if kind in documents
        ),
    }
    return [name for name, holds in checks.items() if not holds]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_manifests_fit_each_other_and_the_server(name: str) -> None:
    assert unfit(by_kind(name)) == []


def test_language_models_have_openais_api_and_time_for_their_answers() -> None:
    deployment = by_kind("llm")["Deployment"]["spec"]["template"]["spec"]
    [container] = deployment["containers"]
    assert {"--allow-openai=true", "--exit-timeout-secs=300"} <= set(container["args"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}} in deployment["volumes"]


def _set(path: str, value: object) -> Callable[[dict[str, dict[str, Any]]], None]:
    def spoil(documents: dict[str, dict[str, Any]]) -> None:
        kind, *keys, last = path.split("/")
        at: Any = documents[kind]["spec"]
        for key in keys:
            at = at[int(key)] if key.isdigit() else at[key]
        at[last] = value

    return spoil


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("Service/selector", {"app": "tpy"}, ["selectors"]),
        ("Deployment/template/spec/terminationGracePeriodSeconds", 40, ["the grace period"]),
        ("Deployment/template/spec/containers/0/readinessProbe/periodSeconds", 10, ["the exit delay"]),
        ("Deployment/replicas", 2, ["one who counts the pods"]),
        ("Deployment/template/spec/containers/0/securityContext/readOnlyRootFilesystem", False, ["privileges"]),
        ("HorizontalPodAutoscaler/scaleTargetRef/name", "other", ["what is scaled"]),
        ("NetworkPolicy/ingress", [], ["the ports of the service"]),
    ],
)
def test_what_does_not_fit_is_found(path: str, value: object, said: list[str]) -> None:
    documents = by_kind("cpu")
    _set(path, value)(documents)
    assert unfit(documents) == said


def test_metrics_that_scale_are_metrics_of_the_server() -> None:
    texts = [path.read_text() for path in sorted((KUBERNETES / "components").glob("*/*.yaml"))]
    named = {name for text in texts for name in re.findall(r"\b(?:tpy|nv)_\w+", text)} - {"nv_gpu_memory_bytes"}
    assert "tpy_server_load" in named
    assert {name for name in named if not {name, re.sub(r"_(bucket|count|sum)$", "", name)} & SERVER_FAMILIES.keys()} == set()
    [rule] = yaml.safe_load((KUBERNETES / "components/hpa/prometheus-adapter.yaml").read_text())["rules"]["custom"]
    [metric] = by_kind("cpu")["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert rule["seriesQuery"].startswith(metric["pods"]["metric"]["name"] + "{")


def test_the_alert_rules_are_those_of_the_examples() -> None:
    rules = yaml.safe_load((ROOT / "docs/examples/container/alerts.yml").read_text())
    assert by_kind("cpu")["PrometheusRule"]["spec"] == rules
    job = by_kind("cpu")["Deployment"]["spec"]["template"]["metadata"]["labels"][by_kind("cpu")["PodMonitor"]["spec"]["jobLabel"]]
    assert f'job="{job}"' in rules["groups"][0]["rules"][0]["expr"]


def test_the_inference_pool_has_the_pods_and_the_port() -> None:
    pool = yaml.safe_load((KUBERNETES / "components/inference-pool/pool.yaml").read_text())
    labels = by_kind("cpu")["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pool["spec"]["targetPorts"] == [{"number": int(str(FLAG_BY_NAME["http-port"].default))}]
