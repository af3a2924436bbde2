"""Tenancy: the tenants of --tenants-file in the engine, as the file is now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import trio

from tpy.backend import ExecutionRequest
from tpy.limits.tenants import TENANTS_FILE_LOOK_S
from tpy.reloading import reload, reloaded
from tpy.telemetry.exposition import MeasuredFamily
from tpy.tenants import TenantsConfig, fingerprint, read_tenants
from tpy_data.engine.serving.tenant_copy import TenantCopy
from tpy_data.engine.tenancy.metrics import tenant_families
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.tenants import Tenants


class Tenancy:
    """See the module. `check` raises InvalidArgument for what the ports would not take, such as a key that nobody has: then
    nothing changes here, either. Raises InvalidArgument for a file that cannot be used. Blocks."""

    def __init__(self, path: str, check: Callable[[TenantsConfig], None] = lambda config: None) -> None:
        self._path = path
        self._check = check
        self._seen = fingerprint(path)
        self.tenants = Tenants(self._read())

    def make_copy(self, *args: Any, **options: Any) -> TenantCopy:
        """A copy of a version, for these tenants. The arguments are ServedCopy's."""
        return TenantCopy(*args, tenants=self.tenants, **options)

    def tenant_of(self, requests: Sequence[ExecutionRequest]) -> str:
        """The name of the tenant of all these requests; "" where they have several, or a sequence model executes them."""
        names = {ticket.tenant.name if hasattr(ticket, "tenant") else "" for ticket in cast("Sequence[Ticket]", requests)}
        return names.pop() if len(names) == 1 else ""

    def families(self) -> Sequence[MeasuredFamily]:
        """The metrics of tenants."""
        return tenant_families(self.tenants)

    async def run(self) -> None:
        """Read the file again with all others, and all of them when it has changed: the ports have read it, too, here and in
        frontend processes. Runs until cancelled."""
        with reloaded(self._reload):
            while True:
                await trio.sleep(TENANTS_FILE_LOOK_S)
                # In a thread: the file may be on a network's file system that hangs.
                seen = await trio.to_thread.run_sync(fingerprint, self._path, abandon_on_cancel=True)
                if seen != self._seen:
                    reload("a change of --tenants-file")

    def _reload(self) -> None:
        """Raises InvalidArgument, and what was read before stays in use."""
        self._seen = fingerprint(self._path)
        self.tenants.use(self._read())

    def _read(self) -> TenantsConfig:
        config = read_tenants(self._path)
        self._check(config)
        return config
