"""Runs the instances of any backend in worker processes: the meaning of `isolation` `process` for backends other than python.

The workers, their protocol and their instances are those of Python models (`tpy_data.backends.python`). In the worker,
`tpy_data.backends.python.worker.hosting` makes the backend and hosts one instance of it. The server's process never imports it.
"""

from tpy_data.backends.isolated.backend import IsolatedBackend

__all__ = ["IsolatedBackend"]
