"""The implementation of the REST port in the table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from quart_trio import QuartTrio
from werkzeug.routing import BaseConverter

from tpy.flag import Value, read_values
from tpy.frontends.http.app import Routes, bare_app
from tpy.frontends.http.infer import InferEndpoint, parse_version
from tpy.frontends.http.message import HttpReply, HttpRequest
from tpy.frontends.http.options import HttpOptions, PortValues, parse_restricted_apis, read_port
from tpy.frontends.http.serving import application_port, serving
from tpy_platforms.tensorflow_serving.answers import document_reply, error_reply, refusal_reply
from tpy_platforms.tensorflow_serving.models import PROTOCOL, ModelSpec, resolve, signature_of
from tpy_platforms.tensorflow_serving.predictions import TensorFlowPredictionsApi
from tpy_platforms.tensorflow_serving.status import signature_document, statuses

Options = HttpOptions


class _Values(PortValues, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    tensorflow_serving_port: int


def read_options(values: Mapping[str, Value]) -> HttpOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    return HttpOptions(
        **read_port(values, v), port=v.tensorflow_serving_port, restricted=parse_restricted_apis(v.http_restricted_api)
    )


class _ModelConverter(BaseConverter):
    """The name of a model or label: a colon begins a verb."""

    regex = "[^/:]+"


class ModelsApi:
    """The handlers that describe models."""

    def __init__(self, endpoint: InferEndpoint) -> None:
        self._services = endpoint.services

    async def status(self, request: HttpRequest, *, model: str, version: str | None = None, label: str = "") -> HttpReply:
        """The states of the versions. Raises TpyError."""
        found = await statuses(self._services, ModelSpec(name=model, version=parse_version(version), label=label))
        return document_reply({"model_version_status": [each.document for each in found]})

    async def metadata(self, request: HttpRequest, *, model: str, version: str | None = None, label: str = "") -> HttpReply:
        """The signature. Raises TpyError."""
        service = self._services.inference
        description = resolve(service, ModelSpec(name=model, version=parse_version(version), label=label)).description
        return document_reply(
            {
                "model_spec": {"name": model, "signature_name": "", "version": str(description.version)},
                "metadata": {"signature_def": signature_document(signature_of(service, description))},
            }
        )


def create_app(endpoint: InferEndpoint, *, options: HttpOptions) -> QuartTrio:
    """The application with all routes."""
    app = bare_app(refusal_reply)
    app.url_map.converters["servable"] = _ModelConverter
    routes = Routes(app, endpoint, protocol=PROTOCOL, refuse=error_reply)
    predictions, models = TensorFlowPredictionsApi(endpoint), ModelsApi(endpoint)
    model = "/v1/models/<servable:model>"
    for prefix in (model, f"{model}/versions/<digits:version>", f"{model}/labels/<servable:label>"):
        routes.add("health", prefix, GET=models.status)
        routes.add("metadata", f"{prefix}/metadata", GET=models.metadata)
        routes.add("inference", f"{prefix}:predict", POST=predictions.predict)
        routes.add("inference", f"{prefix}:classify", POST=predictions.classify)
        routes.add("inference", f"{prefix}:regress", POST=predictions.regress)
    return app


serve = serving(partial(application_port, create_app, name="TensorFlow Serving", refuse=refusal_reply))
