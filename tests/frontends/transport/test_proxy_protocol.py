"""Connections that a balancer makes: whose they are, and what becomes of those that do not say so in time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
import trio.testing

from tpy.clock import SystemClock
from tpy.frontends.transport import GONE, Ends, ListenOptions, Port, Wire, serve_port
from tpy.limits import TLS_HANDSHAKE_S_MAX

LINE = b"PROXY TCP6 2001:db8::7 ::1 50001 8000\r\n"


@contextlib.asynccontextmanager
async def serving(seen: list[str]) -> AsyncIterator[int]:
    """A port whose connections note whose they are, and end."""

    async def serve(wire: Wire, ends: Ends) -> None:
        seen.append(str(ends.client))
        await wire.send_some([b"hello"])
        await wire.aclose()

    port = Port(ListenOptions(address="127.0.0.1", proxy_protocol=True), SystemClock(), name="HTTP")
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(serve_port, port, serve, stop=stop))
        yield address.port
        stop.set()


async def rest_of(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some())
    except GONE:
        return b""


async def test_a_connection_is_that_of_the_header() -> None:
    seen: list[str] = []
    async with serving(seen) as port:
        for pieces in ([LINE], [LINE[:3], LINE[3:20], LINE[20:]]):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            for piece in pieces:
                await stream.send_all(piece)
            assert await rest_of(stream) == b"hello"
            await stream.aclose()
    assert seen == ["[2001:db8::7]:50001"] * 2


@pytest.mark.parametrize("said", [b"", b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n\x21"])
async def test_who_does_not_say_it_in_time_is_left(said: bytes, mock_clock: trio.testing.MockClock) -> None:
    seen: list[str] = []
    async with serving(seen) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(said or b"P")
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(TLS_HANDSHAKE_S_MAX + 1)
        assert await rest_of(stream) == b""
        await stream.aclose()
    assert not seen


async def test_who_says_nothing_does_not_hold_the_shutdown(mock_clock: trio.testing.MockClock) -> None:
    seen: list[str] = []
    with trio.move_on_after(TLS_HANDSHAKE_S_MAX - 1) as waited:
        mock_clock.autojump_threshold = 0.02
        async with serving(seen) as port:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await trio.testing.wait_all_tasks_blocked(0.01)
    await stream.aclose()
    assert not waited.cancelled_caught
