"""The metrics port: Prometheus text at /metrics. Knows HTTP, not which metrics there are."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence

import trio
from hypercorn.utils import wrap_app
from quart import Response

from tpy.clock import Clock
from tpy.frontends.http.app import bare_app, quart_response
from tpy.frontends.http.infer import unexpected_error_reply
from tpy.frontends.http.message import HttpReply
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.serving import serve_http_port
from tpy.frontends.transport import BoundAddress

_METRICS_TYPE = "text/plain; charset=utf-8"


async def serve_metrics(
    options: HttpOptions,
    render: Callable[[], Awaitable[bytes]],
    clock: Clock,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve what `render` gives, called for each scrape, until `stop` is set; as `serve_http` otherwise.

    Other paths answer 200 without a body and other methods 405, as Triton's metrics port does.
    """
    app = bare_app()

    async def metrics() -> Response:
        try:
            text = await render()
        except Exception:
            return quart_response(app, unexpected_error_reply("/metrics"))
        return quart_response(app, HttpReply(content_type=_METRICS_TYPE, parts=(text,), content_length=len(text)))

    async def anything_else(path: str = "") -> Response:
        return quart_response(app, HttpReply(content_type=_METRICS_TYPE))

    for rule, view in (("/metrics", metrics), ("/metrics/", metrics), ("/", anything_else), ("/<path:path>", anything_else)):
        app.add_url_rule(rule, endpoint=rule, view_func=view, methods=["GET"], provide_automatic_options=False)
    port = HttpPort(
        options=options,
        app=wrap_app(app, options.max_input_size, "asgi"),
        endpoint=None,
        clock=clock,
        name="metrics",
        stop_idle_s=0,
    )
    await serve_http_port(port, stop=stop, inherited=inherited, task_status=task_status)
