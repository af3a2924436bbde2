"""The HTTP API as an ASGI application on asyncio, answered by the server on the same loop.

A request that Ray has read enters the server as it is: its headers, and its body as bytes. There the inference route answers it,
as on a port of the server, without a task; every other route is the same Quart application.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

import trio
from quart_trio import QuartTrio

from tpy.embedded.engine_thread import EngineThread
from tpy.errors import TpyError
from tpy.frontends.http.infer import InferCall, InferEndpoint, open_record, unexpected_error_reply
from tpy.frontends.http.message import Body, HttpReply, HttpRequest, error_reply, fields_of, inference_of, refusal_reply
from tpy.frontends.http.parser import too_large
from tpy.frontends.http.quart_bridge import BODY
from tpy.ray.crossing import Crossing

_OPENAI = re.compile(r"/v1/(completions|chat/completions|embeddings|models(/[^/:]+)?)")
"""Paths that OpenAI's API has for clients; `/v1/models/NAME:predict` is KServe's."""

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class HttpBridge:
    """The application. `nursery` is the server's, and outlives all requests. Serve cancels the task of a request whose
    client has left, and that cancels the request in the server. `openai` has the routes of OpenAI's API, where it is allowed."""

    def __init__(
        self,
        engine: EngineThread,
        endpoint: InferEndpoint,
        app: QuartTrio,
        nursery: trio.Nursery,
        openai: QuartTrio | None = None,
    ) -> None:
        self.engine = engine
        self.endpoint = endpoint
        self.nursery = nursery
        self._app = app
        self._openai = openai

    def app_of(self, path: str) -> QuartTrio:
        """The application that has the route of a path."""
        return self._app if self._openai is None or _OPENAI.fullmatch(path) is None else self._openai

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Event, receive: Receive, send: Send) -> None:
        request = _request(scope)
        body = await self._body(request, receive)
        if body is None:
            return
        if isinstance(body, HttpReply):
            await _send_reply(send, body)
            return
        request.body = body
        inference = inference_of(request.method, request.target, request.path)
        try:
            if inference is None:
                await _Exchange(self, request, scope).run(send)
                return
            reply = await _Inference(self, request, *inference).reply()
        except TpyError as error:  # the server has stopped
            reply = error_reply(error)
        await _send_reply(send, reply)

    async def _body(self, request: HttpRequest, receive: Receive) -> Body | HttpReply | None:
        """The body; the refusal of one that is too large; None when the client has left."""
        pieces: list[bytes] = []
        size = 0
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            piece: bytes = event.get("body", b"")
            size += len(piece)
            if size > self.endpoint.max_input_size:
                return too_large(refusal_reply, size, self.endpoint.max_input_size, request.fields)
            pieces.append(piece)
            more = event.get("more_body", False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Inference:
    """One request for the inference route. Made in a task of Ray's loop, answered outside of tasks."""

    def __init__(self, bridge: HttpBridge, request: HttpRequest, model: str, version: str | None) -> None:
        self._bridge = bridge
        self._request = request
        self._model = model
        self._version = version
        self._call: InferCall | None = None
        self._is_cancelled = False
        self._crossing = Crossing()

    async def reply(self) -> HttpReply:
        """The answer. Raises Unavailable when the server has stopped."""
        answer = self._crossing.new_future()
        self._answer = answer
        self._bridge.engine.enter(self._begin)
        try:
            reply: HttpReply = await answer
        except BaseException:
            self._bridge.engine.soon(self._cancel)
            raise
        return reply

    def _begin(self) -> None:
        if self._is_cancelled:
            return
        bridge, request = self._bridge, self._request
        endpoint = bridge.endpoint
        request.received_ns = endpoint.clock.now_ns()
        if endpoint.services.observers.active:
            request.record = open_record(endpoint.services.observers, request, "http", self._model, request.received_ns)
        call = self._call = InferCall(endpoint, request, self._model, self._version, self._on_answer)
        if not call.begin_nowait():
            bridge.nursery.start_soon(call.finish)

    def _on_answer(self, call: InferCall) -> None:
        reply = call.render_now()
        if reply is None:
            self._bridge.nursery.start_soon(self._render, call)
        else:
            self._hand_over(call, reply)

    async def _render(self, call: InferCall) -> None:
        self._hand_over(call, await call.render_in_thread())

    def _hand_over(self, call: InferCall, reply: HttpReply) -> None:
        call.sent(reply)
        self._crossing.resolve(self._answer, reply)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._call is not None:
            self._call.cancel()


class _Exchange:
    """One request for another route: the Quart application runs in a task of Trio, and hands its events to one of asyncio, the
    next when Ray has taken the one before."""

    def __init__(self, bridge: HttpBridge, request: HttpRequest, scope: Event) -> None:
        self._bridge = bridge
        self._request = request
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": scope.get("asgi", {"version": "3.0"}),
            "http_version": request.version,
            "method": request.method.decode("ascii"),
            "scheme": scope.get("scheme", "http"),
            "path": request.path,
            "raw_path": request.target.partition(b"?")[0],
            "query_string": scope.get("query_string", b""),
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers],
            "client": scope.get("client"),
            "server": scope.get("server"),
            "extensions": {},
            "state": {BODY: request.body},
        }
        self._cancelled = trio.CancelScope()
        self._has_begun = False
        self._taken = trio.Event()
        self._asked = False
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._crossing = Crossing()

    async def run(self, send: Send) -> None:
        """Send the answer. Raises Unavailable when the server has stopped."""
        engine = self._bridge.engine
        engine.enter(self._begin)
        try:
            while (event := await self._events.get()) is not None:
                await send(event)
                engine.soon(self._go_on)
        except BaseException:
            engine.soon(self._cancelled.cancel)
            raise

    def _begin(self) -> None:
        self._bridge.nursery.start_soon(self._serve)

    async def _serve(self) -> None:
        with self._cancelled:
            try:
                await self._bridge.app_of(self._request.path)(self._scope, self._receive, self._send)  # type: ignore[arg-type]  # ASGI's dictionaries
            except Exception:
                await self._fail(unexpected_error_reply(self._request.path))
        self._crossing.call(self._events.put_nowait, None)

    async def _fail(self, reply: HttpReply) -> None:
        if not self._has_begun:
            for event in _events(reply):
                await self._send(event)

    async def _receive(self) -> Event:
        if self._asked:
            await trio.sleep_forever()
        self._asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, event: Event) -> None:
        self._has_begun = True
        self._taken = trio.Event()
        self._crossing.call(self._events.put_nowait, event)
        await self._taken.wait()

    def _go_on(self) -> None:
        self._taken.set()


def _request(scope: Event) -> HttpRequest:
    """The request of this scope, without its body. Its target is what the client asked for, whatever prefix leads to this
    application: `/v2/models/NAME` is a part of Triton's routes. A path with another version behind the prefix, as
    `/v2/models/NAME/v1/completions`, is a route of another API."""
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    query = scope.get("query_string", b"")
    path = scope.get("raw_path") or scope["path"].encode()
    path = path.partition(b"?")[0]
    prefix = scope.get("root_path", "").encode()
    if prefix and path.startswith(prefix + b"/v1/"):
        path = path.removeprefix(prefix)
    client = scope.get("client")
    return HttpRequest(
        method=scope["method"].encode("ascii"),
        target=path + b"?" + query if query else path,
        path=unquote(path.decode("latin-1")),
        version=scope.get("http_version", "1.1"),
        headers=headers,
        fields=fields_of(headers),
        keep_alive=True,
        peer=_peer(client),
    )


def _peer(client: Any) -> str:
    if not client:
        return ""
    if isinstance(client, str):
        return client
    host, port = client[0], client[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _send_reply(send: Send, reply: HttpReply) -> None:
    for event in _events(reply):
        await send(event)


def _events(reply: HttpReply) -> tuple[Event, Event]:
    headers = [(b"content-type", reply.content_type.encode()), (b"content-length", b"%d" % reply.content_length)]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    parts = reply.parts
    body = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)
    return (
        {"type": "http.response.start", "status": reply.status, "headers": headers},
        {"type": "http.response.body", "body": body, "more_body": False},
    )


async def _live(receive: Receive, send: Send) -> None:
    """The lifespan: the server starts before the application and stops after it."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
