"""The example `embeddings`: an ensemble from BYTES to vectors, in which what means the same is close."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from .examples import Serve, python_command
from .server import ServerProcess

SOFA, COUCH, SERVER, DEPLOY, RATES = TEXTS = (
    "A cat sleeps on the sofa.",
    "The kitten is napping on the couch.",
    "Triton serves neural networks over gRPC.",
    "How do I deploy a deep learning model on a server?",
    "Interest rates rose again this quarter.",
)


@pytest.fixture
def server(example_server: Serve) -> ServerProcess:
    return example_server("embeddings")


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http, concurrency=8) as connected:
        yield connected


def text_input(*texts: str | bytes, kind: Any = InferInput) -> Any:
    tensor = kind("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode() if isinstance(text, str) else text] for text in texts], dtype=object))
    return tensor


def embed(client: InferenceServerClient, *texts: str | bytes) -> Any:
    """FP32[texts,384]."""
    return client.infer("embed", [text_input(*texts)]).as_numpy("EMBEDDING")


def test_what_means_the_same_is_close(client: InferenceServerClient) -> None:
    vectors = embed(client, *TEXTS)
    assert (vectors.shape, vectors.dtype) == ((5, 384), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    cosines = vectors @ vectors.T
    assert cosines[TEXTS.index(SOFA), TEXTS.index(COUCH)] > 0.65
    assert 0.15 < cosines[TEXTS.index(SERVER), TEXTS.index(DEPLOY)] < 0.4
    assert np.abs(cosines[TEXTS.index(RATES), :4]).max() < 0.2
    [question] = embed(client, "Where is the sleeping cat?")
    assert TEXTS[int((vectors @ question).argmax())] == SOFA


def test_a_batch_is_its_rows_also_with_texts_of_other_lengths(client: InferenceServerClient) -> None:
    texts = (*TEXTS, "", "cat", "word " * 1000, "naïve café 東京 🙂")
    together = embed(client, *texts)
    for text, row in zip(texts, together, strict=True):
        assert float(embed(client, text)[0] @ row) > 0.995


def test_many_at_once(client: InferenceServerClient) -> None:
    """Requests of one text each, which the network may take together, or not."""
    alone = embed(client, *TEXTS)
    before = executions(client)
    asked = [client.async_infer("embed", [text_input(TEXTS[index % 5])]) for index in range(64)]
    for index, answer in enumerate(asked):
        assert float(answer.get_result().as_numpy("EMBEDDING")[0] @ alone[index % 5]) > 0.995
    after = executions(client)
    assert after["embed"] - before["embed"] == 64
    assert 0 < after["minilm"] - before["minilm"] <= 64


def test_grpc_gives_the_same(server: ServerProcess, client: InferenceServerClient) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as other:
        answer = other.infer("embed", [text_input(*TEXTS, kind=tritonclient.grpc.InferInput)]).as_numpy("EMBEDDING")
    np.testing.assert_allclose(answer, embed(client, *TEXTS), atol=1e-6)


def test_what_is_not_text_is_refused_and_so_are_too_many(client: InferenceServerClient) -> None:
    with pytest.raises(
        InferenceServerException, match="in ensemble 'embed', TEXT is not UTF-8: 'utf-8' codec can't decode"
    ) as caught:
        embed(client, "fine", b"\xff")
    assert caught.value.status() == "400"
    with pytest.raises(InferenceServerException, match="batch-size must be <= 32 for 'embed'"):
        embed(client, *["text"] * 33)


def test_the_client_of_the_example_finds_the_closest(server: ServerProcess) -> None:
    command = python_command("embeddings/client.py", server.http, "Where is the sleeping cat?", *TEXTS)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [line.strip().split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [text for _, text in lines[:2]] == [SOFA, COUCH]
    assert len(lines) == 5


def executions(client: InferenceServerClient) -> dict[str, int]:
    statistics: Any = client.get_inference_statistics()
    return {model["name"]: int(model["execution_count"]) for model in statistics["model_stats"]}
