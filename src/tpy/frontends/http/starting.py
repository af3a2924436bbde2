"""The HTTP port while the models of the start load: it answers health checks only, so that nobody takes the server for dead."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from http import HTTPStatus

import msgspec
import trio
from hypercorn.utils import wrap_app
from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from tpy.clock import Clock
from tpy.frontends.http.app import bare_app, quart_response
from tpy.frontends.http.message import HttpReply, health_reply, refusal_reply
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
    port = HttpPort(
        options=options,
        app=wrap_app(_create_app(answers_health=is_open), options.max_input_size, "asgi"),
        endpoint=None,
        clock=clock,
    )
    await serve_http_port(port, stop=stop, inherited=inherited, task_status=task_status)


def _create_app(*, answers_health: bool) -> QuartTrio:
    app = bare_app()

    async def live() -> Response:
        return quart_response(app, health_reply(True))

    async def ready() -> Response:
        return quart_response(app, health_reply(False))

    async def other(error: HTTPException) -> Response:
        return quart_response(app, _loading())

    if answers_health:
        app.add_url_rule("/v2/health/live", view_func=live, provide_automatic_options=False)
        app.add_url_rule("/v2/health/ready", view_func=ready, provide_automatic_options=False)
    app.register_error_handler(HTTPException, other)
    return app


def _loading() -> HttpReply:
    reply = refusal_reply(HTTPStatus.SERVICE_UNAVAILABLE, _LOADING_TEXT)
    return msgspec.structs.replace(reply, headers=(("Retry-After", "1"),))
