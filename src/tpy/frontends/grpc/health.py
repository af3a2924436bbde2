"""gRPC's health checking protocol, for the server and for each model.

The service "" and every service that the port has are the server itself; `<model>` or `<model>/<version>` is a model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any, Final

import trio
from google.protobuf.message import Message

from tpy import limits
from tpy._proto import messages
from tpy.errors import InvalidArgument
from tpy.frontends.grpc.codec import parse_version
from tpy.services import Services

_SERVICE: Final = "/grpc.health.v1.Health/"
APIS: Final = {f"{_SERVICE}Check": "health", f"{_SERVICE}Watch": "health"}
"""The restricted protocol of each method."""

_Response = messages("health.proto").HealthCheckResponse
_SERVING: Final[int] = _Response.SERVING
_NOT_SERVING: Final[int] = _Response.NOT_SERVING
_UNKNOWN: Final[int] = _Response.SERVICE_UNKNOWN


class HealthService:
    """`own_services` are the full names of the services of the port. `stop` is set when the server stops."""

    def __init__(self, services: Services, own_services: Collection[str], stop: trio.Event) -> None:
        self._services = services
        self._stop = stop
        self._own_services = frozenset(own_services)

    async def check(self, message: Any) -> Message:
        """See Health.Check. A name that is neither a service nor a model means the server, as in Triton, which ignores names."""
        status = await self._status(message.service)
        if status == _UNKNOWN:
            status = _serving(self._services.repository.server_ready())
        return _Response(status=status)

    async def watch(self, message: Any) -> AsyncIterator[Message]:
        """See Health.Watch. Ends when the server stops, after it has told so."""
        shown: int | None = None
        seen = -1
        while not self._stop.is_set():
            seen = await self._wait_changed(seen)
            # A stopping server is not ready for what the watcher plans, even while it serves its open connections.
            status = _NOT_SERVING if self._stop.is_set() else await self._status(message.service)
            if status != shown:
                shown = status
                yield _Response(status=status)

    async def _wait_changed(self, seen: int) -> int:
        """Until readiness may have changed, or the server stops."""
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                await self._stop.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(leave)
            seen = await self._next_change(seen)
            nursery.cancel_scope.cancel()
        return seen

    async def _next_change(self, seen: int) -> int:
        readiness = self._services.readiness
        if readiness is not None:
            return await readiness.wait_changed(seen)
        if seen >= 0:
            await trio.sleep(limits.GRPC_HEALTH_POLL_S)
        return seen + 1

    async def _status(self, service: str) -> int:
        repository = self._services.repository
        if not service or service in self._own_services:
            return _serving(repository.server_ready())
        model, _, version = service.partition("/")
        try:
            number = parse_version(version)
        except InvalidArgument:
            return _UNKNOWN
        if await repository.model_ready(model, number):
            return _SERVING
        known = any(entry.name == model for entry in await repository.index())
        return _NOT_SERVING if known else _UNKNOWN


def _serving(ready: bool) -> int:
    return _SERVING if ready else _NOT_SERVING
