"""Models of embeddings by vLLM: what OpenAI's API and v2 inference give is what transformers computes and what vLLM's own server
says. Needs the environment that `make test-vllm` makes; the models are made here."""

from __future__ import annotations

import base64
import json
import queue
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from openai import BadRequestError, OpenAI

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until
from tests.vllm.place import ENVIRONMENT
from tests.vllm.servers import PYTHON, client_of, our_server, vllms_server

pytestmark = [
    pytest.mark.skipif(not any(ENVIRONMENT.glob("lib/python3*/site-packages/vllm")), reason="needs vLLM: make test-vllm"),
    pytest.mark.time_limit(400),  # an engine starts for half a minute and more
]

ARGUMENTS: dict[str, Any] = {
    "runner": "pooling",
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 16 * 1024 * 1024,
    "max_num_seqs": 4,
}
CONFIG = (
    'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
    f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([PYTHON, Path(__file__).with_name("tiny.py"), folder], check=True)
    return folder


@pytest.fixture(scope="module")
def expected(models: Path) -> dict[str, list[dict[str, Any]]]:
    """The embeddings that transformers computes, by model."""
    found: dict[str, list[dict[str, Any]]] = json.loads((models / "expected.json").read_text())
    return found


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    arguments = {
        "encoder": {**ARGUMENTS, "model": str(models / "encoder")},
        "decoder": {**ARGUMENTS, "model": str(models / "decoder")},
        "untold": {**ARGUMENTS, "model": str(models / "encoder"), "runner": "auto"},
    }
    for name, given in arguments.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG)
        (folder / "model.json").write_text(json.dumps(given))
    with our_server(repository, list(arguments)) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with client_of(server.address("OpenAI HTTPService")) as opened:
        yield opened


def members(document: Any) -> Any:
    """The members of an answer, but for those of vLLM's only and those with another value each time."""
    found = document.model_dump(exclude_none=True)
    return {
        "object": found["object"],
        "model": found["model"],
        "data": [(each["index"], each["object"]) for each in found["data"]],
        "usage": {name: found["usage"][name] for name in ("prompt_tokens", "total_tokens")},
    }


@pytest.mark.parametrize("model", ["encoder", "decoder"])
def test_embeddings_are_those_of_transformers(client: OpenAI, expected: dict[str, list[dict[str, Any]]], model: str) -> None:
    rows = expected[model]
    for inputs in ([each["text"] for each in rows], [each["tokens"] for each in rows]):
        found = client.embeddings.create(model=model, input=inputs, encoding_format="float")
        assert [each.index for each in found.data] == list(range(len(rows)))
        for each, row in zip(found.data, rows, strict=True):
            assert each.embedding == pytest.approx(row["embedding"], abs=1e-5)
        assert found.usage.prompt_tokens == found.usage.total_tokens == sum(len(row["tokens"]) for row in rows)


def test_answers_are_those_of_vllms_own_server(client: OpenAI, models: Path, tmp_path: Path) -> None:
    asks: list[dict[str, Any]] = [
        {"input": "the red boat"},
        {"input": ["the red boat", "blue"], "encoding_format": "float"},
        {"input": [4, 5, 6]},
        {"input": [[4, 5], [6]], "encoding_format": "float"},
        {"input": "blue", "dimensions": 16},
        {"input": "[CLS] city"},
        {"input": "blue", "extra_body": {"use_activation": False}},
        {"input": "the red boat runs over the river", "extra_body": {"truncate_prompt_tokens": 4}},
        {"input": [[4, 5, 6, 7, 8]], "extra_body": {"truncate_prompt_tokens": 3}},
        {"input": "blue " * 100, "extra_body": {"truncate_prompt_tokens": -1}},
    ]
    refused: list[dict[str, Any]] = [
        {"input": "blue", "dimensions": 17},
        {"input": "blue " * 100},
        {"input": [1000]},
        {"input": "blue", "extra_body": {"truncate_prompt_tokens": 100}},
    ]
    with vllms_server("encoder", {**ARGUMENTS, "model": str(models / "encoder")}, tmp_path) as other:
        for ask in asks:
            ours, theirs = (each.embeddings.create(model="encoder", **ask) for each in (client, other))
            assert members(ours) == members(theirs), ask
            for our, their in zip(ours.data, theirs.data, strict=True):
                assert our.embedding == pytest.approx(their.embedding, abs=1e-5), ask
        for ask in refused:
            for each in (client, other):
                with pytest.raises(BadRequestError):
                    each.embeddings.create(model="encoder", **ask)


def test_numbers_may_come_as_base64(client: OpenAI, server: ServerProcess) -> None:
    def ask(form: str) -> Any:
        body = json.dumps({"model": "encoder", "input": "the red boat", "encoding_format": form}).encode()
        address = f"http://{server.address('OpenAI HTTPService')}/v1/embeddings"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.loads(response.read())["data"][0]["embedding"]

    assert np.frombuffer(base64.b64decode(ask("base64")), "<f4").tolist() == pytest.approx(ask("float"), abs=1e-6)


def test_what_cannot_be_done_is_refused_with_its_name(client: OpenAI, server: ServerProcess) -> None:
    for ask, error in (
        ({"dimensions": 17}, "only supports Matryoshka dimensions"),
        ({"extra_body": {"normalize": True}}, "'normalize' is not supported by backend vllm"),
    ):
        with pytest.raises(BadRequestError, match=re.escape(error)):
            client.embeddings.create(model="encoder", input="blue", **ask)  # type: ignore[arg-type]  # members by name
    with pytest.raises(BadRequestError, match="does not support Matryoshka"):
        client.embeddings.create(model="decoder", input="blue", dimensions=16)
    with pytest.raises(BadRequestError, match=r"the prompt has 102 tokens, at most 64 are taken"):
        client.embeddings.create(model="encoder", input="blue " * 100)
    with pytest.raises(BadRequestError, match="does not give text"):
        client.completions.create(model="encoder", prompt="blue")
    with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}/v2/repository/index", b"{}")) as response:
        reasons = {each["name"]: each.get("reason", "") for each in json.loads(response.read())}
    assert 'for which model.json needs "runner": "pooling"' in reasons["untold"]


def test_v2_inference_has_the_tensors_of_tritons_backend(
    server: ServerProcess, expected: dict[str, list[dict[str, Any]]]
) -> None:
    row = expected["decoder"][0]
    body = {"embedding_request": json.dumps({"input": row["tokens"]}), "return_num_input_tokens": True}
    request = urllib.request.Request(f"http://{server.http}/v2/models/decoder/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        found = json.loads(response.read())
    assert json.loads(found["text_output"]) == pytest.approx(row["embedding"], abs=1e-5)
    assert found["num_input_tokens"] == len(row["tokens"])
    said: queue.Queue[Any] = queue.Queue()
    document, numbers = (
        tritonclient.grpc.InferInput(*each)
        for each in (
            ("embedding_request", [1], "BYTES"),
            ("return_embedding", [1], "BOOL"),
        )
    )
    document.set_data_from_numpy(np.array([json.dumps({"input": row["text"]}).encode()], object))
    numbers.set_data_from_numpy(np.array([True]))
    with tritonclient.grpc.InferenceServerClient(server.grpc) as stub:
        stub.start_stream(lambda result, error: said.put((result, error)))
        stub.async_stream_infer("decoder", [document, numbers])
        result, error = said.get()
        stub.stop_stream()
    assert error is None
    assert result.as_numpy("embedding").tolist() == pytest.approx(row["embedding"], abs=1e-5)
    assert result.as_numpy("text_output") is None


def test_tokens_in_are_counted(server: ServerProcess, client: OpenAI) -> None:
    def count() -> float:
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
            text = page.read().decode()
        found = re.findall(r'^tpy_llm_prompt_tokens_total{.*model="encoder".*} (\S+)$', text, re.MULTILINE)
        return sum(float(value) for value in found)

    before = count()
    used = client.embeddings.create(model="encoder", input=["the red boat", "blue"]).usage.prompt_tokens
    wait_until(lambda: count() == before + used)
