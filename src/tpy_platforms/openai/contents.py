"""The contents of messages: texts and images, as clients send them and as chat templates take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.document import shown
from tpy_platforms.openai.requests import Message

_URL: Final = "data:image/TYPE;base64,..."
_TEXT: Final = "text"

_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""That of transformers. The space tells whether a template strips texts."""

PLACEHOLDER: Final = "image_placeholder"
"""The parameter of a model with the text that stands for an image, for a chat template that takes only text. `{number}` in it is
the image's, from 1 on."""


class Conversation(msgspec.Struct, frozen=True):
    """The messages as chat templates take them, and the images in them, in Base64. A content with an image is a list of parts."""

    messages: list[dict[str, Any]]
    images: list[str]


def conversation_of(messages: list[Message], model: str, *, images: bool) -> Conversation:
    """The conversation of some messages; with `images` the model takes them. Raises InvalidArgument for parts that it does not
    take, and broken arguments."""
    conversation = []
    found_images: list[str] = []
    room = limits.JSON_OUTLINE_BYTES_MAX
    for at, message in enumerate(messages):
        found = msgspec.to_builtins(message)
        found.setdefault("content", None)
        if isinstance(message.content, list):
            found["content"] = _content_of(message.content, at, model, found_images if images else None)
        for call in found.get("tool_calls") or ():
            function = call.get("function")
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                room -= len(function["arguments"])
                if room < 0:
                    raise InvalidArgument(
                        f"the arguments of tool calls have more than {limits.JSON_OUTLINE_BYTES_MAX} characters"
                    )
                try:
                    function["arguments"] = msgspec.json.decode(function["arguments"] or "{}")
                except msgspec.DecodeError as error:
                    raise InvalidArgument(f"the arguments of a tool call are not JSON: {error} - at `$.messages[{at}]`") from None
        conversation.append(found)
    return Conversation(conversation, found_images)


def _content_of(parts: list[dict[str, Any]], at: int, model: str, images: list[str] | None) -> str | list[dict[str, Any]]:
    """The texts of parts as one; with an image all as the parts that templates take, and the image is appended to `images`."""
    found: list[dict[str, Any]] = []
    for part in parts:
        kind = part.get("type")
        if kind == _TEXT and isinstance(part.get(_TEXT), str):
            found.append({"type": _TEXT, _TEXT: part[_TEXT]})
        elif kind == "image_url" and images is not None:
            images.append(_image_of(part, at))
            found.append({"type": "image"})
        else:
            takes = "only text is" if images is None else "only text and images are"
            raise InvalidArgument(
                f"{takes} supported in messages to model '{model}', got a part of type {shown(kind)} - at `$.messages[{at}]`"
            )
    if all(part["type"] == _TEXT for part in found):
        return "\n".join(part[_TEXT] for part in found)
    return found


def _image_of(part: dict[str, Any], at: int) -> str:
    """The Base64 of an image. Raises InvalidArgument for an address elsewhere: the server fetches nothing for clients."""
    url = part["image_url"].get("url") if isinstance(part.get("image_url"), dict) else part.get("image_url")
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if comma and head.startswith("data:image/") and head.endswith(";base64"):
        return data
    if isinstance(url, str) and "://" in url[: limits.OPENAI_URL_SCHEME_CHARACTERS_MAX]:
        raise InvalidArgument(
            f"the server fetches no images: from where it stands a client's URL may lead to what the client must not see. Send "
            f"the image itself, as a URL of the form {_URL} - at `$.messages[{at}]`"
        )
    raise InvalidArgument(f"an image has to be a URL of the form {_URL} - at `$.messages[{at}]`")


def for_template(messages: Sequence[dict[str, Any]], *, parts: bool, placeholder: str) -> list[dict[str, Any]]:
    """The messages for a model that takes images: with `parts` the template loops over those of each content, otherwise it gets
    text with placeholders, if there is one. The rules are those of vLLM's own server. Raises InvalidArgument for more
    placeholders than images."""
    if parts:
        return [_as_parts(message) for message in messages]
    if not placeholder:
        return list(messages)
    found, number = [], 1
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            texts = [part[_TEXT] for part in content if part["type"] == _TEXT]
            count = len(content) - len(texts)
            content = _with_placeholders(
                "\n".join(texts), [placeholder.replace("{number}", str(number + each)) for each in range(count)]
            )
            number += count
        found.append({**message, "content": content})
    return found


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, list) or message["role"] == "tool":
        return message
    return {**message, "content": [] if content is None else [{"type": _TEXT, _TEXT: content}]}


def _with_placeholders(text: str, placeholders: list[str]) -> str:
    """The text after those placeholders that it does not have yet."""
    missing = []
    for each in dict.fromkeys(placeholders):
        lacking = placeholders.count(each) - text.count(each)
        if lacking < 0:
            raise InvalidArgument(f"a message has the placeholder '{each}' more often than it has images")
        missing += [each] * lacking
    return "\n".join([*missing, text] if text else missing)


def marked(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark at the end of the last one's text, for `open_ended`. Raises InvalidArgument for one without
    text."""
    last = messages[-1]
    content = last["content"]
    if isinstance(content, list) and content and content[-1]["type"] == _TEXT:
        content = [*content[:-1], {"type": _TEXT, _TEXT: content[-1][_TEXT] + _MARK}]
    elif isinstance(content, str) and content:
        content += _MARK
    else:
        raise InvalidArgument("'continue_final_message' needs a last message that ends with text")
    return [*messages[:-1], {**last, "content": content}]


def open_ended(prompt: str) -> str:
    """The prompt up to the mark: the model goes on there. Raises InvalidArgument where the template left it out."""
    text, mark, _ = prompt.rpartition(_MARK)
    if mark:
        return text
    text, mark, _ = prompt.rpartition(_MARK.strip())  # a template that strips texts
    if not mark:
        raise InvalidArgument("'continue_final_message': the chat template leaves the last message out, or changes it")
    return text.rstrip()
