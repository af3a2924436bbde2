"""Manifests of resources that operators add to Kubernetes, by the schemas that these install, and by the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.containers.test_files import MANIFESTS, changed, lint, need, problems
from tests.docs.pages import ROOT

RAY_SERVICE = ROOT / "deploy" / "kuberay" / "rayservice.yaml"
POOL = ROOT / "deploy" / "kubernetes" / "components" / "inference-pool" / "pool.yaml"
SCHEMAS = Path(__file__).parent / "schemas"

RESOURCES = """
import json, pathlib, sys, yaml
from jsonschema import Draft202012Validator

def closed(schema):
    if isinstance(schema, dict):
        is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        if isinstance(schema.get("properties"), dict) and not is_open:
            schema["additionalProperties"] = False
        for each in schema.values():
            closed(each)
    elif isinstance(schema, list):
        for each in schema:
            closed(each)
    return schema

schema = closed(json.loads(pathlib.Path(PATH).read_text()))
schema["properties"]["metadata"].pop("additionalProperties", None)
validator = Draft202012Validator(schema)

def problem(text):
    return "; ".join(error.message for error in validator.iter_errors(yaml.safe_load(text)))

json.dump([problem(text) for text in json.load(sys.stdin)], sys.stdout)
"""


def found(name: str, text: str, mistakes: dict[str, str]) -> tuple[str, list[str]]:
    """The problem of a text, and the mistakes that are not found in it."""
    need("jsonschema")
    sound, *broken = problems(RESOURCES.replace("PATH", repr(str(SCHEMAS / name))), changed(text, mistakes))
    return sound, [wrong for wrong, problem in zip(mistakes.values(), broken, strict=True) if not problem]


def test_the_inference_pool() -> None:
    mistakes = {
        "targetPorts": "targetPort",
        "number: 8000": "number: 80000",
        "matchLabels": "labels",
        "name: tpy-epp": "names: x",
    }
    assert found("inferencepools.inference.networking.k8s.io.json", POOL.read_text(), mistakes) == ("", [])


def test_the_ray_service() -> None:
    mistakes = {
        "serveConfigV2": "serveConfig",
        "rayStartParams: {}": "rayStartParams: []",
        "maxReplicas: 4": "maxReplicas: many",
        "workerGroupSpecs": "workers",
        "mode: token": "mode: password",
        "groupName: workers": "name: workers",
    }
    assert found("rayservices.ray.io.json", RAY_SERVICE.read_text(), mistakes) == ("", [])


def templates() -> list[dict[str, Any]]:
    cluster = yaml.safe_load(RAY_SERVICE.read_text())["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


def test_the_pods_of_the_ray_service() -> None:
    need("kubernetes_validate")
    texts = [yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **template}) for template in templates()]
    mistakes = {"containerPort: 8000": "containerPort: http", "runAsNonRoot": "notRoot", "mountPath": "path"}
    for text in texts:
        sound, *broken = problems(MANIFESTS, changed(text, mistakes))
        assert sound == ""
        assert all(broken)


def test_the_image_has_the_ray_that_the_service_names() -> None:
    image = RAY_SERVICE.with_name("Dockerfile")
    version = yaml.safe_load(RAY_SERVICE.read_text())["spec"]["rayClusterConfig"]["rayVersion"]
    assert f"FROM rayproject/ray:{version}-" in image.read_text()
    assert lint(image) == []
