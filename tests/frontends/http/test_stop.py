"""The orderly stop: no new connections; open ones get answers, and close with the last, when idle, or at the deadline."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.streams import StreamWire
from tpy.clock import SystemClock
from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.serving import create_port
from tpy.frontends.transport import Ends
from tpy.limits import HTTP_STOP_IDLE_S

from .fakes import FakeServices
from .harness import get, infer, options, post, running


async def test_idle_connections_are_closed_and_no_new_ones_accepted() -> None:
    async with running(FakeServices()) as server:
        idle = await server.connect()
        assert (await idle.ask(get("/v2/health/live"))).status == 200
        untouched = await server.connect()
        await trio.testing.wait_all_tasks_blocked(0.01)
        server.stop.set()
        with trio.fail_after(5):
            await idle.expect_end()
            await untouched.expect_end()
        with pytest.raises(OSError, match="all attempts to connect"):
            await server.connect()


async def test_requests_in_flight_finish_with_connection_close() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1))
        await services.inference.wait_submitted(1)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        services.inference.submitted[0].answer()
        answer = await client.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        await client.expect_end()


async def test_pipelined_requests_in_flight_are_all_answered() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1) + infer(2))
        await services.inference.wait_submitted(2)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        for submitted in services.inference.submitted:
            submitted.answer()
        first, second = await client.answer(), await client.answer()
        assert "connection" not in first.headers
        assert second.headers["connection"] == "close"
        await client.expect_end()


@pytest.mark.parametrize("sent", [0, 20, 40])
async def test_a_request_that_arrives_while_stopping_is_answered(sent: int) -> None:
    """Also one whose beginning arrived before; the answer says that it is the connection's last."""
    async with running(FakeServices()) as server:
        client = await server.connect()
        assert (await client.ask(get("/v2/health/ready"))).status == 200
        request = infer(1)
        await client.send(request[:sent])
        await trio.testing.wait_all_tasks_blocked(0.01)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        answer = await client.ask(request[sent:])
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        await client.expect_end()


async def test_readiness_is_as_before_on_open_connections() -> None:
    """As with Triton 2.51, which answers 200 on them until it ends."""
    async with running(FakeServices()) as server:
        client = await server.connect()
        await trio.testing.wait_all_tasks_blocked(0.01)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        answer = await client.ask(get("/v2/health/ready"))
        assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_a_body_that_makes_progress_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    port = create_port(options(), FakeServices(), SystemClock())
    ours, theirs = trio.testing.memory_stream_pair()
    request = infer(*range(40))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Http1Connection(port, StreamWire(theirs), Ends()).run)
        half = len(request) - 40
        await ours.send_all(request[:half])
        await trio.testing.wait_all_tasks_blocked()
        port.begin_drain()
        for index in range(half, len(request)):
            await trio.sleep(HTTP_STOP_IDLE_S * 0.9)
            await ours.send_all(request[index : index + 1])
        assert (await ours.receive_some()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("before_s", [0.0, 2.0])
async def test_a_refused_client_that_stays_does_not_hold_up_the_stop(
    before_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """It has a moment left to read the refusal."""
    port = create_port(options(), FakeServices(), SystemClock())
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Http1Connection(port, StreamWire(theirs), Ends()).run)
        if not before_s:
            port.begin_drain()
        await ours.send_all(b"nonsense\r\n\r\n")
        assert (await ours.receive_some()).startswith(b"HTTP/1.1 400 ")
        await trio.sleep(before_s)
        port.begin_drain()
        began_s = trio.current_time()
    assert trio.current_time() - began_s <= 1


@pytest.mark.parametrize("size", [20, 100, 100_000])
async def test_half_a_request_does_not_hold_up_the_stop(size: int) -> None:
    async with running(FakeServices(), drain_timeout_s=3600) as server:
        client = await server.connect()
        await client.send(post("/v2/models/m/infer", b" " * 1_000_000)[:size])
        await trio.testing.wait_all_tasks_blocked(0.01)
        server.stop.set()
        with trio.fail_after(5):
            answer = await client.answer()
            assert (answer.status, answer.error, answer.headers["connection"]) == (503, "Server exiting", "close")
            await client.expect_end()


async def test_what_outlasts_the_drain_deadline_is_cancelled() -> None:
    services = FakeServices()
    services.inference.immediate = False
    services.repository.gate = trio.Event()
    async with running(services, drain_timeout_s=0.05) as server:
        inferring, loading = await server.connect(), await server.connect()
        await inferring.send(infer(1))
        await loading.send(post("/v2/repository/models/m/load", ""))
        await services.inference.wait_submitted(1)
        await services.repository.load_began.wait()
        server.stop.set()
        with trio.fail_after(5):
            await services.inference.submitted[0].ended.wait()
            await inferring.expect_end()
            await loading.expect_end()
    assert services.repository.loads == []


async def test_cancelling_the_server_ends_it_at_once() -> None:
    services = FakeServices()
    services.inference.immediate = False
    with trio.CancelScope() as scope, trio.fail_after(5):
        async with running(services, drain_timeout_s=3600) as server:
            client = await server.connect()
            await client.send(infer(1))
            await services.inference.wait_submitted(1)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert services.inference.submitted[0].cancelled
