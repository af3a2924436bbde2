"""A request whose head came before: it is known again, and only then."""

from __future__ import annotations

import pytest

from tpy.frontends.http.message import HttpReply, HttpRequest
from tpy.frontends.http.parser import RepeatedHead, RequestParser

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"


def request(body: bytes = b"one", *, keep_alive: bool = True, refusal: HttpReply | None = None) -> HttpRequest:
    return HttpRequest(
        method=b"POST",
        target=b"/v2/models/m/infer",
        path="/v2/models/m/infer",
        version="1.1",
        headers=[(b"Host", b"h"), (b"Content-Length", b"3")],
        fields={b"host": b"h", b"content-length": b"3"},
        keep_alive=keep_alive,
        body=body,
        refusal=refusal,
    )


def remembering(data: bytes, of: HttpRequest) -> RepeatedHead:
    head = RepeatedHead()
    head.remember(of, data)
    return head


def test_the_same_head_with_another_body() -> None:
    assert RepeatedHead().again(HEAD + b"one") is None
    head = remembering(HEAD + b"one", request())
    for body in (b"two", b"six", b"\r\n\r"):
        assert head.again(HEAD + body) == request(body)
    assert head.again(memoryview(HEAD + b"two")) == request(b"two")


def test_anything_else_is_not_the_same() -> None:
    head = remembering(HEAD + b"one", request())
    for data in (HEAD + b"on", HEAD + b"four", HEAD, b"", HEAD.replace(b"POST", b"PUT ") + b"one", b"\r\n" + HEAD + b"o"):
        assert head.again(data) is None


def test_a_body_may_look_like_the_end_of_a_head() -> None:
    empty = b"\r\n\r\n"
    data = HEAD.replace(b"3", b"4") + empty
    assert remembering(data, request(empty)).again(data) == request(empty)


@pytest.mark.parametrize(
    ("data", "of"),
    [
        (HEAD + b"one", request(refusal=HttpReply(status=400))),
        (b"\r\n\r\n" + HEAD + b"one", request()),
        (HEAD + b"one\r\n", request()),
        (HEAD + b"3\r\none\r\n0\r\n\r\n", request()),
    ],
    ids=["refused", "empty lines in front", "an empty line behind", "chunks"],
)
def test_what_may_not_be_taken_again(data: bytes, of: HttpRequest) -> None:
    assert remembering(data, of).again(data) is None


def test_one_that_may_not_be_taken_again_makes_the_one_before_forgotten() -> None:
    head = remembering(HEAD + b"one", request())
    head.remember(request(refusal=HttpReply(status=400)), HEAD + b"one")
    assert head.again(HEAD + b"one") is None


@pytest.mark.parametrize(("size", "known"), [(1024, True), (1025, False)])
def test_a_long_head_is_not_kept(size: int, known: bool) -> None:
    long = HEAD.replace(b"Host: h", b"Host: h" + b"x" * (size - len(HEAD)))
    assert len(long) == size
    assert (remembering(long + b"one", request()).again(long + b"two") is not None) is known


def test_the_last_request_of_a_connection_is_known_again_as_the_last() -> None:
    head = remembering(HEAD + b"one", request(keep_alive=False))
    assert head.again(HEAD + b"two") == request(b"two", keep_alive=False)


@pytest.mark.parametrize("closing", [True, False])
def test_the_first_request_of_a_new_connection_has_the_head_of_another_s_first(closing: bool) -> None:
    head = HEAD.replace(b"Host: h", b"Host: h\r\nConnection: close") if closing else HEAD
    first = RepeatedHead()
    found: list[HttpRequest] = []
    for body in (b"one", b"two", b"six"):
        parser = RequestParser(max_input_size=1000, first=first)
        parser.feed(head + body)
        assert parser.ended is closing
        parser.feed(HEAD + b"odd")
        parser.feed(HEAD + b"end")
        assert [each.body for each in parser.complete] == ([body] if closing else [body, b"odd", b"end"])
        found.append(parser.complete[0])
    assert [each.keep_alive for each in found] == [not closing] * 3
    assert found[1].headers is found[2].headers, "which was not parsed again"


def test_what_comes_behind_the_first_request_is_of_its_connection_only() -> None:
    first = RepeatedHead()
    other = HEAD.replace(b"Host: h", b"Host: other")
    parser = RequestParser(max_input_size=1000, first=first)
    parser.feed(HEAD + b"one")
    parser.feed(other + b"two")
    assert first.again(HEAD + b"six") is not None
    assert first.again(other + b"six") is None
