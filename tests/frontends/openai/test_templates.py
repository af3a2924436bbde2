"""Chat templates: the sandbox, the functions that templates of Transformers call, and where a template comes from."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpy.errors import InvalidArgument, Unsupported
from tpy_platforms.openai.contents import conversation_of
from tpy_platforms.openai.requests import Message
from tpy_platforms.openai.templates import ChatTemplate, read_tokenizer, template_of

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""That of SmolLM2 and many others."""


def render(text: str, *messages: Message, tools: list[dict[str, object]] | None = None) -> str:
    return ChatTemplate(text=text).render(conversation_of(list(messages), "m", images=False).messages, tools)


def test_a_template_of_a_real_tokenizer() -> None:
    assert render(CHATML, Message(role="user", content="Hi")) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_and_their_calls() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "<ü>"}'}}
    text = "{{ tools | tojson }} {{ messages[0].tool_calls[0].function.arguments.x }}"
    tools: list[dict[str, object]] = [{"name": "f"}]
    assert render(text, Message(role="assistant", tool_calls=[call]), tools=tools) == '[{"name": "f"}] <ü>'
    call["function"] = {"arguments": "{"}
    with pytest.raises(InvalidArgument, match=r"the arguments of a tool call are not JSON: .* at `\$.messages\[0\]`"):
        render(text, Message(role="assistant", tool_calls=[call]))


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{% macro again(n) %}{{ again(n) }}{% endmacro %}{{ again(1) }}",
    ],
)
def test_templates_that_refuse_or_try_to_leave(text: str) -> None:
    with pytest.raises(InvalidArgument, match="the chat template refuses the messages: "):
        render(text, Message(role="user", content="a"))


def test_a_template_that_is_none() -> None:
    with pytest.raises(Unsupported, match=r"the chat template is not Jinja: .* \(line 2\)"):
        render("\n{% if", Message(role="user", content="a"))


def test_where_a_template_comes_from(tmp_path: Path) -> None:
    fallback = ChatTemplate(text="fallback")
    assert template_of("m", {}, fallback) is fallback
    with pytest.raises(Unsupported, match="model 'm' has no chat template"):
        template_of("m", {}, None)
    own = template_of("m", {"chat_template": "{{ eos_token }}", "eos_token": "</s>"}, fallback)
    assert own.render([], None) == "</s>"
    with pytest.raises(Unsupported, match="model 'm': cannot read the tokenizer"):
        template_of("m", {"tokenizer": str(tmp_path)}, fallback)
    config = {
        "chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "{{ bos_token }}"}],
        "bos_token": "<s>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert template_of("m", {"tokenizer": str(tmp_path)}, None).render([], None) == "<s>"
    (tmp_path / "chat_template.jinja").write_text("apart")
    assert template_of("m", {"tokenizer": str(tmp_path)}, None).text == "apart"
    assert read_tokenizer(str(tmp_path / "tokenizer_config.json"), source="x").text == "apart"


def test_a_tokenizer_that_is_no_good_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chat for its model would parse it again, some megabytes with the interpreter's lock held."""
    reads = []

    def loads(text: bytes) -> object:
        reads.append(text)
        return json.JSONDecoder().decode(text.decode())

    monkeypatch.setattr("tpy_platforms.openai.templates.json", SimpleNamespace(loads=loads))
    file = tmp_path / "tokenizer_config.json"
    file.write_text("{}")
    for _ in range(3):
        with pytest.raises(Unsupported, match=r"model 'm': the tokenizer .* has no chat_template"):
            template_of("m", {"tokenizer": str(tmp_path)}, None)
    assert len(reads) == 1
    file.write_text('{"chat_template": "good"}')
    assert template_of("m", {"tokenizer": str(tmp_path)}, None).text == "good"


@pytest.mark.parametrize(
    ("loop", "takes"),
    [
        ("{% for part in message.content %}{{ part.text }}{% endfor %}", True),
        ("{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}", True),
        ("{% for part in message['content'][1:] %}{{ part.text }}{% endfor %}", True),
        ("{% set content = message.content %}{% for part in content %}{{ part.text }}{% endfor %}", True),
        ("{% set found = message.content %}{% for part in found %}{{ part.text }}{% endfor %}", True),
        ("{% macro show(given) %}{% for part in given %}{{ part }}{% endfor %}{% endmacro %}{{ show(message.content) }}", True),
        (
            "{% macro show(given) %}{% for part in given %}{{ part }}{% endfor %}{% endmacro %}{{ show(given=message.content) }}",
            True,
        ),
        ("{% macro show(given) %}{% for part in given %}{{ part }}{% endfor %}{% endmacro %}{{ show(tools) }}", False),
        ("{{ message.content }}", False),
        ("{{ message.content }}{% for tool in tools %}{{ tool }}{% endfor %}", False),
        ("{% for line in message.content.split('x') %}{{ line }}{% endfor %}", False),
        ("{% for", False),
    ],
)
def test_whether_a_template_takes_the_parts_of_a_content(loop: str, takes: bool) -> None:
    text = f"{{% for message in messages %}}{loop}{{% endfor %}}"
    assert ChatTemplate(text=text).takes_parts() is takes
