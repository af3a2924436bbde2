"""The Vertex AI frontend's entry in the table."""

from __future__ import annotations

from collections.abc import Mapping

from tpy.flag import PORT_MAX, Support, new_flag
from tpy.frontends.table import Frontend

_FLAGS = (
    new_flag(
        "Vertex AI",
        "allow-vertex-ai",
        False,
        "Serve Vertex AI's protocol. With AIP_MODE=PREDICTION it is on by default, and HTTP and gRPC are off.",
    ),
    new_flag(
        "Vertex AI",
        "vertex-ai-port",
        8080,
        "Port to listen on, by default that of AIP_HTTP_PORT; 0 takes a free one.",
        minimum=0,
        maximum=PORT_MAX,
    ),
    new_flag(
        "Vertex AI",
        "vertex-ai-thread-count",
        8,
        "Threads.",
        why="one event loop serves all connections",
        minimum=1,
        support=Support.IGNORED,
    ),
    new_flag(
        "Vertex AI",
        "vertex-ai-default-model",
        "",
        "Model of predictions; by default the only one that is ready.",
        metavar="MODEL",
    ),
    new_flag("Vertex AI", "vertex-ai-predict-route", "", "Path of predictions, by default AIP_PREDICT_ROUTE.", metavar="PATH"),
    new_flag("Vertex AI", "vertex-ai-health-route", "", "Path of health checks, by default AIP_HEALTH_ROUTE.", metavar="PATH"),
)

_VARIABLES = {
    "AIP_HTTP_PORT": "vertex-ai-port",
    "AIP_PREDICT_ROUTE": "vertex-ai-predict-route",
    "AIP_HEALTH_ROUTE": "vertex-ai-health-route",
}


def _platform(environment: Mapping[str, str]) -> dict[str, str]:
    found = {flag: environment[variable] for variable, flag in _VARIABLES.items() if environment.get(variable)}
    if environment.get("AIP_MODE") == "PREDICTION":
        found |= {"allow-vertex-ai": "true", "allow-http": "false", "allow-grpc": "false"}
    if environment.get("AIP_STORAGE_URI"):
        found["model-repository"] = environment["AIP_STORAGE_URI"]
    return found


FRONTEND = Frontend(
    name="Vertex AI",
    service="Vertex AI HTTPService",
    module="tpy_platforms.vertex_ai.frontend",
    engine_only=True,  # it shows the metrics
    switch="allow-vertex-ai",
    flags=_FLAGS,
    platform=_platform,
    checks_access=True,
)
