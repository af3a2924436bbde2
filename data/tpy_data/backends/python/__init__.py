"""The python backend: models that are a model.py with a class TritonPythonModel, and backends that are one.

Decides: which interpreter runs a model, how it is started, fed, watched and ended. Each instance is a separate process, so that
a crash, a leak or a held interpreter lock stays the model's (parameter TPY_PYTHON_ISOLATION "thread" runs it in the server
instead). Never does: import model code into the server (unless configured so), unpickle anything, use an event loop.

Read `backend.py`, then `instance/process_instance.py`, and `protocol/connection.py` and `environment/process.py` under it. The
folder `worker` is what runs in that process; it imports nothing of the server.
"""

from __future__ import annotations

from tpy.backend import Backend, BackendSettings


def create(settings: BackendSettings) -> Backend:
    """The entry point of group `tpy.backends`. Raises InvalidArgument for a bad `--backend-config` value."""
    from tpy_data.backends.python.backend import PythonBackend

    return PythonBackend(settings)


__all__ = ["create"]
