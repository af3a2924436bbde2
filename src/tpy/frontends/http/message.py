"""One HTTP request and one HTTP answer, whatever brought them (our HTTP/1.1, or Hypercorn with Quart)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from tpy.echo import echo
from tpy.errors import InvalidArgument, PermissionDenied, TpyError, Unauthenticated
from tpy.frontends.http.codec import HTTP_STATUS, encode_error
from tpy.messages import RequestRecord
from tpy.units import KIB

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller

Body = bytes | bytearray | memoryview
JSON_TYPE = "application/json"
READING = frozenset((b"GET", b"HEAD"))
"""Methods that change nothing."""

LIVE = "/v2/health/live"
READY = "/v2/health/ready"
"""The paths that answer whether the server lives, and whether it is ready."""
PIECE_BYTES_MAX = 256 * KIB
"""Of a body, what goes through the application at once: a fraction of a millisecond."""


class HttpReply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer. `parts` are the pieces of the body, `content_length` their size in bytes; `headers` are those beside
    Content-Type and Content-Length. `counted_as`: the reason for which the request is refused that is counted (`tpy.refusals`),
    "" for none."""

    status: int = 200
    content_type: str = JSON_TYPE
    parts: Sequence[bytes | memoryview] = ()
    content_length: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    counted_as: str = ""


class HttpRequest(msgspec.Struct, kw_only=True):
    """A request whose body has arrived. `headers` are as sent, in order; `fields` are the same by lower-case name, several of
    a name joined with ", ". `path` is without query, its percent-escapes resolved. `received_ns` is on the server's clock, as
    `begun_ns`, when its first byte had come, 0 where it came in one piece. `peer` is the sender's address.

    `refusal` is set when HTTP itself forbids serving the request; then that is the answer. `held_bytes` of the body count in the
    budget of all bodies, until whoever serves the request gives them back; `sent_bytes` is the size of the body that came where
    `body` is that no more. `record`: of an inference that is observed; `further_records` where one request asks a model several
    times. `submitted`: a model has it, or has refused it itself. `caller`: who has sent it, where access is controlled.
    `is_heavy`: what is made of its body is made in threads. `inference`: the model and the version's text, of a request for the
    inference route that came over our own HTTP/1.1."""

    method: bytes
    target: bytes
    path: str
    version: str
    headers: list[tuple[bytes, bytes]]
    fields: dict[bytes, bytes]
    keep_alive: bool
    body: Body = b""
    received_ns: int = 0
    begun_ns: int = 0
    peer: str = ""
    refusal: HttpReply | None = None
    held_bytes: int = 0
    record: RequestRecord | None = None
    sent_bytes: int = 0
    further_records: tuple[RequestRecord, ...] = ()
    submitted: bool = False
    caller: Caller | None = None
    is_heavy: bool = False
    inference: tuple[str, str | None] | None = None


def fields_of(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """`headers` by lower-case name."""
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        name = name.lower()
        fields[name] = fields[name] + b", " + value if name in fields else value
    return fields


_INFERENCE = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/infer")


def is_disguised(target: bytes) -> bool:
    """Returns True if a target's path matches one of ours only after resolving `%2F` or dropping a doubled slash at its
    beginning: a proxy that guards our paths by their spelling would let it through. Nothing is served at such a path."""
    if b"%" not in target and not target.startswith(b"//"):
        return False
    path = target.partition(b"?")[0]
    return path.startswith(b"//") or b"%2f" in path.lower()


def inference_of(method: bytes, target: bytes, path: str) -> tuple[str, str | None] | None:
    """The model, and the version's text, that a request for the inference route is for; None for any other request."""
    if method != b"POST" or not path.endswith("/infer"):
        return None
    found = _INFERENCE.fullmatch(path)
    return None if found is None or is_disguised(target) else (found[1], found[2])


def split_target(target: bytes) -> tuple[bytes, str]:
    """A request target as (origin form, decoded path): `http://host/a%20b?q` gives (b"/a%20b?q", "/a b")."""
    if not target.startswith(b"/"):
        scheme, separator, rest = target.partition(b"://")
        if separator and scheme.isalpha():
            authority_end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
            target = rest[authority_end:]
            if not target.startswith(b"/"):
                target = b"/" + target
    path = target.partition(b"?")[0].decode("latin-1")
    return target, unquote(path) if "%" in path else path


def query_number(target: bytes, name: str) -> int:
    """The number of this name in the query of a request target, 0 if missing. Raises InvalidArgument."""
    fields = [field.partition("=") for field in target.partition(b"?")[2].decode("latin-1").split("&")]
    texts = [text for key, _, text in fields if key == name]
    if any(re.fullmatch("[0-9]{1,18}", text) is None for text in texts):
        raise InvalidArgument(f"expected '{name}' to be a number, got '{echo(texts[-1])}'")
    return int(texts[-1]) if texts else 0


def in_pieces(parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The bytes of `parts` in pieces of PIECE_BYTES_MAX: short ones are joined, and long ones are cut."""
    short: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        if size + len(part) > PIECE_BYTES_MAX:
            if size:
                yield b"".join(short)
            short, size = [], 0
            while len(part) > PIECE_BYTES_MAX:
                part = memoryview(part)
                yield bytes(part[:PIECE_BYTES_MAX])
                part = part[PIECE_BYTES_MAX:]
        short.append(part)
        size += len(part)
    if size:
        yield b"".join(short)


def json_reply(content: bytes, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> HttpReply:
    """An answer with a JSON body."""
    return HttpReply(status=status, parts=(content,), content_length=len(content), headers=headers)


def health_reply(good: bool) -> HttpReply:
    """The answer to a question about health, without a body."""
    return HttpReply(status=200 if good else 400, content_type="text/plain")


def error_reply(error: TpyError, *, headers: tuple[tuple[str, str], ...] = ()) -> HttpReply:
    """The answer that reports `error`."""
    content = encode_error(error)
    headers = (*headers, *headers_of(error))
    return HttpReply(status=HTTP_STATUS[error.code], parts=(content,), content_length=len(content), headers=headers)


def headers_of(error: TpyError) -> tuple[tuple[str, str], ...]:
    """The headers that an answer with this error has, whatever its form."""
    match error:
        case Unauthenticated():
            return (("WWW-Authenticate", 'Bearer realm="tpy"'),)
        case PermissionDenied():
            return (("WWW-Authenticate", 'Bearer realm="tpy", error="insufficient_scope"'),)
        case _:
            return () if error.wait_s is None else (("Retry-After", str(error.wait_s)),)


Refuse = Callable[[int, str], HttpReply]
"""Makes the answer to a request that HTTP itself does not allow, of a status and a text, in the form of the port's API."""


def refusal_reply(status: int, text: str) -> HttpReply:
    """The answer to a request that HTTP itself does not allow, or that no route takes."""
    return json_reply(encode_error(TpyError(text)), status=status)


@functools.lru_cache
def reason_phrase(status: int) -> bytes:
    """The words behind a status; 405 reads "Not Allowed", as Triton's."""
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return b"Not Allowed"
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Unknown"
