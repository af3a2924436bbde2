"""Bytes of HTTP/1.1 connections: sound requests, compared with a list of them, and any others, read the same however cut.

Of those in one piece the native codec reads the ones in the standard form; all that is cut is read by llhttp."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from fuzz.chance import Chance
from fuzz.grpc.wire import cuts
from fuzz.target import Violation
from fuzz.tensors import spoiled
from tpy.frontends.http.parser import ParserPhase, RequestParser
from tpy.limits import HTTP_CHUNK_OVERHEAD_BYTES_MAX, HTTP_HEADER_BYTES_MAX

INVARIANT = (
    "whatever bytes a client sends, the parser raises nothing, keeps bodies and headers within their limits, and finds the same"
    " requests, refusals and end however the bytes are cut; requests that are right are found as they were written"
)
_BODY_BYTES_MAX = 100_000
_REPEATED_BYTES_MAX = 16_384
_BULK = 70_000
"""A body that goes past llhttp."""
_ODD_FIELDS = (
    b"Content-Length: 5",
    b"content-length: 05",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 200000",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding : chunked",
    b"Content-Length: 5 ",
    b"Content-Length: +5",
    b"Content-Length:5",
    b"Connection: close",
    b"CONNECTION: Close ",
    b"Connection: keep-alive",
    b"Proxy-Connection: close",
    b"TE: trailers",
    b"Trailer: x",
    b"Connection: upgrade",
    b"Connection: close, upgrade",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Expect: x",
    b"Host: other",
    b" folded",
    b"X.y: z",
    b"Y: a\tb",
    b"Y:\tb",
    b"Y: ",
    b"Y: b",
    b"y: \x7f",
    b"X\0: y",
    b"Inference-Header-Content-Length: 7",
    b"Inference-Header-Content-Length: x",
    b"X: " + b"y" * 3000,
)


class Found(NamedTuple):
    """A request as it was written, and as it must be found."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Outcome(NamedTuple):
    """All that a connection's bytes came to."""

    requests: list[tuple[object, ...]]
    fatal: tuple[int, bytes] | None
    ended: bool


def feed(pieces: Iterable[bytes], parser: RequestParser) -> Outcome:
    """Feed pieces as a connection does, with the bounds checked after each."""
    requests: list[tuple[object, ...]] = []
    for piece in pieces:
        rest = memoryview(piece)
        while rest and parser.fatal is None and not parser.ended:
            if parser.bulk is not None:
                count = min(len(parser.bulk), len(rest))
                parser.bulk[:count] = rest[:count]
                parser.bulk_received(count)
                rest = rest[count:]
            else:
                # A connection reads a large body into its own memory from the first read behind the headers on.
                parser.feed(rest[:16_384])
                rest = rest[16_384:]
            _check_bounds(parser)
            while parser.complete:
                requests.append(_taken(parser))
    fatal = None if parser.fatal is None else (parser.fatal.status, b"".join(map(bytes, parser.fatal.parts)))
    return Outcome(requests, fatal, parser.ended)


def _taken(parser: RequestParser) -> tuple[object, ...]:
    request = parser.complete.popleft()
    if len(request.body) > _BODY_BYTES_MAX:
        raise Violation(f"a body of {len(request.body)} bytes, {_BODY_BYTES_MAX} are allowed")
    if sum(len(name) + len(value) for name, value in request.headers) > HTTP_HEADER_BYTES_MAX:
        raise Violation("headers beyond their limit")
    refusal = None if request.refusal is None else request.refusal.status
    headers = tuple((bytes(name), bytes(value)) for name, value in request.headers)
    return (
        request.method,
        request.target,
        headers,
        bytes(request.body),
        request.keep_alive,
        refusal,
        request.fields,
        request.path,
        request.version,
        request.inference,
        type(request.body) is bytes,
    )


def _check_bounds(parser: RequestParser) -> None:
    if parser.bulk is not None and (parser.phase is not ParserPhase.BODY or len(parser.bulk) > _BODY_BYTES_MAX):
        raise Violation("more is wanted for a body than it may have")
    if parser.phase is ParserPhase.IDLE and parser.body_received:
        raise Violation("bytes of a body between requests")


def request_bytes(chance: Chance) -> tuple[bytes, Found]:
    """A request that is right."""
    method = chance.choice((b"GET", b"POST", b"POST", b"HEAD", b"DELETE"))
    target = chance.choice((b"/", b"/v2/models/m/infer", b"/a%20b?c=d", b"/v2/" + b"x" * 300))
    headers = [(b"Host", b"h")]
    for _ in range(chance.randrange(3)):
        headers.append((b"X-%d" % chance.randrange(5), chance.choice((b"", b"y", b"a, b", b"\xe4"))))
    size = chance.choice((0, 0, 1, 5, 300, _BULK if chance.random() < 0.1 else 20))
    body = b"" if method in (b"GET", b"HEAD") else bytes(chance.randrange(256) for _ in range(min(size, 20))).ljust(size, b"z")
    chunked = bool(body) and chance.random() < 0.4
    if chunked:
        headers.append((b"Transfer-Encoding", b"chunked"))
    elif body or method == b"POST":
        headers.append((b"Content-Length", b"%d" % len(body)))
    chance.shuffle(headers)
    space = chance.choice((b" ", b"", b"  "))
    head = b"%b %b HTTP/1.1\r\n" % (method, target) + b"".join(b"%b:%b%b\r\n" % (name, space, value) for name, value in headers)
    shown = _chunks(chance, body) if chunked else body
    return head + b"\r\n" + shown, Found(method, target, tuple(headers), body)


def _chunks(chance: Chance, body: bytes) -> bytes:
    pieces = []
    while body:
        size = chance.randint(max(1, len(body) // 20), len(body))
        extension = chance.choice((b"", b"", b";x=y"))
        pieces.append(b"%x%b\r\n%b\r\n" % (size, extension, body[:size]))
        body = body[size:]
    return b"".join(pieces) + b"0\r\n" + chance.choice((b"", b"", b"Trailer: x\r\n")) + b"\r\n"


def alike(chance: Chance, text: bytes, found: Found) -> tuple[bytes, Found]:
    """A request with the same head, and another body of the same size unless that is in chunks."""
    size = len(found.body)
    if not size or any(name == b"Transfer-Encoding" for name, _ in found.headers):
        return text, found
    body = bytes(chance.randrange(256) for _ in range(min(size, 20))).ljust(size, b"y")
    return text[:-size] + body, found._replace(body=body)


def run_sound(chance: Chance, parser_of: type[RequestParser] = RequestParser) -> int:
    """Requests that are right, one behind the other."""
    written: list[tuple[bytes, Found]] = []
    for _ in chance.rounds((1, 3, 6)):
        again = written and chance.random() < 0.4
        written.append(alike(chance, *written[-1]) if again else request_bytes(chance))
    data = b"".join(text for text, _ in written)
    one_by_one = chance.random() < 0.3
    pieces = [text for text, _ in written] if one_by_one else cuts(chance, data)
    outcome = feed(pieces, parser_of(max_input_size=_BODY_BYTES_MAX))
    expected = [(*found, True, None) for _, found in written]
    if (outcome.fatal, outcome.ended) != (None, False) or [each[:6] for each in outcome.requests] != expected:
        raise Violation(f"{data!r}\n  found    {outcome}\n  expected {expected}")
    return len(written)


def hostile_bytes(chance: Chance) -> bytes:
    """Requests that are nearly right."""
    pieces = []
    for _ in chance.rounds((1, 2, 5)):
        text, _ = request_bytes(chance)
        if chance.random() < 0.5:
            head, _, rest = text.partition(b"\r\n")
            odd = b"".join(field + b"\r\n" for field in chance.sample(_ODD_FIELDS, chance.choice((1, 1, 2, 3))))
            text = head + b"\r\n" + odd + rest
        pieces.append(text)
    data = b"".join(pieces)
    if chance.random() < 0.5:
        data = spoiled(chance, data)
    return data[: len(data) - chance.choice((0, 0, 1, 10, 100))]


def run_hostile(chance: Chance) -> int:
    """One connection, whole and cut."""
    return _compare(hostile_bytes(chance), lambda data: cuts(chance, data))


def attack(data: bytes) -> int:
    """Any bytes, whole, by the byte, and in pieces that follow from them."""
    seed = sum(data)
    return _compare(data, lambda _: [data[at : at + 1] for at in range(len(data))]) + _compare(
        data, lambda _: list(_pieces(random.Random(seed), data))
    )


def _pieces(chance: random.Random, data: bytes) -> Iterable[bytes]:
    at = 0
    while at < len(data):
        size = chance.choice((1, 2, 10, 100))
        yield data[at : at + size]
        at += size


def _compare(data: bytes, cut: object) -> int:
    assert callable(cut)
    parser = RequestParser(max_input_size=_BODY_BYTES_MAX)
    whole = feed([data], parser)
    _compare_again(data, parser, whole)
    other = feed(cut(data), RequestParser(max_input_size=_BODY_BYTES_MAX))
    if _sizes_matter(data):
        return 1
    if whole != other:
        raise Violation(f"{data!r}\n  whole {whole}\n  cut   {other}")
    return 1 + len(whole.requests)


def _compare_again(data: bytes, parser: RequestParser, first: Outcome) -> None:
    """The same bytes once more, in one piece: what they came to before must not change what they come to now."""
    if len(data) > _REPEATED_BYTES_MAX or parser.fatal is not None or parser.ended or parser.phase is not ParserPhase.IDLE:
        return
    second = feed([data], parser)
    if second != first:
        raise Violation(f"{data!r}\n  first  {first}\n  second {second}")


def _sizes_matter(data: bytes) -> bool:
    """Returns True if bounds on unread data may be met: these are checked once for each piece that arrives."""
    return len(data) > HTTP_HEADER_BYTES_MAX or (
        b"chunked" in data.lower() and any(len(line) > HTTP_CHUNK_OVERHEAD_BYTES_MAX for line in data.split(b"\n"))
    )
