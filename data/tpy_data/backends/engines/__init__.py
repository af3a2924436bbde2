"""Serves what implements `tpy.backend.EngineBackend` as a backend of decoupled models, in a thread or a worker process.

`loop` adds, steps, cancels and answers; `instance` is the thread around it, and who watches that; `backend` completes
configurations and loads; `metrics` tells what is done. What requests ask for is in `tpy_data.generation`; which requests an
engine is given is decided by the scheduler (`tpy_data.schedulers.core.engine_core`).
"""

from tpy_data.backends.engines.backend import ServedEngines

__all__ = ["ServedEngines"]
