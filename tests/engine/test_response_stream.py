"""HandOff: what a decoupled model sends is taken once, in order, whatever its taking brings about."""

from __future__ import annotations

from tpy.backend import ExecutionResult
from tpy.clock import SystemClock
from tpy.deliveries import Deliveries
from tpy_data.engine.requests.response_stream import HandOff, ResponseStream, Sent


class Owner:
    """Notes what it takes; the first response makes it flush, as the report of a batch does that a cancelled request leaves."""

    def __init__(self) -> None:
        self.hand_off = HandOff(self, SystemClock(), Deliveries())
        self.taken: list[tuple[object, bool]] = []
        self.freed = 0

    def take(self, stream: ResponseStream, sent: Sent) -> None:
        self.taken.append((stream.ticket, sent.final))
        if len(self.taken) == 1:
            self.hand_off.flush()

    def resumed(self, stream: ResponseStream) -> None:
        raise AssertionError("nothing is paused here")

    def free(self, count: int) -> None:
        self.freed += count


async def test_a_report_in_the_middle_of_a_flush_takes_what_is_left_of_it() -> None:
    owner = Owner()
    streams = [ResponseStream(name, owner.hand_off, owner) for name in ("a", "b")]
    for stream in streams:
        stream.watch(owner.free, lambda: None)
        stream.send(ExecutionResult(), final=False)
        stream.send(None, final=True)
    owner.hand_off.flush()
    assert owner.taken == [("a", False), ("a", True), ("b", False), ("b", True)]
    assert owner.freed == 4
