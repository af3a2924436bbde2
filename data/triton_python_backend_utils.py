"""`import triton_python_backend_utils` outside the server, as unit tests of a model.py do.

Inside a served model the server puts its own copy of the same module in front of this one.
"""

from tpy_data.backends.python.worker.pb_utils import *  # noqa: F403
