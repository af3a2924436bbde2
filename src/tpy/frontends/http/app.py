"""The Quart application: the URL and method of every route that is not inference, and its handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Concatenate

import msgspec
import trio
from quart import Response, request
from quart.wrappers.response import ResponseBody
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import BaseConverter

from tpy import plugins
from tpy.errors import ErrorCode, InvariantViolation, TpyError
from tpy.frontends import load_report
from tpy.frontends.http.control import ControlApi
from tpy.frontends.http.generate import GenerateApi, StreamBody, StreamReply
from tpy.frontends.http.infer import InferEndpoint, finish_records, parse_version, unexpected_error
from tpy.frontends.http.message import (
    LIVE,
    PIECE_BYTES_MAX,
    READY,
    HttpReply,
    HttpRequest,
    error_reply,
    fields_of,
    in_pieces,
    is_disguised,
    refusal_reply,
)
from tpy.frontends.http.overview import OverviewApi
from tpy.frontends.http.pages import PagesApi, redirect_to_page
from tpy.frontends.http.predict import PredictApi
from tpy.frontends.http.quart_bridge import BODY, CERTIFICATE
from tpy.frontends.http.recordings import RecordingsApi
from tpy.frontends.http.shared_memory import RegionsApi
from tpy.frontends.threads import forget_trace
from tpy.frontends.transport import BoundAddress
from tpy.messages import RegionKind

_READING = frozenset(("GET", "HEAD"))
Handler = Callable[Concatenate[HttpRequest, ...], Awaitable[HttpReply | StreamReply]]


class _DigitsConverter(BaseConverter):
    """A version in a URL: ASCII digits only. Anything else is another, unknown path."""

    regex = "[0-9]+"


class _EmptyOrNameConverter(BaseConverter):
    """A model name, or nothing where one belongs."""

    regex = "[^/]*"
    part_isolating = False


class _NoVerbConverter(BaseConverter):
    """A model name that has no verb of KServe v1 behind it."""

    regex = "(?![^/]*:predict$)[^/]+"


def create_app(endpoint: InferEndpoint, *, page: bool = False, stopping: trio.Event | None = None) -> QuartTrio:
    """The application with all routes of Triton's HTTP port, and the page's if asked for. `stopping` is set when endless streams
    are to end."""
    app = bare_app()
    routes = Routes(app, endpoint)
    control = ControlApi(endpoint.services, threads=endpoint.threads)
    generate = GenerateApi(endpoint)
    model, any_model = "/v2/models/<model>", "/v2/models/<name:model>"
    versioned = f"{model}/versions/<digits:version>"

    pages = PagesApi(endpoint, page=page)
    routes.add("metadata", "/", GET=pages.start)
    routes.add("model-repository", "/v2/models", GET=pages.models)
    routes.add("", "/docs", GET=pages.docs)
    if page:
        page_file: Handler = plugins.load("tpy.pages", "page", "page")
        routes.add("", "/page", access="health", GET=redirect_to_page)  # the same for all: they ask for a key
        routes.add("", "/page/", access="health", GET=page_file)
        routes.add("", "/page/<file>", access="health", GET=page_file)
    overview = OverviewApi(endpoint, trio.Event() if stopping is None else stopping)
    routes.add("statistics", "/v2/overview", GET=overview.get)
    for rule in ("/openapi.json", "/v2/openapi.json"):
        routes.add("", rule, GET=pages.openapi)
    routes.add("health", LIVE, GET=control.live)
    routes.add("health", READY, GET=control.ready)
    routes.add("health", f"{any_model}/ready", GET=control.model_ready)
    routes.add("health", f"{any_model}/versions/<digits:version>/ready", GET=control.model_ready)
    routes.add("metadata", "/v2", GET=control.server_metadata)
    routes.add("statistics", "/v2/models/stats", GET=control.statistics)
    for prefix in (model, versioned):
        routes.add("metadata", prefix, GET=control.model_metadata)
        routes.add("model-config", f"{prefix}/config", GET=control.model_config)
        routes.add("metadata", f"{prefix}/labels", GET=control.labels)
        routes.add("statistics", f"{prefix}/stats", GET=control.statistics)
        routes.add("statistics", f"{prefix}/explain", GET=control.explain)
        routes.add("model-repository", f"{prefix}/graph", GET=control.graph)
        routes.add("", f"{prefix}/infer", POST=_inference)
        routes.add("inference", f"{prefix}/generate", POST=generate.generate)
        routes.add("inference", f"{prefix}/generate_stream", POST=generate.generate_stream)
    predict = PredictApi(endpoint)
    routes.add("metadata", "/v1/models", GET=predict.models)
    routes.add("health", "/v1/models/<no_verb:model>", GET=predict.ready)
    routes.add("inference", "/v1/models/<model>:predict", POST=predict.predict)
    for prefix in ("/v2/repository", "/v2/repository/<repository>"):
        routes.add("model-repository", f"{prefix}/index", reads=True, POST=control.index)
        routes.add("model-repository", f"{prefix}/models/<model>/load", POST=control.load)
        routes.add("model-repository", f"{prefix}/models/<model>/check", reads=True, POST=control.check)
        routes.add("model-repository", f"{prefix}/models/<model>/unload", POST=control.unload)
        routes.add("model-repository", f"{prefix}/models/<model>/rollout", GET=control.rollout, POST=control.change_rollout)
    routes.add("logging", "/v2/logging", GET=control.log_settings, POST=control.update_log_settings)
    routes.add("logging", "/v2/logging/tail", GET=control.log_tail)
    for prefix in ("/v2", model):
        routes.add("trace", f"{prefix}/trace/setting", GET=control.trace_settings, POST=control.update_trace_settings)
    routes.add("trace", "/v2/trace/recent", GET=control.recent_traces)
    recordings = RecordingsApi(endpoint.services.recordings)
    routes.add("trace", "/v2/recording", GET=recordings.status, POST=recordings.change)
    for kind in RegionKind:
        regions = RegionsApi(endpoint.services.shared_memory, kind)
        for prefix in (f"/v2/{kind.value}sharedmemory", f"/v2/{kind.value}sharedmemory/region/<region>"):
            routes.add("shared-memory", f"{prefix}/status", GET=regions.status)
            routes.add("shared-memory", f"{prefix}/register", POST=regions.register)
            routes.add("shared-memory", f"{prefix}/unregister", POST=regions.unregister)
    return app


async def _inference(request: HttpRequest, **values: str) -> HttpReply:
    """Stands for the route of inference, which the connection serves: here other methods find that it exists."""
    raise InvariantViolation("an inference request came to the application")


def bare_app(refuse: Callable[[int, str], HttpReply] = refusal_reply) -> QuartTrio:
    """An application without routes that answers as ours do. `refuse`: the answer where no route takes the request, by its status
    and the reason."""
    app = QuartTrio("tpy", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = None  # bounded where the body is read
    app.config["BODY_TIMEOUT"] = None
    app.config["RESPONSE_TIMEOUT"] = None
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = True
    app.url_map.converters["digits"] = _DigitsConverter
    app.url_map.converters["no_verb"] = _NoVerbConverter
    app.url_map.converters["name"] = _EmptyOrNameConverter
    app.register_error_handler(HTTPException, partial(_on_http_exception, refuse=refuse))
    return app


def quart_response(
    app: QuartTrio, reply: HttpReply | StreamReply, sent: Callable[[int, bool], None] = lambda size, whole: None
) -> Response:
    """`reply` as Quart wants it. `sent` is told of the end of a stream: its bytes, and whether that was all of it."""
    if isinstance(reply, StreamReply):
        body = _EventBody(reply.body, sent)
        return app.response_class(body, status=reply.status, headers=dict(reply.headers), content_type=reply.content_type)
    headers = dict(reply.headers)
    if reply.content_length > PIECE_BYTES_MAX:
        headers["Content-Length"] = str(reply.content_length)
        body = _EventBody(_LongBody(reply.parts), lambda size, whole: None)
        return app.response_class(body, status=reply.status, headers=headers, content_type=reply.content_type)
    return app.response_class(b"".join(reply.parts), status=reply.status, headers=headers, content_type=reply.content_type)


async def _on_http_exception(error: HTTPException, refuse: Callable[[int, str], HttpReply] = refusal_reply) -> Response:
    """The answer to requests that Quart refuses: unknown paths, and wrong methods, which name the right ones (RFC 9110)."""
    reply = refuse(error.code or HTTPStatus.INTERNAL_SERVER_ERROR, error.name)
    headers = {}
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return Response(b"".join(reply.parts), status=reply.status, headers=headers, content_type=reply.content_type)


class _LongBody:
    """A body that is there, in pieces, between which others have their turn (StreamBody)."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._pieces = in_pieces(parts)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration

    def close(self) -> None:
        """Nothing to cancel."""


class _EventBody(ResponseBody):
    """Events as Quart takes a body that comes over time. When Quart lets go of it, its request ends."""

    def __init__(self, events: StreamBody, sent: Callable[[int, bool], None]) -> None:
        self._events = events
        self._sent = sent
        self._size = 0
        self._whole = False

    async def __aenter__(self) -> _EventBody:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._events.close()
        self._sent(self._size, self._whole)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            await trio.lowlevel.checkpoint()  # what is there already would leave in one stretch
            piece = await self._events.__anext__()
        except StopAsyncIteration:
            self._whole = True
            raise
        self._size += len(piece)
        return piece


class Routes:
    """Adds handlers to an application, with what every request goes through. `refuse` makes the answer for an error. Observers
    know inference that no handler has taken by `protocol`."""

    def __init__(
        self,
        app: QuartTrio,
        endpoint: InferEndpoint,
        *,
        protocol: str = "http",
        refuse: Callable[[TpyError], HttpReply] = error_reply,
    ) -> None:
        self._app = app
        self._endpoint = endpoint
        self._policy = endpoint.policy
        self._protocol = protocol
        self._refuse = refuse

    def add(
        self,
        category: str,
        rule: str,
        *,
        access: str | None = None,
        infers: Callable[[HttpRequest], bool] | None = None,
        reads: bool = False,
        **handlers: Handler,
    ) -> None:
        """Serve `rule`; the other keywords are methods. `category` is the restricted API that it belongs to, "" for none;
        `access` the one that says which roles it needs, if that is another: "" where the handler itself asks for them. `infers`
        tells which requests are for inference, if the category does not. `reads`: no method changes anything, nor is in the
        audit log."""
        roles_of = category if access is None else access
        is_inference = (lambda _: category == "inference") if infers is None else infers

        async def view(**values: str) -> Response:
            return await self._serve(category, roles_of, rule, handlers, values, is_inference, audited=not reads)

        self._app.add_url_rule(
            rule, endpoint=f"{rule} {category}", view_func=view, methods=list(handlers), provide_automatic_options=False
        )

    async def _serve(
        self,
        category: str,
        roles_of: str,
        rule: str,
        handlers: dict[str, Handler],
        values: dict[str, str],
        is_inference: Callable[[HttpRequest], bool],
        *,
        audited: bool,
    ) -> Response:
        message = _message()
        try:
            if is_disguised(message.target):
                return await _on_http_exception(NotFound())
            reads = request.method in _READING
            audit = self._endpoint.services.audit
            with (
                nullcontext()
                if reads or audit is None or not audited or is_inference(message)
                else audit.action(
                    self._protocol,
                    f"{request.method} {rule}",
                    peer=message.peer,
                    certificate=request.scope["state"].get(CERTIFICATE, dict)(),
                ) as action
            ):
                if reads or not is_inference(message):
                    self._policy.web_pages.require(message.fields, changes=not reads)
                if category:
                    self._policy.require(category, message.fields)
                    self._policy.require_here(roles_of)
                message.caller = self._policy.identify(message.fields, message.peer)
                if action is not None:
                    action.identified("" if message.caller is None else message.caller.name, _named(values))
                if message.caller is not None:
                    changes = not reads and not rule.endswith("/index")
                    message.caller.authorize(roles_of, values.get("model"), changes=changes)
                if action is not None:
                    await action.begin()
                handler = handlers["GET" if request.method == "HEAD" else request.method]
                reply: HttpReply | StreamReply = await handler(message, **values)
                if action is not None and reply.status >= 400:
                    action.ended(f"HTTP {reply.status}")
            if load_report.ASKED_BY in message.fields and is_inference(message):
                version = parse_version(values.get("version"))
                asked, services = message.fields, self._endpoint.services
                headers = await load_report.with_load(reply.headers, asked, services, values.get("model", ""), version)
                reply = msgspec.structs.replace(reply, headers=headers)
        except Exception as raised:
            error = raised if isinstance(raised, TpyError) else unexpected_error(request.path)
            reply = self._refuse(error)
            inference = is_inference(message)
            if inference:
                self._endpoint.count_refusal(message, error)
            if message.record is not None:
                message.record.fail(error)
            elif inference:
                self._endpoint.refused(message, self._protocol, values.get("model", ""), reply, error)
            forget_trace(error)
        except BaseException:  # the client has left, or the server ends
            self._left(message, 0)
            raise
        if isinstance(reply, HttpReply):
            finish_records(message, reply, self._endpoint.clock.now_ns())
        return quart_response(self._app, reply, partial(self._sent, message, reply.status))

    def _sent(self, message: HttpRequest, status: int, size: int, whole: bool) -> None:
        """`size` bytes of a stream have left, and nothing more will."""
        if whole:
            finish_records(message, HttpReply(status=status, content_length=size), self._endpoint.clock.now_ns())
        else:
            self._left(message, size)

    def _left(self, message: HttpRequest, size: int) -> None:
        now_ns = self._endpoint.clock.now_ns()
        if message.record is not None:
            message.record.finish(now_ns, ErrorCode.CANCELLED.value, response_bytes=size)
        for record in message.further_records:
            record.finish(now_ns, ErrorCode.CANCELLED.value)


def _named(values: dict[str, str]) -> str:
    """The model that a URL names; SageMaker's name of it, which is another, is the whole of its URL."""
    return values.get("model") or values.get("name", "")


def _message() -> HttpRequest:
    """The present request, with the body that the connection has read."""
    scope = request.scope
    headers = list(scope["headers"])
    return HttpRequest(
        method=request.method.encode("ascii"),
        target=scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b""),
        path=request.path,
        version=scope["http_version"],
        headers=headers,
        fields=fields_of(headers),
        keep_alive=True,
        body=scope["state"].pop(BODY),
        peer="" if scope["client"] is None else str(BoundAddress(host=scope["client"][0], port=scope["client"][1])),
    )
