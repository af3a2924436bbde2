"""The implementation of the SageMaker frontend in the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from quart_trio import QuartTrio

from tpy.errors import InvalidArgument
from tpy.flag import Value, read_values
from tpy.frontends.http.app import Routes, bare_app
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import HttpRequest
from tpy.frontends.http.options import HttpOptions, PortValues, parse_restricted_apis, read_port
from tpy.frontends.http.serving import application_port, serving
from tpy_platforms.sagemaker.api import SageMakerApi, sagemaker_error


class SageMakerOptions(HttpOptions, frozen=True, kw_only=True):
    """Those of an HTTP port, the model at /invocations, what is asked there, and what /ping tells."""

    model: str = ""
    form: str = "infer"
    ping_mode: str = "ready"


Options = SageMakerOptions


class _Values(PortValues, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    allow_http: bool
    http_port: int
    allow_grpc: bool
    grpc_port: int
    allow_metrics: bool
    metrics_port: int
    sagemaker_port: int
    sagemaker_safe_port_range: str
    sagemaker_default_model: str
    sagemaker_inference_type: str
    sagemaker_ping_mode: str


def read_options(values: Mapping[str, Value]) -> SageMakerOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    if v.sagemaker_safe_port_range:
        _require_safe_ports(v)
    return SageMakerOptions(
        **read_port(values, v),
        port=v.sagemaker_port,
        restricted=parse_restricted_apis(v.http_restricted_api),
        model=v.sagemaker_default_model,
        form=v.sagemaker_inference_type,
        ping_mode=v.sagemaker_ping_mode,
    )


def _require_safe_ports(v: _Values) -> None:
    """Raise InvalidArgument, with Triton's text, for another port outside the range."""
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", v.sagemaker_safe_port_range)
    if found is None or int(found[1]) > int(found[2]):
        raise InvalidArgument(f"--sagemaker-safe-port-range: expected <first>-<last>, got '{v.sagemaker_safe_port_range}'")
    first, last = int(found[1]), int(found[2])
    for name, allowed, port in (
        ("HTTP", v.allow_http, v.http_port),
        ("GRPC", v.allow_grpc, v.grpc_port),
        ("metrics", v.allow_metrics, v.metrics_port),
    ):
        if allowed and port and not first <= port <= last:
            raise InvalidArgument(
                f"The server cannot listen to {name} requests at port {port}, allowed port range is [{first}, {last}]"
            )


def create_app(endpoint: InferEndpoint, *, options: SageMakerOptions) -> QuartTrio:
    """The application with all routes."""
    app = bare_app()
    routes = Routes(app, endpoint, protocol="sagemaker", refuse=sagemaker_error)
    api = SageMakerApi(endpoint, model=options.model, form=options.form, ping_mode=options.ping_mode)
    routes.add("health", "/ping", GET=api.ping)
    routes.add("", "/invocations", infers=_always, POST=api.invocations)
    for rule in ("/models", "/models/"):
        routes.add("model-repository", rule, GET=api.list_models, POST=api.load)
    # SageMaker's name of a model is not ours: the handlers ask for the role.
    routes.add("", "/models/<name>", GET=api.get_model, DELETE=api.unload)
    routes.add("", "/models/<name>/invoke", infers=_always, POST=api.invoke)
    return app


def _always(request: HttpRequest) -> bool:
    """For routes of inference only."""
    return True


serve = serving(partial(application_port, create_app, name="SageMaker"))
