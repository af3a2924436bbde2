"""The metrics of tenants: those of the file, and `other`."""

from __future__ import annotations

from collections.abc import Iterable

from tpy.telemetry.exposition import MeasuredFamily, Sample
from tpy.telemetry.host import TENANT_FAMILIES
from tpy.units import NS_PER_S
from tpy_data.schedulers.core.tenants import Tenant

_ABOUT = {
    "requests_total": "Requests of a tenant that came in",
    "refusals_total": "Requests of a tenant that were refused, by the limit",
    "waiting_requests": "Requests of a tenant in the queues of models",
    "instance_seconds_total": "Time that model instances have worked for a tenant",
    "tokens_total": "Tokens for which a tenant had room in engines",
    "weight": "Share of a tenant",
}


def tenant_families(tenants: Iterable[Tenant]) -> list[MeasuredFamily]:
    """The families of the metrics page."""
    samples: dict[str, list[Sample]] = {what: [] for what in _ABOUT}
    for tenant in tenants:
        labels = {"tenant": tenant.name}
        samples["requests_total"].append(Sample(labels, tenant.requests))
        for limit, count in tenant.refused.items():
            samples["refusals_total"].append(Sample({**labels, "limit": limit.value}, count))
        samples["waiting_requests"].append(Sample(labels, tenant.waiting))
        samples["instance_seconds_total"].append(Sample(labels, tenant.instance_ns / NS_PER_S))
        samples["tokens_total"].append(Sample(labels, tenant.tokens))
        samples["weight"].append(Sample(labels, tenant.weight))
    return [
        MeasuredFamily(name=name, kind=kind, help=_ABOUT[what], samples=tuple(samples[what]))
        for name, kind in TENANT_FAMILIES.items()
        for what in [name.removeprefix("tpy_tenant_")]
    ]
