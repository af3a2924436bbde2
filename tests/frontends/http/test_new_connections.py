"""A connection whose first request is there when it is accepted: it gets what any other connection gets."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tpy import limits
from tpy.frontends.http.connection import Http1Connection

from .fakes import FakeServices
from .harness import INFER, Client, Running, get, infer_body, post, running

CLOSE = "Connection: close"
MANY = tuple(range(60_000))


@asynccontextmanager
async def asking(server: Running, data: bytes, *, finishes: bool = False) -> AsyncIterator[Client]:
    """A client that has connected and sent `data` before the server has a turn."""
    with socket.create_connection((server.address.host, server.address.port)) as plain:
        plain.sendall(data)
        if finishes:
            plain.shutdown(socket.SHUT_WR)
        plain.setblocking(False)
        with trio.fail_after(10):
            yield Client(trio.SocketStream(trio.socket.from_stdlib_socket(plain)))


def infer(*values: float, closes: bool = True) -> bytes:
    return post(INFER, infer_body(*values), *([CLOSE] if closes else []))


@pytest.mark.parametrize("immediate", [True, False])
@pytest.mark.parametrize("finishes", [True, False])
async def test_an_inference_is_answered_and_ends_its_connection(*, immediate: bool, finishes: bool) -> None:
    services = FakeServices()
    services.inference.immediate = immediate
    async with running(services) as server:
        for number in range(3):
            async with asking(server, infer(number), finishes=finishes) as client:
                await services.inference.wait_submitted(number + 1)
                if not immediate:
                    await trio.testing.wait_all_tasks_blocked()
                    services.inference.submitted[number].answer()
                answer = await client.answer()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
                assert answer.document["outputs"][0]["data"] == [number]  # type: ignore[index]
                await client.expect_end()


@pytest.mark.parametrize(
    "request_",
    [get("/v2/health/ready", CLOSE), get("/v2", CLOSE), post("/v2/repository/index", "{}", CLOSE), get("/nowhere", CLOSE)],
    ids=["health", "metadata", "index", "unknown"],
)
@pytest.mark.parametrize("finishes", [True, False])
async def test_another_request_is_answered_and_ends_its_connection(request_: bytes, *, finishes: bool) -> None:
    async with running(FakeServices()) as server, asking(server, request_, finishes=finishes) as client:
        answer = await client.answer()
        assert answer.status == (404 if b"nowhere" in request_ else 200)
        assert answer.headers["connection"] == "close"
        await client.expect_end()


async def test_requests_of_all_kinds_follow_each_other() -> None:
    async with running(FakeServices()) as server:
        requests = [
            get("/v2/health/live"),
            infer(1, closes=False),
            post("/v2/repository/index", "{}"),
            infer(*MANY, closes=False),
        ]
        for first in range(len(requests)):
            async with asking(server, requests[first] + requests[first - 1]) as client:
                assert [(await client.answer()).status for _ in range(2)] == [200, 200]
                for request in requests:
                    assert (await client.ask(request)).status == 200


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_refusal_arrives_though_its_sender_goes_on(size: int) -> None:
    async with running(FakeServices()) as server, asking(server, b"nonsense\r\n" + b"x" * size) as client:
        answer = await client.answer()
        assert answer.status == 400
        await client.send(b"x" * 100_000)
        await client.expect_end()


async def test_a_reader_that_takes_its_time_gets_all_of_the_last_answer() -> None:
    async with running(FakeServices()) as server, asking(server, infer(*MANY)) as client:
        await trio.testing.wait_all_tasks_blocked(0.05)
        answer = await client.answer()
        assert answer.document["outputs"][0]["data"] == list(MANY)  # type: ignore[index]
        await client.expect_end()


@pytest.mark.parametrize("closes", [True, False])
async def test_a_client_that_resets_cancels_its_request(*, closes: bool) -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        async with asking(server, infer(1, closes=closes)) as client:
            await services.inference.wait_submitted(1)
            assert isinstance(client.stream, trio.SocketStream)
            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await client.stream.aclose()
            await services.inference.submitted[0].ended.wait()
        assert services.inference.submitted[0].cancelled


@pytest.mark.parametrize("closes", [True, False])
async def test_a_client_that_closes_cancels_its_request(*, closes: bool) -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        async with asking(server, infer(1, closes=closes)) as client:
            await services.inference.wait_submitted(1)
            await client.stream.aclose()
            await services.inference.submitted[0].ended.wait()
        assert services.inference.submitted[0].cancelled


@pytest.mark.parametrize("closes", [True, False])
async def test_a_server_that_stops_answers_first(*, closes: bool) -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server, asking(server, infer(1, closes=closes)) as client:
        await services.inference.wait_submitted(1)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        services.inference.submitted[0].answer()
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        await client.expect_end()


async def test_what_outlasts_the_drain_deadline_is_cancelled() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services, drain_timeout_s=0.05) as server, asking(server, infer(1)) as client:
        await services.inference.wait_submitted(1)
        server.stop.set()
        await services.inference.submitted[0].ended.wait()
        await client.expect_end()
    assert services.inference.submitted[0].cancelled


async def test_cancelling_the_server_ends_it_at_once() -> None:
    services = FakeServices()
    services.inference.immediate = False
    with trio.CancelScope() as scope:
        async with running(services, drain_timeout_s=3600) as server, asking(server, infer(1)):
            await services.inference.wait_submitted(1)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert services.inference.submitted[0].cancelled


async def test_a_large_body_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_BODIES_BYTES_MAX", 1_000_000)
    request = infer(*MANY)
    assert 200_000 < len(request) < 900_000
    async with running(FakeServices(), max_input_size=1_000_000) as server:
        for number in range(12):
            async with asking(server, request) as client:
                if number % 3:
                    assert (await client.answer()).status == 200
                    await client.expect_end()
        async with contextlib.AsyncExitStack() as clients:
            await trio.testing.wait_all_tasks_blocked(0.05)
            last = await clients.enter_async_context(asking(server, request))
            assert (await last.answer()).status == 200


async def test_heads_of_many_clients_are_told_apart() -> None:
    services = FakeServices()
    async with running(services) as server:
        for number in range(4):
            for path, status in ((INFER, 200), ("/v2/models/none/infer", 404)):
                async with asking(server, post(path, infer_body(number), *([CLOSE] if number % 2 else []))) as client:
                    answer = await client.answer()
                    assert answer.status == status
                    assert answer.headers.get("connection") == ("close" if number % 2 else None)


@pytest.mark.parametrize("closes", [True, False])
async def test_a_bug_behind_the_answer_is_in_the_log(
    closes: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Http1Connection) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(Http1Connection, "_set_deadline", broken)
    async with running(FakeServices()) as server, asking(server, infer(1, closes=closes)) as client:
        assert (await client.answer()).status == 200
        await client.expect_end()
    assert "a bug" in caplog.text
