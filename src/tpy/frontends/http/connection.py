"""One HTTP/1.1 connection: reads requests, answers inference itself, asks the port for every other answer, and then Quart.

Tasks: `run` reads. The answers of inference are written by whoever brings them (replies.py); a full socket gets a writer
task, a large body a decoding task, and a request that is not inference a task, in which Hypercorn and Quart start two more, all
in a nursery that `run` opens for the first of them. So a connection that only infers small tensors has one task, parked in its
read, and costs no more than that.

Order: inference requests that were sent without waiting run at the same time and are answered in order. Any other request
runs alone: after everything before it is answered, before everything behind it.

Deadlines: one per connection, moved lazily. `_due_s` is written often; the cancel scope around the reader wakes only at the
deadline it had when it was last armed, and then looks at `_due_s`.

The end: when the peer finishes sending it may still wait for answers. An interim response tells the two apart: a peer that has
closed resets the connection, and its requests are cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVarTuple, Unpack

import trio

from tpy import limits
from tpy.errors import InvariantViolation, Unavailable
from tpy.frontends.http.application import Application
from tpy.frontends.http.infer import InferCall, InferEndpoint, open_record, unexpected_error_reply
from tpy.frontends.http.message import HttpReply, HttpRequest, error_reply
from tpy.frontends.http.parser import ParserPhase, RequestParser
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.replies import CONTINUE, Pending, ReplyQueue
from tpy.frontends.transport import GONE, BoundAddress, Demand, Discarding, Ends, Wire
from tpy.units import KIB

if TYPE_CHECKING:
    from tpy.frontends.http.quart_bridge import QuartExchange

_Arguments = TypeVarTuple("_Arguments")

_RECEIVE_BYTES = 64 * KIB
_LINGER_S = 5.0
"""The time for which bytes of a refused request are still read, so that its sender gets to read the refusal."""
_LINGER_STOP_S = 1.0
"""The same from the moment on at which the server stops."""

_PROBE_PAUSE_S_MIN = 0.002
_PROBE_PAUSE_S_MAX = 0.25
"""The pauses between two looks at a peer that has finished sending; each is twice the one before."""
_PROBE_AFTER_S = 0.03
"""The interim response that tells whether it is there is sent when the pauses have become this long."""


class Http1Connection:
    """Serves `wire` and owns it. One instance, one `run`."""

    def __init__(self, port: HttpPort, wire: Wire, ends: Ends) -> None:
        self.receive_bytes_max = _RECEIVE_BYTES
        self._port = port
        self._options = port.options
        self._wire = wire
        self._ends = ends
        self._peer = str(ends.client) if ends.client.host else ""
        self._begun_ns = 0  # the time at which the request that has not arrived completely began; 0: no such request
        self._scope = trio.CancelScope()
        self._parser = RequestParser(max_input_size=port.options.max_input_size, bodies=port.bodies, refuse=port.refuse)
        self._replies = ReplyQueue(
            wire,
            write_timeout_s=port.options.write_timeout_s,
            spawn=self._spawn,
            progressed=self._on_progress,
            failed=self._fail,
        )
        self._nursery: trio.Nursery | None = None
        self._work: list[Callable[[], Awaitable[object]]] = []  # for tasks, while there is no nursery for them
        self._eof = False
        self._alone: HttpRequest | None = None
        """The request that is not inference and is being answered: nothing behind it is taken up."""
        self._exchange: QuartExchange | None = None
        """That request with the application; None while the port itself may answer it, or the application is imported."""
        self._is_taking_up = False
        """True inside `_take_up`: an answer that is given at once comes back to it through `_on_progress`."""
        self._takes_up_later = False  # a task is to take up more in a later turn of the loop
        self._paused = False  # the wire is to read nothing until there is room for it
        self._refused = False  # the answer to what cannot be parsed is queued
        self._owes_continue = False
        """The peer waits for an interim answer, and is to get it when no earlier request is open."""
        self._lingering: trio.CancelScope | None = None
        self._timer: trio.CancelScope | None = None
        self._due_s = math.inf
        self._head_timed = self._body_timed = 0
        """The requests, by their numbers in `parser.begun`, whose head and body have got their deadlines; 0: none has."""
        self._body_began_s = 0.0
        self._wake = trio.Event()

    async def run(self) -> None:
        """Serve until the connection ends. Cancelled: everything in flight is cancelled and the connection closed."""
        self._port.opened(self)
        try:
            self._arm(trio.current_time() + self._options.keep_alive_timeout_s)
            try:
                self._wire.read_now(self)
                await self._read_on()
            except BaseException:
                self._scope.cancel()
                if self._work:
                    await self._serve_with_tasks()  # it has its first turn, and gives back what it holds
                raise
            if self._work or (self._eof and self._is_busy()) or self._parser.fatal is not None:
                await self._serve_with_tasks()
        finally:
            self._port.closed(self)
            self._replies.cancel_all()
            self._parser.drop()
            self._end_alone()
            await self._wire.aclose()

    async def _serve_with_tasks(self) -> None:
        """Serve on, to the end: with tasks for the work there is, and for more."""
        with self._scope:
            async with trio.open_nursery() as self._nursery:
                try:
                    while self._work:
                        self._nursery.start_soon(self._work.pop(0))
                    await self._read_on()
                    await self._finish_up()
                finally:
                    self._replies.cancel_all()
                    self._scope.cancel()

    def _spawn(self, work: Callable[[Unpack[_Arguments]], Awaitable[object]], *arguments: *_Arguments) -> None:
        if self._nursery is None:
            self._work.append(partial(work, *arguments))
            self._wire.stop_reading()  # `run` opens a nursery, and reads on in it
        else:
            self._nursery.start_soon(work, *arguments)

    def _fail(self) -> None:
        """The connection is gone, or its peer is stuck."""
        self._scope.cancel()
        self._wire.stop_reading()

    def begin_drain(self) -> None:
        """The server stops: close with the last answer, or when no answer is owed and the peer sends nothing for a moment."""
        self._replies.begin_stop()
        if self._parser.fatal is None and not self._parser.ended:
            self._head_timed = 0
            self._set_deadline()
        self._hurry()

    def _is_busy(self) -> bool:
        """Returns True if an answer is owed."""
        return bool(self._replies.owed or self._parser.complete)

    # Reading

    async def _read_on(self) -> None:
        """Read until no further request can come, nothing more is to be answered, or there is work and no nursery for it."""
        if self._parser.ended:  # the last answer will end it, which has no deadline
            await self._read()
            return
        while True:
            with trio.CancelScope(deadline=self._due_s) as self._timer:
                await self._read()
                break
            if self._replies.closing or self._scope.cancel_called:
                break
            late_s = trio.current_time() - self._due_s
            if late_s < 0:
                continue
            if late_s > limits.HTTP_HELD_UP_S:  # the machine stood still, and perhaps the client with it
                self._due_s += late_s + limits.HTTP_HELD_UP_S
                continue
            self._due_s = math.inf
            if self._parser.phase is ParserPhase.IDLE:
                if self._replies.blocked:
                    continue  # who takes an answer slowly has the write time-out (replies.py)
                return
            self._parser.fatal = self._late()
            self._take_up()

    async def _finish_up(self) -> None:
        """Nothing more is read: wait until all answers are gone, as long as the peer is not."""
        if self._eof and self._is_busy():
            await self._watch_half_closed()
        await self._replies.wait_taken()
        if self._parser.fatal is not None and not self._eof:
            await self._linger()

    async def _read(self) -> None:
        """The same, without a deadline. Safe to cancel and call again."""
        if self._eof or self._replies.closing or self._work or self._scope.cancel_called:
            return
        try:
            await self._wire.read(self)
        except GONE:
            self._scope.cancel()

    # Receiver

    def get_buffer(self) -> memoryview | None:
        parser = self._parser
        if parser.bulk is None or parser.ended or parser.fatal is not None:
            return None
        return parser.bulk[: limits.HTTP_RECEIVE_BYTES_MAX]

    def buffer_updated(self, count: int) -> Demand:
        self._eof = not count
        before = len(self._parser.complete)
        self._parser.bulk_received(count)
        self._note_begin(before)
        self._after_bytes()
        return self._demand()

    def data_received(self, data: bytes) -> Demand:
        self._eof = not data
        if not self._parser.ended and self._parser.fatal is None:  # else nothing to us, but we see the peer leave
            before = len(self._parser.complete)
            self._parser.feed(data)
            if self._begun_ns or self._parser.phase is not ParserPhase.IDLE:
                self._note_begin(before)
            self._after_bytes()
        return self._demand()

    def proceed(self) -> Demand:
        return self._demand()

    def _note_begin(self, before: int) -> None:
        """Note when a request began of which a part has arrived; `before` were complete already."""
        parser = self._parser
        if self._begun_ns and len(parser.complete) > before:
            parser.complete[before].begun_ns = self._begun_ns
            self._begun_ns = 0
        if not self._begun_ns and parser.phase is not ParserPhase.IDLE:
            self._begun_ns = self._port.clock.now_ns()

    def _demand(self) -> Demand:
        if self._replies.closing or self._work:
            self._wire.stop_reading()
            return Demand.PAUSE
        if self._parser.ended or self._parser.fatal is not None or not self._must_wait():
            return Demand.READ
        self._due_s = math.inf
        self._paused = True
        return Demand.PAUSE

    def _must_wait(self) -> bool:
        """Returns True if enough is in hand: answers that the peer does not take, requests that wait, bytes that they hold."""
        replies, arrived = self._replies, self._parser.complete
        if replies.blocked or len(replies.owed) + len(arrived) >= limits.HTTP_PIPELINED_REQUESTS_MAX:
            return True
        held = replies.bytes_held
        for request in arrived:
            held += len(request.body)
        return held >= self._options.max_input_size

    def _after_bytes(self) -> None:
        parser = self._parser
        if parser.complete or parser.fatal is not None:
            self._take_up()
        if parser.expects_continue and parser.phase is ParserPhase.BODY and not parser.body_received:
            self._owes_continue = True
            self._pay_continue()
        self._set_deadline()

    def _pay_continue(self) -> None:
        """Ask for the body, unless an interim answer could be taken for one to an earlier request."""
        if self._owes_continue and not self._replies.owed:
            self._owes_continue = False
            if self._parser.expects_continue and not self._parser.body_received:  # it may have sent the body without
                self._replies.write([CONTINUE])

    # Deadlines

    def _late(self) -> HttpReply:
        """The answer to a request that did not arrive in its time."""
        if self._port.is_draining:
            return error_reply(Unavailable("Server exiting"))
        return self._port.refuse(HTTPStatus.REQUEST_TIMEOUT, f"time-out {self._parser.phase.value} of the request")

    def _set_deadline(self) -> None:
        parser, options = self._parser, self._options
        if parser.phase is ParserPhase.IDLE:
            if self._replies.owed or parser.complete:
                self._due_s = math.inf
            else:
                self._arm(trio.current_time() + options.keep_alive_timeout_s)
        elif parser.phase is ParserPhase.HEAD:
            if parser.begun != self._head_timed:
                self._head_timed = parser.begun
                self._arm(trio.current_time() + options.header_timeout_s)
        else:
            if parser.begun != self._body_timed:
                self._body_timed = parser.begun
                self._body_began_s = trio.current_time()
            allowed_s = options.body_timeout_s + parser.body_received / options.body_bytes_per_s_min
            self._arm(self._body_began_s + allowed_s)

    def _arm(self, due_s: float) -> None:
        """Wait for the peer until `due_s`; when the server stops, a moment."""
        if self._port.is_draining:
            due_s = min(due_s, trio.current_time() + self._port.stop_idle_s)
        self._due_s = due_s
        if self._timer is not None and due_s < self._timer.deadline:
            self._timer.deadline = due_s

    # Serving

    def _take_up(self) -> None:
        """Take up what has arrived, as far as its turn has come."""
        if self._is_taking_up:
            return
        self._is_taking_up = True
        try:
            replies, arrived, endpoint = self._replies, self._parser.complete, self._port.endpoint
            begun = 0
            while arrived and not self._alone and not replies.closing and len(replies.owed) < limits.HTTP_PIPELINED_REQUESTS_MAX:
                request = arrived[0]
                inference = None if endpoint is None else request.inference
                refusal = request.refusal
                if refusal is None and inference is None and replies.owed:
                    break
                if begun == limits.HTTP_PIPELINED_REQUESTS_MAX:  # answered at once, all of them: others have their turn
                    if not self._takes_up_later:
                        self._takes_up_later = True
                        self._spawn(self._take_up_later)
                    break
                begun += 1
                arrived.popleft()
                pending = replies.reserve(
                    version=request.version,
                    keep_alive=request.keep_alive,
                    head_only=request.method == b"HEAD",
                    bytes_held=len(request.body),
                )
                if refusal is not None:
                    self._count(refusal)
                    self._give_back(request)
                    replies.fill(pending, refusal)
                elif endpoint is not None and inference is not None:
                    self._infer(pending, request, endpoint, *inference)
                else:
                    self._alone = request
                    self._spawn(self._answer_alone, pending, request)
            if self._parser.fatal is not None and not arrived and not self._refused:
                self._refused = True
                pending = replies.reserve(version="1.1", keep_alive=False, head_only=False, bytes_held=0)
                self._count(self._parser.fatal)
                replies.fill(pending, self._parser.fatal)
        finally:
            self._is_taking_up = False

    def _count(self, refusal: HttpReply) -> None:
        """Count a body that is too large, or for which there is no room; other refusals of HTTP's are of no request."""
        if refusal.counted_as and self._port.endpoint is not None:
            self._port.endpoint.services.refusals.count(refusal.counted_as)

    async def _take_up_later(self) -> None:
        await self._port.turns.wait()
        self._takes_up_later = False
        self._on_progress()

    def _infer(self, pending: Pending, request: HttpRequest, endpoint: InferEndpoint, model: str, version: str | None) -> None:
        request.received_ns = endpoint.clock.now_ns()
        request.peer = self._peer
        if endpoint.services.observers.active:
            request.record = open_record(endpoint.services.observers, request, "http", model, request.received_ns)
        call = InferCall(endpoint, request, model, version, partial(self._on_answer, pending))
        pending.cancel = call.cancel
        if call.begin_nowait():
            if request.held_bytes:
                self._give_back(request)
        else:
            self._spawn(self._finish, call, request)

    async def _finish(self, call: InferCall, request: HttpRequest) -> None:
        try:
            await call.finish()
        finally:
            self._give_back(request)

    def _give_back(self, request: HttpRequest) -> None:
        """Its body does not count in the budget of all bodies any more. Idempotent."""
        self._port.bodies.give(request.held_bytes)
        request.held_bytes = 0

    def _on_answer(self, pending: Pending, call: InferCall) -> None:
        reply = call.render_now()
        if reply is None:
            self._spawn(self._render_heavy, pending, call)
        else:
            self._answer(pending, call, reply)

    async def _render_heavy(self, pending: Pending, call: InferCall) -> None:
        self._answer(pending, call, await call.render_in_thread())

    def _answer(self, pending: Pending, call: InferCall, reply: HttpReply) -> None:
        self._replies.fill(pending, reply)
        if call.request.record is not None:
            call.sent(reply)

    async def _answer_alone(self, pending: Pending, request: HttpRequest) -> None:
        """Answer a request that is not inference: the port itself, or its application."""
        try:
            reply = None if self._port.answer is None else await self._port.answer(request)
            if reply is None:
                hosted = await self._application().ready()
        except Exception:  # a fault of ours, or it cannot be imported
            reply = unexpected_error_reply(request.path)
        if reply is not None:
            self._end_alone()
            self._replies.fill(pending, reply)
            return
        from tpy.frontends.http.quart_bridge import QuartExchange  # has come with the application

        self._exchange = QuartExchange(self._replies, pending, done=self._end_alone, failed=self._scope.cancel)
        secure = self._port.listen_options.tls is not None
        addresses = _pair(self._ends.client), _pair(self._ends.server())
        await self._exchange.run(hosted, request, self._ends.certificate, *addresses, secure=secure)

    def _application(self) -> Application:
        if self._port.application is None:
            raise InvariantViolation("a port without an application has no answer")
        return self._port.application

    def _end_alone(self) -> None:
        self._exchange = None
        if self._alone is not None:
            self._give_back(self._alone)
            self._alone = None

    def _on_progress(self) -> None:
        """An answer has gone out, or the socket takes bytes again (ReplyQueue)."""
        if self._parser.complete or self._parser.fatal is not None:
            self._take_up()
        if self._replies.closing:
            if not self._replies.blocked:
                self._wire.stop_reading()
            return
        if self._owes_continue:
            self._pay_continue()
        if self._parser.phase is ParserPhase.IDLE:
            self._set_deadline()
        if self._paused and not self._must_wait():
            self._paused = False
            self._head_timed = self._body_timed = 0  # the peer could not go on: its time starts again
            self._set_deadline()
            self._wire.resume()
        self._wake.set()

    # The end

    async def _watch_half_closed(self) -> None:
        """The peer sends nothing more: wait until it has its answers, unless it turns out to be gone."""
        replies = self._replies
        probed = False
        pause_s = _PROBE_PAUSE_S_MIN
        while self._is_busy() and not replies.closing:
            self._wake = trio.Event()
            with trio.move_on_after(pause_s):
                await self._wake.wait()
            # An answer that comes soon needs no probe, which some clients do not expect.
            may_probe = pause_s >= _PROBE_AFTER_S and self._is_busy() and not replies.closing and not self._answers_soon()
            if may_probe and not probed and replies.owed and not replies.blocked and replies.head_version == "1.1":
                probe = CONTINUE if self._exchange is None else self._exchange.probe()
                if probe is not None:
                    probed = True
                    replies.write([probe])
            if self._wire.is_broken():
                self._scope.cancel()
            pause_s = min(2 * pause_s, _PROBE_PAUSE_S_MAX)

    def _answers_soon(self) -> bool:
        """Returns True while the port answers itself, or imports its application."""
        return self._alone is not None and self._exchange is None

    async def _linger(self) -> None:
        """Let the peer read our refusal: closing over unread bytes would reset the connection."""
        with trio.CancelScope(deadline=trio.current_time() + _LINGER_S) as self._lingering:
            if self._port.is_draining:
                self._hurry()
            try:
                await self._wire.send_eof()
                await self._wire.read(Discarding())
            except GONE:
                return

    def _hurry(self) -> None:
        """The server stops: who reads a refusal has a moment left for it."""
        if self._lingering is not None:
            self._lingering.deadline = min(self._lingering.deadline, trio.current_time() + _LINGER_STOP_S)


def _pair(end: BoundAddress) -> tuple[str, int] | None:
    return (end.host, end.port) if end.host else None
