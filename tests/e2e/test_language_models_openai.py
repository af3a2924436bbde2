"""OpenAI's API in front of a real engine and a real model: SmolLM2 135M by OpenVINO GenAI, from its GGUF file alone."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from tests.backends.openvino_genai.smollm2 import gguf_file

from .server import ServerProcess
from .waiting import wait_until

_COLOURS: Any = [{"role": "user", "content": "Name three colours."}]
_TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    folder = repository / "chat" / "1"
    folder.mkdir(parents=True)
    (folder / "model.gguf").symlink_to(gguf_file())
    with ServerProcess("--allow-openai=true", "--openai-default-max-tokens=20", repositories=[repository]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://{server.address('OpenAI HTTPService')}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_a_stream_says_what_the_whole_answer_does(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "chat", "messages": _COLOURS, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content != ""
    assert len([piece for piece in pieces if piece]) > 10
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (20, "length")


def test_choices_differ_by_their_seeds(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "chat", "messages": _COLOURS, "temperature": 1, "max_tokens": 4, "n": 3, "seed": 7}
    texts = [choice.message.content for choice in client.chat.completions.create(**asked).choices]
    assert len(set(texts)) == 3
    best = client.completions.create(model="chat", prompt="The sky is", n=1, best_of=3, seed=7, max_tokens=5)
    assert len(best.choices) == 1


def test_probabilities_and_stops(client: OpenAI) -> None:
    found = client.chat.completions.create(model="chat", messages=_COLOURS, temperature=0, logprobs=True).choices[0]
    assert found.logprobs is not None
    tokens = found.logprobs.content or []
    assert "".join(token.token for token in tokens) == found.message.content
    assert all(token.logprob <= 0 for token in tokens)
    stopped = client.completions.create(model="chat", prompt="1, 2, 3, 4,", temperature=0, stop="7", echo=True).choices[0]
    assert (stopped.text, stopped.finish_reason) == ("1, 2, 3, 4, 5, 6, ", "stop")


class Place(BaseModel):
    city: str


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_answers_of_a_form(client: OpenAI, choice: Any) -> None:
    asked: dict[str, Any] = {
        "model": "chat",
        "messages": [{"role": "user", "content": "The weather in Paris?"}],
        "temperature": 0,
    }
    asked |= {"tools": _TOOLS, "tool_choice": choice, "max_tokens": 80}
    [call] = client.chat.completions.create(**asked).choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    with client.chat.completions.stream(**asked) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert streamed.function.arguments == call.function.arguments
    parsed = client.chat.completions.parse(
        model="chat", messages=asked["messages"], response_format=Place, temperature=0, max_tokens=80
    )
    assert isinstance(parsed.choices[0].message.parsed, Place)


def test_what_the_engine_does_not_do_is_named(client: OpenAI) -> None:
    for more, name in (({"logit_bias": {"1": 5}}, "logit_bias"), ({"extra_body": {"nonsense": 1}}, "nonsense")):
        with pytest.raises(BadRequestError, match=f"'{name}'.* not support"):
            client.chat.completions.create(model="chat", messages=_COLOURS, **more)  # type: ignore[call-overload]
    # Tools without a parser, and values without effect, are no reason to refuse.
    client.chat.completions.create(model="chat", messages=_COLOURS, tools=_TOOLS, logit_bias={}, presence_penalty=0)


def test_a_client_that_leaves_frees_the_engine(server: ServerProcess, client: OpenAI) -> None:
    def failed() -> int:
        with urllib.request.urlopen(f"http://{server.http}/v2/models/chat/stats") as answer:
            return int(json.load(answer)["model_stats"][0]["inference_stats"]["fail"]["count"])

    before = failed()
    stream = client.completions.create(
        model="chat", prompt="a b c d", n=2, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    assert failed() == before
    stream.close()
    wait_until(lambda: failed() == before + 2)
