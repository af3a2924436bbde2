"""Language models by vLLM in a repository as Triton's vLLM backend has them: stock clients, OpenAI's API, cancellation, errors,
and killed processes. Needs the environment that `make test-vllm` makes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from openai import BadRequestError, OpenAI

from tests.e2e.server import ServerProcess, child_processes
from tests.e2e.waiting import wait_until
from tests.vllm.place import ENVIRONMENT, MODEL

pytestmark = [
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="needs vLLM and a model: make test-vllm"),
    pytest.mark.time_limit(400),  # an engine starts for half a minute and more
]

PROMPT = "The capital of France is"
RESTART_S = 200
ARGUMENTS: dict[str, Any] = {  # those of the sample in Triton's backend, and less memory than that takes
    "model": str(MODEL),
    "disable_log_requests": True,
    "gpu_memory_utilization": 0.5,
    "enforce_eager": True,
    "disable_log_stats": False,
    "kv_cache_memory_bytes": 256 * 1024 * 1024,
    "max_model_len": 2048,
    "max_num_seqs": 16,
}
CONFIG = 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
ELSEWHERE = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'


def make(repository: Path, name: str, config: str, arguments: dict[str, Any]) -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (folder / "model.json").write_text(json.dumps(arguments))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    make(repository, "chat", CONFIG + ELSEWHERE, {**ARGUMENTS, "enable_lora": True, "max_lora_rank": 8})
    (repository / "chat/1/multi_lora.json").write_text(json.dumps({"odd": str(MODEL / "adapter")}))
    make(repository, "unknown", CONFIG + ELSEWHERE, {**ARGUMENTS, "max_num_seq": 4})
    make(repository, "wrong", CONFIG + ELSEWHERE, {**ARGUMENTS, "dtype": "float17"})
    make(repository, "without", CONFIG, ARGUMENTS)
    with ServerProcess(
        "--exit-on-error=false", "--strict-readiness=false", "--allow-openai=true", repositories=[repository]
    ) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://{server.address('OpenAI HTTPService')}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def generate(server: ServerProcess, prompt: str, *, stream: bool = False, **fields: Any) -> http.client.HTTPResponse:
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
        return str(answer(server, PROMPT, max_tokens=2)["text_output"])
    except urllib.error.HTTPError as error:
        error.close()
        return ""


def metric(server: ServerProcess, name: str) -> float:
    """The sum of its series."""
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        text = page.read().decode()
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", text, re.MULTILINE))


def reasons(server: ServerProcess) -> dict[str, str]:
    with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}/v2/repository/index", b"{}")) as response:
        return {each["name"]: each.get("reason", "") for each in json.loads(response.read())}


def worker(server: ServerProcess) -> int:
    return next(pid for pid in server.children() if b"\0chat_0_0\0" in Path(f"/proc/{pid}/cmdline").read_bytes())


def tensor(name: str, value: bytes | bool) -> tritonclient.grpc.InferInput:
    made = tritonclient.grpc.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
    made.set_data_from_numpy(np.array([value], bool if isinstance(value, bool) else object))
    return made


def test_a_stock_client_streams_the_answer_that_comes_in_one_piece(server: ServerProcess) -> None:
    said: queue.Queue[Any] = queue.Queue()
    pieces = []
    inputs = [
        tensor("text_input", PROMPT.encode()),
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
    assert text == answer(server, PROMPT, max_tokens=12)["text_output"]
    assert "Paris" in text


def test_generate_has_the_outputs_of_tritons_backend(server: ServerProcess) -> None:
    names = ("finish_reason", "logprobs", "cumulative_logprob", "num_input_tokens", "num_output_tokens")
    found = answer(server, PROMPT, max_tokens=4, logprobs=2, **{f"return_{name}": True for name in names})
    assert found["finish_reason"] == "length"
    assert (found["num_input_tokens"], found["num_output_tokens"]) == (5, 4)
    entries = json.loads(found["logprobs"])
    chosen = [next(iter(entry.values())) for entry in entries]
    assert all(len(entry) == 2 for entry in entries)
    assert sum(each["logprob"] for each in chosen) == pytest.approx(found["cumulative_logprob"], rel=1e-4)
    assert "".join(each["decoded_token"] for each in chosen) == found["text_output"]
    with generate(server, PROMPT, max_tokens=4, n=2) as response:
        assert json.loads(response.read())["text_output"] == [PROMPT + found["text_output"]] * 2
    with generate(server, PROMPT, stream=True, max_tokens=4) as response:
        events = [json.loads(line[6:]) for line in response.read().decode().splitlines() if line.startswith("data: ")]
    assert len(events) == 4
    assert "".join(each["text_output"] for each in events) == found["text_output"]


def test_an_answer_follows_a_schema_and_stops(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    found = answer(server, "The capital of France as JSON: ", max_tokens=30, structured_outputs={"json": schema})
    assert json.loads(found["text_output"])["city"] in ("Paris", "Rome")
    assert answer(server, "1, 2, 3, 4,", max_tokens=20, stop="7")["text_output"] == " 5, 6, "


def test_clients_of_openai(server: ServerProcess, client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0}
    whole = client.chat.completions.create(**asked, max_tokens=20)
    assert "4" in (whole.choices[0].message.content or "")
    chunks = list(client.chat.completions.create(**asked, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    text = client.completions.create(model="chat", prompt=PROMPT, max_tokens=1, temperature=0, logprobs=2).choices[0]
    assert text.text == " Paris"
    assert text.logprobs is not None
    with pytest.raises(BadRequestError, match="does not give embeddings"):
        client.embeddings.create(model="chat", input="word")


def test_an_adapter_is_chosen_by_name_beside_requests_without_one(server: ServerProcess, client: OpenAI) -> None:
    own = answer(server, PROMPT, max_tokens=8, lora_name="odd")["text_output"]
    assert own != answer(server, PROMPT, max_tokens=8)["text_output"]
    by_model = client.completions.create(model="chat_lora_odd", prompt=PROMPT, max_tokens=8, temperature=0)
    assert by_model.choices[0].text == own


def test_what_cannot_be_done_is_refused_with_its_name(server: ServerProcess) -> None:
    assert refusal(server, "word " * 3000) == (
        400,
        "the prompt has 3001 tokens, at most 2047 are taken: prompt and answer may have 2048 together",
    )
    assert refusal(server, "x", lora_name="none") == (400, "LoRA none is not supported, we currently support ['odd']")
    assert refusal(server, "x", prompt_logprobs=1) == (400, "'prompt_logprobs' is not supported by backend vllm")
    code, text = refusal(server, "x", structured_outputs={"json": {"type": "nothing"}})
    assert (code, "Invalid type: nothing" in text) == (400, True)
    assert text_of(server).startswith(" Paris")


def test_models_that_cannot_be_loaded_say_why(server: ServerProcess) -> None:
    found = reasons(server)
    assert "no engine argument 'max_num_seq'; did you mean 'max_num_seqs'?" in found["unknown"]
    assert "refuses the model or its arguments" in found["wrong"]
    assert "float17" in found["wrong"]
    assert "needs vLLM, which" in found["without"]
    assert "EXECUTION_ENV_PATH" in found["without"]


def test_a_client_that_hangs_up_frees_its_blocks(server: ServerProcess) -> None:
    response = generate(server, "word " * 500, stream=True, max_tokens=1500, ignore_eos=True)
    response.read(100)
    wait_until(lambda: metric(server, "vllm:kv_cache_usage_perc") > 0)
    assert metric(server, "vllm:num_requests_running") == 1
    response.close()
    wait_until(lambda: metric(server, "vllm:num_requests_running") == 0)
    assert metric(server, "vllm:kv_cache_usage_perc") == 0
    assert metric(server, "tpy_llm_generation_tokens_total") > 1
    assert metric(server, "vllm:time_to_first_token_seconds_count") > 1


@pytest.mark.parametrize("process", ["worker", "core"])
def test_a_process_that_is_killed_costs_its_requests_an_error_and_comes_back(server: ServerProcess, process: str) -> None:
    killed = worker(server)
    core = next(pid for pid in child_processes(killed) if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes())
    response = generate(server, "word", stream=True, max_tokens=1500, ignore_eos=True)
    response.read(100)
    os.kill(killed if process == "worker" else core, signal.SIGKILL)
    assert b'"error"' in response.read()
    response.close()
    assert wait_until(lambda: text_of(server), within_s=RESTART_S).startswith(" Paris")
    assert not is_running(core)


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False
