"""The sklearn backend: estimators of scikit-learn, and of what offers its methods, saved by skops, joblib or pickle.

A pickle runs code when it is loaded, so that files of joblib and pickle are refused unless the operator of the server allows them
(`--backend-config=sklearn,allow-pickle=true`); neither a model repository nor a client can. Files of skops need no switch: types
that skops does not trust are refused. Instances run in worker processes unless a configuration says otherwise.

The parts, in the order to read them: `files` (reads one, or refuses to), `estimator` (inputs and outputs of an estimator, and a
call), `backend`. scikit-learn is imported with the first model, not with the backend.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from tpy.backend import Backend, BackendSettings, Isolation
from tpy_data.backends.creation import Needs, importing

__all__ = ["create"]

NEEDS: Final = Needs("scikit-learn", ("scikit-learn",), extra="sklearn")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when scikit-learn is not installed, InvalidArgument for a bad setting."""
    with importing(NEEDS, name=settings.name):
        if find_spec("sklearn") is None:  # it is imported with the first model
            raise ImportError("No module named 'sklearn'")
        from tpy_backends.sklearn.estimator import sklearn_backend
    return sklearn_backend(settings)


create.default_isolation = Isolation.PROCESS  # type: ignore[attr-defined]
