"""The example `words`: a decoupled model whose words come one by one, by generate_stream and by a gRPC stream."""

from __future__ import annotations

import http.client
import json
import queue
import subprocess
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from .examples import Serve, python_command
from .server import ServerProcess
from .waiting import wait_until

CANCELLED = 'nv_inference_request_failure{model="words",reason="CANCELED",version="1"} 1'


@pytest.fixture
def server(example_server: Serve) -> ServerProcess:
    return example_server("words")


def stream_over_http(server: ServerProcess, **members: object) -> list[dict[str, Any]]:
    """The events of generate_stream."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    connection.request("POST", "/v2/models/words/generate_stream", json.dumps(members))
    response = connection.getresponse()
    events = response.read().decode().split("\n\n")
    connection.close()
    assert response.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert events.pop() == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


def stream_over_grpc(server: ServerProcess, text: bytes, **parameters: object) -> list[str]:
    answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
    tensor = tritonclient.grpc.InferInput("TEXT", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text], dtype=object))
    words = []
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer("words", [tensor], parameters=parameters, enable_empty_final_response=True)
        while True:
            result, error = answers.get(timeout=30)
            if error is not None:
                raise error
            if result.get_response().parameters["triton_final_response"].bool_param:
                return words
            words.append(result.as_numpy("WORD")[0].decode())


def test_the_words_are_the_same_over_both_protocols_and_every_three_have_been_seen(server: ServerProcess) -> None:
    by_http = [event["WORD"] for event in stream_over_http(server, TEXT="The", count=30, seed=3)]
    assert stream_over_grpc(server, b"The", count=30, seed=3) == by_http
    assert 3 < len(by_http) <= 30
    assert by_http[-1].endswith(".") or len(by_http) == 30
    config = json.loads(_get(server, "/v2/models/words/config"))
    assert config["model_transaction_policy"] == {"decoupled": True}


def test_other_seeds_other_texts_and_count_is_a_limit(server: ServerProcess) -> None:
    texts = {tuple(event["WORD"] for event in stream_over_http(server, TEXT="The", count=4, seed=seed)) for seed in range(8)}
    assert len(texts) > 1
    assert max(map(len, texts)) <= 4
    assert stream_over_http(server, TEXT="The", count=0) == []
    assert stream_over_http(server, TEXT="no such beginning") == []


def test_errors_are_sent_in_the_stream(server: ServerProcess) -> None:
    [event] = stream_over_http(server, TEXT="The", count="many")
    assert event == {"error": "invalid literal for int() with base 10: 'many'"}
    with pytest.raises(InferenceServerException, match="codec can't decode byte 0xff"):
        stream_over_grpc(server, b"\xff")


def test_a_client_that_leaves_ends_its_text(server: ServerProcess) -> None:
    """After its first word; the sentence would have taken some seconds more."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    body = json.dumps({"TEXT": "", "seed": 1, "per_second": 1})
    connection.request("POST", "/v2/models/words/generate_stream", body)
    response = connection.getresponse()
    assert response.readline().startswith(b'data: {"WORD":"')
    response.close()
    connection.close()
    wait_until(lambda: CANCELLED in _get(server, "/metrics", server.metrics).decode().splitlines())


def test_the_client_of_the_example_prints_the_text(server: ServerProcess) -> None:
    done = subprocess.run(python_command("words/client.py", server.grpc, "The", 5), check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["The", *stream_over_grpc(server, b"The", count=5)]


def _get(server: ServerProcess, path: str, address: str | None = None) -> bytes:
    connection = http.client.HTTPConnection(address or server.http, timeout=30)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body
