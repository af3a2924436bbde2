"""The TorchServe frontend's entry in the table."""

from __future__ import annotations

from tpy.flag import PORT_MAX, new_flag
from tpy.frontends.table import Frontend

_FLAGS = (
    new_flag("TorchServe", "allow-torchserve", False, "Serve TorchServe's protocol, at the address of HTTP."),
    new_flag("TorchServe", "torchserve-port", 8080, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
)

FRONTEND = Frontend(
    name="TorchServe",
    service="TorchServe HTTPService",
    module="tpy_platforms.torchserve.frontend",
    switch="allow-torchserve",
    flags=_FLAGS,
    checks_access=True,
)
