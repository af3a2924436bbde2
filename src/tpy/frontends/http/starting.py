"""The HTTP port while the models of the start load: it answers health checks only, so that nobody takes the server for dead."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from http import HTTPStatus

import msgspec
import trio

from tpy.clock import Clock
from tpy.frontends.http.message import LIVE, READING, READY, HttpReply, HttpRequest, health_reply, refusal_reply
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.serving import serve_http_port
from tpy.frontends.transport import BoundAddress

_LOADING_TEXT = "the server is starting: its models are not loaded yet"


async def serve_health(
    options: HttpOptions,
    clock: Clock,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer that the server lives and is not ready, and 503 to everything else; as `serve_http` otherwise. Where
    --http-restricted-api names health, that is 503, too."""
    is_open = all("health" not in restricted.apis for restricted in options.restricted)

    async def answer(request: HttpRequest) -> HttpReply:
        if is_open and request.method in READING and request.path in (LIVE, READY):
            return health_reply(request.path == LIVE)
        return _loading()

    port = HttpPort(options=options, endpoint=None, clock=clock, answer=answer)
    await serve_http_port(port, stop=stop, inherited=inherited, task_status=task_status)


def _loading() -> HttpReply:
    reply = refusal_reply(HTTPStatus.SERVICE_UNAVAILABLE, _LOADING_TEXT)
    return msgspec.structs.replace(reply, headers=(("Retry-After", "1"),))
