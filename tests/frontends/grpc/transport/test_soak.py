"""Many calls of all kinds from several clients, ended in all ways: at the end nothing is left."""

from __future__ import annotations

import gc
import random
import threading

import grpc
import trio

from tpy.frontends.grpc.transport import StreamCall, StreamHandler, UnaryCall, UnaryHandler
from tpy.frontends.grpc.transport.core.streams import Http2Stream
from tpy.frontends.grpc.transport.exchange import Exchange

from .harness import echo, echo_stream, running

CALLS = 3000
OUTSTANDING = 50
CLIENTS = 2

Counts = dict[str, int]
"""Numbers of unary calls by status."""


class Shuffler:
    """A unary handler that answers in another order, some of it in threads' time: a call waits until others have come."""

    def __init__(self) -> None:
        self.waiting: list[tuple[UnaryCall, bytes]] = []
        self.cancelled = 0
        self._chance = random.Random(1)

    def __call__(self, call: UnaryCall, body: memoryview) -> None:
        self.waiting.append((call, bytes(body)))
        call.on_cancel(self._count)
        while len(self.waiting) > 20 or body == b"flush":
            held, answer = self.waiting.pop(self._chance.randrange(len(self.waiting)))
            held.reply((answer,))
            if not self.waiting:
                break

    def _count(self) -> None:
        self.cancelled += 1


def _use(target: str, seed: int, counts: Counts, lock: threading.Lock) -> None:
    chance = random.Random(seed)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options=options) as channel:
        echo_call, shuffled = channel.unary_unary("/t.S/Echo"), channel.unary_unary("/t.S/Shuffle")
        chat = channel.stream_stream("/t.S/Chat")
        outstanding: list[tuple[grpc.Future, bytes]] = []
        for number in range(CALLS // CLIENTS):
            body = b"%d" % number * chance.choice((1, 1, 100, 20_000))
            kind = chance.random()
            timeout = chance.choice((None, None, 3600, 0.002))
            if kind < 0.1:
                replies = chat(iter((body, b"2", b"3")))
                taken = [next(replies) for _ in range(chance.randrange(4))]
                assert taken == [body, b"2", b"3"][: len(taken)]
                replies.cancel()
            else:
                call = (echo_call if kind < 0.6 else shuffled).future(body, timeout=timeout)
                outstanding.append((call, body))
            if chance.random() < 0.2 and outstanding:
                chance.choice(outstanding)[0].cancel()
            while len(outstanding) >= OUTSTANDING:
                _finish(shuffled, outstanding, counts, lock)
        while outstanding:
            _finish(shuffled, outstanding, counts, lock)


def _finish(
    shuffled: grpc.UnaryUnaryMultiCallable,
    outstanding: list[tuple[grpc.Future, bytes]],
    counts: dict[str, int],
    lock: threading.Lock,
) -> None:
    """Wait for the first of the calls; the test's time limit ends what does not end."""
    call, body = outstanding.pop(0)
    while not call.done():  # a flush may overtake a larger call, which waits for flow control, and then leaves it unanswered
        shuffled.future(b"flush").result()
    try:
        assert call.result() == body
        code = "OK"
    except grpc.FutureCancelledError:
        code = "CANCELLED"
    except grpc.RpcError as error:
        code = error.code().name
    with lock:
        counts[code] = counts.get(code, 0) + 1


def _live() -> int:
    return sum(issubclass(type(found), Exchange | Http2Stream) for found in gc.get_objects())


async def test_nothing_is_left_of_many_calls() -> None:
    cut_streams = 0
    gc.collect()
    before = _live()

    async def chat(call: StreamCall) -> None:
        nonlocal cut_streams
        try:
            await echo_stream(call)
        except trio.Cancelled:
            cut_streams += 1
            raise

    shuffler = Shuffler()
    handlers = {"/t.S/Echo": UnaryHandler(echo), "/t.S/Shuffle": UnaryHandler(shuffler), "/t.S/Chat": StreamHandler(chat)}
    counts: Counts = {}
    tasks_before = trio.lowlevel.current_statistics().tasks_living
    async with running(handlers, drain_timeout_s=60.0) as served:
        lock = threading.Lock()
        async with trio.open_nursery() as nursery:
            for seed in range(CLIENTS):
                nursery.start_soon(trio.to_thread.run_sync, _use, served.target, seed, counts, lock)
        served.stop.set()
    # The server has ended by itself, long before its drain deadline: no call was left that it would have waited for.
    assert trio.lowlevel.current_statistics().tasks_living == tasks_before
    assert counts.keys() <= {"OK", "CANCELLED", "DEADLINE_EXCEEDED"}
    assert counts["OK"] > CALLS // 3
    assert shuffler.cancelled > 10
    assert cut_streams > 10
    shuffler.waiting.clear()
    gc.collect()
    assert _live() <= before
