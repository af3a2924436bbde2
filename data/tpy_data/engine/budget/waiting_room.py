"""The requests of all models that wait for a load: how many there may be, and of which tenants."""

from __future__ import annotations

from typing import NamedTuple

from tpy.errors import QueueFull
from tpy.limits import ON_DEMAND_WAITING_BYTES_MAX, ON_DEMAND_WAITING_MAX
from tpy_data.schedulers.core.tenants import Limit, Tenant, Tenants


class WaitingPlace(NamedTuple):
    """The place of one request, until it leaves."""

    bytes: int
    tenant: Tenant | None


class WaitingRoom:
    """Room for requests, and for their bytes. The first request may have any number of bytes. With `tenants` a full room refuses
    a tenant that has its share, by weight, and takes requests of the others: at most twice as many are there then."""

    def __init__(
        self,
        requests_max: int = ON_DEMAND_WAITING_MAX,
        bytes_max: int = ON_DEMAND_WAITING_BYTES_MAX,
        tenants: Tenants | None = None,
    ) -> None:
        self.requests = 0
        self.bytes = 0
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._tenants = tenants

    def enter(self, size_bytes: int, tenant_name: str) -> WaitingPlace:
        """One more request. Raises QueueFull where that is too much, TooManyRequests where it is too much of its tenant."""
        tenant = None if self._tenants is None else self._tenants.of(tenant_name)
        if self.requests >= self._requests_max:
            if tenant is None:
                raise QueueFull(f"{self.requests} requests wait for models that are being loaded, which is the maximum")
            self._check_share_of_requests(tenant)
        if self.requests and self.bytes + size_bytes > self._bytes_max:
            if tenant is None:
                raise QueueFull(
                    f"requests with {self.bytes} bytes wait for models that are being loaded, and this one has {size_bytes}: no "
                    f"more than {self._bytes_max} may"
                )
            self._check_share_of_bytes(tenant, size_bytes)
        place = WaitingPlace(size_bytes, tenant)
        self._count(place, 1)
        return place

    def leave(self, place: WaitingPlace) -> None:
        """The request does not wait any more."""
        self._count(place, -1)

    def _count(self, place: WaitingPlace, sign: int) -> None:
        self.requests += sign
        self.bytes += sign * place.bytes
        if place.tenant is not None:
            place.tenant.loading += sign
            place.tenant.loading_bytes += sign * place.bytes

    def _share(self, tenant: Tenant, whole: int) -> int:
        assert self._tenants is not None
        return self._tenants.share(tenant, whole)

    def _check_share_of_requests(self, tenant: Tenant) -> None:
        share = self._share(tenant, self._requests_max)
        if tenant.loading >= share:
            raise tenant.refuse(
                Limit.QUEUE_SHARE,
                f"has {tenant.loading} requests that wait for models that are being loaded, of which there are {self.requests} "
                f"in all: its share of {self._requests_max} is {share}",
            )

    def _check_share_of_bytes(self, tenant: Tenant, size_bytes: int) -> None:
        share = self._share(tenant, self._bytes_max)
        if tenant.loading and tenant.loading_bytes + size_bytes > share:
            raise tenant.refuse(
                Limit.QUEUE_SHARE,
                f"has requests with {tenant.loading_bytes} bytes that wait for models that are being loaded, and this one has "
                f"{size_bytes}: its share of {self._bytes_max} is {share}",
            )
