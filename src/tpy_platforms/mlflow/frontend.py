"""The implementation of the MLflow frontend in the table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from quart_trio import QuartTrio

from tpy.flag import Value, read_values
from tpy.frontends.http.app import Routes, bare_app
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import HttpRequest
from tpy.frontends.http.options import HttpOptions, PortValues, parse_restricted_apis, read_port
from tpy.frontends.http.serving import application_port, serving
from tpy_platforms.mlflow.answers import error_reply, refusal_reply
from tpy_platforms.mlflow.invocations import InvocationsApi


class MlflowOptions(HttpOptions, frozen=True, kw_only=True):
    """Those of an HTTP port, and the model at /invocations ("" the only one that is ready)."""

    model: str = ""


Options = MlflowOptions


class _Values(PortValues, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    mlflow_port: int
    mlflow_model: str


def read_options(values: Mapping[str, Value]) -> MlflowOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    return MlflowOptions(
        **read_port(values, v),
        port=v.mlflow_port,
        restricted=parse_restricted_apis(v.http_restricted_api),
        model=v.mlflow_model,
    )


def create_app(endpoint: InferEndpoint, *, options: MlflowOptions) -> QuartTrio:
    """The application with all routes."""
    app = bare_app(refusal_reply)
    routes = Routes(app, endpoint, protocol="mlflow", refuse=error_reply)
    api = InvocationsApi(endpoint, model=options.model)
    for rule in ("/ping", "/health"):
        routes.add("health", rule, GET=api.ping)
    routes.add("metadata", "/version", GET=api.version)
    routes.add("", "/invocations", infers=_always, POST=api.invocations)
    for rule in ("/models/<model>/invocations", "/models/<model>/versions/<digits:version>/invocations"):
        routes.add("inference", rule, POST=api.invocations_of)
    return app


def _always(request: HttpRequest) -> bool:
    """For a route of inference only."""
    return True


serve = serving(partial(application_port, create_app, name="MLflow", refuse=refusal_reply))
