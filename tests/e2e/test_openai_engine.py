"""OpenAI's API in front of a model with the inputs and outputs of vLLM's backend, by OpenAI's own client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from .openai_engine import add_engine
from .repositories import ModelFolder
from .server import ServerProcess

_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    for name in ("weather", "time")
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    repository = tmp_path_factory.mktemp("models")
    add_engine(repository, "engine", tool_call_parser="hermes")
    ModelFolder(repository, "engine").file("1/multi_lora.json", '{"sql": "/adapters/sql", "poems": "/adapters/poems"}')
    add_engine(repository, "modest", supported_parameters="temperature, seed, stop, prompt_token_ids, max_tokens")
    ModelFolder(repository, "modest").file("1/multi_lora.json", "not JSON")
    add_engine(repository, "still", supported_parameters="max_tokens", lora_adapters=" own ")
    ModelFolder(repository, "still").file("1/multi_lora.json", '{"other": "/adapters/other"}')
    add_engine(repository, "placed", image_placeholder="<{number}>")
    loop = (
        "{% for message in messages %}{% for part in message.content %}[{{ part.type }} {{ part.text }}]{% endfor %}{% endfor %}"
    )
    add_engine(repository, "parts", chat_template=loop)
    add_engine(repository, "texts", chat_template="{% for message in messages %}{{ 'a' + message.content }}{% endfor %}")
    with ServerProcess("--allow-openai=true", "--openai-default-max-tokens=1000", repositories=[repository]) as server:
        base = f"http://{server.address('OpenAI HTTPService')}/v1"
        with OpenAI(base_url=base, api_key="none", max_retries=0) as opened:
            yield opened


def settings_of(client: OpenAI, model: str = "engine", **asked: Any) -> dict[str, Any]:
    """The settings that a completion gives to the model."""
    found: dict[str, Any] = json.loads(client.completions.create(model=model, prompt="settings", **asked).choices[0].text)
    return found


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_settings_reach_the_model(client: OpenAI) -> None:
    asked = {"temperature": 0.5, "seed": 7, "stop": ["x"], "presence_penalty": 0.5, "logit_bias": {"42": -100.0}}
    assert settings_of(client, **asked, extra_body={"top_k": 3}) == {**asked, "top_k": 3, "max_tokens": 1000}
    with pytest.raises(BadRequestError, match=r"<= 100.0 - at `\$.logit_bias\[...\]`"):
        settings_of(client, logit_bias={"42": 101})


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_of_several_prompts(client: OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "engine", "prompt": ["seed", "other"], "n": 3, "seed": 5}
    if stream:
        chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        texts = [""] * 6
        for chunk in chunks[:-1]:
            assert chunk.usage is None
            assert "usage" in chunk.model_fields_set, "null, as OpenAI's"
            texts[chunk.choices[0].index] += chunk.choices[0].text
        usage = chunks[-1].usage
    else:
        found = client.completions.create(**asked)
        assert [choice.index for choice in found.choices] == list(range(6))
        texts, usage = [choice.text for choice in found.choices], found.usage
    assert texts == ["seed 5", "seed 6", "seed 7", "other", "other", "other"]
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (4 + 5, 3 * 2 + 3 * 2), "a prompt counts once"


def test_the_best_choices(client: OpenAI) -> None:
    """The model says that the likelihood falls with (seed + 3) % 5: 0 for seed 2, 1 for seed 3, 3 for 0, 4 for 1."""
    found = client.completions.create(model="engine", prompt="seed", n=2, best_of=4, seed=0)
    assert [(choice.index, choice.text) for choice in found.choices] == [(0, "seed 2"), (1, "seed 3")]
    assert found.usage is not None
    assert found.usage.completion_tokens == 4 * 2


@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_of_a_chat(client: OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "engine", "messages": user("né is"), "logprobs": True, "top_logprobs": 2}
    if stream:
        tokens = [
            token
            for chunk in client.chat.completions.create(**asked, stream=True)
            if chunk.choices[0].logprobs is not None
            for token in chunk.choices[0].logprobs.content or ()
        ]
    else:
        logprobs = client.chat.completions.create(**asked).choices[0].logprobs
        tokens = (logprobs and logprobs.content) or []
    assert [(token.token, token.logprob, bytes(token.bytes or ())) for token in tokens] == [
        ("né ", -0.5, "né ".encode()),
        ("is", -0.5, b"is"),
    ]
    assert [(other.token, other.logprob) for other in tokens[0].top_logprobs] == [("<0>", -0.25), ("né ", -0.5)]


@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_of_a_completion(client: OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "engine", "prompt": "abcdefg", "logprobs": 1}
    chunks = list(client.completions.create(**asked, stream=True)) if stream else [client.completions.create(**asked)]
    found = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs is not None]
    assert [token for each in found for token in each.tokens or ()] == ["abc", "def", "g"]
    assert [offset for each in found for offset in each.text_offset or ()] == [0, 3, 6]
    assert next(top for each in found for top in each.top_logprobs or ()) == {"<0>": -0.25, "abc": -0.5}


@pytest.mark.parametrize("stream", [False, True])
def test_echo(client: OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "engine", "prompt": ["ab", "cd"], "echo": True}
    chunks = list(client.completions.create(**asked, stream=True)) if stream else [client.completions.create(**asked)]
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["abab", "cdcd"]


class Place(BaseModel):
    city: str


def test_the_form_of_an_answer(client: OpenAI) -> None:
    def structured(form: Any) -> object:
        found = client.chat.completions.create(model="engine", messages=user("settings"), response_format=form)
        return json.loads(found.choices[0].message.content or "").get("structured_outputs")

    schema = {"type": "object"}
    assert structured({"type": "text"}) is None
    assert structured({"type": "json_object"}) == {"json_object": True}
    assert structured({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}) == {"json": schema}
    said = client.chat.completions.parse(model="engine", messages=user('{"city": "Bern"}'), response_format=Place)
    assert said.choices[0].message.parsed == Place(city="Bern")


def called(choice: Any) -> list[tuple[str, object]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]


TWO = '[{"name": "weather", "parameters": {"city": "Bern"}}, {"name": "time", "parameters": {}}]'


@pytest.mark.parametrize(
    ("choice", "said", "calls", "reason"),
    [
        ("required", TWO, [("weather", {"city": "Bern"}), ("time", {})], "tool_calls"),
        ({"type": "function", "function": {"name": "time"}}, '{"city": "x"}', [("time", {"city": "x"})], "stop"),
        ("auto", '<tool_call>{"name": "time", "arguments": {}}</tool_call>', [("time", {})], "tool_calls"),
        ("auto", "No call.", [], "stop"),
        ("none", '<tool_call>{"name": "time", "arguments": {}}</tool_call>', [], "stop"),
    ],
)
def test_a_choice_of_tools(client: OpenAI, choice: Any, said: str, calls: Sequence[object], reason: str) -> None:
    asked: dict[str, Any] = {"model": "engine", "messages": user(said), "tools": _TOOLS, "tool_choice": choice}
    whole = client.chat.completions.create(**asked).choices[0]
    assert (called(whole), whole.finish_reason) == (calls, reason)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert (called(streamed), streamed.finish_reason) == (calls, reason)
    assert (streamed.message.content or "") == (whole.message.content or "")
    one = client.chat.completions.create(**asked, parallel_tool_calls=False).choices[0]
    assert called(one) == calls[:1]


def test_arguments_of_calls_are_streamed_as_they_come(client: OpenAI) -> None:
    said = '<tool_call>{"name": "weather", "arguments": {"city": "Bern and Zurich"}}</tool_call>'
    chunks = client.chat.completions.create(model="engine", messages=user(said), tools=_TOOLS, stream=True)
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.id is not None for call in deltas] == [True] + [False] * (len(deltas) - 1)
    assert len(deltas) > 5


def test_an_answer_that_was_cut_off_says_so(client: OpenAI) -> None:
    said = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
    found = client.chat.completions.create(model="engine", messages=user(said), tools=_TOOLS, max_completion_tokens=18).choices[0]
    assert found.finish_reason == "length"
    [call] = found.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.arguments == '{"city": "'


def test_a_forced_call_constrains_the_answer(client: OpenAI) -> None:
    found = client.chat.completions.create(
        model="engine",
        messages=user("settings"),
        tools=_TOOLS,
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )
    [call] = found.choices[0].message.tool_calls or ()
    assert call.type == "function"
    schema = _TOOLS[0]["function"]["parameters"]
    assert json.loads(call.function.arguments)["structured_outputs"] == {"json": schema}


def test_adapters_are_models(client: OpenAI) -> None:
    listed = [(model.id, getattr(model, "parent", None)) for model in client.models.list()]
    expected = [
        ("engine", None),
        ("engine_lora_sql", "engine"),
        ("engine_lora_poems", "engine"),
        ("modest", None),
        ("parts", None),
        ("placed", None),
        ("still", None),
        ("still_lora_own", "still"),
        ("texts", None),
    ]
    assert listed == expected
    assert client.models.retrieve("engine_lora_sql").id == "engine_lora_sql"
    assert settings_of(client, "engine_lora_sql")["lora_name"] == "sql"
    assert client.completions.create(model="engine_lora_sql", prompt="a").model == "engine_lora_sql"
    for name in ("engine_lora_none", "modest_lora_sql", "nobody_lora_sql"):
        with pytest.raises(NotFoundError, match=f"The model '{name}' does not exist"):
            client.completions.create(model=name, prompt="a")


def test_images(client: OpenAI) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}, {"type": "text", "text": "x"}]
    messages: Any = [{"role": "user", "content": parts}]
    found = client.chat.completions.create(model="engine", messages=messages)
    assert found.choices[0].message.content == "[{'type': 'image'}, {'type': 'text', 'text': 'x'}] ['aGk=']"
    parts[0]["image_url"] = {"url": "https://example.com/a.png"}
    with pytest.raises(
        BadRequestError, match=r"fetches no images.* of the form data:image/TYPE;base64,... - at `\$.messages\[0\]`"
    ):
        client.chat.completions.create(model="engine", messages=messages)


def test_a_template_gets_images_as_it_takes_contents(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    messages: Any = [*user("a"), {"role": "user", "content": parts}]
    found = [
        client.chat.completions.create(model=name, messages=messages).choices[0].message.content for name in ("placed", "parts")
    ]
    with pytest.raises(
        BadRequestError, match=r"refuses the messages: .*\. If it takes only text, the model needs .* 'image_placeholder'"
    ):
        client.chat.completions.create(model="texts", messages=messages)
    assert found == ["a<1>\nx ['aGk=']", "[text a][text x][image ] ['aGk=']"]


def test_the_last_message_may_be_gone_on_with(client: OpenAI) -> None:
    messages: Any = [*user("a"), {"role": "assistant", "content": "b "}]
    asked: dict[str, Any] = {"model": "engine", "messages": messages}
    found = client.chat.completions.create(
        **asked, extra_body={"continue_final_message": True, "chat_template_kwargs": {"suffix": "!"}}
    )
    assert found.choices[0].message.content == "ab "
    with pytest.raises(BadRequestError, match="'continue_final_message' and 'add_generation_prompt' exclude each other"):
        client.chat.completions.create(**asked, extra_body={"continue_final_message": True, "add_generation_prompt": True})


def test_variables_for_the_template(client: OpenAI) -> None:
    found = client.chat.completions.create(
        model="engine", messages=user("a"), extra_body={"chat_template_kwargs": {"suffix": "!", "messages": []}}
    )
    assert found.choices[0].message.content == "a!"
    messages: Any = [{"role": "assistant", "content": "a", "reasoning_content": "b"}]
    found = client.chat.completions.create(model="engine", messages=messages, reasoning_effort="low")
    assert found.choices[0].message.content == "ablow"


def test_counts_in_each_event_of_a_stream(client: OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    asked: Any = {"model": "engine", "messages": user("1234567"), "n": 2}
    counts: dict[int, list[int]] = {0: [], 1: []}
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options=options)
    for chunk in chunks:
        if chunk.choices[0].delta.role is None:
            assert chunk.usage is not None
            assert chunk.usage.prompt_tokens == 7
            counts[chunk.choices[0].index].append(chunk.usage.completion_tokens)
    assert counts == {0: [1, 2, 3, 3], 1: [1, 2, 3, 3]}
    assert last.usage is not None
    assert last.usage.completion_tokens == 6


def test_members_that_say_what_is_so_anyway_are_taken(client: OpenAI) -> None:
    same: Any = {"top_logprobs": 0, "modalities": ["text"], "functions": [], "function_call": "none", "tools": []}
    assert client.chat.completions.create(model="engine", messages=user("a"), **same).choices[0].message.content == "a"


def test_tokens_as_prompts(client: OpenAI) -> None:
    for model in ("engine", "modest"):
        found = client.completions.create(model=model, prompt=[[1, 2], [3]])
        assert [choice.text for choice in found.choices] == ["t1 t2", "t3"]
        with pytest.raises(BadRequestError, match="for tokens give it the parameter 'tokenizer'"):
            client.completions.create(model=model, prompt=[1, 2], echo=True)
    with pytest.raises(BadRequestError, match="model 'still' takes texts; for tokens give it the parameter 'tokenizer'"):
        client.completions.create(model="still", prompt=[1, 2])


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"logit_bias": {"1": 1}}, "'logit_bias': model 'modest' does not support 'logit_bias': it takes max_tokens, prompt"),
        ({"extra_body": {"top_k": 1}}, "'top_k': model 'modest' does not support 'top_k'"),
        ({"logprobs": 1}, "'logprobs': model 'modest' does not support 'logprobs'"),
    ],
)
def test_what_a_model_does_not_support(client: OpenAI, asked: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRequestError, match=problem):
        client.completions.create(model="modest", prompt="a", **asked)


def test_a_model_that_does_not_support_structured_outputs(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="model 'modest' does not support 'structured_outputs'"):
        client.chat.completions.create(model="modest", messages=user("a"), response_format={"type": "json_object"})


def test_settings_without_effect_need_no_support(client: OpenAI) -> None:
    found = settings_of(client, "modest", presence_penalty=0, top_p=1, logit_bias={}, temperature=1)
    assert found == {"temperature": 1, "max_tokens": 1000}


def test_large_images(client: OpenAI) -> None:
    url = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 8_000).decode()
    parts: Any = [{"type": "text", "text": "x"}, *[{"type": "image_url", "image_url": {"url": url}}] * 2]
    found = client.chat.completions.create(model="placed", messages=[{"role": "user", "content": parts}], max_tokens=8)
    assert found.choices[0].message.content == "<1>\n<2>\nx ['AAECAwQFBgcI"
