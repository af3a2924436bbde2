"""HTTP/2's rules for the header fields of a request (RFC 9113, 8.2 and 8.3)."""

from __future__ import annotations

import re

from tpy.http2.header_blocks import Headers

_NAME = re.compile(rb"[!-9;-@\[-~]+")
"""Visible, no capital letters, no colon."""

_PSEUDO_VALUE = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])", re.DOTALL)
_VALUE = re.compile(rb"[^\0\r\n]*", re.DOTALL)
"""Spaces at its ends, which RFC 9113 forbids, too: gRPC's own libraries send them, and take them."""

_REQUEST_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTION = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})


class MalformedHeaders(Exception):
    """The text says which rule was broken."""


def check_request(headers: Headers) -> tuple[dict[bytes, bytes], Headers, int | None]:
    """(pseudo-header fields, the other fields, `content-length`) of a request. Raises MalformedHeaders."""
    pseudo: dict[bytes, bytes] = {}
    count = 0
    for name, value in headers:
        if not name.startswith(b":"):
            break
        if name not in _REQUEST_PSEUDO:
            raise MalformedHeaders(f"unknown pseudo-header field {_shown(name)}")
        if name in pseudo:
            raise MalformedHeaders(f"{_shown(name)} occurs twice")
        if not _PSEUDO_VALUE.fullmatch(value):
            raise MalformedHeaders(f"the value of {_shown(name)} has characters that are not allowed")
        pseudo[name] = value
        count += 1
    regular = headers[count:]
    check_fields(regular)
    _check_pseudo(pseudo)
    return pseudo, regular, _content_length(regular)


def check_fields(fields: Headers) -> None:
    """Fields other than pseudo-header fields, trailers among them. Raises MalformedHeaders."""
    for name, value in fields:
        if not _NAME.fullmatch(name):
            where = "pseudo-header field where there must be none" if name.startswith(b":") else "field name"
            raise MalformedHeaders(f"{where}: {_shown(name)}")
        if not _VALUE.fullmatch(value):
            raise MalformedHeaders(f"the value of {_shown(name)} has characters that are not allowed")
        if name in _OF_CONNECTION or (name == b"te" and value != b"trailers"):
            raise MalformedHeaders(f"{_shown(name)} is of HTTP/1.1")


def _check_pseudo(pseudo: dict[bytes, bytes]) -> None:
    if b":method" not in pseudo:
        raise MalformedHeaders(":method is missing")
    if pseudo[b":method"] == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo:
            raise MalformedHeaders("CONNECT has neither :scheme nor :path")
        return
    for name in (b":scheme", b":path"):
        if not pseudo.get(name):
            raise MalformedHeaders(f"{_shown(name)} is missing")


def _content_length(fields: Headers) -> int | None:
    found = {value for name, value in fields if name == b"content-length"}
    if not found:
        return None
    if len(found) > 1:
        raise MalformedHeaders("content-length occurs twice")
    text = found.pop()
    if not text.isdigit() or len(text) > 18:
        raise MalformedHeaders("content-length is not a number")
    return int(text)


def _shown(name: bytes) -> str:
    return repr(name[:64].decode("latin-1"))
