"""Requests over HTTP as observers see them: who asked, and how the answer left. What the model did is the engine's to tell."""

from __future__ import annotations

import trio
import trio.testing

from tests.frontends.observing import Finished

from .fakes import FakeServices
from .harness import infer, infer_body, post, running

UNKNOWN = "Request for unknown model: 'x' is not found"


async def test_answers_and_refusals_are_told() -> None:
    services, watcher = FakeServices(), Finished()
    services.observers.add(watcher)
    async with running(services) as server:
        client = await server.connect()
        body = infer_body(1, 2, id="a")
        answer = await client.ask(post("/v2/models/m/infer", body, "traceparent: 00-1-2-01", "authorization: secret"))
        await client.ask(post("/v2/models/x/infer", body))
        await client.ask(post("/v2/models/m/generate", '{"INPUT0": 3}'))
        await client.ask(post("/v2/models/x/generate", '{"INPUT0": 3}'))
    assert [request.request.record for request in services.inference.submitted] == [watcher.records[0], watcher.records[2]]
    first = watcher.records[0]
    assert first.headers == {"traceparent": "00-1-2-01"}
    assert first.peer.startswith("127.0.0.1:")
    assert first.request_bytes == len(body)
    assert first.response_bytes == len(answer.body)
    assert 0 < first.received_ns <= first.finished_ns
    assert watcher.shown == [
        ("http", "m", "", ""),  # the engine is a fake, which says nothing
        ("http", "x", "Not found", UNKNOWN),
        ("generate", "m", "", ""),
        ("generate", "x", "Not found", UNKNOWN),
    ]


async def test_a_client_that_leaves_has_cancelled() -> None:
    services, watcher = FakeServices(), Finished()
    services.observers.add(watcher)
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1))
        await services.inference.wait_submitted(1)
        await client.stream.aclose()
        await services.inference.submitted[0].ended.wait()
        await trio.testing.wait_all_tasks_blocked()
    assert watcher.shown == [("http", "m", "Cancelled", "")]


async def test_nobody_observes() -> None:
    services = FakeServices()
    async with running(services) as server:
        await (await server.connect()).ask(infer(1))
    assert services.inference.submitted[0].request.record is None
