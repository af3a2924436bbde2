"""The answers of a server, the same for all protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_NO_HEADERS: Mapping[str, str] = {}


class TokenCounts(NamedTuple):
    """The numbers of tokens of a language model's answer."""

    prompt: int
    completion: int


class AnswerPart(NamedTuple):
    """A whole answer, or a part of one that goes on (`final` False). `tokens` are those of the whole answer, where they are
    counted.

    `status` is HTTP's, or gRPC's for gRPC. `body` is the body, or one message; empty for a call that ends without a message.
    """

    status: int
    body: bytes
    final: bool
    headers: Mapping[str, str] = _NO_HEADERS
    tokens: TokenCounts | None = None


class BrokenAnswer(Exception):
    """The server sent something other than an answer, or ended the connection within one."""
