"""Large bodies: all of them together are bounded, and none keeps the loop while it arrives."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from tests.streams import StreamWire
from tpy import limits
from tpy.clock import SystemClock
from tpy.frontends.core.budget import ByteBudget
from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.parser import RequestParser
from tpy.frontends.http.serving import create_port
from tpy.frontends.transport import Ends

from .fakes import FakeServices
from .harness import INFER, Client, options, post, running

SIZE = 200_000
ROOM = 300_000
FULL = "the server holds as many bytes of request bodies as it may at the same time, try again later"


def large(path: str = INFER, size: int = SIZE) -> bytes:
    """A request that is refused when its body is read, whatever the route."""
    return post(path, json.dumps({"x": "y" * size}))


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_BODIES_BYTES_MAX", ROOM)


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("path", [INFER, "/v2/models/m/generate", "/v2/repository/models/m/load"])
async def test_bodies_of_all_clients_have_one_budget(path: str) -> None:
    async with running(FakeServices(), max_input_size=ROOM) as server:
        slow, quick = await server.connect(), await server.connect()
        alone = (await quick.ask(large(path))).status
        assert alone != 503
        for _ in range(3):
            request = large(INFER)
            await slow.send(request[:150_000])
            while (answer := await quick.ask(large(path))).status != 503:
                assert answer.status == alone  # the other's bytes are still on their way
            assert answer.error == FULL
            assert (await slow.ask(request[150_000:])).status == 400
            assert (await quick.ask(large(path))).status == alone


@pytest.mark.usefixtures("little_room")
async def test_a_client_that_leaves_gives_its_room_back() -> None:
    async with running(FakeServices(), max_input_size=ROOM) as server:
        quick = await server.connect()
        for _ in range(5):
            slow = await server.connect()
            await slow.send(large()[:150_000])
            while (await quick.ask(large())).status != 503:
                pass
            await trio.aclose_forcefully(slow.stream)
            while (await quick.ask(large())).status == 503:
                pass


def chunked(body: bytes) -> bytes:
    pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


@pytest.mark.parametrize("form", ["length", "chunks"])
@pytest.mark.parametrize("room", [0, 1, 99_999, SIZE - 1, SIZE, SIZE + 1])
def test_a_body_without_room_is_thrown_away(form: str, room: int) -> None:
    """Its connection goes on with the next request."""
    budget = ByteBudget(ROOM)
    budget.take(ROOM - room)
    parser = RequestParser(max_input_size=ROOM, bodies=budget)
    data = memoryview((post("/", b"x" * SIZE) if form == "length" else chunked(b"x" * SIZE)) + post("/next", b"y"))
    while data:
        if parser.bulk is None:
            taken = min(len(data), 70_000)
            if form == "length":
                taken = min(taken, 1_000 if not parser.complete else taken)
            parser.feed(bytes(data[:taken]))
        else:
            taken = min(len(parser.bulk), len(data), 100_000)
            parser.bulk[:taken] = data[:taken]
            parser.bulk_received(taken)
        data = data[taken:]
    first, second = parser.complete
    fits = room >= SIZE
    assert (first.refusal is None) == fits
    assert len(first.body) == (SIZE if fits else 0)
    assert (second.refusal, second.body) == (None, b"y")
    assert budget.held == ROOM - room + (SIZE if fits else 0)
    parser.drop()
    assert budget.held == ROOM - room


class _Watched(StreamWire):
    """A wire whose sender is as fast as its reader."""

    asked = 0

    async def receive(self, size_max: int) -> bytes:
        self.asked = max(self.asked, size_max)
        return await super().receive(size_max)


async def test_a_large_body_is_taken_from_the_socket_in_pieces() -> None:
    size = 4 * limits.HTTP_RECEIVE_BYTES_MAX
    client_side, server_side = trio.testing.memory_stream_pair()
    wire = _Watched(server_side)
    port = create_port(options(), FakeServices(), SystemClock())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Http1Connection(port, wire, Ends()).run)
        client = Client(client_side)
        assert (await client.ask(large(size=size))).status == 400
        await client_side.aclose()
    assert 0 < wire.asked <= limits.HTTP_RECEIVE_BYTES_MAX
    assert port.bodies.held == 0
