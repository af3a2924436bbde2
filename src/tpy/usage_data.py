"""Libraries that send data about their use do not in the processes of this server, unless --allow-usage-data or the environment
says that they may.

ONNX Runtime from 1.29 on looks up its maker's host, and writes a device id and a database into the user's cache. It reads the
variable when it is loaded: so the variable is set before any backend or worker is there, and workers inherit it.
"""

from __future__ import annotations

import os

_VARIABLES = ("ORT_DISABLE_TELEMETRY",)


def send_none() -> None:
    """Have libraries that this process, or a child of it, loads from now on send nothing. What the environment says stays."""
    for name in _VARIABLES:
        os.environ.setdefault(name, "1")


def allow() -> None:
    """Have libraries that are loaded from now on send what they send elsewhere."""
    for name in _VARIABLES:
        os.environ[name] = "0"
