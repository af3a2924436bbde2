"""DecoupledRequests: the requests of a decoupled model version that have not ended, and how they end. Also those of other models
whose one answer comes later than their execution.

A request is the scheduler core's until `execute` has returned, as any other; it ends with its final response, which may come
before or after that. From `execute` on it is kept here, with its deadline. All of this runs on the Trio thread.

A request that ends before its execution is over is taken out of the core when all responses that were sent by then are taken: it
can bring the report of a batch, which answers further requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from tpy.alarm import Alarm
from tpy.backend import AnswerLater
from tpy.clock import Clock
from tpy.deliveries import Deliveries
from tpy.errors import Internal, TpyError
from tpy.messages import Tensor
from tpy.messages.inference import NO_PARAMETERS
from tpy_data.engine.requests.outputs import OutputSelection
from tpy_data.engine.requests.responder import Responder
from tpy_data.engine.requests.response_stream import HandOff, ResponseStream, Sent
from tpy_data.engine.requests.statistics import FailureReason, ResponseKind, VersionStatistics
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.schedulers.core import Outcome, Phase
from tpy_data.schedulers.core.deadlines import Deadlines


class RequestEnds(Protocol):
    """The engine, as far as requests end here."""

    def forget(self, ticket: RequestTicket) -> None:
        """The request is over while the core still runs it."""
        ...

    def refuse(self, ticket: RequestTicket, outcome: Outcome) -> None:
        """Answer it with the error of this outcome."""
        ...

    def request_ended(self) -> None:
        """There is one less."""
        ...


class DecoupledRequests:
    """See the module. `run` is a task of the version's."""

    def __init__(
        self,
        clock: Clock,
        deliveries: Deliveries,
        responder: Responder,
        outputs: OutputSelection,
        statistics: VersionStatistics,
        ends: RequestEnds,
    ) -> None:
        self._responder = responder
        self._clock = clock
        self._outputs = outputs
        self._statistics = statistics
        self._ends = ends
        self._hand_off = HandOff(self, clock, deliveries)
        self._open: dict[RequestTicket, None] = {}
        self._deadlines = Deadlines()
        self._alarm = Alarm(clock)
        self._stopped = False
        self._takes = 0
        self._ended: list[RequestTicket] = []  # that the core has and is to forget

    def __len__(self) -> int:
        """Requests whose execution is over and that have not ended."""
        return len(self._open)

    async def run(self) -> None:
        """Keep the deadlines of requests whose execution is over. Runs until cancelled."""
        while True:
            now_ns = await self._alarm.wait()
            self.flush()  # a response that was sent in time counts
            while (ticket := self._deadlines.pop_due(now_ns)) is not None:
                self._ends.refuse(cast(RequestTicket, ticket), Outcome.TIMED_OUT)
            self._arm()

    def begin(self, ticket: RequestTicket) -> None:
        """A request that is about to be submitted."""
        ticket.sender = ResponseStream(ticket, self._hand_off, self, ticket.residency)

    def ignore(self, ticket: RequestTicket, later: AnswerLater | None = None) -> None:
        """Give a request that has ended a sender whose responses go nowhere; `later` is notified."""
        if ticket.sender is None:
            self.begin(ticket)
        stream = _stream(ticket)
        if not stream.over:
            stream.end(self._clock.now_ns(), by_model=True)
        if later is not None:
            later.begin(stream)

    def flush(self) -> None:
        """Deliver the responses that were sent so far: the execution of a batch is over, and everything that was sent in it comes
        first."""
        self._hand_off.flush()

    def batch_finished(self, tickets: Sequence[RequestTicket]) -> None:
        """The execution of these is over, which says how long it took. Requests that have already ended are counted now."""
        for ticket in tickets:
            stream = _stream(ticket)
            if stream.over and not ticket.abandoned:
                self._count(ticket, stream)

    def respond(self, tickets: Sequence[RequestTicket]) -> None:
        """The core lets go of these: their execution is over, and they have not ended."""
        for ticket in tickets:
            stream = _stream(ticket)
            error = None if ticket.result is None else ticket.result.error
            if stream.over:
                continue  # cancelled by a sink that was called just now
            if error is not None:
                self._fail(ticket, stream, error)
            else:
                self._keep(ticket)

    def keep(self, ticket: RequestTicket, later: AnswerLater) -> None:
        """The core lets go of this request of a model that answers once: its answer comes later."""
        if ticket.abandoned:
            self.ignore(ticket, later)
            return
        self.begin(ticket)
        stream = _stream(ticket)
        if ticket.execution is not None:
            stream.began_ns = ticket.execution.start_ns
        self._keep(ticket)
        later.begin(stream)

    def drop(self, ticket: RequestTicket) -> bool:
        """The request is answered by other means. False when it has ended already, and must not be."""
        stream = _stream(ticket)
        if stream.over:
            return False
        ticket.abandoned = True
        self._leave(ticket, stream, by_model=False)
        self._let_core_forget()
        return True

    def cancel(self, ticket: RequestTicket) -> bool:
        """Nobody waits for the request any more. False when it has ended already."""
        stream = _stream(ticket)
        if stream.over:
            return False
        now_ns = self._clock.now_ns()
        self._statistics.responses.add(
            ResponseKind.CANCEL, stream.index, 0, now_ns - (stream.last_ns or stream.began_ns or ticket.queued_ns)
        )
        return self.drop(ticket)

    def stop(self) -> None:
        """End every open request; one that is still executing ends when its execution is over."""
        self._stopped = True
        for ticket in list(self._open):
            self._ends.refuse(ticket, Outcome.STOPPING)

    # Responses (StreamOwner)

    def take(self, stream: ResponseStream, sent: Sent) -> None:
        """One response from the model."""
        if stream.paused or stream.held:
            stream.held.append(sent)
        else:
            self._deliver(stream, sent)

    def taking(self, *, begin: bool) -> None:
        """As `StreamOwner.taking`."""
        self._takes += 1 if begin else -1
        self._let_core_forget()

    def resumed(self, stream: ResponseStream) -> None:
        """Deliver the responses that have waited, until it is paused again."""
        taken: list[Sent] = []
        while stream.held and not stream.paused and not stream.over:
            sent = stream.held.popleft()
            taken.append(sent)
            self._deliver(stream, sent)
        if taken:
            stream.free(taken)

    def _deliver(self, stream: ResponseStream, sent: Sent) -> None:
        ticket = cast(RequestTicket, stream.ticket)
        result, final = sent.result, sent.final
        error = None if result is None else result.error
        outputs: tuple[Tensor, ...] = ()
        if result is not None and error is None:
            try:
                outputs = self._outputs.select(result.outputs, ticket.requested_outputs)
            except Internal as fault:
                error = fault
        stream.failed = stream.failed or error is not None
        self._count_response(
            stream, sent, ResponseKind.FAIL if error is not None else ResponseKind.SUCCESS if outputs else ResponseKind.EMPTY
        )
        if final:
            self._leave(ticket, stream, by_model=True)
            if ticket.execution is not None:
                self._count(ticket, stream)
        parameters = NO_PARAMETERS if result is None or error is not None else result.parameters
        self._responder.respond(ticket.sink, ticket.id, outputs, parameters, error=error, final=final)
        if final:
            self._let_core_forget()
            self._ends.request_ended()

    def _count_response(self, stream: ResponseStream, sent: Sent, kind: ResponseKind) -> None:
        began_ns = stream.last_ns or stream.began_ns
        now_ns = self._clock.now_ns()
        self._statistics.responses.add(kind, stream.index, sent.sent_ns - began_ns, now_ns - sent.sent_ns)
        if stream.index == 0 and sent.result is not None:
            self._statistics.first_response(cast(RequestTicket, stream.ticket), now_ns)
        stream.index += 1
        stream.last_ns = sent.sent_ns

    # Ends

    def _keep(self, ticket: RequestTicket) -> None:
        self._open[ticket] = None
        if self._stopped:
            self._ends.refuse(ticket, Outcome.STOPPING)
            return
        if ticket.deadline_ns is not None:
            self._deadlines.add(ticket, ticket.deadline_ns)
            self._arm()

    def _fail(self, ticket: RequestTicket, stream: ResponseStream, error: TpyError) -> None:
        stream.failed = True
        self._leave(ticket, stream, by_model=False)
        self._count(ticket, stream)
        self._responder.respond(ticket.sink, ticket.id, error=error)
        self._let_core_forget()
        self._ends.request_ended()

    def _leave(self, ticket: RequestTicket, stream: ResponseStream, *, by_model: bool) -> None:
        stream.end(self._clock.now_ns(), by_model=by_model)
        if ticket.phase is not Phase.ENDED:
            self._ended.append(ticket)
        self._open.pop(ticket, None)
        self._deadlines.discard(ticket)

    def _let_core_forget(self) -> None:
        while self._ended and not self._takes:
            self._ends.forget(self._ended.pop(0))

    def _count(self, ticket: RequestTicket, stream: ResponseStream) -> None:
        if stream.failed or ticket.execution is None:
            self._statistics.failed(ticket, FailureReason.BACKEND, stream.ended_ns)
        else:
            self._statistics.succeeded(((ticket, ticket.execution),), stream.ended_ns)

    def _arm(self) -> None:
        first_ns = self._deadlines.first_ns()
        if first_ns is not None:
            self._alarm.bring_forward(first_ns)


def _stream(ticket: RequestTicket) -> ResponseStream:
    if ticket.sender is None:
        raise Internal("a request of a decoupled model has no sender")
    return ticket.sender
