"""One HTTP request over a connection of its own, for what is asked beside a load, and by commands."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping

from tpy.load.core.answers import Answer

_SHOWN = 24


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
) -> Answer:
    """Send a request and read the answer, `bytes_max` of it at most. `context` None: not encrypted. Raises NoReply."""
    host, port = address
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        content = response.read(bytes_max)
    except http.client.BadStatusLine as error:
        if isinstance(error, http.client.RemoteDisconnected):
            raise NoReply(str(error)) from error
        raise NoReply(f"what is there does not speak HTTP/1.1: its answer begins with {str(error)[:_SHOWN]!r}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoReply(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    return Answer(response.status, content, True, {name.lower(): value for name, value in response.headers.items()})
