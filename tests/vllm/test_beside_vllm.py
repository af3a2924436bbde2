"""The OpenAI frontend beside vLLM's own server, with the same models: what clients ask for, whole and in streams, and what they
are refused. Needs the environment that `make test-vllm` makes."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import OpenAI

from tests.e2e.server import ServerProcess
from tests.vllm.pictures import noise, url_of
from tests.vllm.place import ENVIRONMENT, MODEL
from tests.vllm.servers import PYTHON, client_of, our_server, vllms_server

pytestmark = [
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="needs vLLM and a model: make test-vllm"),
    pytest.mark.time_limit(600),  # two engines, and vLLM's own server, start for half a minute each
]

COMMON: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 8}
CHAT = {**COMMON, "model": str(MODEL), "max_model_len": 512, "kv_cache_memory_bytes": 256 * 1024 * 1024}
SEER = {**COMMON, "kv_cache_memory_bytes": 16 * 1024 * 1024, "limit_mm_per_prompt": {"image": 2}}
CONFIG = (
    'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
    f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'
)
PARSER = 'parameters { key: "tool_call_parser" value { string_value: "hermes" } }\n'
OF_THE_SERVER = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
OUTPUT_TOKENS = 12


class Pair(NamedTuple):
    """The addresses of our server and vLLM's."""

    ours: str
    theirs: str


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The arguments of a model that takes images."""
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([PYTHON, Path(__file__).with_name("tiny.py"), folder], check=True)
    return {**SEER, "model": str(folder / "seer")}


@pytest.fixture(scope="module")
def server(seer: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for name, arguments in (("chat", CHAT), ("seer", seer)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG + PARSER)
        (repository / name / "1" / "model.json").write_text(json.dumps(arguments))
    with our_server(repository, ["chat", "seer"], f"--openai-default-max-tokens={OUTPUT_TOKENS}") as server:
        yield server


@pytest.fixture(scope="module")
def chat(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with vllms_server("chat", {**CHAT, **OF_THE_SERVER}, tmp_path_factory.mktemp("log")) as other:
        yield pair(server, other)


@pytest.fixture(scope="module")
def images(server: ServerProcess, seer: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with vllms_server("seer", seer, tmp_path_factory.mktemp("log")) as other:
        yield pair(server, other)


def pair(server: ServerProcess, other: OpenAI) -> Pair:
    return Pair(f"http://{server.address('OpenAI HTTPService')}/v1/", str(other.base_url))


def post(address: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def ask(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, found = post(address, path, {"temperature": 0, "max_tokens": OUTPUT_TOKENS, **body})
    assert status == 200, found
    document: dict[str, Any] = json.loads(found)
    return document


def events(address: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    body = {"temperature": 0, "max_tokens": OUTPUT_TOKENS, "stream": True, **body}
    status, found = post(address, path, body)
    assert status == 200, found
    lines = [line.removeprefix("data: ") for line in found.decode().splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def said(document: Any) -> Any:
    """An answer as clients read it: without members that are null or empty, those that vLLM alone has, and those that are new
    each time."""
    return cleaned(document, ("id", "created", "system_fingerprint", *_VLLMS))


_VLLMS = (
    *("prompt_logprobs", "prompt_token_ids", "prompt_text", "token_ids", "stop_reason", "kv_transfer_params", "service_tier"),
    *("prompt_tokens_details", "routed_experts", "metrics", "ec_transfer_params", "prompt_routed_experts"),
)


def cleaned(document: Any, without: tuple[str, ...]) -> Any:
    if isinstance(document, dict):
        found = {name: cleaned(value, without) for name, value in document.items() if name not in without}
        return {name: value for name, value in found.items() if value not in (None, [], {})}
    if isinstance(document, list):
        return [cleaned(each, without) for each in document]
    return round(document, 3) if isinstance(document, float) else document


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


STORY: dict[str, Any] = {"model": "chat", "messages": user("Tell me a story about a town by the sea.")}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CHATS: dict[str, dict[str, Any]] = {
    "plain": STORY,
    "ends by itself": {"model": "chat", "messages": user("What is 2 + 2?"), "max_tokens": 80},
    "stop": {**STORY, "max_tokens": 40, "stop": ["town", "village"]},
    "max_completion_tokens": {**STORY, "max_completion_tokens": 5},
    "choices": {**STORY, "n": 2, "temperature": 0.8, "seed": 7},
    "logprobs": {**STORY, "logprobs": True, "top_logprobs": 2},
    "logprobs of the chosen": {**STORY, "logprobs": True},
    "schema": {
        "model": "chat",
        "messages": user("Name a city."),
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
        "max_tokens": 40,
    },
    "tools that are not used": {**STORY, "tools": [TOOL]},
    "no tools": {**STORY, "tools": [TOOL], "tool_choice": "none"},
    "bias": {**STORY, "logit_bias": {"253": -100}},
    "penalties": {**STORY, "frequency_penalty": 1.5, "presence_penalty": 0.5},
    "vLLM's own": {**STORY, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.3, "min_tokens": 3, "seed": 3, "temperature": 0.7},
    "goes on": {
        "model": "chat",
        "messages": [*user("What is 2 + 2?"), {"role": "assistant", "content": "The answer is"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "several messages": {
        "model": "chat",
        "messages": [
            {"role": "system", "content": "You are a pirate."},
            *user([{"type": "text", "text": "Hello."}, {"type": "text", "text": "Who are you?"}]),
            {"role": "assistant", "content": "A pirate."},
            *user("Why?"),
        ],
    },
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "The capital of France is"},
    "several": {"prompt": ["The capital of France is", "1, 2, 3,"]},
    "tokens": {"prompt": [504, 3575, 282]},
    "lists of tokens": {"prompt": [[504, 3575], [282]]},
    "echo": {"prompt": "The capital of France is", "echo": True},
    "logprobs": {"prompt": "The capital of France is", "logprobs": 2},
    "stop": {"prompt": "1, 2, 3,", "stop": "7", "max_tokens": 40},
    "choices": {"prompt": ["Once", "The"], "n": 2, "temperature": 0.8, "seed": 7},
    "cut": {"prompt": "1, 2, 3, 4, 5, 6, 7, 8, 9", "truncate_prompt_tokens": 6},
    "ignore_eos": {"prompt": "The end.", "ignore_eos": True},
}


@pytest.mark.parametrize("name", CHATS)
def test_chats(chat: Pair, name: str) -> None:
    ours, theirs = (said(ask(each, "chat/completions", CHATS[name])) for each in chat)
    assert ours == theirs


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(chat: Pair, name: str) -> None:
    ours, theirs = (said(ask(each, "completions", {"model": "chat", **COMPLETIONS[name]})) for each in chat)
    assert ours == theirs


def told(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream as clients read it: of each choice its text and the end; the role is said once."""
    found: dict[str, Any] = {"object": {chunk["object"] for chunk in chunks}, "usage": said(chunks[-1].get("usage"))}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice.get("delta", {})
            known = found.setdefault(choice["index"], {"text": "", "reasons": [], "roles": set()})
            known["text"] += (choice.get("text") or "") + (delta.get("content") or "")
            known["reasons"] += [choice["finish_reason"]] if choice.get("finish_reason") else []
            known["roles"] |= {delta["role"]} if delta.get("role") else set()
    return found


@pytest.mark.parametrize("counts", [{}, {"stream_options": {"include_usage": True}}])
@pytest.mark.parametrize("name", ["plain", "ends by itself", "stop", "choices"])
def test_streams_of_chats(chat: Pair, name: str, counts: dict[str, Any]) -> None:
    ours, theirs = (events(each, "chat/completions", {**CHATS[name], **counts}) for each in chat)
    assert told(ours) == told(theirs)
    assert [bool(chunk["choices"]) for chunk in ours][-1] == [bool(chunk["choices"]) for chunk in theirs][-1]


@pytest.mark.parametrize("name", ["plain", "several", "stop", "choices", "echo"])
def test_streams_of_completions(chat: Pair, name: str) -> None:
    body = {"model": "chat", **COMPLETIONS[name], "stream_options": {"include_usage": True}}
    ours, theirs = (told(events(each, "completions", body)) for each in chat)
    assert ours == theirs


def test_a_call_of_a_function_that_must_be_called(chat: Pair) -> None:
    """vLLM holds the answer to the form of its parser of tool calls, not to the schema of the arguments, so the texts differ."""
    asked = {"model": "chat", "messages": user("How is the weather in Rome?"), "tools": [TOOL], "tool_choice": "required"}
    ours, theirs = (ask(each, "chat/completions", {**asked, "max_tokens": 80})["choices"][0] for each in chat)
    assert ours["finish_reason"] == theirs["finish_reason"] == "tool_calls"
    (our_call,), (their_call,) = (each["message"]["tool_calls"] for each in (ours, theirs))
    assert {*our_call} <= {*their_call}
    assert (our_call["type"], our_call["function"]["name"]) == (their_call["type"], their_call["function"]["name"])
    assert json.loads(our_call["function"]["arguments"])["city"] in ("Paris", "Rome")


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt too long": ("completions", {"model": "chat", "prompt": "word " * 600}),
    "chat too long": ("chat/completions", {"model": "chat", "messages": user("word " * 600)}),
    "unknown model": ("completions", {"model": "none", "prompt": "a"}),
    "no prompt": ("completions", {"model": "chat", "prompt": ""}),
    "temperature": ("completions", {"model": "chat", "prompt": "a", "temperature": 3}),
    "top_p": ("completions", {"model": "chat", "prompt": "a", "top_p": 1.5}),
    "n": ("completions", {"model": "chat", "prompt": "a", "n": 0}),
    "logprobs": ("completions", {"model": "chat", "prompt": "a", "logprobs": 100}),
    "top_logprobs": ("chat/completions", {**STORY, "top_logprobs": 2}),
    "token": ("completions", {"model": "chat", "prompt": [10_000_000]}),
    "bias": ("completions", {"model": "chat", "prompt": "a", "logit_bias": {"10000000": 1}}),
    "schema": (
        "chat/completions",
        {**STORY, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
    ),
    "no messages": ("chat/completions", {"model": "chat", "messages": []}),
    "stream_options": ("completions", {"model": "chat", "prompt": "a", "stream_options": {"include_usage": True}}),
    "an image": (
        "chat/completions",
        {"model": "chat", "messages": user([{"type": "image_url", "image_url": {"url": url_of(noise(1))}}])},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(chat: Pair, name: str) -> None:
    ours, theirs = (post(each, *REFUSED[name]) for each in chat)
    assert ours[0] == theirs[0], (ours, theirs)
    assert ours[0] in (400, 404)
    assert json.loads(ours[1])["error"]["message"]


def picture(*parts: Any, **more: Any) -> dict[str, Any]:
    """A chat with texts and images."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image_url", "image_url": {"url": url_of(part)}}
        for part in parts
    ]
    return {"model": "seer", "messages": user(content), "ignore_eos": True, **more}


PICTURES: dict[str, dict[str, Any]] = {
    "one": picture(noise(1), "the red boat"),
    "another": picture(noise(2), "the red boat"),
    "behind the text": picture("the red boat", noise(1)),
    "two": picture(noise(1), "over", noise(2)),
    "alone": picture(noise(3)),
    "without": picture("the red boat"),
    "a text": {"model": "seer", "messages": user("the red boat"), "ignore_eos": True},
    "several messages": {
        "model": "seer",
        "messages": [
            {"role": "system", "content": "the city"},
            *picture(noise(1), "a boat")["messages"],
            {"role": "assistant", "content": "runs"},
            *picture("under", noise(2))["messages"],
        ],
        "ignore_eos": True,
    },
    "a photograph": {
        "model": "seer",
        "messages": user([{"type": "image_url", "image_url": {"url": url_of(noise(4, "JPEG"), "jpeg"), "detail": "low"}}]),
        "ignore_eos": True,
    },
    "choices": picture(noise(1), "boat", n=2, temperature=0.8, seed=5),
}


@pytest.mark.parametrize("name", PICTURES)
def test_chats_with_images(images: Pair, name: str) -> None:
    ours, theirs = (said(ask(each, "chat/completions", PICTURES[name])) for each in images)
    assert ours == theirs


def test_an_answer_is_about_the_image(images: Pair) -> None:
    texts = [
        ask(images.ours, "chat/completions", PICTURES[name])["choices"][0]["message"]["content"] for name in ("one", "another")
    ]
    assert texts[0] != texts[1]


def test_a_stream_about_an_image(images: Pair) -> None:
    ours, theirs = (told(events(each, "chat/completions", PICTURES["two"])) for each in images)
    assert ours == theirs


@pytest.mark.parametrize(
    "body",
    [
        picture(noise(1), noise(2), noise(3)),
        picture(noise(1)[:300]),
        picture(b"GIF89a"),
        picture(b"no image"),
        {"model": "seer", "messages": user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,a"}}])},
        {"model": "seer", "messages": user([{"type": "image_url", "image_url": {}}])},
        {"model": "seer", "messages": user([{"type": "image_url"}])},
        {"model": "seer", "messages": user([{"type": "picture"}])},
        picture("boat " * 200, noise(1)),
        picture("boat " * 118, noise(1)),
    ],
)
def test_images_that_both_refuse(images: Pair, body: dict[str, Any]) -> None:
    ours, theirs = (post(each, "chat/completions", body) for each in images)
    assert (ours[0], theirs[0]) == (400, 400), (ours, theirs)


def test_the_server_fetches_nothing(images: Pair) -> None:
    for url in ("http://127.0.0.1:1/a.png", "https://example.com/a.png", "file:///etc/hostname"):
        body = {"model": "seer", "messages": user([{"type": "image_url", "image_url": {"url": url}}])}
        status, found = post(images.ours, "chat/completions", body)
        assert (status, b"the server fetches no images" in found) == (400, True)


def test_images_of_v2_are_those_of_tritons_backend(server: ServerProcess, images: Pair) -> None:
    prompt = "[CLS] User: <image> the red boat <end_of_utterance> Assistant:"
    settings = json.dumps({"temperature": 0, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True})
    body = {"text_input": prompt, "sampling_parameters": settings, "exclude_input_in_output": True}

    def generate(image: Any) -> tuple[int, dict[str, Any]]:
        status, found = post(f"http://{server.http}/v2/models/seer/", "generate", {**body, "image": image})
        return status, json.loads(found)

    expected = ask(images.theirs, "chat/completions", PICTURES["one"])["choices"][0]["message"]["content"]
    for image in (base64_of(1), [base64_of(1)]):
        assert generate(image)[1]["text_output"].strip() == expected.strip()
    status, refusal = generate([base64_of(1), base64_of(2)])
    assert (status, "no place for each of its 2 images" in refusal["error"]) == (400, True)


def base64_of(seed: int) -> str:
    return url_of(noise(seed)).partition(",")[2]


def test_the_list_of_models(server: ServerProcess) -> None:
    with client_of(server.address("OpenAI HTTPService")) as client:
        assert {each.id for each in client.models.list().data} == {"chat", "seer"}
