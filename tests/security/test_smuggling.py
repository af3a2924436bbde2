"""Requests within requests: bytes that two parsers could read differently. A proxy in front may have read them the other way, so
each is refused and nothing behind it is answered, or read in the one way that RFC 9112 leaves."""

from __future__ import annotations

import pytest

from .attacker import Attacker

HIDDEN = b"GET /v2/models/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
"""The request that an attacker wants to be answered behind another's back. Its answer names the model."""

_POST = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n"

REFUSED = {
    "CL.TE": _POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE.CL": _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": _POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + HIDDEN,
    "the same length twice": _POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "a list of lengths": _POST + b"Content-Length: 2, 2\r\n\r\n{}" + HIDDEN,
    "a signed length": _POST + b"Content-Length: +2\r\n\r\n{}" + HIDDEN,
    "a negative length": _POST + b"Content-Length: -1\r\n\r\n" + HIDDEN,
    "a length with underscores": _POST + b"Content-Length: 1_0\r\n\r\n" + HIDDEN,
    "a length in other digits": _POST + b"Content-Length: \xd9\xa2\r\n\r\n{}" + HIDDEN,
    "a hexadecimal length": _POST + b"Content-Length: 0x2\r\n\r\n{}" + HIDDEN,
    "a length beyond 64 bits": _POST + b"Content-Length: 18446744073709551618\r\n\r\n{}" + HIDDEN,
    "an empty length": _POST + b"Content-Length:\r\n\r\n" + HIDDEN,
    "a space before the colon": _POST + b"Content-Length : 2\r\n\r\n{}" + HIDDEN,
    "a folded header": _POST + b"X-A: 1\r\n Content-Length: 44\r\n\r\n" + HIDDEN,
    "a folded encoding": _POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "bare LF": b"POST /v2/repository/index HTTP/1.1\nHost: x\nContent-Length: 0\n\n" + HIDDEN,
    "bare LF in a header": _POST + b"X-A: 1\nContent-Length: 44\r\n\r\n" + HIDDEN,
    "bare CR in a header": _POST + b"X-A: 1\rContent-Length: 44\r\n\r\n" + HIDDEN,
    "NUL in a header": _POST + b"X-A: 1\0\r\n\r\n" + HIDDEN,
    "NUL in a name": _POST + b"X\0A: 1\r\n\r\n" + HIDDEN,
    "an encoding that is not known": _POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked and then something": _POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked twice": _POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two encodings": _POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "an encoding with a tab within": _POST + b"Transfer-Encoding: chun\tked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "an encoding with a vertical tab": _POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "HTTP/1.0 in chunks": b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a chunk with a sign": _POST + b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n" + HIDDEN,
    "a chunk in C's notation": _POST + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + HIDDEN,
    "a chunk beyond 64 bits": _POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n" + HIDDEN,
    "a negative chunk": _POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + HIDDEN,
    "a chunk ended by LF": _POST + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n" + HIDDEN,
    "a chunk longer than it says": _POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "an extension with a bare LF": _POST + b"Transfer-Encoding: chunked\r\n\r\n2;a\n{}\r\n0\r\n\r\n" + HIDDEN,
    "a length behind the chunks": _POST
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nContent-Length: 44\r\n\r\n"
    + HIDDEN,
    "an encoding behind the chunks": _POST
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"
    + HIDDEN,
    "no space in the request line": b"GET/v2 HTTP/1.1\r\nHost: x\r\n\r\n" + HIDDEN,
    "two versions": b"GET /v2 HTTP/1.1 HTTP/1.1\r\nHost: x\r\n\r\n" + HIDDEN,
    "a space in the target": b"GET /v2 /x HTTP/1.1\r\nHost: x\r\n\r\n" + HIDDEN,
    "a header without a colon": _POST + b"Content-Length\r\n\r\n" + HIDDEN,
    "a header without a name": _POST + b": 2\r\n\r\n" + HIDDEN,
}


@pytest.mark.parametrize("trick", REFUSED)
def test_it_is_refused_and_nothing_behind_it_is_read(attacker: Attacker, trick: str) -> None:
    answers = attacker.exchange(REFUSED[trick])
    assert len(answers) == 1, answers
    assert answers[0].status in (400, 501, 505), answers
    assert b"connection: close" in answers[0].head.lower()
    assert answers[0].error


READ = {
    "extensions of chunks": (_POST + b"Transfer-Encoding: chunked\r\n\r\n2;a=b;c\r\n{}\r\n0;d\r\n\r\n" + HIDDEN, [200, 404]),
    "trailers": (_POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: y\r\n\r\n" + HIDDEN, [200, 404]),
    "chunked in capitals": (_POST + b"Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n" + HIDDEN, [200, 404]),
    "a GET with a body": (b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN, [200]),
    "a request as the body": (_POST + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN, [400]),
}


@pytest.mark.parametrize("kind", READ)
def test_what_has_one_meaning_is_read_so(attacker: Attacker, kind: str) -> None:
    request, statuses = READ[kind]
    assert [answer.status for answer in attacker.exchange(request)] == statuses
