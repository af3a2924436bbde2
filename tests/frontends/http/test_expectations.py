"""Expect: 100-continue: the interim answer comes before the body, and only then."""

from __future__ import annotations

from .fakes import FakeServices
from .harness import INFER, get, infer, infer_body, running


async def test_expect_100_continue_gets_it_before_the_body_is_sent() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        body = infer_body(1).encode()
        head = f"POST {INFER} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        assert (await client.ask(head)).status == 100
        assert (await client.ask(body)).status == 200
        assert (await client.ask(head + body)).status == 200


async def test_expect_100_continue_behind_another_request_waits_for_its_answer() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        head = f"POST {INFER} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n".encode()
        await client.send(infer(1) + head)
        await services.inference.wait_submitted(1)
        services.inference.submitted[0].answer()
        assert [(await client.answer()).status for _ in range(2)] == [200, 100]
        assert (await client.ask(b"{}")).status == 400


async def test_a_body_that_came_without_100_continue_does_not_get_it_later() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        body = infer_body(2).encode()
        head = f"POST {INFER} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        await client.send(infer(1) + head)
        await services.inference.wait_submitted(1)
        await client.send(body)
        await services.inference.wait_submitted(2)
        for submitted in services.inference.submitted:
            submitted.answer()
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
        assert (await client.ask(get("/v2/health/live"))).status == 200
