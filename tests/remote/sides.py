"""Both sides in one loop, over an in-memory stream, with services that a test scripts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import trio
import trio.testing

from tests.frontends.http.fakes import FakeInference, FakeServices
from tests.streams import SendingStream
from tpy.limits.remote import REMOTE_ARENA_BYTES, REMOTE_RECEIVE_BYTES
from tpy.messages import DataType, IndexEntry, InferenceRequest, InferenceResponse, ModelState, Tensor
from tpy.remote import EngineLink, open_engine, remote_services
from tpy.remote.core.messages import FROM_FRONTEND
from tpy.remote.engine_side import FrontendSession, run_session
from tpy.remote.link import Link
from tpy.remote.memory import create_memory
from tpy.remote.publisher import Publisher
from tpy.services import Services


class LinkStream(SendingStream):
    """A wire of a link."""

    async def receive(self) -> bytes:
        return bytes(await self.stream.receive_some(REMOTE_RECEIVE_BYTES))


class Sides:
    """Both sides for a test: the engine's services, the session, the frontend's engine and services."""

    def __init__(self, fakes: FakeServices, session: FrontendSession, engine: EngineLink, publisher: Publisher) -> None:
        self.fakes = fakes
        self.session = session
        self.engine = engine
        self.publisher = publisher
        self.services: Services = remote_services(engine)


class Sink:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[InferenceResponse] = []
        self.final = trio.Event()

    def deliver(self, response: InferenceResponse) -> None:
        self.got.append(response)
        if response.final:
            self.final.set()


@asynccontextmanager
async def both_sides(fakes: FakeServices | None = None) -> AsyncIterator[Sides]:
    """A frontend process's connection to an engine with `fakes`."""
    fakes = fakes or FakeServices()
    names = {*fakes.inference.models} if isinstance(fakes.inference, FakeInference) else set()
    others = names.difference(row.name for row in fakes.repository.rows)
    fakes.repository.rows += [IndexEntry(name=name, version=1, state=ModelState.READY) for name in others]
    fakes.repository.rows.sort(key=lambda row: row.name)
    publisher = Publisher(fakes)
    await publisher.refresh()
    near, far = trio.testing.memory_stream_pair()
    memories = create_memory(REMOTE_ARENA_BYTES), create_memory(REMOTE_ARENA_BYTES)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run)
            link = Link(LinkStream(near), FROM_FRONTEND)
            session = await nursery.start(partial(run_session, link, fakes, publisher, options=b"options", memories=memories))
            async with open_engine(LinkStream(far), own=memories[1], peer=memories[0]) as engine:
                yield Sides(fakes, session, engine, publisher)
            await far.aclose()
            await session.over.wait()
            nursery.cancel_scope.cancel()
    finally:
        for descriptor in memories:
            os.close(descriptor)


def request(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], name: str = "m") -> InferenceRequest:
    """A request with one input."""
    return InferenceRequest(model_name=name, id="r", inputs=(Tensor("INPUT0", DataType.FP32, array),))
