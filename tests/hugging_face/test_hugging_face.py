"""Small models with random weights: what tpy import makes of their folders answers as the library does."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.docs.pages import ROOT
from tests.e2e.server import ServerProcess, run_tpy
from tests.e2e.test_serve_target import ask

ENVIRONMENT = ROOT / ".hugging-face"
LIBRARIES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
NAMES = ("embedder", "entities", "gaps", "mood", "pictures", "topics", "writer")

pytestmark = pytest.mark.skipif(
    not (ENVIRONMENT / "bin" / "python").exists(), reason="needs transformers and torch: make test-hugging-face"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hugging_face") / "saved"
    folder.mkdir()
    command = [str(ENVIRONMENT / "bin" / "python"), str(Path(__file__).with_name("models.py")), str(folder)]
    outcome = subprocess.run(
        command, env={**os.environ, **LIBRARIES, "PYTHONPATH": ""}, check=False, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr
    return folder


@pytest.fixture(scope="module")
def expected(saved: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((saved / "expected.json").read_text())
    return found


@pytest.fixture(scope="module")
def server(saved: Path) -> Iterator[ServerProcess]:
    models = saved.parent / "models"
    for name in NAMES:
        outcome = run_tpy("import", str(saved / name), "--to", str(models))
        assert outcome.code == 0, outcome.out
        config = models / name / "config.pbtxt"
        text = config.read_text()
        assert '\n# parameters { key: "EXECUTION_ENV_PATH"' in text
        place = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'
        config.write_text(text + place)
    assert run_tpy("check", str(models)).out == f"{len(NAMES)} models checked, 0 with errors\n"
    with ServerProcess(repositories=[models], environment=LIBRARIES) as running:
        yield running


@pytest.fixture(scope="module")
def exported(saved: Path) -> Iterator[ServerProcess]:
    """A server of some of them, imported where optimum is installed."""
    packages = next((ENVIRONMENT / "lib").glob("python3*")) / "site-packages"
    if not (packages / "optimum" / "exporters" / "onnx").is_dir():
        pytest.skip("needs optimum-onnx: make test-hugging-face")
    models = saved.parent / "exported"
    for name in ("embedder", "mood", "pictures"):
        outcome = run_tpy("import", str(saved / name), "--to", str(models), environment={"PYTHONPATH": str(packages)})
        assert outcome.code == 0, outcome.out
        assert "as ONNX by optimum" in outcome.out
        config = models / name / "config.pbtxt"
        place = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'
        config.write_text(config.read_text() + place)
    with ServerProcess(repositories=[models], environment=LIBRARIES) as running:
        yield running


def answer(server: ServerProcess, model: str, *inputs: tuple[str, list[str]], **more: Any) -> dict[str, Any]:
    """The outputs of a request with these BYTES inputs, by name."""
    tensors = [{"name": name, "datatype": "BYTES", "shape": [len(texts), 1], "data": texts} for name, texts in inputs]
    status, text = ask(server, f"/v2/models/{model}/infer", {"inputs": tensors, **more})
    assert status == 200, text
    outputs = json.loads(text)["outputs"]
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]).tolist() for each in outputs}


def test_scores_of_texts_and_pairs(server: ServerProcess, expected: dict[str, Any]) -> None:
    texts = expected["texts"]
    for model in ("mood", "topics"):
        assert np.allclose(answer(server, model, ("text", texts))["scores"], expected[model]["scores"], atol=1e-5)
    pairs = answer(server, "mood", ("text", texts), ("text_pair", texts[::-1]))["scores"]
    assert np.allclose(pairs, expected["mood"]["pairs"], atol=1e-5)
    best = {"outputs": [{"name": "scores", "parameters": {"classification": 1}}]}
    [[label]] = answer(server, "mood", ("text", texts[:1]), **best)["scores"]
    assert label.split(":")[2] == ["bad", "so so", "good"][int(np.argmax(expected["mood"]["scores"][0]))]


def test_embeddings_are_those_of_a_text_alone(server: ServerProcess, expected: dict[str, Any]) -> None:
    found = answer(server, "embedder", ("text", expected["texts"]))["embedding"]
    assert np.allclose(found, expected["embedder"]["embedding"], atol=1e-5)


def test_entities_gaps_and_texts(server: ServerProcess, expected: dict[str, Any]) -> None:
    for model, texts in (("entities", expected["texts"][:2]), ("gaps", ["the [MASK] sat"])):
        found = [json.loads(row[0]) for row in answer(server, model, ("text", texts))["result"]]
        for one, other in zip(found, expected[model]["result"], strict=True):
            assert [each.keys() for each in one] == [each.keys() for each in other]
            assert np.allclose([each["score"] for each in one], [each["score"] for each in other], atol=1e-5)
    lacking = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["no gap"]}]}
    status, text = ask(server, "/v2/models/gaps/infer", lacking)
    assert (status, "mask" in text) == (500, True)
    made = answer(server, "writer", ("text", expected["texts"][:2]))["generated_text"]
    assert [row[0] for row in made] == expected["writer"]["generated_text"]


def picture_is_seen(server: ServerProcess, expected: dict[str, Any]) -> None:
    content = base64.b64decode(expected["pictures"]["image"])
    body = len(content).to_bytes(4, "little") + content
    head = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(body)}}]}
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    request = urllib.request.Request(f"http://{server.http}/v2/models/pictures/infer", text + body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        found = response.read()
    assert np.allclose(json.loads(found)["outputs"][0]["data"], expected["pictures"]["scores"][0], atol=1e-4)


def test_pictures_and_what_is_not_one(server: ServerProcess, expected: dict[str, Any]) -> None:
    picture_is_seen(server, expected)
    status, found = ask(
        server, "/v2/models/pictures/infer", {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1, 1], "data": ["x"]}]}
    )
    assert (status, "UnidentifiedImageError" in found) == (500, True)


def test_exports_answer_as_the_library(exported: ServerProcess, expected: dict[str, Any]) -> None:
    texts = expected["texts"]
    assert np.allclose(answer(exported, "mood", ("text", texts))["scores"], expected["mood"]["scores"], atol=1e-4)
    pairs = answer(exported, "mood", ("text", texts), ("text_pair", texts[::-1]))["scores"]
    assert np.allclose(pairs, expected["mood"]["pairs"], atol=1e-4)
    found = answer(exported, "embedder", ("text", texts))["embedding"]
    assert np.allclose(found, expected["embedder"]["embedding"], atol=1e-4)
    picture_is_seen(exported, expected)
