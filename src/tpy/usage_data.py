"""Libraries that send data about their use do not in the processes of this server, unless the environment says that they may.

ONNX Runtime from 1.29 on looks up its maker's host, and writes a device id and a database into the user's cache. It reads the
variable when it is loaded: so the variable is set before any backend or worker is there, and workers inherit it.
"""

from __future__ import annotations

import os

_VARIABLES = {"ORT_DISABLE_TELEMETRY": "1"}


def send_none() -> None:
    """Have libraries that this process, or a child of it, loads from now on send nothing. What the environment says stays."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
