"""The MLflow frontend's entry in the table."""

from __future__ import annotations

from tpy.flag import PORT_MAX, new_flag
from tpy.frontends.table import Frontend

_FLAGS = (
    new_flag("MLflow", "allow-mlflow", False, "Serve the protocol of MLflow's scoring server, at the address of HTTP."),
    new_flag("MLflow", "mlflow-port", 5000, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
    new_flag("MLflow", "mlflow-model", "", "Model at /invocations; needed if several are ready.", metavar="NAME"),
)

FRONTEND = Frontend(
    name="MLflow",
    service="MLflow HTTPService",
    module="tpy_platforms.mlflow.frontend",
    switch="allow-mlflow",
    flags=_FLAGS,
    checks_access=True,
)
