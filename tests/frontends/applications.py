"""The applications of all ports that have routes, as they are without a listening socket."""

from __future__ import annotations

from typing import Any

from quart_trio import QuartTrio

from tpy.clock import SystemClock
from tpy.frontends.http.app import create_app
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.serving import create_endpoint
from tpy.services import Services
from tpy_platforms.mlflow import frontend as mlflow
from tpy_platforms.openai import frontend as openai
from tpy_platforms.sagemaker import frontend as sagemaker
from tpy_platforms.tensorflow_serving import rest as tensorflow_serving
from tpy_platforms.torchserve import frontend as torchserve
from tpy_platforms.vertex_ai import frontend as vertex

from .http.fakes import FakeServices


def applications(services: Services | None = None, **options: Any) -> list[tuple[str, QuartTrio]]:
    """The application of every port that has control calls, over fake services, or those given. `options` are of each port."""
    base: dict[str, Any] = {"address": "127.0.0.1", "port": 0, **options}
    endpoint = create_endpoint(HttpOptions(**base), FakeServices() if services is None else services, SystemClock())
    vertex_options = vertex.VertexOptions(**base, predict_route="/predict", health_route="/health")
    sagemaker_options = sagemaker.SageMakerOptions(**base, model="m", form="infer", ping_mode="ready")
    return [
        ("http", create_app(endpoint, page=True)),
        ("mlflow", mlflow.create_app(endpoint, options=mlflow.MlflowOptions(**base, model="m"))),
        ("openai", openai.create_app(endpoint, options=openai.OpenAiOptions(**base))),
        ("sagemaker", sagemaker.create_app(endpoint, options=sagemaker_options)),
        ("tensorflow_serving", tensorflow_serving.create_app(endpoint, options=tensorflow_serving.Options(**base))),
        ("torchserve", torchserve.create_app(endpoint, options=torchserve.Options(**base))),
        ("vertex", vertex.create_app(endpoint, options=vertex_options, model="m")),
    ]
