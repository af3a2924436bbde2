"""HandOff: what a decoupled model sends is taken once, in order, whatever its taking brings about."""

from __future__ import annotations

from tests.engine.fakes import config, request
from tpy.backend import ExecutionResult
from tpy.clock import SystemClock
from tpy.deliveries import Deliveries
from tpy.messages import InferenceResponse
from tpy_data.engine.requests.decoupled import DecoupledRequests
from tpy_data.engine.requests.outputs import OutputSelection
from tpy_data.engine.requests.responder import Responder
from tpy_data.engine.requests.response_stream import HandOff, ResponseStream, Sent
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.schedulers.core import Outcome


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

    def taking(self, *, begin: bool) -> None:
        pass

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


class Ends:
    """Notes responses and ends in order. To forget a request has the others' responses flushed, as a report does."""

    gate = None
    name = "m"
    instance_count = 1

    def __init__(self) -> None:
        self.log: list[str] = []
        self.requests = DecoupledRequests(
            SystemClock(), Deliveries(), Responder("m", 1), OutputSelection(config()), VersionStatistics(), self
        )

    def ticket(self, name: str) -> RequestTicket:
        ends = self

        class Sink:
            def deliver(self, response: InferenceResponse) -> None:
                ends.log.append(f"{name} {'final' if response.final else 'more'}")

        ticket = RequestTicket(request(), {}, batch_size=1, signature=None, sink=Sink(), owner=self)
        self.requests.begin(ticket)
        return ticket

    def forget(self, ticket: RequestTicket) -> None:
        self.log.append("forget")
        self.requests.flush()

    def refuse(self, ticket: RequestTicket, outcome: Outcome) -> None:
        raise AssertionError("nobody is refused here")

    def request_ended(self) -> None:
        pass

    def cancel(self, ticket: RequestTicket) -> None:
        self.requests.cancel(ticket)

    def recall(self) -> None:
        pass


async def test_a_core_forgets_a_request_when_all_that_was_sent_is_taken() -> None:
    """Inside the flush it would report batches whose requests' responses are just being taken."""
    ends = Ends()
    first, second = ends.ticket("first"), ends.ticket("second")
    assert first.sender is not None
    assert second.sender is not None
    first.sender.send(None, final=True)
    second.sender.send(ExecutionResult(), final=False)
    second.sender.send(None, final=True)
    ends.requests.flush()
    assert ends.log == ["first final", "second more", "second final", "forget", "forget"]
