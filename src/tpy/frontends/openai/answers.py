"""The documents and events that clients of OpenAI's API get."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

import msgspec
import numpy as np
import orjson

from tpy.errors import ErrorCode, NotFound, TpyError
from tpy.frontends.http.codec import HTTP_STATUS
from tpy.frontends.http.codec.long_json import pieces_of
from tpy.frontends.http.message import HttpReply, headers_of, json_reply
from tpy.frontends.openai.tools import ToolCall

DONE: Final = b"data: [DONE]\n\n"

TOOL_CALLS: Final = "tool_calls"
"""The finish reason of an answer with calls of tools."""

_STATUS: Final = {**HTTP_STATUS, ErrorCode.UNSUPPORTED: 400}
"""Not 501 for what a model does not offer: the stock client would ask again."""

Json = dict[str, Any]


def error_document(error: TpyError, status: int) -> Json:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": None, "code": _code(error)}}


def error_reply(error: TpyError) -> HttpReply:
    """The answer that reports `error`."""
    status = _STATUS[error.code]
    return json_reply(orjson.dumps(error_document(error, status)), status=status, headers=headers_of(error))


def refusal_reply(status: int, text: str) -> HttpReply:
    """The answer to a request that HTTP itself does not allow, or that no route takes."""
    return json_reply(orjson.dumps(error_document(TpyError(text), status)), status=status)


def error_event(error: TpyError) -> bytes:
    """The event that ends a stream with an error."""
    return event(error_document(error, _STATUS[error.code]))


def event(document: Json) -> bytes:
    """A document as an event of a stream."""
    return b"data: %b\n\n" % orjson.dumps(document)


def _code(error: TpyError) -> str | None:
    return "model_not_found" if isinstance(error, NotFound) else None


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A choice: its text, the reason for its end, and its calls of tools."""

    text: str
    finish_reason: str
    calls: Sequence[ToolCall]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The members that the documents of one generation share. `model` as the client wrote it; `created` in seconds."""

    model: str
    created: int
    chat: bool
    id: str = msgspec.field(default_factory=lambda: uuid4().hex)

    def whole(self, texts: Sequence[Text], usage: Json | None, *, long: bool) -> list[bytes]:
        """The answer in one document; `long` ones are written in pieces."""
        choices = []
        for index, choice in enumerate(texts):
            text, reason, calls = choice.text, choice.finish_reason, choice.calls
            said: Json = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
            if calls:
                said["message"] |= {"content": text or None, "tool_calls": [call.document() for call in calls]}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": TOOL_CALLS if calls else reason})
        document = self._document("chat.completion" if self.chat else "text_completion", choices)
        document = document if usage is None else {**document, "usage": usage}
        return [piece.encode() for piece in pieces_of(document)] if long else [orjson.dumps(document)]

    def begun(self) -> bytes:
        """The event before the first text: of a chat the role, else nothing."""
        return self._piece({"role": "assistant", "content": ""}) if self.chat else b""

    def piece(self, text: str) -> bytes:
        """The event for some text."""
        return self._piece({"content": text} if self.chat else text)

    def called(self, calls: Sequence[ToolCall]) -> bytes:
        """The event for calls of tools."""
        return self._piece({"tool_calls": [{"index": index, **call.document()} for index, call in enumerate(calls)]})

    def finished(self, reason: str) -> bytes:
        """The event for the end of the text."""
        return self._piece({} if self.chat else "", reason)

    def counted(self, usage: Json | None) -> bytes:
        """The event with the counts."""
        return event({**self._document(self._chunk, []), "usage": usage})

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _piece(self, said: Json | str, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta" if self.chat else "text": said, "logprobs": None, "finish_reason": reason}
        return event(self._document(self._chunk, [choice]))

    def _document(self, kind: str, choices: list[Json]) -> Json:
        number = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}"
        return {"id": number, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def embeddings_document(
    model: str, found: Sequence[np.ndarray[Any, np.dtype[np.float32]]], tokens: int, *, text: bool
) -> list[bytes]:
    """The answer with embeddings, in pieces: lists of numbers, or with `text` Base64 of little-endian floats."""
    parts = [b'{"object":"list","data":[']
    for index, vector in enumerate(found):
        embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode() if text else np.ascontiguousarray(vector)
        row = {"object": "embedding", "index": index, "embedding": embedding}
        parts.append((b"," if index else b"") + orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    parts.append(b"]," + orjson.dumps({"model": model, "usage": usage})[1:])
    return parts


def model_document(name: str, created: int) -> Json:
    """A model in the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "tpy"}
