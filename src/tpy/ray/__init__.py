"""tpy on Ray Serve: a repository on many machines, through Ray's own ports.

    serve run tpy.ray:app repository=models replicas=4

Read in this order: application.py (arguments to deployment), replica.py (a whole server without ports), http.py and grpc.py (how
requests cross to it), replicas.py (changes on all of them), core/ (what is decided about them, without I/O),
calls.py (calls of other applications' models).

Needs the extra `ray`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import ray.serve
except ImportError as error:
    raise ImportError(f"tpy.ray needs Ray Serve: install tpy's extra `ray` ({error})") from error
if not hasattr(ray.serve.handle.DeploymentHandle, "broadcast"):
    raise ImportError(f"tpy.ray needs Ray 2.60 or newer: install tpy's extra `ray` (this is Ray {ray.__version__})")

from tpy.ray.application import build
from tpy.ray.grpc import add_GRPCInferenceServiceServicer_to_server, add_HealthServicer_to_server
from tpy.ray.scaling import ByLoad

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["ByLoad", "add_GRPCInferenceServiceServicer_to_server", "add_HealthServicer_to_server", "app", "predict"]


def predict(dataset: Any, **named: Any) -> Any:
    """Predictions of a model for a data set of Ray Data, which needs `ray[data]`; see `tpy.ray.offline.predict`."""
    try:
        from tpy.ray import offline
    except ImportError as error:
        raise ImportError(f"tpy.ray.predict needs Ray Data: pip install 'ray[data]' ({error})") from error
    return offline.predict(dataset, **named)


def app(arguments: dict[str, Any]) -> Application:
    """Build the application; see `tpy.ray.arguments.Arguments` for the arguments."""
    return build(arguments)
