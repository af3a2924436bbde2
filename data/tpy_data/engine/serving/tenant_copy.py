"""TenantCopy: a copy of a version that lets requests in by the limits of their tenants."""

from __future__ import annotations

from typing import Any

from tpy.errors import TooManyRequests
from tpy.messages import InferenceRequest, InferenceResponse
from tpy.services import ResponseSink
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.requests.observed_request import RelayedRequest
from tpy_data.engine.serving.served_copy import ServedCopy
from tpy_data.schedulers.core.tenants import Tenant, Tenants


class TenantCopy(ServedCopy):
    """See the module. What requests cause, the steps of ensembles and what models ask, is not limited."""

    __slots__ = ("_tenants",)

    def __init__(self, *args: Any, tenants: Tenants, **options: Any) -> None:
        """The arguments are ServedCopy's."""
        super().__init__(*args, **options)
        self._tenants = tenants

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`. Raises TooManyRequests beyond a limit of the tenant."""
        if request.is_call:
            return super().submit(request, sink)
        tenant = self._tenants.of(request.tenant)
        try:
            tenant.begin(self._clock.now_ns())
        except TooManyRequests as refusal:
            self.engine.statistics.refused_admission(refusal)
            raise
        if not tenant.counts_running:
            return super().submit(request, sink)
        limited = LimitedRequest(sink, tenant)
        try:
            handle = super().submit(request, limited)
        except BaseException:
            limited.end()
            raise
        limited.begun(handle)
        return limited


class LimitedRequest(RelayedRequest):
    """A request that counts in its tenant's `running` until it is over."""

    __slots__ = ("_tenant",)

    def __init__(self, sink: ResponseSink, tenant: Tenant) -> None:
        super().__init__(sink)
        self._tenant = tenant

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        if response.final:
            self.end()
        super().deliver(response)

    def cancel(self) -> None:
        """See EngineHandle."""
        super().cancel()
        self.end()

    def end(self) -> None:
        """It counts no more. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._tenant.end()
