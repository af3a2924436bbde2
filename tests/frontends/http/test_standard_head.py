"""Heads that the native codec reads: alone or with their bodies, whole or in two pieces. That llhttp reads the same is fuzzed
(fuzz/hot/heads.py)."""

from __future__ import annotations

import numpy as np
import pytest

from tpy.frontends.http.parser import ParserPhase, RequestParser
from tpy.hot import codec

pytestmark = pytest.mark.skipif(codec.FORM != codec.NATIVE, reason=f"the codec's form is {codec.FORM}")

LINE = b"POST /v2/models/m/infer HTTP/1.1\r\n"
HEAD = LINE + b"Host: h\r\nContent-Length: 3\r\n\r\n"
BODY_MAX = 1000


def fed(*pieces: bytes) -> RequestParser:
    """A parser that got these pieces, those of a body where it wants them."""
    parser = RequestParser(max_input_size=BODY_MAX)
    for piece in pieces:
        if parser.bulk is None:
            parser.feed(piece)
        else:
            parser.bulk[: len(piece)] = piece
            parser.bulk_received(len(piece))
    return parser


@pytest.mark.parametrize("data", [HEAD + b"one", memoryview(b"x" + HEAD + b"one")[1:]])
def test_a_whole_request(data: bytes | memoryview) -> None:
    assert codec.read_head(data, 3) == (
        b"POST",
        b"/v2/models/m/infer",
        [(b"Host", b"h"), (b"Content-Length", b"3")],
        {b"host": b"h", b"content-length": b"3"},
        True,
        3,
        b"one",
    )


def test_the_parser_takes_it_without_llhttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestParser, "on_message_begin", lambda _: pytest.fail("llhttp was asked"))
    parser = fed(HEAD + b"one", HEAD, b"tw", b"o", HEAD + b"six")
    assert [request.body for request in parser.complete] == [b"one", b"two", b"six"]
    assert {type(request.body) for request in parser.complete} == {bytes}
    assert {(request.path, request.inference, request.keep_alive) for request in parser.complete} == {
        ("/v2/models/m/infer", ("m", None), True)
    }
    assert (parser.begun, parser.phase, parser.ended) == (3, ParserPhase.IDLE, False)


def test_one_whose_body_is_missing_has_begun() -> None:
    parser = fed(HEAD + b"o")
    assert (parser.begun, parser.phase, parser.body_received) == (1, ParserPhase.BODY, 1)
    assert not parser.complete
    parser.drop()
    assert parser.bulk is None


def test_a_promise_of_a_body_costs_nothing() -> None:
    """A bytearray has its zeros written, so that each connection held a body's memory for a head."""
    parser = RequestParser(max_input_size=1 << 20)
    parser.feed(HEAD.replace(b"3", b"65536"))
    assert parser.bulk is not None
    assert len(parser.bulk) == 65_536
    assert isinstance(parser.bulk.obj, np.ndarray)


def test_between_requests_that_llhttp_reads() -> None:
    chunked = LINE + b"Host: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nodd\r\n0\r\n\r\n"
    parser = fed(chunked, HEAD, b"one", chunked, HEAD + b"two", chunked)
    assert [bytes(request.body) for request in parser.complete] == [b"odd", b"one", b"odd", b"two", b"odd"]
    assert (parser.begun, parser.expects_continue) == (5, False)


def test_what_llhttp_has_begun_it_ends() -> None:
    parser = fed(HEAD[:5], HEAD[5:] + b"one", HEAD + b"two")
    assert [request.body for request in parser.complete] == [b"one", b"two"]


def test_the_last_request_of_a_connection() -> None:
    closing = HEAD.replace(b"Host: h", b"Host: h\r\nConnection: Close")
    for parser in (fed(closing + b"one", HEAD + b"two"), fed(closing, b"one", HEAD + b"two")):
        assert parser.ended
        assert [(request.body, request.keep_alive) for request in parser.complete] == [(b"one", False)]


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 3",
        b"Host: h\r\nHost: h",
        b"Host: h\r\nContent-Length: 03",
        b"Host: h\r\nContent-Length: +3",
        b"Host: h\r\nContent-Length: 3\r\ncontent-length: 3",
        b"Host: h\r\nContent-Length: 9999999999",
        b"Host: h\r\nTransfer-Encoding: chunked",
        b"Host: h\r\nExpect: 100-continue",
        b"Host: h\r\nUpgrade: h2c",
        b"Host: h\r\nConnection: close, upgrade",
        b"Host: h\r\nProxy-Connection: close",
        b"Host: h\r\nX: ",
        b"Host: h\r\nX: a\tb",
        b"Host: h\r\nX: \xe4",
        b"Host: h\r\n folded",
        b"Host : h",
        b"Host: h\nX: y",
        b"Host: h\r\nX: " + b"y" * 4096,
        b"Host: h\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(64)) + b"Z: z",
    ],
)
def test_fields_that_are_left_to_llhttp(fields: bytes) -> None:
    assert codec.read_head(LINE + fields + b"\r\n\r\n", BODY_MAX) is None


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_up_to_a_size_it_is_read(more: int, is_read: bool) -> None:
    host = b"Host: h\r\n"
    name = b"x" * (64 + more) + b": y\r\n"
    many = b"".join(b"X%d: y\r\n" % number for number in range(63 + more))
    long = b"X: " + b"y" * (4096 + more - len(LINE + host) - 7) + b"\r\n"
    for fields in (name, many, long):
        assert (codec.read_head(LINE + host + fields + b"\r\n", BODY_MAX) is not None) is is_read


@pytest.mark.parametrize(
    "line",
    [
        b"PUT / HTTP/1.1",
        b"post / HTTP/1.1",
        b"POST  / HTTP/1.1",
        b"POST * HTTP/1.1",
        b"POST http://h/ HTTP/1.1",
        b"POST /a%20b HTTP/1.1",
        b"POST /a?b HTTP/1.1",
        b"POST / HTTP/1.0",
        b"POST / HTTP/1.1 ",
    ],
)
def test_lines_that_are_left_to_llhttp(line: bytes) -> None:
    assert codec.read_head(line + b"\r\nHost: h\r\n\r\n", BODY_MAX) is None


@pytest.mark.parametrize("size", range(len(HEAD)))
def test_a_part_of_a_head_is_left_to_llhttp(size: int) -> None:
    assert codec.read_head(HEAD[:size], BODY_MAX) is None


def test_more_than_a_request_and_large_bodies_are_left_to_llhttp() -> None:
    assert codec.read_head(HEAD + b"four", BODY_MAX) is None
    assert codec.read_head(HEAD, 2) is None
