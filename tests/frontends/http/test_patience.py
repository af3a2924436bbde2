"""Readers that are too slow, and connections that come too late."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing

from tpy.clock import SystemClock
from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.message import HttpReply
from tpy.frontends.http.replies import ReplyLine
from tpy.frontends.http.serving import create_port
from tpy.frontends.transport import StreamWire

from .fakes import FakeServices
from .harness import options


async def test_a_connection_accepted_in_the_moment_of_a_stop_ends_soon(mock_clock: trio.testing.MockClock) -> None:
    port = create_port(options(), FakeServices(), SystemClock())
    port.begin_drain()
    ours, theirs = trio.testing.memory_stream_pair()
    began_s = trio.current_time()
    await Http1Connection(port, StreamWire(theirs), client=None, server=None).run()
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
    """How long an answer is being written, and whether it was given up."""
    failed = []
    over = trio.Event()
    async with trio.open_nursery() as nursery:

        def give_up() -> None:
            failed.append(True)
            over.set()

        line = ReplyLine(
            _Trickle(rate),
            write_timeout_s=60,
            spawn=lambda work: nursery.start_soon(work),
            progressed=lambda: None if line.blocked else over.set(),
            failed=give_up,
        )
        place = line.reserve(version="1.1", keep_alive=True, head_only=False, bytes_held=0)
        began_s = trio.current_time()
        line.fill(place, HttpReply(parts=(bytes(size),), content_length=size))
        with trio.move_on_after(stop_after_s):
            await over.wait()
        if not over.is_set():
            line.begin_stop()
            await over.wait()
        took_s = trio.current_time() - began_s
        nursery.cancel_scope.cancel()
    return took_s, bool(failed)


async def test_a_slow_reader_gets_its_answer(mock_clock: trio.testing.MockClock) -> None:
    took_s, failed = await _seconds_until_over(rate=5000, size=2_000_000)
    assert not failed
    assert 395 < took_s < 410


async def test_a_reader_of_a_byte_at_a_time_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    took_s, failed = await _seconds_until_over(rate=1, size=4096)
    assert failed
    assert 60 < took_s < 63


async def test_a_stop_waits_for_a_slow_reader_as_long_as_its_bytes_may_take(mock_clock: trio.testing.MockClock) -> None:
    took_s, failed = await _seconds_until_over(rate=1, size=40960, stop_after_s=10)
    assert failed
    assert 24 < took_s < 27
