"""The management port's entry in the table."""

from __future__ import annotations

from tpy.flag import new_flag
from tpy.frontends.table import Frontend
from tpy.frontends.tls_flags import tls_flags

_FLAGS = (
    new_flag(
        "Management",
        "management-address",
        "",
        "Address of a further HTTP port with the whole API and the page for browsers (/page); load, unload, index, trace and log "
        "settings are served there only.",
        metavar="HOST:PORT|unix:PATH",
    ),
    *tls_flags("Management", "management"),
)

FRONTEND = Frontend(
    name="management",
    service="Management HTTPService",
    module="tpy.frontends.management",
    engine_only=True,  # few calls, also for the log; to be answered while frontend processes have much to do
    flags=_FLAGS,
    checks_access=True,
)
