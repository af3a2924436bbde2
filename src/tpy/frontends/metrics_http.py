"""The metrics port: Prometheus' text format or OpenMetrics at /metrics. Knows HTTP, not which metrics there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

import msgspec

from tpy.clock import Clock
from tpy.errors import InvalidArgument, InvariantViolation, TpyError
from tpy.flag import Value, read_values
from tpy.frontends.access import OBSERVE, gate_of, read_auth
from tpy.frontends.http.access import HeaderPolicy
from tpy.frontends.http.infer import unexpected_error_reply
from tpy.frontends.http.message import READING, HttpReply, HttpRequest, error_reply, refusal_reply
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.serving import serving
from tpy.frontends.tls_flags import read_tls
from tpy.services import Services

_PATHS = frozenset(("/metrics", "/metrics/"))
_ALLOWED = (("Allow", "GET, HEAD"),)
_METRICS_TYPE = "text/plain; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_TYPE = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"


def asks_for_openmetrics(accept: str) -> bool:
    """True for an Accept header that names OpenMetrics and does not prefer plain text. All others get what Triton gives."""
    weights = {_OPENMETRICS: 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        name, *parameters = (text.strip() for text in part.split(";"))
        if name in weights:
            weights[name] = max(weights[name], _weight(parameters))
    return weights[_OPENMETRICS] > 0 and weights[_OPENMETRICS] >= weights["text/plain"]


def _weight(parameters: Sequence[str]) -> float:
    """1 without a weight, 0 for an invalid one."""
    text = next((text[2:] for text in parameters if text.startswith("q=")), "1")
    try:
        return float(text) if len(text) < 8 else 0.0
    except ValueError:
        return 0.0


async def metrics_reply(render: Callable[..., Awaitable[bytes]], accept: str) -> HttpReply:
    """The page that `render` gives, in the form that an Accept header asks for. Raises what `render` raises."""
    openmetrics = asks_for_openmetrics(accept)
    text = await render(openmetrics=openmetrics)
    content_type = _OPENMETRICS_TYPE if openmetrics else _METRICS_TYPE
    return HttpReply(content_type=content_type, parts=(text,), content_length=len(text))


def metrics_port(options: HttpOptions, render: Callable[..., Awaitable[bytes]], clock: Clock) -> HttpPort:
    """A port that answers with what `render` (`MetricsService.page`) gives, called for each scrape.

    Other paths answer 200 without a body and other methods 405, as Triton's metrics port does.
    """
    gate = None if options.auth is None else gate_of(options.auth)
    policy = HeaderPolicy(restricted=(), forward_pattern="", gate=gate)

    async def answer(request: HttpRequest) -> HttpReply:
        if request.method not in READING:
            refusal = refusal_reply(HTTPStatus.METHOD_NOT_ALLOWED, "Method Not Allowed")
            return msgspec.structs.replace(refusal, headers=_ALLOWED)
        if request.path not in _PATHS:
            return HttpReply(content_type=_METRICS_TYPE)
        try:
            caller = policy.identify(request.fields)
            if caller is not None:
                caller.require(OBSERVE, None)
            return await metrics_reply(render, request.fields.get(b"accept", b"").decode("latin-1"))
        except TpyError as error:
            return error_reply(error)
        except Exception:
            return unexpected_error_reply(request.path)

    return HttpPort(options=options, endpoint=None, answer=answer, clock=clock, name="metrics", stop_idle_s=0)


# The implementation of the frontend in the table

Options = HttpOptions


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    http_address: str
    metrics_address: str
    metrics_port: int


def read_options(values: Mapping[str, Value]) -> HttpOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    if not v.metrics_address and v.http_address.startswith("unix:"):
        raise InvalidArgument(
            "--metrics-address: expected an address, as HTTP has one Unix socket for itself (or --allow-metrics=false)"
        )
    return HttpOptions(
        address=v.metrics_address or v.http_address,
        port=v.metrics_port,
        tls=read_tls(values, "metrics"),
        auth=read_auth(values),
        drain_timeout_s=1.0,
    )


def _create_port(options: HttpOptions, services: Services, clock: Clock) -> HttpPort:
    if services.metrics is None:
        raise InvariantViolation("the metrics port has no metrics")
    return metrics_port(options, services.metrics.page, clock)


serve = serving(_create_port)
"""Serves the metrics page of `services`."""
