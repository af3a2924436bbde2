"""`endpoint-load-metrics`: the load of the server beside an answer, for load balancers that ask for it (ORCA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tpy.errors import TpyError
from tpy.messages import LoadReport
from tpy.services import Services

ASKED_BY: Final = b"endpoint-load-metrics-format"
"""The header of a request that asks for it: `text` or `json`. Any other value is ignored, as by Triton."""

NAME: Final = "endpoint-load-metrics"

Headers = tuple[tuple[str, str], ...]


def load_text(report: LoadReport, form: str) -> str:
    """The report in the form `text` or `json`, by the names of xds.data.orca.v3.OrcaLoadReport."""
    if form == "json":
        numbers: dict[str, object] = dict(report.numbers)
        return "JSON " + msgspec.json.encode({**numbers, "named_metrics": report.named}).decode()
    fields = {**report.numbers, **{f"named_metrics.{name}": value for name, value in report.named.items()}}
    return "TEXT " + ", ".join(f"{name}={value:.10g}" for name, value in fields.items())


async def load_fields(services: Services, form: str, model: str, version: int | None) -> Headers:
    """The field of an answer of this model ("" for none) to a request that asks for the form; nothing for another form, and
    where nothing can be said."""
    form = form.strip().lower()
    if form not in ("text", "json") or services.metrics is None:
        return ()
    try:
        return ((NAME, load_text(await services.metrics.load(model, version), form)),)
    except TpyError:  # a balancer's question does not cost the client its answer
        return ()


async def with_load(
    headers: Headers, asked: Mapping[bytes, bytes], services: Services, model: str, version: int | None = None
) -> Headers:
    """The headers of an answer over HTTP, with the load where the request, whose fields are `asked`, wants it. Once: routes of
    platforms are handed on to others."""
    form = asked.get(ASKED_BY)
    if form is None or any(name == NAME for name, _ in headers):
        return headers
    return (*headers, *await load_fields(services, form.decode("latin-1"), model, version))
