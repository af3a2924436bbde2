"""Unary calls over a connection in memory, in virtual time."""

from __future__ import annotations

import logging

import pytest
import trio
from grpclib.const import Status

from tpy.errors import InvariantViolation
from tpy.frontends.grpc.transport import UnaryCall, UnaryHandler

from .harness import PATH, Client, Held, Reply, echo, in_memory
from .peer import message

ECHO = {PATH: UnaryHandler(echo)}


async def test_a_call(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ECHO) as served:
        reply = await served.client.call(b"hello")
        assert reply.messages == [b"hello"]
        assert reply.status == 0
        assert reply.headers[":status"] == "200"
        assert reply.headers["content-type"] == "application/grpc"
        assert reply.headers["grpc-accept-encoding"] == "identity, deflate, gzip"
        assert served.connection.server.open_streams == 0


@pytest.mark.parametrize("body", [b"", b"x", bytes(70_000), bytes(3_000_000)], ids=len)
async def test_bodies_of_any_size(body: bytes) -> None:
    async with in_memory(ECHO) as served:
        client = served.client
        stream_id = await client.begin()
        rest = message(body)
        while rest:
            while not (room := min(client.h2.local_flow_control_window(stream_id), 50_000)):
                await client.read()
            await client.send(stream_id, rest[:room], end=room >= len(rest))
            rest = rest[room:]
        reply = await client.answer(stream_id)
        assert reply.messages == [body]
        assert reply.status == 0


async def test_what_a_handler_sees(autojump_clock: trio.testing.MockClock) -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        stream_id = await served.client.ask(b"x", ("a", "1"), ("b-bin", "AAE"), ("grpc-timeout", "2S"), ("a", "2"))
        await trio.testing.wait_all_tasks_blocked()
        (call,) = held.calls
        assert call.path == PATH
        assert call.metadata == (("a", "1"), ("b-bin", b"\0\1"), ("a", "2"))
        assert call.deadline_ns is not None
        assert 1.9e9 < call.deadline_ns - trio.current_time() * 1e9 <= 2e9
        assert call.peer == "test:1"
        call.reply((b"a", memoryview(b"bc")), [("t", "u"), ("v-bin", b"\xff")])
        reply = await served.client.answer(stream_id)
        assert reply.messages == [b"abc"]
        assert reply.end("t") == "u"
        assert reply.binary("v-bin") == b"\xff"


async def test_parts_that_are_views_of_numbers() -> None:
    def numbers(call: UnaryCall, body: memoryview) -> None:
        call.reply((b"<", memoryview(bytes(8)).cast("f"), b">"))

    async with in_memory({PATH: UnaryHandler(numbers)}) as served:
        assert (await served.client.call(b"")).messages == [b"<" + bytes(8) + b">"]


async def test_a_failure() -> None:
    def fail(call: UnaryCall, body: memoryview) -> None:
        call.fail(Status.NOT_FOUND, "no such thing: é\n%", [("why", "because")])

    async with in_memory({PATH: UnaryHandler(fail)}) as served:
        reply = await served.client.call(b"")
        assert (reply.status, reply.text) == (5, "no such thing: é\n%")
        assert reply.messages == []
        assert reply.trailers == []  # all in one
        assert reply.end("why") == "because"


async def test_answers_that_come_in_one_turn_leave_in_one_write() -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        client = served.client
        ids = [await client.ask(b"%d" % number) for number in range(10)]
        await trio.testing.wait_all_tasks_blocked()
        for call, body in zip(held.calls, held.bodies, strict=True):
            call.reply((body,))
        await client.read()
        assert all(client.replies[stream_id].ended for stream_id in ids)


async def test_a_bug_in_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    def broken(call: UnaryCall, body: memoryview) -> None:
        raise RuntimeError("a secret")

    async with in_memory({PATH: UnaryHandler(broken)}) as served:
        reply = await served.client.call(b"")
        assert (reply.status, reply.text) == (13, "internal error")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_bug_behind_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    def broken(call: UnaryCall, body: memoryview) -> None:
        call.reply((b"answer",))
        raise RuntimeError

    async with in_memory({PATH: UnaryHandler(broken)}) as served:
        assert (await served.client.call(b"")).messages == [b"answer"]
    assert len(caplog.records) == 1


async def test_a_second_answer_is_a_bug() -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        stream_id = await served.client.ask(b"x")
        await trio.testing.wait_all_tasks_blocked()
        (call,) = held.calls
        call.reply((b"1",))
        with pytest.raises(InvariantViolation):
            call.reply((b"2",))
        with pytest.raises(InvariantViolation):
            call.fail(Status.INTERNAL, "")
        assert (await served.client.answer(stream_id)).messages == [b"1"]


async def test_metadata_that_cannot_be_sent_leaves_the_call_open() -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        stream_id = await served.client.ask(b"x")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ValueError, match="metadata"):
            held.calls[0].reply((b"1",), [("bad key", "x")])
        held.calls[0].fail(Status.INTERNAL, "sorry")
        assert (await served.client.answer(stream_id)).text == "sorry"


# Refusals


async def test_an_unknown_method() -> None:
    async with in_memory(ECHO) as served:
        reply = await served.client.call(b"", path="/no.Such/Method")
        assert (reply.status, reply.text) == (12, "Method not found: /no.Such/Method")
        assert (await served.client.call(b"x")).status == 0


async def test_an_unknown_method_does_not_wait_for_the_body() -> None:
    async with in_memory(ECHO) as served:
        stream_id = await served.client.begin("/no.Such/Method")
        reply = await served.client.answer(stream_id)
        assert reply.status == 12


@pytest.mark.parametrize(
    ("changed", "http_status", "text"),
    [
        (("content-type", "application/json"), "415", "content-type 'application/json' is not served, expected application/grpc"),
        (("content-type", ""), "415", "the content-type header is missing, expected application/grpc"),
        (("te", ""), "400", "the header 'te: trailers' is missing"),
        ((":method", "PUT"), "405", "gRPC calls use the method POST, got 'PUT'"),
        (("grpc-timeout", "soon"), "200", "malformed grpc-timeout: 'soon'"),
        (("grpc-encoding", "br"), "200", "grpc-encoding 'br' is not supported, expected one of identity, deflate, gzip"),
    ],
)
async def test_what_is_no_call(changed: tuple[str, str], http_status: str, text: str) -> None:
    base = {":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "x", "te": "trailers"}
    fields = {**base, "content-type": "application/grpc", changed[0]: changed[1]}
    async with in_memory(ECHO) as served:
        client = served.client
        stream_id = client.h2.get_next_available_stream_id()
        client.replies[stream_id] = Reply()
        client.h2.send_headers(stream_id, [pair for pair in fields.items() if pair[1]], end_stream=True)
        await client.flush()
        reply = await client.answer(stream_id)
        assert (reply.headers[":status"], reply.text) == (http_status, text)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 12, "the method takes exactly one message, got none"),
        (message(b"a") + message(b"b"), 12, "the method takes exactly one message, got more"),
        (message(b"abc")[:-1], 13, "the request ends within a message"),
        (b"\0\0\0", 13, "the request ends within a message"),
        (b"\7\0\0\0\0", 13, "a message begins with the flag 7, expected 0 or 1 (compressed)"),
        (message(bytes(101)), 8, "Received message larger than max (101 vs. 100)"),
        (message(b"abc", compressed=True), 13, "a message is marked as compressed, but there is no grpc-encoding"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2])
async def test_bodies_that_are_not_one_message(body: bytes, status: int, text: str, pieces: int) -> None:
    async with in_memory(ECHO, max_receive_bytes=100) as served:
        client = served.client
        stream_id = await client.begin()
        if pieces == 2:
            await client.send(stream_id, body[:4])
            body = body[4:]
        await client.send(stream_id, body, end=True)
        reply = await client.answer(stream_id)
        assert (reply.status, reply.text) == (status, text)
        assert (await client.call(b"fine")).messages == [b"fine"]


async def test_an_oversized_message_is_refused_before_it_arrives() -> None:
    async with in_memory(ECHO, max_receive_bytes=100) as served:
        stream_id = await served.client.begin()
        await served.client.send(stream_id, b"\0\x7f\xff\xff\xff")
        reply = await served.client.answer(stream_id)
        assert (reply.status, reply.text) == (8, "Received message larger than max (2147483647 vs. 100)")


async def test_a_response_that_is_too_large() -> None:
    async with in_memory(ECHO, max_send_bytes=10) as served:
        assert (await served.client.call(bytes(10))).status == 0
        reply = await served.client.call(bytes(11))
        assert (reply.status, reply.text) == (8, "Sent message larger than max (11 vs. 10)")


# Cancellation and deadlines


async def test_a_deadline(autojump_clock: trio.testing.MockClock) -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        began = trio.current_time()
        early = await served.client.ask(b"x", ("grpc-timeout", "50m"))
        late = await served.client.ask(b"x", ("grpc-timeout", "3S"))
        reply = await served.client.answer(early)
        assert (reply.status, reply.text) == (4, "Deadline Exceeded")
        assert trio.current_time() - began == pytest.approx(0.05)
        assert held.cancelled == [0]
        held.calls[0].reply((b"too late",))
        held.calls[1].reply((b"in time",))
        assert (await served.client.answer(late)).messages == [b"in time"]
        await trio.sleep(10)
        assert held.cancelled == [0]


async def test_a_deadline_before_the_request_has_arrived(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(ECHO) as served:
        stream_id = await served.client.begin(PATH, ("grpc-timeout", "1S"))
        assert (await served.client.answer(stream_id)).status == 4


async def test_a_deadline_that_has_passed(autojump_clock: trio.testing.MockClock) -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        assert (await served.client.call(b"x", ("grpc-timeout", "0S"))).status == 4
    assert len(held.cancelled) == len(held.calls)


async def test_the_client_cancels() -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        client = served.client
        ids = [await client.ask(b"x") for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        client.h2.reset_stream(ids[1], error_code=8)
        await client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert held.cancelled == [1]
        for call in held.calls:
            call.reply((b"y",))
        for stream_id in (ids[0], ids[2]):
            assert (await client.answer(stream_id)).messages == [b"y"]
        assert client.replies[ids[1]].body == b""


async def test_a_cancelled_call_notifies_at_once() -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        stream_id = await served.client.ask(b"x")
        await trio.testing.wait_all_tasks_blocked()
        served.client.h2.reset_stream(stream_id)
        await served.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        late: list[str] = []
        held.calls[0].on_cancel(lambda: late.append("told"))
        assert late == ["told"]
        assert held.cancelled == [0]


async def test_a_bug_in_a_callback_stops_no_other_callback(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        for _ in range(3):
            await served.client.ask(b"x")
        await held.wait(calls=3)
        held.calls[0].on_cancel(lambda: held.calls[99].fail(Status.OK, ""))
        await trio.aclose_forcefully(served.client.stream)
        await served.ended.wait()
    assert sorted(held.cancelled) == [1, 2]
    assert len(caplog.records) == 1


async def test_the_client_goes_away() -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        for _ in range(3):
            await served.client.ask(b"x")
        await served.client.begin()
        await trio.testing.wait_all_tasks_blocked()
        await trio.aclose_forcefully(served.client.stream)
        await served.ended.wait()
        assert sorted(held.cancelled) == [0, 1, 2]
        held.calls[0].reply((b"nobody",))
        held.calls[1].fail(Status.INTERNAL, "nobody")


async def test_a_client_that_breaks_the_protocol_ends_all_its_calls() -> None:
    held = Held()
    async with in_memory({PATH: UnaryHandler(held)}) as served:
        client: Client = served.client
        await client.ask(b"x")
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.send_all(b"\0\0\1\0\0\0\0\0\0x")  # DATA on stream 0
        while not client.goaways:
            await client.read()
        assert client.goaways[0].error_code == 1
        assert held.cancelled == [0]
        await trio.aclose_forcefully(client.stream)
        await served.ended.wait()


async def test_a_call_whose_handler_answers_it_when_another_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    calls: list[UnaryCall] = []

    def handle(call: UnaryCall, body: memoryview) -> None:
        calls.append(call)
        if len(calls) == 1:
            call.on_cancel(lambda: calls[1].reply((b"the other",)))

    async with in_memory({PATH: UnaryHandler(handle)}) as served:
        ids = [await served.client.ask(b"x", ("grpc-timeout", "50m")) for _ in range(2)]
        assert (await served.client.answer(ids[0])).status == 4
        assert (await served.client.answer(ids[1])).messages == [b"the other"]
        third = await served.client.ask(b"x")  # the connection lives
        await trio.testing.wait_all_tasks_blocked()
        calls[2].reply((b"third",))
        assert (await served.client.answer(third)).messages == [b"third"]
