"""The files of containers by the tools of their fields: Dockerfiles by hadolint, the compose file by the specification's parser,
manifests by the schemas of Kubernetes' API and of the Prometheus operator's. Each finds a mistake that is made in the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

TOOLS = ROOT / ".containers"
FILES = ROOT / "docs" / "examples" / "container"

MANIFESTS = """
import json, sys, yaml
from kubernetes_validate import SchemaNotFoundError, ValidationError, validate
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule
from pydantic import ValidationError as OperatorError

MODELS = {"PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule, "ScaledObject": ScaledObject}

def problem(text):
    try:
        for document in yaml.safe_load_all(text):
            model = MODELS.get(document["kind"])
            if model is not None:
                read = model.model_validate(document).model_dump(mode="json", by_alias=True, exclude_unset=True)
                if read != document:
                    return f"{document} has unknown fields; {read} is known"
            else:
                validate(document, "1.34", strict=True)
    except (SchemaNotFoundError, ValidationError, OperatorError) as error:
        return str(error)
    return ""

json.dump([problem(text) for text in json.load(sys.stdin)], sys.stdout)
"""
COMPOSE = """
import json, sys
from compose_spec import PyCompose

def problem(text):
    try:
        PyCompose.from_yaml(text).validate()
    except ValueError as error:
        return str(error)
    return ""

json.dump([problem(text) for text in json.load(sys.stdin)], sys.stdout)
"""


def need(*names: str) -> None:
    """Skips the test where a tool is not installed."""
    if missing := [name for name in names if not (TOOLS / name).exists()]:
        pytest.skip(f"needs {', '.join(missing)}: make test-containers")


def problems(code: str, texts: Sequence[str]) -> list[str]:
    """The problems that a program with the tools finds in each of some texts, "" for none."""
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, input=json.dumps(texts), stdout=subprocess.PIPE, text=True, env=environment, cwd="/", timeout=120, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def changed(text: str, mistakes: Mapping[str, str]) -> list[str]:
    """A text as it is, then with one mistake each."""
    assert all(right in text for right in mistakes)
    return [text, *(text.replace(right, wrong) for right, wrong in mistakes.items())]


def lint(dockerfile: Path) -> list[str]:
    """The rules of hadolint that a Dockerfile breaks. Packages of the distribution are not pinned: the base image is."""
    need("bin/hadolint")
    command = [TOOLS / "bin" / "hadolint", "--no-color", "--ignore", "DL3008", "--format", "json", dockerfile]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return [found["code"] for found in json.loads(done.stdout)]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gpu", "Dockerfile.jetson"])
def test_dockerfiles(name: str, tmp_path: Path) -> None:
    assert lint(FILES / name) == []
    (broken := tmp_path / "Dockerfile").write_text(
        (FILES / name).read_text().replace("USER 10001:10001", "USER root").replace("WORKDIR /", "WORKDIR ")
    )
    assert {"DL3000", "DL3002"} <= set(lint(broken))


def test_the_compose_file() -> None:
    need("compose_spec")
    mistakes = {"45s": "soon", "read_only": "readonly", "8000:8000": "8000:x", "[prometheus]": "prometheus"}
    text = (FILES / "compose.yaml").read_text().replace("${MODELS:?the folder of models}", "/models")
    sound, *broken = problems(COMPOSE, changed(text, mistakes))
    assert sound == ""
    assert [text for text, found in zip(mistakes.values(), broken, strict=True) if not found] == []
