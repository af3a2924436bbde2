"""The SageMaker frontend's entry in the table."""

from __future__ import annotations

from collections.abc import Mapping

from tpy.flag import PORT_MAX, Support, new_flag
from tpy.frontends.table import Frontend

_FLAGS = (
    new_flag("SageMaker", "allow-sagemaker", False, "Serve SageMaker's protocol, at the address of HTTP."),
    new_flag("SageMaker", "sagemaker-port", 8080, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
    new_flag(
        "SageMaker",
        "sagemaker-safe-port-range",
        "",
        "Range that the ports of the other protocols must be in.",
        metavar="FIRST-LAST",
    ),
    new_flag(
        "SageMaker",
        "sagemaker-thread-count",
        8,
        "Threads.",
        why="one event loop serves all connections",
        minimum=1,
        support=Support.IGNORED,
    ),
    new_flag(
        "SageMaker",
        "sagemaker-default-model",
        "",
        "Model at /invocations, by default SAGEMAKER_TRITON_DEFAULT_MODEL_NAME.",
        metavar="MODEL",
    ),
    new_flag(
        "SageMaker",
        "sagemaker-inference-type",
        "infer",
        "Form of the requests there, by default SAGEMAKER_TRITON_INFERENCE_TYPE.",
        choices=("infer", "generate", "generate_stream"),
    ),
    new_flag(
        "SageMaker",
        "sagemaker-ping-mode",
        "ready",
        "State that /ping reports, by default SAGEMAKER_TRITON_PING_MODE.",
        choices=("live", "ready"),
    ),
)

_VARIABLES = {
    "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "sagemaker-default-model",
    "SAGEMAKER_TRITON_INFERENCE_TYPE": "sagemaker-inference-type",
    "SAGEMAKER_TRITON_PING_MODE": "sagemaker-ping-mode",
}


def _platform(environment: Mapping[str, str]) -> dict[str, str]:
    return {flag: environment[variable] for variable, flag in _VARIABLES.items() if environment.get(variable)}


FRONTEND = Frontend(
    name="SageMaker",
    service="Sagemaker HTTPService",
    module="tpy_platforms.sagemaker.frontend",
    engine_only=True,  # it registers repositories, and knows which
    switch="allow-sagemaker",
    flags=_FLAGS,
    platform=_platform,
    checks_access=True,
)
