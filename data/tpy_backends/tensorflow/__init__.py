"""The tensorflow backend: SavedModels and frozen graphs, in sessions.

The parts, in the order to read them: `settings` (parameters), `files` (what a SavedModel says without being loaded), `graph` (a
model loaded into a session), `program` (a run), `model` and `backend`. What does not depend on TensorFlow is in the
modules beside this package: `signature`, `completion`, `validation`, `named_tensors`.

A model is loaded by its MetaGraph and one of its signatures, into a session: the objects that a SavedModel may hold besides,
which `tf.saved_model.load` restores, are not needed to serve it, and those of real models often fit no other version of
TensorFlow.

`tensorflow` is imported by `backend` and what that imports, when the first model names this backend.
"""

from __future__ import annotations

import os
from typing import Final

from tpy.backend import Backend, BackendSettings
from tpy_data.backends.creation import Needs, importing

__all__ = ["create"]

NEEDS: Final = Needs("TensorFlow", ("tensorflow-cpu", "tensorflow"), extra="tensorflow")


def create(settings: BackendSettings) -> Backend:
    """The entry point. Raises Unavailable when TensorFlow is not installed, InvalidArgument for a bad setting."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors; its native code reads both once
    os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")  # else all sessions have the threads of the first
    with importing(NEEDS, name=settings.name):
        from tpy_backends.tensorflow.model import tensorflow_backend
    return tensorflow_backend(settings)
