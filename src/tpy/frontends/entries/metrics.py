"""The metrics port's entry in the table. The flags that say which metrics there are belong to the server."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from tpy.errors import InvalidArgument, InvariantViolation
from tpy.flag import PORT_MAX, Flag, Value, new_flag, read_values

if TYPE_CHECKING:
    from tpy.clock import Clock
    from tpy.frontends.http import HttpOptions
    from tpy.frontends.transport import BoundAddress
    from tpy.services import Services

_FLAGS: tuple[Flag, ...] = (
    new_flag("Metrics", "allow-metrics", True, "Serve Prometheus metrics."),
    new_flag("Metrics", "metrics-address", "", "Address to listen on; empty means that of HTTP.", metavar="ADDRESS"),
    new_flag("Metrics", "metrics-port", 8002, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
)


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    allow_metrics: bool
    http_address: str
    metrics_address: str
    metrics_port: int


class MetricsFrontend:
    """See `tpy.frontends.table.Frontend`."""

    name = "metrics"
    service = "Metrics Service"
    flags = _FLAGS
    engine_only = True

    @property
    def options_type(self) -> type[HttpOptions]:
        from tpy.frontends.http import HttpOptions

        return HttpOptions

    def options(self, values: Mapping[str, Value]) -> HttpOptions | None:
        from tpy.frontends.http import HttpOptions

        v = read_values(values, _Values)
        if not v.allow_metrics:
            return None
        if not v.metrics_address and v.http_address.startswith("unix:"):
            raise InvalidArgument(
                "--metrics-address: expected an address, as HTTP has one Unix socket for itself (or --allow-metrics=false)"
            )
        return HttpOptions(address=v.metrics_address or v.http_address, port=v.metrics_port, drain_timeout_s=1.0)

    async def serve(
        self,
        options: HttpOptions,
        services: Services,
        clock: Clock,
        *,
        stop: trio.Event,
        inherited: Sequence[socket.socket] = (),
        task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        from tpy.frontends.metrics_http import serve_metrics

        if services.metrics is None:
            raise InvariantViolation("the metrics port has no metrics")
        page = services.metrics.page
        await serve_metrics(options, page, clock, stop=stop, inherited=inherited, task_status=task_status)


FRONTEND = MetricsFrontend()
