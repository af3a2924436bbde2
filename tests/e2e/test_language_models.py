"""A language model by OpenVINO GenAI, from a GGUF file alone: streams of stock clients, cancellation, errors, a killed engine."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from tests.backends.openvino_genai.smollm2 import gguf_file

from .server import ServerProcess, command_of
from .waiting import wait_until

pytestmark = pytest.mark.time_limit(300)  # the engine repacks the model's weights


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for name in ("chat", "broken"):
        (repository / name / "1").mkdir(parents=True)
    (repository / "chat/1/model.gguf").symlink_to(gguf_file())
    (repository / "broken/1/model.gguf").write_bytes(gguf_file().read_bytes()[:4_000_000])
    with ServerProcess("--exit-on-error=false", "--strict-readiness=false", repositories=[repository]) as server:
        yield server


def generate(server: ServerProcess, prompt: str, *, stream: bool = False, **fields: Any) -> http.client.HTTPResponse:
    """The response to `generate` or `generate_stream`; settings of the sampling are those that no input has."""
    inputs = {name: value for name, value in fields.items() if name.startswith(("return_", "exclude_"))}
    sampling = {"temperature": 0, **{name: value for name, value in fields.items() if name not in inputs}}
    body = {"text_input": prompt, "stream": stream, "sampling_parameters": json.dumps(sampling), **inputs}
    route = "generate_stream" if stream else "generate"
    request = urllib.request.Request(f"http://{server.http}/v2/models/chat/{route}", json.dumps(body).encode())
    response: http.client.HTTPResponse = urllib.request.urlopen(request)
    return response


def answer(server: ServerProcess, prompt: str, **fields: Any) -> dict[str, Any]:
    with generate(server, prompt, exclude_input_in_output=True, **fields) as response:
        document: dict[str, Any] = json.loads(response.read())
        return document


def refusal(server: ServerProcess, prompt: str, **fields: Any) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as error:
        generate(server, prompt, **fields)
    with error.value as response:
        return response.code, json.loads(response.read())["error"]


def text_of(server: ServerProcess) -> str:
    """The beginning of an answer; "" while there is no engine."""
    try:
        return str(answer(server, "The capital of France is", max_tokens=2)["text_output"])
    except urllib.error.HTTPError as error:
        error.close()
        return ""


def metric(server: ServerProcess, name: str) -> float:
    """The sum of its series."""
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        text = page.read().decode()
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", text, re.MULTILINE))


def tensor(name: str, value: bytes | bool) -> tritonclient.grpc.InferInput:
    made = tritonclient.grpc.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
    made.set_data_from_numpy(np.array([value], bool if isinstance(value, bool) else object))
    return made


def test_a_stock_client_streams_the_answer_that_comes_in_one_piece(server: ServerProcess) -> None:
    said: queue.Queue[Any] = queue.Queue()
    pieces = []
    inputs = [
        tensor("text_input", b"The capital of France is"),
        tensor("stream", True),
        tensor("sampling_parameters", b'{"temperature": 0, "max_tokens": 12}'),
    ]
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: said.put((result, error)))
        client.async_stream_infer("chat", inputs, enable_empty_final_response=True)
        while True:
            result, error = said.get()
            assert error is None
            pieces.append(result.as_numpy("text_output"))
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    text = b"".join([piece[0] for piece in pieces if piece is not None]).decode()
    assert len(pieces) > 3
    assert text == answer(server, "The capital of France is", max_tokens=12)["text_output"]
    assert "Paris" in text


def test_further_outputs_are_those_of_vllm_backend(server: ServerProcess) -> None:
    returns = {
        f"return_{name}": True
        for name in ("finish_reason", "logprobs", "cumulative_logprob", "num_input_tokens", "num_output_tokens")
    }
    found = answer(server, "The capital of France is", max_tokens=4, **returns)
    assert found["finish_reason"] == "length"
    assert (found["num_input_tokens"], found["num_output_tokens"]) == (5, 4)
    entries = json.loads(found["logprobs"])
    logprobs = [each["logprob"] for entry in entries for each in entry.values()]
    assert len(logprobs) == 4
    assert sum(logprobs) == pytest.approx(found["cumulative_logprob"], rel=1e-4)
    assert "".join(each["decoded_token"] for entry in entries for each in entry.values()) == found["text_output"]


def test_an_answer_follows_a_schema(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    found = answer(server, "The capital of France as JSON: ", max_tokens=30, structured_outputs={"json": schema})
    assert json.loads(found["text_output"])["city"] in ("Paris", "Rome")


def test_what_cannot_be_done_is_said_with_its_name(server: ServerProcess) -> None:
    long = refusal(server, "word " * 20_000)
    assert long[0] == 400
    assert re.fullmatch(r"the prompt has about 2\d{4} tokens, at most 8191 are taken: .*", long[1])
    assert refusal(server, "x", logit_bias={"1": 1}) == (400, "'logit_bias' is not supported by engine openvino_genai")
    schema = refusal(server, "x", structured_outputs={"json": {"type": "nothing"}})
    assert schema[0] == 400
    assert "'structured_outputs' cannot be compiled" in schema[1]
    assert answer(server, "The capital of France is", max_tokens=2)["text_output"].startswith(" Paris")


def test_a_broken_file_harms_nobody_and_says_what_is_wrong(server: ServerProcess) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}/v2/repository/index", b"{}")) as response:
        (row,) = [each for each in json.loads(response.read()) if each["name"] == "broken"]
    assert "'model.gguf' is not a whole GGUF file" in row["reason"]


def test_a_client_that_hangs_up_frees_its_blocks(server: ServerProcess) -> None:
    response = generate(server, "word " * 500, stream=True, max_tokens=4000, ignore_eos=True)
    response.read(100)
    wait_until(lambda: metric(server, "vllm:kv_cache_usage_perc") > 0)
    assert metric(server, "vllm:num_requests_running") == 1
    response.close()
    wait_until(lambda: metric(server, "vllm:num_requests_running") == 0)
    assert metric(server, "vllm:kv_cache_usage_perc") == 0


def test_the_numbers_of_the_engine_are_in_the_statistics(server: ServerProcess) -> None:
    answer(server, "The capital of France is", max_tokens=3)
    with urllib.request.urlopen(f"http://{server.http}/v2/models/chat/stats") as response:
        (row,) = json.loads(response.read())["model_stats"]
    assert row["generation_stats"]["generation_tokens_total"] >= 3
    assert row["generation_stats"]["time_to_first_token_seconds_count"] >= 1


def test_an_engine_that_dies_costs_its_requests_an_error_and_comes_back(server: ServerProcess) -> None:
    worker = next(pid for pid in server.children() if b"chat_0" in command_of(pid))
    response = generate(server, "word", stream=True, max_tokens=4000, ignore_eos=True)
    response.read(100)
    os.kill(worker, signal.SIGKILL)
    assert b"It was ended by SIGKILL" in response.read()
    response.close()
    assert wait_until(lambda: text_of(server), within_s=100).startswith(" Paris")
