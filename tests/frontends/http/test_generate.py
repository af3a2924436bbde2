"""generate and generate_stream over the wire: events as they come, slow readers, clients that leave."""

from __future__ import annotations

from itertools import product

import numpy as np
import trio

from tpy.errors import InvalidArgument
from tpy.limits import HTTP_STREAM_RESPONSES_MAX
from tpy.messages import DataType, InferenceResponse, Tensor

from .fakes import FakeServices, Submitted
from .harness import Client, post, running

STREAM = post("/v2/models/flow/generate_stream", '{"INPUT0": 1}')


def word(number: float, *, final: bool = False, error: InvalidArgument | None = None) -> InferenceResponse:
    outputs = () if error is not None else (Tensor("OUTPUT0", DataType.FP32, np.array([[number]], np.float32)),)
    return InferenceResponse(model_name="flow", model_version=1, outputs=outputs, error=error, final=final)


END = InferenceResponse(model_name="flow", model_version=1)


async def begin(services: FakeServices, client: Client, count: int = 1) -> Submitted:
    services.inference.immediate = False
    await client.send(STREAM)
    await services.inference.wait_submitted(count)
    return services.inference.submitted[-1]


async def read_until(client: Client, mark: bytes) -> bytes:
    with trio.fail_after(5):
        return await client._until(mark)


async def test_events_go_out_as_they_come() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        request = await begin(services, client)
        request.sink.deliver(word(1))
        head = await read_until(client, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"text/event-stream; charset=utf-8" in head
        assert b'data: {"OUTPUT0":1.0,' in await read_until(client, b"\n\n")
        request.sink.deliver(word(2, error=InvalidArgument("in the middle")))
        assert (await read_until(client, b"\n\n")).endswith(b'data: {"error":"in the middle"}')
        request.sink.deliver(END)
        await read_until(client, b"0\r\n\r\n")
        services.inference.immediate = True
        answer = await client.ask(post("/v2/models/m/generate", '{"INPUT0": 3}'))
        assert answer.document == {"OUTPUT0": 3.0, "model_name": "m", "model_version": "1"}


async def test_the_first_response_decides_the_status() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        request = await begin(services, client)
        request.sink.deliver(word(1, error=InvalidArgument("no"), final=True))
        assert (await read_until(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert b'data: {"error":"no"}' in await read_until(client, b"0\r\n\r\n")
        client = await server.connect()
        request = await begin(services, client, 2)
        half = Tensor("OUTPUT0", DataType.FP16, np.zeros((1, 1), np.float16))  # which JSON has no form for
        request.sink.deliver(InferenceResponse(model_name="flow", model_version=1, outputs=(half,), final=False))
        assert (await read_until(client, b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        request.sink.deliver(END)
        assert b'data: {"error":"sending FP16 data via JSON' in await read_until(client, b"0\r\n\r\n")


async def test_a_client_that_leaves_cancels() -> None:
    services = FakeServices()
    async with running(services) as server:
        for count, (delivered, reset) in enumerate(product((0, 1), (True, False)), 1):
            client = await server.connect()
            request = await begin(services, client, count)
            for number in range(delivered):
                request.sink.deliver(word(number))
                await read_until(client, b"\n\n")
            if reset:
                client.stream.socket.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # type: ignore[attr-defined]  # SO_LINGER 0
            await trio.aclose_forcefully(client.stream)
            with trio.fail_after(5):
                await request.ended.wait()
            assert request.cancelled


async def test_a_client_that_has_sent_all_gets_an_answer_that_is_ready_and_nothing_before_it() -> None:
    async with running(FakeServices()) as server:
        for path in (b"/v2/health/live", b"/v2", b"/nothing"):
            client = await server.connect()
            await client.stream.send_all(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            await client.stream.send_eof()
            assert (await read_until(client, b"\r\n")).startswith(b"HTTP/1.1 404" if path == b"/nothing" else b"HTTP/1.1 200")


async def test_a_client_that_has_sent_all_gets_its_events() -> None:
    services = FakeServices()
    async with running(services) as server:
        for count, delivered in enumerate((0, 1), 1):
            client = await server.connect()
            request = await begin(services, client, count)
            for number in range(delivered):
                request.sink.deliver(word(number))
                await read_until(client, b"}\n\n")
            await client.stream.send_eof()
            # Probed once, so that one who is gone is seen: before the head, or between events.
            await read_until(client, b"\r\n:\n\n\r\n" if delivered else b"HTTP/1.1 100 Continue\r\n\r\n")
            request.sink.deliver(word(7))
            assert b'"OUTPUT0":7.0' in await read_until(client, b"}\n\n")
            request.sink.deliver(END)
            await read_until(client, b"0\r\n\r\n")
            assert not request.cancelled


async def test_a_client_that_does_not_read_pauses_its_request() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        request = await begin(services, client)
        big = InferenceResponse(
            model_name="flow",
            model_version=1,
            outputs=(Tensor("OUTPUT0", DataType.FP32, np.zeros((1, 5000), np.float32)),),
            final=False,
        )
        sent = 0
        with trio.fail_after(20):
            while not request.paused and sent < 5000:
                request.sink.deliver(big)
                sent += 1
                await trio.lowlevel.checkpoint()
        assert request.paused
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert request.paused
        with trio.fail_after(20):
            while request.paused:
                await client.stream.receive_some()
        request.sink.deliver(END)


async def test_more_than_one_response_cancels_a_generate() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(post("/v2/models/flow/generate", '{"INPUT0": 1}'))
        await services.inference.wait_submitted(1)
        request = services.inference.submitted[0]
        for number in range(HTTP_STREAM_RESPONSES_MAX):
            request.sink.deliver(word(number))
        answer = await client.answer()
        assert (answer.status, answer.error[:24]) == (200, "generate expects model t")
        assert request.cancelled


async def test_rows_come_back_as_rows_when_the_query_asks_for_them() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        body = '{"INPUT0": [[1.5], [2.0]]}'
        for target, expected in (("", [1.5, 2.0]), ("?rows=0", [1.5, 2.0]), ("?rows=1", [[1.5], [2.0]])):
            answer = await client.ask(post(f"/v2/models/m/generate{target}", body))
            assert answer.document["OUTPUT0"] == expected
        answer = await client.ask(post("/v2/models/m/generate?rows=yes", body))
        assert (answer.status, answer.error) == (400, "expected 'rows' to be a number, got 'yes'")
        await client.send(post("/v2/models/m/generate_stream?rows=1", body))
        assert b'data: {"OUTPUT0":[[1.5],[2.0]],' in await read_until(client, b"}\n\n")
