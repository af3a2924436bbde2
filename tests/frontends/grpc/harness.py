"""A gRPC port on loopback over fake services, and threads for stock clients, which block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from tpy.clock import SystemClock
from tpy.frontends.grpc import GrpcFrontendOptions, GrpcServiceOptions, serve_grpc_services

from .fakes import FakeServices

T = TypeVar("T")


class RunningPort:
    """`url` for clients. `services` are what the test scripts."""

    def __init__(self, url: str, services: FakeServices, stop: trio.Event) -> None:
        self.url = url
        self.services = services
        self.stop = stop

    async def using(self, client: Callable[[str], T]) -> T:
        """Returns the result of `client(url)`, run in a thread."""
        return await trio.to_thread.run_sync(client, self.url)


@asynccontextmanager
async def running(service_options: GrpcServiceOptions | None = None, **options: object) -> AsyncIterator[RunningPort]:
    """Serve inside the block; stopped in good order at its end."""
    services = FakeServices()
    stop = trio.Event()
    chosen = {"services": service_options or GrpcServiceOptions(), **options}
    grpc_options = GrpcFrontendOptions(address="127.0.0.1", port=0, **chosen)  # type: ignore[arg-type]  # as they come
    async with trio.open_nursery() as nursery:
        serve = partial(serve_grpc_services, grpc_options, services, SystemClock(), stop=stop)
        address = await nursery.start(serve)
        try:
            yield RunningPort(f"{address.host}:{address.port}", services, stop)
        finally:
            stop.set()
            nursery.cancel_scope.deadline = trio.current_time() + 10
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end by itself"
