"""Contents of messages: texts and images, for templates that take parts and for those that take text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tpy.errors import InvalidArgument
from tpy_platforms.openai.contents import conversation_of, for_template, marked, open_ended
from tpy_platforms.openai.requests import Message

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}}


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def contents(*messages: Message, parts: bool = False, placeholder: str = "") -> list[Any]:
    found = conversation_of(list(messages), "m", images=True).messages
    return [message["content"] for message in for_template(found, parts=parts, placeholder=placeholder)]


def test_texts_are_one_and_images_are_found_in_their_order() -> None:
    other = {"type": "image_url", "image_url": "data:image/jpeg;base64,eW8="}
    found = conversation_of(
        [Message(role="user", content=[say("a"), say("b")]), Message(role="user", content=[IMAGE, say("c"), other])],
        "m",
        images=True,
    )
    assert found.messages[0]["content"] == "a\nb"
    assert found.messages[1]["content"] == [{"type": "image"}, say("c"), {"type": "image"}]
    assert found.images == ["aGk=", "eW8="]


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ({"url": "https://10.0.0.1/a.png"}, "the server fetches no images: from where it stands a client's URL may lead to"),
        ({"url": "file:///etc/passwd"}, "the server fetches no images"),
        ("http://example.com/a.png", "the server fetches no images"),
        ({"url": "data:text/plain;base64,aGk="}, "an image has to be a URL of the form data:image/TYPE;base64,..."),
        ({"url": "data:image/png,aGk="}, "an image has to be a URL of the form data:image/TYPE;base64,..."),
        ({"url": 1}, "an image has to be a URL of the form"),
        ({}, "an image has to be a URL of the form"),
        (None, "an image has to be a URL of the form"),
    ],
)
def test_an_image_that_is_not_in_its_url_is_refused(url: object, error: str) -> None:
    part = {"type": "image_url", "image_url": url}
    with pytest.raises(InvalidArgument, match=re.escape(error) + r".* - at `\$.messages\[1\]`"):
        contents(Message(role="user", content="a"), Message(role="user", content=[part]))


def test_a_model_without_images_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r'only text is .* to model \'m\', got a part of type "image_url" - at'):
        conversation_of([Message(role="user", content=[IMAGE])], "m", images=False)


def test_a_template_that_takes_parts_gets_nothing_else() -> None:
    assert contents(
        Message(role="system", content="a"),
        Message(role="user", content=[say("b"), IMAGE]),
        Message(role="assistant"),
        Message(role="tool", content="4"),
        parts=True,
    ) == [[say("a")], [say("b"), {"type": "image"}], [], "4"]


def test_a_template_that_takes_text_gets_placeholders() -> None:
    messages = (
        Message(role="user", content=[say("b"), IMAGE, IMAGE, say("c")]),
        Message(role="user", content=[IMAGE]),
        Message(role="user", content="d"),
    )
    assert contents(*messages, placeholder="<image>") == ["<image>\n<image>\nb\nc", "<image>", "d"]
    assert contents(*messages, placeholder="<{number}>") == ["<1>\n<2>\nb\nc", "<3>", "d"]
    assert contents(*messages) == [[say("b"), {"type": "image"}, {"type": "image"}, say("c")], [{"type": "image"}], "d"]


def test_placeholders_that_a_client_writes_count() -> None:
    assert contents(Message(role="user", content=[say("is <image> red"), IMAGE]), placeholder="<image>") == ["is <image> red"]
    with pytest.raises(InvalidArgument, match="a message has the placeholder '<image>' more often than it has images"):
        contents(Message(role="user", content=[say("<image> or <image>"), IMAGE]), placeholder="<image>")


@pytest.mark.parametrize(
    ("content", "template", "expected"),
    [
        ("It is ", "{}<|im_end|>", "It is "),
        ("It is ", "{}.strip<|im_end|>", "It is"),
        ("end", "<|im_end|>{}<|im_end|>end", "<|im_end|>end"),
        ([say("no"), say("It is")], "{}<end>", "noIt is"),
    ],
)
def test_a_prompt_may_end_in_the_last_message(content: Any, template: str, expected: str) -> None:
    (message,) = marked([{"role": "assistant", "content": content}])
    texts = message["content"]
    text = texts if isinstance(texts, str) else "".join([part["text"] for part in texts])
    text = text.strip() if ".strip" in template else text
    assert open_ended(template.replace(".strip", "").format(text)) == expected


@pytest.mark.parametrize("content", [None, "", [], [say("a"), {"type": "image"}]])
def test_a_last_message_without_text_is_refused(content: Any) -> None:
    with pytest.raises(InvalidArgument, match="'continue_final_message' needs a last message that ends with text"):
        marked([{"role": "assistant", "content": content}])


def test_a_template_that_leaves_the_last_message_out_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="the chat template leaves the last message out"):
        open_ended("assistant: It is")
