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
from tpy_platforms.openai.choices import CallArguments, Choice, Piece, ToolCall
from tpy_platforms.openai.logprobs import TokenLogprobs, chat_document, completion_document

DONE: Final = b"data: [DONE]\n\n"

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


class AnswerMembers(msgspec.Struct, frozen=True, kw_only=True):
    """The members that the documents of one generation share. `model` as the client wrote it; `created` in seconds. With
    `says_usage` the events of a stream have the member `usage`, which the last one fills, and with `says_counts` each one."""

    model: str
    created: int
    chat: bool
    says_usage: bool = False
    says_counts: bool = False
    id: str = msgspec.field(default_factory=lambda: uuid4().hex)

    def whole(self, choices: Sequence[Choice], usage: Json | None, *, long: bool) -> list[bytes]:
        """The answer in one document; `long` ones are written in pieces."""
        written = []
        for choice in choices:
            text, calls = choice.text, choice.calls
            said: Json = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
            if calls:
                said["message"] |= {"content": text or None, "tool_calls": calls}
            logprobs = None if choice.logprobs is None else self._logprobs(choice.logprobs, 0)
            written.append({"index": choice.index, **said, "logprobs": logprobs, "finish_reason": choice.finish_reason})
        document = self._document("chat.completion" if self.chat else "text_completion", written)
        document = document if usage is None else {**document, "usage": usage}
        return [piece.encode() for piece in pieces_of(document)] if long else [orjson.dumps(document)]

    def begun(self, index: int) -> bytes:
        """The event before the first text of a choice: of a chat the role, else nothing."""
        return self._event(index, {"role": "assistant", "content": ""}) if self.chat else b""

    def piece(
        self,
        index: int,
        piece: Piece,
        logprobs: Sequence[TokenLogprobs] = (),
        offset: int = 0,
        usage: Json | None = None,
    ) -> bytes:
        """The event for a piece of a choice, with the probabilities of tokens; `offset`: where the first of them begins in the
        text of a completion. `usage`: the counts of the choice so far."""
        said: Json | str
        match piece:
            case str():
                said = {"content": piece} if self.chat else piece
            case ToolCall():
                function = {"name": piece.name, "arguments": ""}
                said = {"tool_calls": [{"index": piece.number, "id": piece.id, "type": "function", "function": function}]}
            case CallArguments():
                said = {"tool_calls": [{"index": piece.number, "function": {"arguments": piece.text}}]}
        return self._event(index, said, logprobs=self._logprobs(logprobs, offset) if logprobs else None, usage=usage)

    def finished(
        self,
        index: int,
        reason: str,
        logprobs: Sequence[TokenLogprobs] = (),
        offset: int = 0,
        usage: Json | None = None,
    ) -> bytes:
        """The event for the end of a choice."""
        document = self._logprobs(logprobs, offset) if logprobs else None
        return self._event(index, {} if self.chat else "", reason, logprobs=document, usage=usage)

    def counted(self, usage: Json | None) -> bytes:
        """The event with the counts."""
        return event({**self._document(self._chunk, []), "usage": usage})

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _logprobs(self, tokens: Sequence[TokenLogprobs], offset: int) -> Json:
        return chat_document(tokens) if self.chat else completion_document(tokens, offset)

    def _event(
        self,
        index: int,
        said: Json | str,
        reason: str | None = None,
        *,
        logprobs: Json | None = None,
        usage: Json | None = None,
    ) -> bytes:
        choice = {"index": index, "delta" if self.chat else "text": said, "logprobs": logprobs, "finish_reason": reason}
        document = self._document(self._chunk, [choice])
        return event({**document, "usage": usage} if self.says_usage else document)

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


def model_document(name: str, created: int, parent: str = "") -> Json:
    """A model in the list of models; an adapter has a `parent`."""
    document = {"id": name, "object": "model", "created": created, "owned_by": "tpy"}
    return {**document, "root": parent, "parent": parent} if parent else document
