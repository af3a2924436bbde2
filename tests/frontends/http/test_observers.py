"""Requests over HTTP as observers see them: who asked, and how the answer left. What the model did is the engine's to tell."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.frontends.observing import Finished
from tpy.errors import InvalidArgument
from tpy.frontends.restrictions import RestrictedApi

from .fakes import FakeServices
from .harness import infer, infer_body, post, running
from .test_generate import begin, read_until, word

UNKNOWN = "Request for unknown model: 'x' is not found"


async def test_answers_and_refusals_are_told() -> None:
    services, watcher = FakeServices(), Finished()
    services.observers.add(watcher)
    async with running(services) as server:
        client = await server.connect()
        body = infer_body(1, 2, id="a")
        answer = await client.ask(post("/v2/models/m/infer", body, "traceparent: 00-1-2-01", "authorization: secret"))
        await client.ask(post("/v2/models/x/infer", body))
        whole = await client.ask(post("/v2/models/m/generate", '{"INPUT0": 3}'))
        unknown = await client.ask(post("/v2/models/x/generate", '{"INPUT0": 3}'))
        predicted = await client.ask(post("/v1/models/m:predict", '{"instances": [3]}'))
    replies = (whole, unknown, predicted)
    assert [record.response_bytes for record in watcher.records[2:]] == [len(reply.body) for reply in replies]
    assert watcher.records[4].request_bytes == len('{"instances": [3]}'), "what came, not what was made of it"
    assert [request.request.record for request in services.inference.submitted] == watcher.records[0:5:2]
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
        ("kserve-v1", "m", "", ""),
    ]


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_stream_is_over_when_its_last_event_has_left(*, leaves: bool) -> None:
    services, watcher = FakeServices(), Finished()
    services.observers.add(watcher)
    async with running(services) as server:
        client = await server.connect()
        request = await begin(services, client)
        request.sink.deliver(word(1))
        first = await read_until(client, b"\n\n")
        assert watcher.records == []
        if leaves:
            await trio.aclose_forcefully(client.stream)
            await request.ended.wait()
        else:
            request.sink.deliver(word(2, error=InvalidArgument("in the middle"), final=True))
            await read_until(client, b"0\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
    (record,) = watcher.records
    event = first[first.index(b"data: ") :] + b"\n\n"
    if leaves:
        assert (record.status, record.response_bytes) == ("Cancelled", len(event))
    else:
        error = b'data: {"error":"in the middle"}\n\n'
        assert (record.status, record.error) == ("Invalid argument", "in the middle")
        assert record.response_bytes == len(event) + len(error)


async def test_who_may_not_ask_is_told() -> None:
    services, watcher = FakeServices(), Finished()
    services.observers.add(watcher)
    restricted = (RestrictedApi(apis=frozenset({"inference"}), header="key", value="right"),)
    async with running(services, restricted=restricted) as server:
        client = await server.connect()
        await client.ask(infer(1))
        await client.ask(post("/v2/models/m/generate", '{"INPUT0": 3}'))
        await client.ask(post("/v2/models/m/generate_stream", '{"INPUT0": 3}'))
        await client.ask(post("/v1/models/m:predict", '{"instances": [3]}'))
        await client.ask(post("/v2/models/m/generate", '{"INPUT0": 3}', "key: right"))
    (first, *others, last) = watcher.shown
    refused = ("http", "m", first[2], "This API is restricted, expecting header 'key'")
    assert others == [refused] * 3
    assert last == ("generate", "m", "", "")
    assert all(record.response_bytes > 0 for record in watcher.records[:4])
    assert services.refusals.counts["FORBIDDEN"] == 4


async def test_what_no_model_had_is_counted() -> None:
    services = FakeServices()
    async with running(services, max_input_size=1000) as server:
        client = await server.connect()
        for path, body in (
            ("/v2/models/x/infer", infer_body(1)),
            ("/v2/models/x/generate", '{"INPUT0": 3}'),
            ("/v2/models/m/infer", "{no json"),
            ("/v2/models/m/generate_stream", "{no json"),
            ("/v1/models/m:predict", "[]"),
            ("/v2/models/m/infer", "0" * 1001),
        ):
            assert (await client.ask(post(path, body))).status >= 400, path
        assert (await client.ask(post("/v2/models/m/infer", infer_body(1), "content-encoding: br"))).status >= 400
        assert (await client.ask(infer(1))).status == 200
        services.inference.immediate = False
        await client.send(infer(1))
        await services.inference.wait_submitted(2)
        services.inference.submitted[1].answer(InvalidArgument("the model's own"))
        assert (await client.answer()).status == 400
    counted = {reason: count for reason, count in services.refusals.counts.items() if count}
    assert counted == {"NOT_FOUND": 2, "INVALID_ARG": 3, "TOO_LARGE": 1, "UNSUPPORTED": 1}


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


async def test_a_request_that_comes_in_pieces_begins_with_the_first() -> None:
    services, watcher = FakeServices(), Finished()
    services.observers.add(watcher)
    async with running(services) as server:
        client = await server.connect()
        whole = infer(1)
        await client.ask(whole)
        await client.send(whole + whole[:20])
        await client.answer()
        await trio.testing.wait_all_tasks_blocked()
        await client.ask(whole[20:])
    one, two, three = watcher.records
    assert one.begun_ns == two.begun_ns == 0, "the moment at which all of it had come"
    assert 0 < three.begun_ns < three.received_ns
