"""The Quart application: the URL and method of every route that is not inference, and its handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from types import TracebackType
from typing import Concatenate

from quart import Response, request
from quart.wrappers.response import ResponseBody
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import BaseConverter

from tpy.errors import InvariantViolation, TpyError
from tpy.frontends.http.access import HeaderPolicy
from tpy.frontends.http.control import ControlApi
from tpy.frontends.http.generate import GenerateApi, StreamBody, StreamReply
from tpy.frontends.http.infer import InferEndpoint, is_disguised, unexpected_error
from tpy.frontends.http.message import HttpReply, HttpRequest, error_reply, fields_of, refusal_reply
from tpy.frontends.http.pages import PagesApi
from tpy.frontends.http.quart_bridge import BODY
from tpy.frontends.http.shared_memory import RegionsApi
from tpy.messages import RegionKind

Handler = Callable[Concatenate[HttpRequest, ...], Awaitable[HttpReply | StreamReply]]


class _DigitsConverter(BaseConverter):
    """A version in a URL: ASCII digits only. Anything else is another, unknown path."""

    regex = "[0-9]+"


class _EmptyOrNameConverter(BaseConverter):
    """A model name, or nothing where one belongs."""

    regex = "[^/]*"
    part_isolating = False


def create_app(endpoint: InferEndpoint) -> QuartTrio:
    """The application with all routes of Triton's HTTP port."""
    app = bare_app()
    routes = Routes(app, endpoint.policy)
    control = ControlApi(endpoint.services, threads=endpoint.threads)
    generate = GenerateApi(endpoint)
    model, any_model = "/v2/models/<model>", "/v2/models/<name:model>"
    versioned = f"{model}/versions/<digits:version>"

    pages = PagesApi(endpoint.services)
    routes.add("metadata", "/", GET=pages.start)
    routes.add("model-repository", "/v2/models", GET=pages.models)
    routes.add("", "/docs", GET=pages.docs)
    for rule in ("/openapi.json", "/v2/openapi.json"):
        routes.add("", rule, GET=pages.openapi)
    routes.add("health", "/v2/health/live", GET=control.live)
    routes.add("health", "/v2/health/ready", GET=control.ready)
    routes.add("health", f"{any_model}/ready", GET=control.model_ready)
    routes.add("health", f"{any_model}/versions/<digits:version>/ready", GET=control.model_ready)
    routes.add("metadata", "/v2", GET=control.server_metadata)
    routes.add("statistics", "/v2/models/stats", GET=control.statistics)
    for prefix in (model, versioned):
        routes.add("metadata", prefix, GET=control.model_metadata)
        routes.add("model-config", f"{prefix}/config", GET=control.model_config)
        routes.add("statistics", f"{prefix}/stats", GET=control.statistics)
        routes.add("", f"{prefix}/infer", POST=_inference)
        routes.add("inference", f"{prefix}/generate", POST=generate.generate)
        routes.add("inference", f"{prefix}/generate_stream", POST=generate.generate_stream)
    for prefix in ("/v2/repository", "/v2/repository/<repository>"):
        routes.add("model-repository", f"{prefix}/index", POST=control.index)
        routes.add("model-repository", f"{prefix}/models/<model>/load", POST=control.load)
        routes.add("model-repository", f"{prefix}/models/<model>/unload", POST=control.unload)
    routes.add("logging", "/v2/logging", GET=control.log_settings, POST=control.update_log_settings)
    for prefix in ("/v2", model):
        routes.add("trace", f"{prefix}/trace/setting", GET=control.trace_settings, POST=control.update_trace_settings)
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


def bare_app() -> QuartTrio:
    """An application without routes that answers as ours do."""
    app = QuartTrio("tpy", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = None  # bounded where the body is read
    app.config["BODY_TIMEOUT"] = None
    app.config["RESPONSE_TIMEOUT"] = None
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = True
    app.url_map.converters["digits"] = _DigitsConverter
    app.url_map.converters["name"] = _EmptyOrNameConverter
    app.register_error_handler(HTTPException, _on_http_exception)
    return app


def quart_response(app: QuartTrio, reply: HttpReply | StreamReply) -> Response:
    """`reply` as Quart wants it."""
    if isinstance(reply, StreamReply):
        return app.response_class(_EventBody(reply.body), status=reply.status, content_type=reply.content_type)
    headers = dict(reply.headers)
    return app.response_class(b"".join(reply.parts), status=reply.status, headers=headers, content_type=reply.content_type)


async def _on_http_exception(error: HTTPException) -> Response:
    """The answer to requests that Quart refuses: unknown paths and wrong methods, without Quart's extra headers."""
    status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    reply = refusal_reply(status, error.name)
    return Response(b"".join(reply.parts), status=reply.status, content_type=reply.content_type)


class _EventBody(ResponseBody):
    """Events as Quart takes a body that comes over time. When Quart lets go of it, its request ends."""

    def __init__(self, events: StreamBody) -> None:
        self._events = events

    async def __aenter__(self) -> _EventBody:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._events.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events


class Routes:
    """Adds handlers to an application, with what every request goes through. `refuse` makes the answer for an error."""

    def __init__(self, app: QuartTrio, policy: HeaderPolicy, *, refuse: Callable[[TpyError], HttpReply] = error_reply) -> None:
        self._app = app
        self._policy = policy
        self._refuse = refuse

    def add(self, category: str, rule: str, **handlers: Handler) -> None:
        """Serve `rule`; the keywords are methods. `category` is the restricted API that it belongs to, "" for none."""

        async def view(**values: str) -> Response:
            return await self._serve(category, rule, handlers, values)

        self._app.add_url_rule(
            rule, endpoint=f"{rule} {category}", view_func=view, methods=list(handlers), provide_automatic_options=False
        )

    async def _serve(self, category: str, rule: str, handlers: dict[str, Handler], values: dict[str, str]) -> Response:
        try:
            message = _message()
            if is_disguised(message.target):
                return await _on_http_exception(NotFound())
            if category:
                self._policy.require(category, message.fields)
            message.caller = self._policy.identify(message.fields)
            if message.caller is not None:
                changes = request.method == "POST" and not rule.endswith("/index")
                message.caller.authorize(category, values.get("model"), changes=changes)
            handler = handlers["GET" if request.method == "HEAD" else request.method]
            reply: HttpReply | StreamReply = await handler(message, **values)
        except TpyError as error:
            reply = self._refuse(error)
        except Exception:
            reply = self._refuse(unexpected_error(request.path))
        return quart_response(self._app, reply)


def _message() -> HttpRequest:
    """The present request, with the body that the connection has read."""
    scope = request.scope
    headers = list(scope["headers"])
    return HttpRequest(
        method=request.method.encode("ascii"),
        target=scope["raw_path"],
        path=request.path,
        version=scope["http_version"],
        headers=headers,
        fields=fields_of(headers),
        keep_alive=True,
        body=scope["state"].pop(BODY),
    )
