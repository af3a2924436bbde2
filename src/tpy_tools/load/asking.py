"""One HTTP request over its own connection, for requests beside a load, and for commands."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager

from tpy_tools.load.core.answers import AnswerPart

_SHOWN = 24
_PIECE_BYTES = 65_536


class NoReply(Exception):
    """Nobody answered. `str()` says why."""


def ask(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes = b"",
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    bytes_max: int | None = None,
) -> AnswerPart:
    """Send a request and read the answer, `bytes_max` of it at most. `context` None: not encrypted. Raises NoReply."""
    with _exchange(address, method, path, body, timeout_s=timeout_s, headers=headers, context=context) as response:
        content = response.read(bytes_max)
    return _answer(response, content, final=True)


def ask_for_pieces(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes = b"",
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Generator[AnswerPart]:
    """As `ask`, with the answer in pieces as they come. `timeout_s` is the longest wait for one of them."""
    with _exchange(address, method, path, body, timeout_s=timeout_s, headers=headers, context=context) as response:
        while piece := response.read1(_PIECE_BYTES):
            yield _answer(response, piece, final=False)
    yield _answer(response, b"", final=True)


def _answer(response: http.client.HTTPResponse, content: bytes, *, final: bool) -> AnswerPart:
    return AnswerPart(response.status, content, final, {name.lower(): value for name, value in response.headers.items()})


@contextmanager
def _exchange(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None,
    context: ssl.SSLContext | None,
) -> Iterator[http.client.HTTPResponse]:
    """The response to a request. Raises NoReply, also for what goes wrong while it is read in the block."""
    host, port = address
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    try:
        connection.request(method, path, body, dict(headers or {}))
        yield connection.getresponse()
    except http.client.BadStatusLine as error:
        if isinstance(error, http.client.RemoteDisconnected):
            raise NoReply(str(error)) from error
        raise NoReply(f"what is there does not speak HTTP/1.1: its answer begins with {str(error)[:_SHOWN]!r}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoReply(str(error) or type(error).__name__) from error
    finally:
        connection.close()
