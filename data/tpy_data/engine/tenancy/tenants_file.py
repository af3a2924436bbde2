"""TenantsFile: the tenants of --tenants-file, as it is now."""

from __future__ import annotations

import logging

import trio

from tpy.errors import InvalidArgument
from tpy.limits.tenants import TENANTS_FILE_LOOK_S
from tpy.reloading import reloaded
from tpy.tenants import fingerprint, read_tenants
from tpy_data.schedulers.core.tenants import Tenants

_log = logging.getLogger(__name__)


class TenantsFile:
    """See the module. Raises InvalidArgument for a file that cannot be used. Blocks."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = fingerprint(path)
        self.tenants = Tenants(read_tenants(path))

    async def run(self) -> None:
        """Read the file again when it has changed, and with all others. Runs until cancelled."""
        with reloaded(self._reload):
            while True:
                await trio.sleep(TENANTS_FILE_LOOK_S)
                # In a thread: the file may be on a network's file system that hangs.
                seen = await trio.to_thread.run_sync(fingerprint, self._path, abandon_on_cancel=True)
                if seen == self._seen:
                    continue
                try:
                    self._reload()
                except InvalidArgument as error:
                    _log.error("tenants not read again, what was there stays in use: %(reason)s", {"reason": error.message})
                else:
                    _log.info("tenants read again: '%(file)s' has changed", {"file": self._path})

    def _reload(self) -> None:
        """Raises InvalidArgument, and what was read before stays in use."""
        self._seen = fingerprint(self._path)
        self.tenants.use(read_tenants(self._path))
