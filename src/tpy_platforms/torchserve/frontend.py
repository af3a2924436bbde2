"""The implementation of the TorchServe frontend in the table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from quart_trio import QuartTrio

from tpy.flag import Value, read_values
from tpy.frontends.http.app import Routes, bare_app
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.options import HttpOptions, PortValues, parse_restricted_apis, read_port
from tpy.frontends.http.serving import application_port, serving
from tpy_platforms.torchserve.answers import error_reply, refusal_reply
from tpy_platforms.torchserve.management import ManagementApi
from tpy_platforms.torchserve.predictions import TorchServePredictionsApi

Options = HttpOptions


class _Values(PortValues, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    torchserve_port: int


def read_options(values: Mapping[str, Value]) -> HttpOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    return HttpOptions(**read_port(values, v), port=v.torchserve_port, restricted=parse_restricted_apis(v.http_restricted_api))


def create_app(endpoint: InferEndpoint, *, options: HttpOptions) -> QuartTrio:
    """The application with all routes: those of TorchServe's inference port, and those of its management port."""
    app = bare_app(refusal_reply)
    routes = Routes(app, endpoint, protocol="torchserve", refuse=error_reply)
    predictions = TorchServePredictionsApi(endpoint, secret={group.header.lower() for group in options.restricted})
    management = ManagementApi(endpoint)
    routes.add("health", "/ping", GET=management.ping)
    for rule in ("/predictions/<model>", "/predictions/<model>/<release>"):
        # `curl -T FILE`, as in TorchServe's documentation, is a PUT.
        routes.add("inference", rule, POST=predictions.predict, PUT=predictions.predict)
    routes.add("inference", "/wfpredict/<model>", POST=predictions.run_workflow, PUT=predictions.run_workflow)
    routes.add("model-repository", "/models", GET=management.list_models, POST=management.register)
    for rule in ("/models/<model>", "/models/<model>/<release>"):
        routes.add("model-repository", rule, GET=management.describe, PUT=management.scale, DELETE=management.unregister)
    routes.add("model-repository", "/models/<model>/<release>/set-default", PUT=management.set_default)
    return app


serve = serving(partial(application_port, create_app, name="TorchServe", refuse=refusal_reply))
