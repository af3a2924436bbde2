"""Deadlines of a connection, in virtual time on in-memory streams, and slow readers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
import trio
import trio.testing

from tests.streams import StreamWire
from tpy.clock import SystemClock
from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.message import HttpReply
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.replies import ReplyQueue
from tpy.frontends.http.serving import create_port
from tpy.frontends.transport import Ends

from .fakes import FakeServices
from .harness import INFER, get, in_memory, infer, options, running


async def test_a_slow_head_is_refused_however_steadily_it_drips(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(FakeServices(), header_timeout_s=10) as client:
        began = trio.current_time()
        with contextlib.suppress(trio.BrokenResourceError):  # closed in our face
            for byte in get("/v2/health/live", "X: " + "a" * 100)[:-1]:
                await client.send(bytes([byte]))
                await trio.sleep(0.5)
        answer = await client.answer()
        assert answer.status == 408
        assert 10 <= trio.current_time() - began < 20


async def test_a_stalled_head_is_refused_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(FakeServices(), header_timeout_s=10, keep_alive_timeout_s=100) as client:
        assert (await client.ask(get("/v2/health/live"))).status == 200
        await trio.sleep(50)
        began = trio.current_time()
        await client.send(b"GET /v2/hea")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert trio.current_time() - began == pytest.approx(10)


@pytest.mark.parametrize("sent", [5, 0], ids=["head", "idle"])
async def test_a_machine_that_stood_still_is_not_the_clients_fault(sent: int, autojump_clock: trio.testing.MockClock) -> None:
    request = get("/v2/health/live")
    async with in_memory(FakeServices(), header_timeout_s=10, keep_alive_timeout_s=10) as client:
        assert (await client.ask(request)).status == 200
        await client.send(request[:sent])
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(40)
        await trio.sleep(0.5)
        await client.send(request[sent:])
        assert (await client.answer()).status == 200
        began = trio.current_time()
        await client.send(request[:sent])
        assert sent == 0 or (await client.answer()).status == 408
        await client.expect_end()
        assert trio.current_time() - began == pytest.approx(10, abs=3), "one that stops by itself has its time, and no more"


async def test_a_slow_body_has_the_time_that_its_bytes_need(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(FakeServices(), body_timeout_s=10, body_bytes_per_s_min=100) as client:
        began = trio.current_time()
        await client.send(f"POST {INFER} HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n".encode())
        for _ in range(20):
            await client.send(b"x" * 200)
            await trio.sleep(1)
        assert (await client.answer()).status == 408
        assert trio.current_time() - began == pytest.approx(10 + 4000 / 100)


async def test_an_idle_connection_is_closed_and_a_used_one_is_not(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(FakeServices(), keep_alive_timeout_s=60) as client:
        for _ in range(5):
            await trio.sleep(50)
            assert (await client.ask(infer(1))).status == 200
        began = trio.current_time()
        await client.expect_end()
        assert trio.current_time() - began == pytest.approx(60)


async def test_a_request_may_take_as_long_as_it_takes(autojump_clock: trio.testing.MockClock) -> None:
    services = FakeServices()
    services.inference.immediate = False
    services.repository.gate = trio.Event()
    async with in_memory(services, keep_alive_timeout_s=60) as client:
        await client.send(infer(1))
        await trio.sleep(10_000)
        services.inference.submitted[0].answer()
        assert (await client.answer()).status == 200
        await client.send(b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: t\r\n\r\n")
        await trio.sleep(10_000)
        services.repository.gate.set()
        assert (await client.answer()).status == 200
        assert len(services.repository.loads) == 1


@contextlib.asynccontextmanager
async def unread(
    services: FakeServices, write_timeout_s: float
) -> AsyncIterator[tuple[HttpPort, Http1Connection, trio.abc.Stream]]:
    """A connection whose client has sent one request and takes nothing. The block is left when the connection is over."""
    port = create_port(options(write_timeout_s=write_timeout_s), services, SystemClock())
    ours, theirs = trio.testing.lockstep_stream_pair()
    connection = Http1Connection(port, StreamWire(theirs), Ends())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await ours.send_all(infer(1))
        yield port, connection, ours


async def test_a_reader_that_takes_nothing_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    services = FakeServices()
    async with unread(services, write_timeout_s=30):
        began = trio.current_time()
        services.inference.immediate = False
        await trio.testing.wait_all_tasks_blocked()
        assert len(services.inference.submitted) == 1
    assert trio.current_time() - began == pytest.approx(30)


async def test_a_reader_that_takes_nothing_does_not_hold_up_the_stop(autojump_clock: trio.testing.MockClock) -> None:
    async with unread(FakeServices(), write_timeout_s=300) as (_, connection, _):
        await trio.sleep(50)
        began = trio.current_time()
        connection.begin_drain()
    assert trio.current_time() - began == pytest.approx(5)


async def test_a_reader_that_has_its_answer_in_the_making_is_not_idle(autojump_clock: trio.testing.MockClock) -> None:
    """It was answered before the stop, and takes what waits for it slowly, but in time."""
    async with unread(FakeServices(), write_timeout_s=300) as (port, _, ours):
        await trio.sleep(50)
        port.begin_drain()
        await trio.sleep(4)
        assert (await ours.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_the_requests_of_a_slow_reader_are_not_read() -> None:
    services = FakeServices()
    wanted = 400
    request = infer(*range(5000))
    async with running(services) as server:
        client = await server.connect()
        async with trio.open_nursery() as nursery:

            async def send_all() -> None:
                for _ in range(wanted):
                    await client.send(request)

            nursery.start_soon(send_all)
            seen = -1
            while seen < len(services.inference.submitted):  # until the socket buffers of both ways are full
                seen = len(services.inference.submitted)
                await trio.testing.wait_all_tasks_blocked(0.02)
            assert 0 < seen < wanted
            for _ in range(wanted):
                assert (await client.answer()).status == 200
        assert len(services.inference.submitted) == wanted


async def test_a_connection_accepted_in_the_moment_of_a_stop_ends_soon(mock_clock: trio.testing.MockClock) -> None:
    port = create_port(options(), FakeServices(), SystemClock())
    port.begin_drain()
    ours, theirs = trio.testing.memory_stream_pair()
    began_s = trio.current_time()
    await Http1Connection(port, StreamWire(theirs), Ends()).run()
    assert trio.current_time() - began_s <= 1
    assert await ours.receive_some() == b""


class _Trickle(StreamWire):
    """Takes `rate` bytes a second."""

    def __init__(self, rate: int) -> None:
        super().__init__(trio.testing.memory_stream_pair()[0])
        self._rate = rate

    async def send_some(self, pieces: Sequence[bytes | memoryview]) -> int:
        await trio.sleep(1)
        return min(self._rate, len(pieces[0]))


async def _seconds_until_over(rate: int, size: int, *, stop_after_s: float = 1e9) -> tuple[float, bool]:
    """Returns the seconds that an answer is being written, and True if it was given up."""
    failed = []
    over = trio.Event()
    async with trio.open_nursery() as nursery:

        def give_up() -> None:
            failed.append(True)
            over.set()

        line = ReplyQueue(
            _Trickle(rate),
            write_timeout_s=60,
            spawn=lambda work: nursery.start_soon(work),
            progressed=lambda: None if line.blocked else over.set(),
            failed=give_up,
        )
        pending = line.reserve(version="1.1", keep_alive=True, head_only=False, bytes_held=0)
        began_s = trio.current_time()
        line.fill(pending, HttpReply(parts=(bytes(size),), content_length=size))
        with trio.move_on_after(stop_after_s):
            await over.wait()
        if not over.is_set():
            line.begin_stop()
            await over.wait()
        virtual_s = trio.current_time() - began_s
        nursery.cancel_scope.cancel()
    return virtual_s, bool(failed)


async def test_a_slow_reader_gets_its_answer(mock_clock: trio.testing.MockClock) -> None:
    virtual_s, failed = await _seconds_until_over(rate=5000, size=2_000_000)
    assert not failed
    assert 395 < virtual_s < 410


async def test_a_reader_of_a_byte_at_a_time_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    virtual_s, failed = await _seconds_until_over(rate=1, size=4096)
    assert failed
    assert 60 < virtual_s < 63


async def test_a_stop_waits_for_a_slow_reader_as_long_as_its_bytes_may_take(mock_clock: trio.testing.MockClock) -> None:
    virtual_s, failed = await _seconds_until_over(rate=1, size=40960, stop_after_s=10)
    assert failed
    assert 24 < virtual_s < 27
