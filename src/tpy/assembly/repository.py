"""The repository service of the whole server: the control plane's, and from the data plane whether models say that they are
ready."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.errors import NotFound, TpyError
from tpy.messages import IndexEntry, LoadRequest
from tpy_control import ControlPlane
from tpy_data.engine import DataPlane


class Repository:
    """Implements tpy.services.RepositoryService."""

    def __init__(self, control: ControlPlane, data: DataPlane) -> None:
        self._control = control
        self._data = data

    def server_live(self) -> bool:
        """See RepositoryService."""
        return self._control.server_live()

    def server_ready(self) -> bool:
        """See RepositoryService. Models are not asked: this may be called often, and must not wait."""
        return self._control.server_ready()

    async def model_ready(self, model_name: str, version: int | None = None) -> bool:
        """See RepositoryService. Served, and ready in its own opinion where it has one."""
        try:
            model_name, version = self._data.inference.of_alias(model_name, version) or (model_name, version)
        except NotFound:
            return False
        if not await self._control.model_ready(model_name, version):
            return False
        try:
            return await self._data.check_ready(model_name, version)
        except TpyError:  # it went away in this moment
            return False

    async def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """See RepositoryService."""
        return self._control.index(ready_only=ready_only)

    async def load(self, request: LoadRequest) -> None:
        """See RepositoryService."""
        await self._control.load(request)

    async def unload(self, model_name: str, *, unload_dependents: bool = False) -> None:
        """See RepositoryService."""
        await self._control.unload(model_name, unload_dependents=unload_dependents)
