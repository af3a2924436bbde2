"""Tenants: who shares the server, what each of them may have, and what it has now. Time is an argument."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from typing import Protocol
from weakref import WeakSet

from tpy.errors import TooManyRequests
from tpy.limits.tenants import TENANT_WEIGHT_MAX
from tpy.tenants import OTHER, TenantRules, TenantsConfig
from tpy.token_bucket import TokenBucket
from tpy.units import NS_PER_S

_UNIT = 1000 * TENANT_WEIGHT_MAX
"""Virtual time of a nanosecond at weight 1, so large that weights divide it within a thousandth."""

Limits = tuple[float | None, int | None]


class Limit(enum.Enum):
    """The limits that refuse a request. The value is the metric's label."""

    CONCURRENCY = "concurrency"
    RATE = "rate"
    QUEUE_REQUESTS = "queue_requests"
    QUEUE_BYTES = "queue_bytes"
    QUEUE_SHARE = "queue_share"
    """Its part, by weight, of a queue that is full (max_queue_size)."""


class CountedLine(Protocol):
    """A tenant's tickets in one queue, as far as the tenant goes: the `TenantLine` of a FairQueue."""

    count: int


class Tenant:
    """One tenant in the whole server. Its rules may change; its counts only grow, but for `running`: requests whose number is
    limited. `unit` is the virtual time of a nanosecond, smaller for a larger weight. `instance_ns` is what instances have worked
    for it, `tokens` what it had room for in engines. `lines` are its tickets in the queues of models; `device_ns` is the part
    of `instance_ns` that was spent on models that share devices. `loading` are its requests that wait for models to be loaded,
    with `loading_bytes` of inputs."""

    __slots__ = (
        "_bucket",
        "_rate",
        "device_ns",
        "instance_ns",
        "lines",
        "loading",
        "loading_bytes",
        "name",
        "refused",
        "requests",
        "rules",
        "running",
        "shares_queues",
        "tokens",
        "unit",
        "weight",
    )

    def __init__(self, rules: TenantRules) -> None:
        self.name = rules.name
        self.requests = 0
        self.running = 0
        self.loading = 0
        self.loading_bytes = 0
        self.lines: WeakSet[CountedLine] = WeakSet()
        self.instance_ns = 0
        self.device_ns = 0
        self.tokens = 0
        self.refused = dict.fromkeys(Limit, 0)
        self._rate: Limits = (None, None)
        self._bucket: TokenBucket | None = None
        self.use(rules)

    def use(self, rules: TenantRules) -> None:
        """Go by these rules from now on. A rate that stays as it was goes on where it was: reading the file again does not fill
        the bucket."""
        self.rules = rules
        self.weight = rules.weight
        self.unit = _UNIT // rules.weight
        self.shares_queues = rules.queue_requests is not None or rules.queue_bytes is not None
        rate = rules.requests_per_s, rules.burst
        if rate != self._rate:
            self._rate = rate
            per_s, burst = rate
            size = burst if burst is not None else max(1, math.ceil(per_s or 1))
            self._bucket = None if per_s is None else TokenBucket(per_s=per_s, burst=size)

    @property
    def waiting(self) -> int:
        """Its requests in the queues of models, and its requests that wait for a model to be loaded."""
        return self.loading + sum([line.count for line in self.lines])

    @property
    def counts_running(self) -> bool:
        """True where `running` has a limit."""
        return self.rules.concurrency is not None

    def begin(self, now_ns: int) -> None:
        """A request comes. Raises TooManyRequests beyond the rate or the concurrency; where that has a limit, `end` is called
        for each that was begun."""
        rules = self.rules
        if rules.concurrency is not None and self.running >= rules.concurrency:
            raise self.refuse(
                Limit.CONCURRENCY, f"has {self.running} requests in the server, its concurrency is {rules.concurrency}"
            )
        if self._bucket is not None and (wait_ns := self._bucket.take(now_ns)):
            text = f"has sent more than its {rules.requests_per_s:g} requests a second"
            raise self.refuse(Limit.RATE, text, wait_s=math.ceil(wait_ns / NS_PER_S))
        self.requests += 1
        if rules.concurrency is not None:
            self.running += 1

    def end(self) -> None:
        """A request is over that counted in `running`."""
        self.running -= 1

    def refuse(self, limit: Limit, text: str, *, wait_s: int = 1) -> TooManyRequests:
        """The refusal of a request, counted; `text` goes on after the tenant's name."""
        self.refused[limit] += 1
        return TooManyRequests(f"tenant '{self.name}' {text}, try again later", wait_s=wait_s)


class Tenants:
    """The tenants of a file, and `other`, which has no limits and the weight 1.
    `is_rate_limited`: the server has a rate limiter."""

    def __init__(self, config: TenantsConfig) -> None:
        self.is_rate_limited = False
        self.other = Tenant(TenantRules(name=OTHER))
        self._known: dict[str, Tenant] = {}
        self.use(config)

    def use(self, config: TenantsConfig) -> None:
        """Go by this file from now on. Requests of a tenant that is not in it any more end as its."""
        self.ageing_ns = config.ageing_ns
        known = self._known
        self._known = {}
        for rules in config.tenants:
            tenant = known.get(rules.name)
            if tenant is None:
                tenant = Tenant(rules)
            else:
                tenant.use(rules)
            self._known[rules.name] = tenant
        self.weights = sum(tenant.weight for tenant in self)

    def of(self, name: str) -> Tenant:
        """The tenant of this name, `other` for a name that the file does not have."""
        return self._known.get(name, self.other)

    def share(self, tenant: Tenant, whole: int) -> int:
        """The tenant's part of a number of places or bytes, by weight; at least 1."""
        return max(1, whole * tenant.weight // self.weights)

    def __iter__(self) -> Iterator[Tenant]:
        yield from self._known.values()
        yield self.other


def tenants_of(rules: Iterable[TenantRules], *, ageing_s: float = 10.0) -> Tenants:
    """Tenants with these rules."""
    return Tenants(TenantsConfig(tenants=tuple(rules), priority_ageing_s=ageing_s))
