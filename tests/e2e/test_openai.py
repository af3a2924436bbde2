"""OpenAI's API by OpenAI's own client: texts, chats, streams, embeddings, and what goes wrong."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest
from openai import APIError, AsyncOpenAI, NotFoundError, OpenAI, PermissionDeniedError

from tests.docs.pages import ROOT

from .repositories import ModelFolder
from .server import ServerProcess
from .test_platforms import call
from .waiting import wait_until

EXAMPLES = ROOT / "docs" / "examples" / "openai" / "models"
ENDLESS_CONFIG = """
backend: "python"
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
parameters { key: "log" value { string_value: "LOG" } }
parameters { key: "chat_template" value { string_value: "{{ raise_exception('no ' ~ messages[0].role) }}" } }
"""
ENDLESS = """
import json, threading, time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.log = Path(json.loads(args["model_config"])["parameters"]["log"]["string_value"])

    def execute(self, requests):
        for request in requests:
            [text] = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            threading.Thread(target=self.write, args=(request.get_response_sender(), text), daemon=True).start()

    def write(self, sender, text):
        piece = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([b"a"], object))])
        if text == b"break":
            sender.send(piece)
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("in the middle")), flags=1)
            return
        while not sender.is_cancelled():
            sender.send(piece)
            time.sleep(0.01)
        with self.log.open("a") as log:
            log.write(f"{text.decode()} cancelled;")
        sender.send(flags=1)
"""
CALLER_CONFIG = """
backend: "python"
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }, { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
parameters { key: "chat_template" value { string_value: "{{ messages[-1].content }}" } }
parameters { key: "tool_call_parser" value { string_value: "mistral" } }
"""
CALLER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            [text] = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            [stream] = pb_utils.get_input_tensor_by_name(request, "stream").as_numpy()
            size = 5 if stream else len(text)
            for start in range(0, len(text), size):
                piece = np.array([text[start : start + size]], object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", piece)]))
            sender.send(flags=1)
"""

CHATTING_CONFIG = """
backend: "python"
input [ { name: "messages" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
CHATTING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(each, "messages").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]) for text in texts]
"""


SIZE_MAX = 1_000_000


def port_of(server: ServerProcess) -> str:
    return f"http://{server.address('OpenAI HTTPService')}"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "log"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    ModelFolder(repository, "endless").config(ENDLESS_CONFIG.replace("LOG", str(log))).python(ENDLESS)
    ModelFolder(repository, "plain").identity()
    ModelFolder(repository, "caller").config(CALLER_CONFIG).python(CALLER)
    ModelFolder(repository, "chatting").config(CHATTING_CONFIG).python(CHATTING)
    with ServerProcess(
        "--allow-openai=true", f"--http-max-input-size={SIZE_MAX}", repositories=[EXAMPLES, repository]
    ) as running:
        yield running


def test_the_metrics_are_here_too(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"{port_of(server)}/metrics") as page:
        assert page.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert b"nv_inference_request_success" in page.read()


def test_the_metrics_in_a_frontend_process_are_those_of_the_server(repository: Path) -> None:
    ModelFolder(repository, "plain").identity()
    with ServerProcess("--allow-openai=true", "--frontend-processes=1", repositories=[repository]) as server:
        with urllib.request.urlopen(f"{port_of(server)}/metrics") as page:
            here = page.read()
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
            there = page.read()
    series = re.compile(rb"^nv_inference\w+\{[^}]*\}", re.MULTILINE)
    assert series.findall(here) == series.findall(there) != []


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_a_template_does_not_take_give_a_warning(server: ServerProcess, stream: bool) -> None:
    """`caller` repeats the last message; `chatting` takes messages and tools itself."""
    for model, tools, warned in (("caller", TOOLS, True), ("caller", None, False), ("chatting", TOOLS, False)):
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "stream": stream, "tools": tools}
        asked = urllib.request.Request(
            f"{port_of(server)}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            answer.read()
            expected = '299 tpy "the chat template of the model takes no tools: they are ignored"'
            assert answer.headers["Warning"] == (expected if warned else None), model


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{port_of(server)}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_the_models_that_take_text(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["caller", "chatting", "embedder", "endless", "writer"]
    assert client.models.retrieve("writer").object == "model"
    for name in ("plain", "nobody"):
        with pytest.raises(NotFoundError, match=f"The model '{name}' does not exist") as caught:
            client.models.retrieve(name)
        assert caught.value.code == "model_not_found"


def test_a_completion(client: OpenAI) -> None:
    found = client.completions.create(model="writer", prompt="every model", max_tokens=5, seed=1)
    assert len(found.choices[0].text.split()) == 5
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (2, 5, 7)
    again = client.completions.create(model="writer", prompt=["every model", "a"], max_tokens=5, seed=1)
    assert [choice.index for choice in again.choices] == [0, 1]
    assert again.choices[0].text == found.choices[0].text
    assert again.usage is not None
    assert again.usage.total_tokens == 7 + 6
    stopped = client.completions.create(model="writer", prompt="every model", max_tokens=50, stop=[".", "has"])
    assert stopped.choices[0].finish_reason == "stop"
    assert len(client.completions.create(model="writer", prompt="a").choices[0].text.split()) == 16  # unless told otherwise


def test_a_chat(client: OpenAI) -> None:
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": [{"type": "text", "text": "What"}, {"type": "text", "text": "now?"}]}
    found = client.chat.completions.create(model="writer", messages=[system, user], max_completion_tokens=3)  # type: ignore[list-item]
    assert found.object == "chat.completion"
    assert found.choices[0].message.role == "assistant"
    assert len((found.choices[0].message.content or "").split()) == 3
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(["system:", "Be", "brief.", "user:", "What", "now?", "assistant:"])


def test_streams(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "a"}]
    whole = client.chat.completions.create(model="writer", messages=messages, max_tokens=6, seed=4)  # type: ignore[call-overload]

    async def stream() -> None:
        async with AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0) as other:
            chunks = [
                chunk
                async for chunk in await other.chat.completions.create(
                    model="writer",
                    messages=messages,  # type: ignore[arg-type]
                    max_tokens=6,
                    seed=4,
                    stream=True,
                    stream_options={"include_usage": True},
                )
            ]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert len({chunk.id for chunk in chunks}) == 1
        texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        assert "".join(texts) == whole.choices[0].message.content
        assert len([text for text in texts if text]) == 6
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].choices == []
        assert chunks[-1].usage == whole.usage

    asyncio.run(stream())
    pieces = list(client.completions.create(model="writer", prompt="a", max_tokens=4, stream=True))
    assert len("".join(piece.choices[0].text for piece in pieces).split()) == 4
    assert pieces[-1].choices[0].finish_reason == "length"


def test_the_end_of_a_stream(server: ServerProcess) -> None:
    body = json.dumps({"model": "writer", "prompt": "a", "max_tokens": 1, "stream": True}).encode()
    with urllib.request.urlopen(f"{port_of(server)}/v1/completions", body, timeout=30) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = answer.read().split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert all(event.startswith(b"data: {") for event in events[:-2])


def test_embeddings(client: OpenAI) -> None:
    found = client.embeddings.create(model="embedder", input=["A model", "a model", "quite other words"])
    vectors = [each.embedding for each in found.data]
    assert [len(vector) for vector in vectors] == [16, 16, 16]
    assert vectors[0] == vectors[1] != vectors[2]
    assert found.usage.prompt_tokens == 7
    plain = client.embeddings.create(model="embedder", input="A model", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(vectors[0])


def test_calls_of_tools(client: OpenAI) -> None:
    said = 'Let me see.[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern"}}, {"name": "time", "arguments": {}}]'
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("weather", "time")]
    ask = {"model": "caller", "messages": [{"role": "user", "content": said}]}
    found = client.chat.completions.create(**ask, tools=tools).choices[0]  # type: ignore[call-overload]
    assert (found.finish_reason, found.message.content) == ("tool_calls", "Let me see.")
    calls = found.message.tool_calls
    assert [(call.type, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("function", "weather", {"city": "Bern"}),
        ("function", "time", {}),
    ]
    # The client's own helper puts the chunks of a stream together.
    with client.chat.completions.stream(**ask, tools=tools) as stream:  # type: ignore[call-overload]
        whole = stream.get_final_completion().choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", "Let me see.")
    assert [(call.function.name, call.function.arguments) for call in whole.message.tool_calls] == [
        (call.function.name, call.function.arguments) for call in calls
    ]
    # The answers of the tools go back; without tools, and where they are not to be called, it is text.
    answers = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
    history = [*ask["messages"], found.message.model_dump(exclude_none=True), *answers]
    final = client.chat.completions.create(model="caller", messages=history, tools=tools)
    assert (final.choices[0].finish_reason, final.choices[0].message.content) == ("stop", "sunny")
    for more in ({}, {"tools": tools, "tool_choice": "none"}):
        text = client.chat.completions.create(**ask, **more).choices[0]  # type: ignore[call-overload]
        assert (text.finish_reason, text.message.content, text.message.tool_calls) == ("stop", said, None)


def test_a_client_that_leaves_cancels(client: OpenAI, log: Path) -> None:
    stream = client.completions.create(model="endless", prompt="stream", stream=True)
    next(stream)
    stream.close()
    with OpenAI(base_url=client.base_url, api_key="none", max_retries=0, timeout=1.0) as hasty, pytest.raises(APIError):
        hasty.completions.create(model="endless", prompt="whole")
    wait_until(lambda: log.exists() and {"stream cancelled", "whole cancelled"} <= set(log.read_text().split(";")))


def test_an_error_in_the_middle_of_a_stream(client: OpenAI) -> None:
    with pytest.raises(APIError, match="in the middle"):
        list(client.completions.create(model="endless", prompt="break", stream=True))
    with pytest.raises(APIError, match="in the middle"):
        client.completions.create(model="endless", prompt="break")


def test_an_error_of_one_choice_ends_all_of_a_stream(client: OpenAI, log: Path) -> None:
    with pytest.raises(APIError, match="in the middle"):
        list(client.completions.create(model="endless", prompt=["beside", "break"], stream=True))
    wait_until(lambda: "beside cancelled" in log.read_text().split(";"))


def chat(**more: object) -> dict[str, object]:
    return {"model": "writer", "messages": [{"role": "user", "content": "a"}], **more}


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("completions", b"{", "the body is not JSON: "),
        ("completions", b"[]", "the body must be a JSON object"),
        ("completions", {"model": "writer"}, "missing required field `prompt`"),
        ("completions", {"model": "writer", "prompt": 1}, "- at `$.prompt`"),
        ("completions", {"model": "writer", "prompt": "a", "max_tokens": 0}, "- at `$.max_tokens`"),
        ("completions", {"model": "writer", "prompt": "a", "temperature": 3}, "- at `$.temperature`"),
        ("completions", {"model": "writer", "prompt": "a", "n": 0}, "- at `$.n`"),
        (
            "completions",
            {"model": "writer", "prompt": ["a"] * 20, "n": 128},
            "20 prompts with 128 choices each are more than 2048",
        ),
        (
            "completions",
            {"model": "writer", "prompt": "a", "n": 3, "best_of": 2},
            "'best_of' has to be at least 'n', got 2 and 3",
        ),
        ("completions", {"model": "writer", "prompt": "a", "best_of": 2, "stream": True}, "'best_of' above 'n' is not possible"),
        (
            "completions",
            {"model": "writer", "prompt": "a", "best_of": 2},
            "does not support 'cumulative_logprob': it has no output",
        ),
        ("completions", {"model": "writer", "prompt": "a", "logprobs": 1}, "it has no input 'sampling_parameters'"),
        ("completions", {"model": "writer", "prompt": "a", "logprobs": 1, "echo": True}, "'echo' with 'logprobs'"),
        ("completions", {"model": "writer", "prompt": [1, 2]}, "for tokens give it the parameter 'tokenizer'"),
        ("completions", {"model": "writer", "prompt": "a", "stream_options": {}}, "'stream_options' can only be used"),
        ("completions", {"model": "plain", "prompt": "a"}, "model 'plain' does not give text"),
        ("chat/completions", chat(messages=[]), "- at `$.messages`"),
        ("chat/completions", chat(messages=[{"content": "a"}]), "missing required field `role` - at `$.messages[0]`"),
        ("chat/completions", chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 'a part of type "image_url"'),
        ("chat/completions", chat(response_format={"type": "json_object"}), "does not support 'structured_outputs'"),
        ("chat/completions", chat(response_format={"type": "xml"}), 'expected text, json_object or json_schema, got "xml"'),
        ("chat/completions", chat(response_format={"type": "json_schema"}), "expected a JSON schema - at `$.response_format"),
        ("chat/completions", chat(logprobs=True), "it has no input 'sampling_parameters'"),
        ("chat/completions", chat(top_logprobs=2), "'top_logprobs' can only be used when 'logprobs' is true"),
        ("chat/completions", chat(functions=[{"name": "f"}]), "'functions' is not supported: use 'tools'"),
        ("chat/completions", chat(function_call={"name": "f"}), "'function_call' is not supported: use 'tool_choice'"),
        ("chat/completions", chat(modalities=["text", "audio"]), "'modalities': only text is supported"),
        ("chat/completions", chat(tool_choice="required"), "'tool_choice' needs 'tools'"),
        ("chat/completions", chat(model="endless"), "the chat template refuses the messages: no user"),
        ("chat/completions", chat(model="embedder"), "model 'embedder' does not give text"),
        ("embeddings", {"model": "embedder", "input": []}, "- at `$.input`"),
        (
            "embeddings",
            {"model": "embedder", "input": [1, "a"]},
            "expected a text, texts, an array of tokens, or arrays of tokens",
        ),
        ("embeddings", {"model": "embedder", "input": [[]]}, "expected a text, texts, an array of tokens, or arrays of tokens"),
        ("embeddings", {"model": "embedder", "input": ["a"] * 2049}, "Expected `array` of length <= 2048"),
        ("embeddings", {"model": "embedder", "input": [[1], [2]]}, "for tokens give it the parameter 'tokenizer'"),
        ("embeddings", {"model": "embedder", "input": "a", "dimensions": 3}, "has one size of embeddings"),
        ("embeddings", {"model": "writer", "input": "a"}, "model 'writer' does not give embeddings"),
    ],
)
def test_bad_requests(server: ServerProcess, path: str, body: bytes | dict[str, object], problem: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(HTTPError) as caught:
        urllib.request.urlopen(f"{port_of(server)}/v1/{path}", content, timeout=30)
    assert caught.value.code == 400
    error = json.loads(caught.value.read())["error"]
    assert problem in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("depth", [100, 300, 950, 100_000])
def test_documents_that_are_nested_deeply(server: ServerProcess, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    user = '{"role": "user", "content": "a"}'
    assistant = f'{{"role": "assistant", "tool_calls": [{{"function": {{"arguments": {json.dumps(nested)}}}}}]}}'
    bodies = [("completions", f'{{"model": "writer", "prompt": "a", "max_tokens": 1, "more": {nested}}}')]
    for name in ("writer", "chatting"):
        for tools in ("[]", f'[{{"a": {nested}}}]'):
            body = f'{{"model": "{name}", "max_tokens": 1, "messages": [{user}, {assistant}], "tools": {tools}}}'
            bodies.append(("chat/completions", body))
    for path, body in bodies:
        status, answer, _ = call(server.address("OpenAI HTTPService"), f"/v1/{path}", body.encode())
        if status != 200:
            assert (status, depth > 500) == (400, True)
            assert re.search("nested too deeply|recursion", json.loads(answer)["error"]["message"])


def test_what_http_refuses_has_their_form(server: ServerProcess) -> None:
    large = json.dumps({"model": "writer", "prompt": "a" * (SIZE_MAX + 1)}).encode()
    cases = [
        (
            b"Content-Length: %d\r\n\r\n%s" % (len(large), large),
            400,
            f"exceeds the maximum allowed input size of {SIZE_MAX} bytes",
        ),
        (b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431, "request line and headers exceed"),
        (b"Transfer-Encoding: gzip\r\n\r\n", 501, "Transfer-Encoding 'gzip' is not supported"),
    ]
    host, _, port = server.address("OpenAI HTTPService").rpartition(":")
    for more, status, text in cases:
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n" + more)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            error = json.loads(answer.read())["error"]
        assert answer.status == status
        assert text in error["message"]
        assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")


def test_unknown_paths_and_methods(server: ServerProcess) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("GET", "/v2/models/writer", 404)):
        with pytest.raises(HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(port_of(server) + path, method=method), timeout=30)
        assert caught.value.code == status
        error = json.loads(caught.value.read())["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", None)


def test_keys_and_templates_with_frontend_processes(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path / "models", "reader")
    folder.config(
        'backend: "python"\nmax_batch_size: 4\n'
        'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
    )
    folder.python(
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        texts = [pb_utils.get_input_tensor_by_name(each, 'text_input').as_numpy() for each in requests]\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('text_output', text)]) for text in texts]\n"
    )
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    template = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}\n{% endfor %}"
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": {"content": "<s>"}}))
    flags = (
        "--allow-openai",
        "--frontend-processes=2",
        f"--openai-tokenizer={tokenizer}",
        "--http-restricted-api=model-repository,inference:admin=key",
        "--openai-restricted-api=inference:authorization=Bearer sk-good",
    )
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:
        base = f"{port_of(server)}/v1"
        with OpenAI(base_url=base, api_key="sk-good", max_retries=0) as good:
            messages = [{"role": "user", "content": " hi "}]
            found = good.chat.completions.create(model="reader", messages=messages)  # type: ignore[call-overload]
            assert found.choices[0].message.content == "<s>[user] hi\n"
            assert found.choices[0].finish_reason == "stop"
            assert found.usage is None
            [_, text, _] = good.chat.completions.create(model="reader", messages=messages, stream=True)  # type: ignore[call-overload]
            assert text.choices[0].delta.content == "<s>[user] hi\n"
            with pytest.raises(PermissionDeniedError, match="expecting header 'admin'"):
                good.models.list()
        with OpenAI(base_url=base, api_key="sk-bad", max_retries=0, default_headers={"admin": "key"}) as bad:
            assert [model.id for model in bad.models.list()] == ["reader"]
            with pytest.raises(PermissionDeniedError, match="This API is restricted, expecting header 'authorization'"):
                bad.completions.create(model="reader", prompt="a")
        assert "sk-good" not in server.log


@pytest.mark.parametrize(
    ("flag", "content", "problem"),
    [
        ("openai-tokenizer", None, "--openai-tokenizer: cannot read the tokenizer"),
        ("openai-tokenizer", "{}", "has no chat_template"),
        ("openai-chat-template", "a\n{% if", r"--openai-chat-template: .*:2: "),
        ("openai-restricted-api", "chat:key=value", "--openai-restricted-api: unknown restricted api 'chat'"),
    ],
)
def test_flags_that_cannot_be(tmp_path: Path, flag: str, content: str | None, problem: str) -> None:
    value = content
    if flag != "openai-restricted-api":
        file = tmp_path / "tokenizer_config.json"
        value = str(file)
        if content is not None:
            file.write_text(content)
    with ServerProcess("--allow-openai", f"--{flag}={value}", repositories=[tmp_path], expect_exit=1) as server:
        server.process.wait(30)
        assert re.search(problem, server.log)
