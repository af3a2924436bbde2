"""Stream calls over a connection in memory, in virtual time: order, back-pressure, ends."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from grpclib.const import Status

from tpy.errors import InvariantViolation
from tpy.frontends.grpc.transport import StreamCall, StreamHandler
from tpy.frontends.grpc.transport.stream import StreamExchange
from tpy.limits import (
    GRPC_CONNECTION_MESSAGES_PER_TURN_MAX,
    GRPC_STREAM_MESSAGES_PER_TURN_MAX,
    GRPC_STREAM_SEND_BYTES_MAX,
    GRPC_STREAM_WINDOW_BYTES,
)
from tpy.units import KIB, MIB

from .harness import PATH, Client, echo_stream, in_memory
from .peer import message

ECHO = {PATH: StreamHandler(echo_stream)}


class Turns:
    """Counts turns of the loop, and in which of them messages are taken."""

    def __init__(self) -> None:
        self.taken_in: list[int] = []
        self._now = 0

    async def count(self) -> None:
        """Have a turn, as any other task."""
        while True:
            self._now += 1
            await trio.lowlevel.checkpoint()

    async def take(self, call: StreamCall) -> None:
        """A handler."""
        while await call.receive_message() is not None:
            self.taken_in.append(self._now)


async def test_messages_go_both_ways_one_by_one() -> None:
    async with in_memory(ECHO) as served:
        client = served.client
        stream_id = await client.begin()
        for number in range(5):
            await client.send(stream_id, message(b"%d" % number))
            await client.read_messages(stream_id, number + 1)
        await client.send(stream_id, b"", end=True)
        reply = await client.answer(stream_id)
        assert reply.messages == [b"0", b"1", b"2", b"3", b"4"]
        assert reply.status == 0


async def test_a_stream_begins_with_its_headers() -> None:
    async def hello(call: StreamCall) -> None:
        assert call.path == PATH
        await call.send_message((b"hello",))
        assert await call.receive_message() is None

    async with in_memory({PATH: StreamHandler(hello)}) as served:
        stream_id = await served.client.begin()
        assert await served.client.read_messages(stream_id, 1) == [b"hello"]
        await served.client.send(stream_id, b"", end=True)
        assert (await served.client.answer(stream_id)).status == 0


async def test_many_messages_in_one_piece_and_one_in_many() -> None:
    async with in_memory(ECHO) as served:
        client = served.client
        stream_id = await client.begin()
        await client.send(stream_id, b"".join(message(b"%d" % number) for number in range(100)))
        big = message(bytes(range(256)) * 20)
        for at in range(0, len(big), 100):
            await client.send(stream_id, big[at : at + 100], end=at + 100 >= len(big))
        reply = await client.answer(stream_id)
        assert reply.messages == [*(b"%d" % number for number in range(100)), bytes(range(256)) * 20]


async def test_what_arrives_together_is_taken_in_few_turns_of_the_loop_and_others_have_theirs() -> None:
    turns = Turns()
    count = 3 * GRPC_STREAM_MESSAGES_PER_TURN_MAX
    async with in_memory({PATH: StreamHandler(turns.take)}) as served, trio.open_nursery() as nursery:
        nursery.start_soon(turns.count)
        stream_id = await served.client.begin()
        await served.client.send(stream_id, b"".join(message(b"%d" % number) for number in range(count)), end=True)
        assert (await served.client.answer(stream_id)).status == 0
        nursery.cancel_scope.cancel()
    assert len(turns.taken_in) == count
    together = Counter(turns.taken_in)
    assert len(together) <= 5  # three, where it begins with a turn of its own, and no other task comes in between
    assert max(together.values()) <= 2 * GRPC_STREAM_MESSAGES_PER_TURN_MAX


@pytest.mark.parametrize("frame_bytes", [1, 7, 100, 10_000])
async def test_messages_that_nobody_takes_are_few_objects(frame_bytes: int) -> None:
    go = trio.Event()
    taken: list[bytes] = []

    async def wait(call: StreamCall) -> None:
        await go.wait()
        while (body := await call.receive_message()) is not None:
            taken.append(bytes(body))

    bodies = [b"x" * (number % 3) for number in range(5_000)]
    data = b"".join(map(message, bodies))
    async with in_memory({PATH: StreamHandler(wait)}) as served:
        client = served.client
        stream_id = await client.begin()
        for at in range(0, len(data), frame_bytes):
            await client.send(stream_id, data[at : at + frame_bytes])
        await trio.testing.wait_all_tasks_blocked()
        (exchange,) = served.connection.exchanges.values()
        assert isinstance(exchange, StreamExchange)
        assert len(exchange.arrived) <= 256
        assert len(exchange.uncut) <= 1 + len(data) // 2_000
        await client.send(stream_id, b"", end=True)
        go.set()
        assert (await client.answer(stream_id)).status == 0
    assert taken == bodies


async def test_a_message_larger_than_the_window_arrives_behind_many_small_ones() -> None:
    """Its beginning waits as bytes while the others are taken, and must be credited then, or the client may not go on."""
    go = trio.Event()
    sizes: list[int] = []

    async def wait(call: StreamCall) -> None:
        await go.wait()
        while (body := await call.receive_message()) is not None:
            sizes.append(len(body))

    large = message(bytes(3 * GRPC_STREAM_WINDOW_BYTES))
    async with in_memory({PATH: StreamHandler(wait)}) as served:
        client = served.client
        stream_id = await client.begin()
        await client.send(stream_id, message(b"") * 256)
        at = 0
        with trio.fail_after(10):
            while at < len(large):
                room = min(client.h2.local_flow_control_window(stream_id), 16 * KIB)
                if room:
                    await client.send(stream_id, large[at : at + room])
                    at += room
                else:
                    go.set()
                    await client.read()
            await client.send(stream_id, b"", end=True)
            assert (await client.answer(stream_id)).status == 0
    assert sizes == [0] * 256 + [len(large) - 5]


@pytest.mark.parametrize("rest", [b"\0\0", b"\2\0\0\0\0"])
async def test_what_is_no_message_is_found_behind_many_that_are(rest: bytes) -> None:
    taken = 0

    async def count(call: StreamCall) -> None:
        nonlocal taken
        while await call.receive_message() is not None:
            taken += 1

    async with in_memory({PATH: StreamHandler(count)}) as served:
        stream_id = await served.client.begin()
        await served.client.send(stream_id, b"".join([message(b"x")] * 1_000) + rest, end=True)
        reply = await served.client.answer(stream_id)
        assert reply.status == Status.INTERNAL.value
    assert taken <= 1_000


async def test_many_streams_share_a_turn() -> None:
    """Each may take a few messages, not as many as if it were alone."""
    turns = Turns()
    streams = GRPC_CONNECTION_MESSAGES_PER_TURN_MAX
    async with in_memory({PATH: StreamHandler(turns.take)}) as served, trio.open_nursery() as nursery:
        ids = [await served.client.begin() for _ in range(streams)]
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(turns.count)
        for stream_id in ids:
            await served.client.send(stream_id, message(b"x") * 8, end=True)
        for stream_id in ids:
            assert (await served.client.answer(stream_id)).status == 0
        nursery.cancel_scope.cancel()
    assert len(turns.taken_in) == 8 * streams
    assert max(Counter(turns.taken_in).values()) <= 3 * streams


async def test_a_handler_may_answer_before_it_reads() -> None:
    async def early(call: StreamCall) -> None:
        call.fail(Status.FAILED_PRECONDITION, "not now", [("a", "b")])
        assert await call.receive_message() is None

    async with in_memory({PATH: StreamHandler(early)}) as served:
        reply = await served.client.answer(await served.client.begin())
        assert (reply.status, reply.text, reply.end("a")) == (9, "not now", "b")


async def test_failing_behind_messages() -> None:
    async def late(call: StreamCall) -> None:
        assert call.send_nowait((b"one",))
        call.fail(Status.ABORTED, "enough")

    async with in_memory({PATH: StreamHandler(late)}) as served:
        reply = await served.client.answer(await served.client.begin())
        assert reply.messages == [b"one"]
        assert (reply.status, reply.text) == (10, "enough")


async def test_the_end_is_sent_once() -> None:
    async def twice(call: StreamCall) -> None:
        call.finish([("a", "b")])
        for again in (lambda: call.finish(), lambda: call.fail(Status.OK, ""), lambda: call.send_nowait((b"",))):
            with pytest.raises(InvariantViolation):
                again()
        with pytest.raises(InvariantViolation):
            await call.send_message((b"",))

    async with in_memory({PATH: StreamHandler(twice)}) as served:
        reply = await served.client.answer(await served.client.begin())
        assert (reply.status, reply.end("a"), reply.messages) == (0, "b", [])


@pytest.mark.parametrize("error", [RuntimeError("x"), ExceptionGroup("many", [ValueError("y")])])
async def test_a_bug_in_a_handler(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(call: StreamCall) -> None:
        await call.send_message((b"one",))
        raise error

    async with in_memory({PATH: StreamHandler(broken)}) as served:
        reply = await served.client.answer(await served.client.begin())
        assert (reply.messages, reply.status, reply.text) == ([b"one"], 13, "internal error")
    assert len(caplog.records) == 1


async def test_a_bug_while_the_call_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_late() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError

    async def broken(call: StreamCall) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_late)
            nursery.start_soon(trio.sleep_forever)

    async with in_memory({PATH: StreamHandler(broken)}) as served:
        stream_id = await served.client.begin()
        await trio.testing.wait_all_tasks_blocked()
        served.client.h2.reset_stream(stream_id)
        await served.client.flush()
        await trio.testing.wait_all_tasks_blocked()
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (message(b"ok") + b"\0\0", 13, "the request ends within a message"),
        (message(b"ok") + b"\3\0\0\0\0", 13, "a message begins with the flag 3, expected 0 or 1 (compressed)"),
        (message(bytes(101)), 8, "Received message larger than max (101 vs. 100)"),
        (message(b"x", compressed=True), 13, "a message is marked as compressed, but there is no grpc-encoding"),
    ],
)
async def test_requests_that_are_not_messages(body: bytes, status: int, text: str) -> None:
    ended: list[str] = []

    async def read(call: StreamCall) -> None:
        call.on_cancel(lambda: ended.append("cancelled"))
        try:
            while await call.receive_message() is not None:
                pass
            ended.append("none")
        except trio.Cancelled:
            ended.append("raised")
            raise

    async with in_memory({PATH: StreamHandler(read)}, max_receive_bytes=100) as served:
        stream_id = await served.client.begin()
        await served.client.send(stream_id, body, end=True)
        reply = await served.client.answer(stream_id)
        assert (reply.status, reply.text) == (status, text)
        await trio.testing.wait_all_tasks_blocked()
    assert ended == ["cancelled", "raised"]


async def test_a_message_that_is_too_large_to_send() -> None:
    async def large(call: StreamCall) -> None:
        await call.send_message((bytes(10),))
        await call.send_message((bytes(6), bytes(5)))
        await trio.sleep_forever()

    async with in_memory({PATH: StreamHandler(large)}, max_send_bytes=10) as served:
        reply = await served.client.answer(await served.client.begin())
        assert (reply.messages, reply.status, reply.text) == ([bytes(10)], 8, "Sent message larger than max (11 vs. 10)")


# Back-pressure


async def test_a_slow_reader_holds_the_sender_back() -> None:
    sent = 0

    async def pour(call: StreamCall) -> None:
        nonlocal sent
        for _ in range(100):
            await call.send_message((bytes(100 * KIB),))
            sent += 1

    async with in_memory({PATH: StreamHandler(pour)}, automatic=False) as served:
        client = served.client
        stream_id = await client.begin()
        while len(client.replies[stream_id].body) < 65535:
            await client.read()
        await trio.testing.wait_all_tasks_blocked()
        held = served.connection.server.queued_bytes(stream_id)
        assert GRPC_STREAM_SEND_BYTES_MAX < held <= GRPC_STREAM_SEND_BYTES_MAX + 101 * KIB
        assert sent < 15
        client.h2.increment_flow_control_window(20 * MIB)
        client.h2.increment_flow_control_window(20 * MIB, stream_id)
        await client.flush()
        reply = await client.answer(stream_id)
        assert sent == 100
        assert len(reply.body) == 100 * (100 * KIB + 5)
        assert served.connection.behind == set()


async def test_sending_without_waiting_returns_when_to_wait() -> None:
    accepted = 0

    async def pour(call: StreamCall) -> None:
        nonlocal accepted
        while call.send_nowait((bytes(100 * KIB),)):
            accepted += 1
        await call.send_message((b"last",))

    async with in_memory({PATH: StreamHandler(pour)}, automatic=False) as served:
        client = served.client
        stream_id = await client.begin()
        await trio.testing.wait_all_tasks_blocked()
        assert accepted == 11
        client.h2.increment_flow_control_window(20 * MIB)
        client.h2.increment_flow_control_window(20 * MIB, stream_id)
        await client.flush()
        assert (await client.answer(stream_id)).messages[-1] == b"last"


@pytest.mark.parametrize("size", [1 * KIB, 300 * KIB])
async def test_a_slow_handler_holds_the_client_back(size: int) -> None:
    go = trio.Event()
    taken = 0

    async def slow(call: StreamCall) -> None:
        nonlocal taken
        await go.wait()
        while await call.receive_message() is not None:
            taken += 1

    async with in_memory({PATH: StreamHandler(slow)}) as served:
        client = served.client
        stream_id = await client.begin()
        count = 12 * MIB // (size + 5)
        unsent = memoryview(message(bytes(size)) * count)
        sent = len(unsent)
        await trio.testing.wait_all_tasks_blocked()

        async def send_while_allowed() -> None:
            nonlocal unsent
            while unsent and (room := min(client.h2.local_flow_control_window(stream_id), 64 * KIB)):
                await client.send(stream_id, bytes(unsent[:room]), end=room >= len(unsent))
                unsent = unsent[room:]
                await trio.testing.wait_all_tasks_blocked()
                with trio.move_on_after(0):
                    await client.read()

        await send_while_allowed()
        # What no handler has taken stays within the window of the stream, and a message that was under way.
        assert sent - len(unsent) <= 4 * MIB + size + 64 * KIB
        go.set()
        while unsent:
            await client.read()
            await send_while_allowed()
        assert (await client.answer(stream_id)).status == 0
        assert taken == count


async def test_a_message_larger_than_the_window_arrives() -> None:
    async with in_memory(ECHO) as served:
        client = served.client
        stream_id = await client.begin()
        unsent = message(bytes(9 * MIB))
        while unsent:
            while not (room := min(client.h2.local_flow_control_window(stream_id), 64 * KIB)):
                await client.read()
            await client.send(stream_id, unsent[:room], end=room >= len(unsent))
            unsent = unsent[room:]
        assert (await client.answer(stream_id)).messages == [bytes(9 * MIB)]


# Ends


class Watched:
    """A stream handler that waits, and what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, call: StreamCall) -> None:
        call.on_cancel(lambda: self.seen.append("told"))
        try:
            await call.receive_message()
        except trio.Cancelled:
            self.seen.append("cancelled")
            raise


async def test_the_client_cancels() -> None:
    watched = Watched()
    async with in_memory({PATH: StreamHandler(watched)}) as served:
        stream_id = await served.client.begin()
        await trio.testing.wait_all_tasks_blocked()
        served.client.h2.reset_stream(stream_id, error_code=8)
        await served.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert watched.seen == ["told", "cancelled"]


async def test_a_deadline(autojump_clock: trio.testing.MockClock) -> None:
    watched = Watched()
    async with in_memory({PATH: StreamHandler(watched)}) as served:
        began = trio.current_time()
        reply = await served.client.answer(await served.client.begin(PATH, ("grpc-timeout", "1500m")))
        assert (reply.status, reply.text) == (4, "Deadline Exceeded")
        assert trio.current_time() - began == pytest.approx(1.5)
        assert watched.seen == ["told", "cancelled"]


async def test_a_deadline_of_a_sender_that_is_held_back(autojump_clock: trio.testing.MockClock) -> None:
    async def pour(call: StreamCall) -> None:
        while True:
            await call.send_message((bytes(100 * KIB),))

    async with in_memory({PATH: StreamHandler(pour)}, automatic=False) as served:
        reply = await served.client.answer(await served.client.begin(PATH, ("grpc-timeout", "1S")))
        assert reply.reset == 8  # a status could not overtake the data
        assert served.connection.server.open_streams == 0


async def test_the_client_goes_away() -> None:
    watched = Watched()
    async with in_memory({PATH: StreamHandler(watched)}) as served:
        await served.client.begin()
        await trio.testing.wait_all_tasks_blocked()
        await trio.aclose_forcefully(served.client.stream)
        await served.ended.wait()
        assert watched.seen == ["told", "cancelled"]


async def test_two_tasks_of_one_handler() -> None:
    async def both(call: StreamCall) -> None:
        async def count() -> None:
            for number in range(50):
                await call.send_message((b"%d" % number,))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            total = 0
            while (body := await call.receive_message()) is not None:
                total += len(body)
        await call.send_message((b"%d bytes" % total,))

    async with in_memory({PATH: StreamHandler(both)}) as served:
        client: Client = served.client
        stream_id = await client.begin()
        for number in range(20):
            await client.send(stream_id, message(bytes(number)))
        await client.send(stream_id, b"", end=True)
        reply = await client.answer(stream_id)
        assert reply.messages == [*(b"%d" % number for number in range(50)), b"190 bytes"]
