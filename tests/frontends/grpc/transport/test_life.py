"""The life of a connection, in virtual time: set-up, keepalive, old age, the stop of the server."""

from __future__ import annotations

import pytest
import trio

from tests.streams import StreamWire
from tpy.frontends.grpc.transport import StreamHandler, UnaryHandler
from tpy.frontends.grpc.transport.connection import run_connection
from tpy.frontends.grpc.transport.port import GrpcPort
from tpy.frontends.transport import Ends
from tpy.testing.trio_clock import TrioClock

from .harness import PATH, Client, Held, echo, echo_stream, in_memory, options

ECHO = {PATH: UnaryHandler(echo)}


def codes(client: Client) -> list[int]:
    return [goaway.error_code for goaway in client.goaways]


# Set-up


async def test_a_silent_client(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ECHO, greeted=False) as served:
        await served.ended.wait()
        assert 20 <= trio.current_time() < 23


async def test_a_client_that_never_acknowledges_settings(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ECHO, greeted=False) as served:
        await served.client.stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        served.client.h2.data_to_send()
        served.client.flush = trio.lowlevel.checkpoint  # type: ignore[method-assign]  # says nothing any more
        while not served.client.goaways:
            await served.client.read()
        assert codes(served.client) == [4]
        assert trio.current_time() == pytest.approx(20)


async def test_a_client_that_does_not_speak_http2(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ECHO, greeted=False) as served:
        await served.client.stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        served.client.h2.data_to_send()
        data = b""
        while piece := await served.client.stream.receive_some(65536):
            data += piece
        assert data.endswith(b"the client does not begin as HTTP/2 does")


# Keepalive


async def test_a_client_that_answers_pings_lives(autojump_clock: trio.testing.MockClock) -> None:
    held = Held()
    handlers = {PATH: UnaryHandler(held)}
    async with in_memory(handlers, keepalive_time_s=10, keepalive_timeout_s=5, http2_max_pings_without_data=0) as served:
        client = served.client
        stream_id = await client.ask(b"x")
        with trio.move_on_after(100):
            await client.answer(stream_id)
        assert client.pings == 9
        held.calls[0].reply((b"y",))
        assert (await client.answer(stream_id)).messages == [b"y"]


async def test_a_client_that_is_gone_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}, keepalive_time_s=10, keepalive_timeout_s=5) as served:
        await served.client.ask(b"x")
        began = trio.current_time()
        await trio.sleep(14.9)
        assert held.cancelled == []
        await trio.sleep(0.2)
        assert held.cancelled == [0]
        await served.ended.wait()
        assert trio.current_time() - began < 18


@pytest.mark.parametrize(("permitted", "pings"), [(False, 0), (True, 2)])
async def test_idle_connections_are_pinged_if_permitted(
    permitted: bool, pings: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with in_memory(ECHO, keepalive_time_s=10, keepalive_timeout_s=5, keepalive_permit_without_calls=permitted) as served:
        with trio.move_on_after(100):
            await served.client.read_to_end()
        assert served.client.pings == pings  # two, because nothing else was sent in between
        assert (await served.client.call(b"x")).status == 0


async def test_a_client_that_pings_too_often(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ECHO) as served:
        client = served.client
        for _ in range(4):
            client.h2.ping(b"12345678")
        await client.flush()
        await client.read_to_end()
        assert [(goaway.error_code, goaway.additional_data) for goaway in client.goaways] == [(11, b"too_many_pings")]


# Old age


async def test_an_old_connection_is_asked_to_end(autojump_clock: trio.testing.MockClock) -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}, max_connection_age_s=60) as served:
        client = served.client
        stream_id = await client.ask(b"x")
        while not client.goaways:
            await client.read()
        assert trio.current_time() == pytest.approx(60, abs=0.1)
        await trio.sleep(1000)
        held.calls[0].reply((b"y",))
        assert (await client.answer(stream_id)).messages == [b"y"]
        await client.read_to_end()
        assert codes(client) == [0, 0]
        await served.ended.wait()


async def test_the_grace_of_an_old_connection_ends(autojump_clock: trio.testing.MockClock) -> None:
    held = Held()
    handlers = {PATH: UnaryHandler(held)}
    async with in_memory(handlers, max_connection_age_s=60, max_connection_age_grace_s=10) as served:
        stream_id = await served.client.ask(b"x")
        reply = await served.client.answer(stream_id)
        assert trio.current_time() == pytest.approx(70, abs=0.1)
        assert (reply.status, reply.text) == (14, "the server closes the connection")
        assert held.cancelled == [0]
        await served.client.read_to_end()
        await served.ended.wait()


# The stop


async def test_an_idle_connection_ends_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ECHO) as served:
        served.port.begin_drain()
        await served.client.read_to_end()
        assert codes(served.client) == [0, 0]
        assert trio.current_time() < 0.1


async def test_a_client_that_does_not_answer_holds_up_the_stop_only_briefly(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ECHO) as served:
        served.port.begin_drain()
        await served.ended.wait()
        assert trio.current_time() < 2.5


async def test_calls_in_flight_are_finished_and_new_ones_refused(autojump_clock: trio.testing.MockClock) -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held), "/s": StreamHandler(echo_stream)}) as served:
        client = served.client
        unary = await client.ask(b"x")
        stream = await client.begin("/s")
        raced = client.h2.get_next_available_stream_id()
        served.port.begin_drain()
        assert await client.begin("/s") == raced  # sent before the client could know
        while len(client.goaways) < 2:
            await client.read()
        assert [goaway.last_stream_id for goaway in client.goaways] == [2**31 - 1, raced]
        for stream_id in (stream, raced):
            await client.send(stream_id, b"\0\0\0\0\1z", end=True)
            assert (await client.answer(stream_id)).messages == [b"z"]
        assert not served.ended.is_set()
        held.calls[0].reply((b"done",))
        assert (await client.answer(unary)).messages == [b"done"]
        await client.read_to_end()
        assert trio.current_time() < 0.1


async def test_a_connection_that_is_set_up_while_the_server_stops(autojump_clock: trio.testing.MockClock) -> None:
    port = GrpcPort(options(), ECHO, TrioClock(autojump_clock))
    port.begin_drain()
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_connection, port, StreamWire(theirs), Ends())
        client = Client(ours)
        await client.flush()
        await client.read_to_end()
    assert len(client.goaways) == 2
