"""The implementation of the Vertex AI frontend in the table."""

from __future__ import annotations

import re
from collections.abc import Mapping

from quart_trio import QuartTrio

from tpy.clock import Clock
from tpy.errors import Forbidden, InvalidArgument
from tpy.flag import Value, read_values
from tpy.frontends.http.app import Routes, bare_app
from tpy.frontends.http.binary_type import infer_with_type
from tpy.frontends.http.control import ControlApi
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import HttpReply, HttpRequest
from tpy.frontends.http.options import HttpOptions, PortValues, parse_restricted_apis, read_port
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.serving import application_port, serving
from tpy.frontends.http.shared_memory import RegionsApi
from tpy.messages import RegionKind
from tpy.services import Services, offered

_TYPE_PREFIX = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
_METRICS_TYPE = "text/plain; charset=utf-8"
_REDIRECT = b"x-vertex-ai-triton-redirect"
_HEALTH = re.compile(r"v2(?:/health/(live|ready))?")
_MODEL = re.compile(r"v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/(infer|config|stats|ready))?")
_REGIONS = re.compile(r"v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")
_REPOSITORY = re.compile(r"v2/repository(?:/([^/]+))?/(?:(index)|models/[^/]+/(?:load|unload))")


class VertexOptions(HttpOptions, frozen=True, kw_only=True):
    """Those of an HTTP port, the routes, and the model of predictions ("" the only one that is ready)."""

    predict_route: str
    health_route: str
    default_model: str = ""


Options = VertexOptions


class _Values(PortValues, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    vertex_ai_port: int
    vertex_ai_default_model: str
    vertex_ai_predict_route: str
    vertex_ai_health_route: str


def read_options(values: Mapping[str, Value]) -> VertexOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    for flag, variable, route in (
        ("vertex-ai-predict-route", "AIP_PREDICT_ROUTE", v.vertex_ai_predict_route),
        ("vertex-ai-health-route", "AIP_HEALTH_ROUTE", v.vertex_ai_health_route),
    ):
        if not route:
            raise InvalidArgument(f"{variable} is not defined for Vertex AI endpoint (nor --{flag})")
        if not route.startswith("/") or set(route) & set("<>?# "):
            raise InvalidArgument(f"--{flag}: '{route}' is not a path (the variable {variable})")
    return VertexOptions(
        **read_port(values, v),
        port=v.vertex_ai_port,
        restricted=parse_restricted_apis(v.http_restricted_api),
        predict_route=v.vertex_ai_predict_route,
        health_route=v.vertex_ai_health_route,
        default_model=v.vertex_ai_default_model,
    )


def is_inference(request: HttpRequest) -> bool:
    """Returns True unless a request to the route of predictions is redirected to something else."""
    target = request.fields.get(_REDIRECT)
    if target is None:
        return True
    found = _MODEL.fullmatch(target.decode("latin-1"))
    return found is not None and found[3] == "infer"


class VertexApi:
    """The handlers of both routes."""

    def __init__(self, endpoint: InferEndpoint, model: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self._control = ControlApi(endpoint.services, threads=endpoint.threads)

    async def health(self, request: HttpRequest) -> HttpReply:
        """200 when the server is ready."""
        return await self._control.ready(request)

    async def predict(self, request: HttpRequest) -> HttpReply:
        """Inference by the default model, or what the header names: a path of HTTP's."""
        target = request.fields.get(_REDIRECT)
        if target is None:
            return await self._infer(request, self._model)
        return await self._redirect(request, target.decode("latin-1"))

    async def _infer(self, request: HttpRequest, model: str, version: str | None = None) -> HttpReply:
        return await infer_with_type(
            self._endpoint, request, model, version, type_prefix=_TYPE_PREFIX, protocol="vertex-ai", keep_length=True
        )

    def _require(self, api: str, request: HttpRequest, model: str | None = None) -> None:
        self._endpoint.authorize(api, request, model)

    async def _redirect(self, request: HttpRequest, target: str) -> HttpReply:
        control, services = self._control, self._endpoint.services
        if target == "metrics":
            self._require("statistics", request)
            page = await offered(services.metrics).page()
            return HttpReply(content_type=_METRICS_TYPE, parts=(page,), content_length=len(page))
        if target == "v2/models/stats":
            self._require("statistics", request)
            return await control.statistics(request)
        if found := _MODEL.fullmatch(target):
            return await self._redirect_to_model(request, found[1], found[2], found[3])
        if found := _HEALTH.fullmatch(target):
            self._require("health" if found[1] else "metadata", request)
            if not found[1]:
                return await control.server_metadata(request)
            return await (control.live if found[1] == "live" else control.ready)(request)
        if found := _REGIONS.fullmatch(target):
            self._require("shared-memory", request)
            if found[3] != "status":
                raise Forbidden("shared memory cannot be changed through this endpoint")
            region = {} if found[2] is None else {"region": found[2]}
            return await RegionsApi(services.shared_memory, RegionKind(found[1])).status(request, **region)
        if found := _REPOSITORY.fullmatch(target):
            self._require("model-repository", request)
            if not found[2]:
                raise Forbidden("models cannot be loaded or unloaded through this endpoint")
            return await control.index(request, repository=found[1] or "")
        raise InvalidArgument("X-Vertex-Ai-Triton-Redirect does not name an endpoint that can be reached here")

    async def _redirect_to_model(self, request: HttpRequest, model: str, version: str | None, action: str | None) -> HttpReply:
        control = self._control
        match action:
            case "infer":
                return await self._infer(request, model, version)
            case "config":
                self._require("model-config", request, model)
                return await control.model_config(request, model=model, version=version)
            case "stats":
                self._require("statistics", request, model)
                return await control.statistics(request, model=model, version=version)
            case "ready":
                self._require("health", request, model)
                return await control.model_ready(request, model=model, version=version)
            case _:
                self._require("metadata", request, model)
                return await control.model_metadata(request, model=model, version=version)


def create_app(endpoint: InferEndpoint, *, options: VertexOptions, model: str) -> QuartTrio:
    """The application with both routes."""
    app = bare_app()
    routes = Routes(app, endpoint, protocol="vertex-ai")
    api = VertexApi(endpoint, model)
    routes.add("health", options.health_route, GET=api.health)
    routes.add("", options.predict_route, infers=is_inference, reads=True, POST=api.predict)
    return app


async def _default_model(options: VertexOptions, services: Services) -> str:
    """The model of predictions. Raises InvalidArgument, with Triton's texts, when it is not ready, or not named and not the
    only one."""
    ready = {entry.name for entry in await services.repository.index(ready_only=True)}
    if not options.default_model:
        if len(ready) != 1:
            raise InvalidArgument("Expect the model repository contains only a single model if default model is not specified")
        return ready.pop()
    if options.default_model not in ready:
        raise InvalidArgument(f"Expect the default model '{options.default_model}' is loaded")
    return options.default_model


async def _create_port(options: VertexOptions, services: Services, clock: Clock) -> HttpPort:
    """Raises InvalidArgument without a model for predictions."""
    model = await _default_model(options, services)
    return application_port(create_app, options, services, clock, name="Vertex AI", model=model)


serve = serving(_create_port)
