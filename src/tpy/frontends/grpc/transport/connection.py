"""Connection: drives one Http2Server over one Wire, and makes calls of its events.

Tasks, all in the nursery that `run_connection` opens: the reader, which also serves unary calls and writes what they answer at
once; the writer, which writes everything else, woken at most once in each turn of the loop, so that whatever is answered in one
turn leaves in one `send`; the timer, one for all deadlines of the connection; a task for each stream call's handler, and one for
each large message that is compressed or decompressed. What the engine answers together is written then and there, in one `send`,
without waiting for the writer's turn.

The end: the peer leaves, breaks a rule, does not answer a ping; or the connection drains (GOAWAY, the calls in flight, then the
end). Calls that are open then are cancelled.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence

import trio
from grpclib.const import Status

from tpy.alarm import Alarm
from tpy.clock import Clock
from tpy.deliveries import Deliveries
from tpy.echo import echo
from tpy.errors import InvariantViolation
from tpy.frontends.grpc.transport.call import DEADLINE_TEXT, Handlers, StreamHandler
from tpy.frontends.grpc.transport.core.calls import RefusedCall, RequestHead, refusal
from tpy.frontends.grpc.transport.core.http2 import ConnectionEnded, DataArrived, Event, Http2Server, RequestBegan, StreamEnded
from tpy.frontends.grpc.transport.core.timing import DeadlineQueue, Keepalive, KeepaliveStep, Lifetime, LifetimeStep
from tpy.frontends.grpc.transport.exchange import Exchange, OutputWaiter
from tpy.frontends.grpc.transport.options import GrpcOptions
from tpy.frontends.grpc.transport.port import GrpcPort
from tpy.frontends.grpc.transport.stream import StreamExchange
from tpy.frontends.grpc.transport.unary import UnaryExchange
from tpy.frontends.transport import GONE, BoundAddress, Demand, Ends, Wire, serve_port, unsent
from tpy.http2.codes import Http2Code
from tpy.limits import (
    GRPC_CONNECTION_SLICE_NS_MAX,
    GRPC_FRAMES_PER_STEP_MAX,
    GRPC_GOAWAY_ANSWER_S_MAX,
    GRPC_LINGER_S_MAX,
    GRPC_SETUP_S_MAX,
    GRPC_TASKS_PER_TURN_MAX,
)
from tpy.units import KIB, MIB, NS_PER_S

_log = logging.getLogger(__name__)

_READ_BYTES = 64 * KIB
_READ_BYTES_BULK = MIB
"""While there is much to read: fewer turns of the loop."""


_CLOSED_TEXT = "the server closes the connection"


async def run_connection(port: GrpcPort, wire: Wire, ends: Ends) -> None:
    """Serve `wire` until it ends, and close it. Cancelled: open calls are answered UNAVAILABLE as far as that goes at once."""
    try:
        async with trio.open_nursery() as tasks:
            connection = GrpcServerConnection(port, wire, ends, tasks.start_soon)
            try:
                with port.serving(connection):
                    tasks.start_soon(connection.write)
                    tasks.start_soon(connection.keep_time)
                    await connection.read()
                    await connection.abort_calls()
            finally:
                connection.end()
                tasks.cancel_scope.cancel()
    finally:
        await wire.aclose()


class GrpcServerConnection:
    """Implements ExchangeConnection for its exchanges. One instance, one `read`, `write` and `keep_time`, whose nursery is
    `spawn`'s."""

    def __init__(self, port: GrpcPort, wire: Wire, ends: Ends, spawn: Callable[..., None]) -> None:
        now_ns = port.clock.now_ns()
        self.server = Http2Server(port.rules, now_ns)
        self.codec = port.codec
        self.peer = str(ends.client) if ends.client.host else ""
        self.certificate = ends.certificate
        self.message_bytes_max = port.options.max_receive_bytes
        self.send_bytes_max = port.options.max_send_bytes
        self.receive_bytes_max = _READ_BYTES
        self.spawn = spawn
        self.turns = port.turns
        self._port = port
        self._wire = wire
        self._tasks_left = 0
        """Calls that may begin a task in this turn."""
        self._events: deque[Event] = deque()
        """Read, and not handled yet."""
        self.exchanges: dict[int, Exchange] = {}
        self.behind: set[OutputWaiter] = set()
        self._deadlines = DeadlineQueue()
        self._keepalive = Keepalive(port.rules.pings, now_ns)
        self._lifetime = Lifetime(
            now_ns=now_ns,
            setup_ns=GRPC_SETUP_S_MAX * NS_PER_S,
            age_ns=port.age_ns,
            grace_ns=port.age_grace_ns,
            goaway_ns=GRPC_GOAWAY_ANSWER_S_MAX * NS_PER_S,
        )
        self._alarm = Alarm(port.clock)
        self._unsent: list[bytes | memoryview] = []
        self._in_turn = False
        self._writer = trio.lowlevel.ParkingLot()
        self._reading = trio.CancelScope()
        self._set_alarm()

    # Link

    def wake(self) -> None:
        if self._in_turn or not self._writer:
            return
        if not self._port.deliveries.afterwards(self._write_now):
            self._writer.unpark_all()

    def task_begun(self) -> None:
        self._tasks_left -= 1

    def forget(self, stream_id: int) -> None:
        self.exchanges.pop(stream_id, None)
        self._deadlines.discard(stream_id)

    # Reading

    async def read(self) -> None:
        """Read until nothing more can come."""
        with self._reading:
            try:
                await self._wire.read(self)
            except GONE:
                return

    # Receiver

    def get_buffer(self) -> None:
        return None

    def buffer_updated(self, count: int) -> Demand:
        raise InvariantViolation("bytes of a gRPC connection were written to a buffer that it has not given")

    def data_received(self, data: bytes) -> Demand:
        self.receive_bytes_max = _READ_BYTES if len(data) < _READ_BYTES else _READ_BYTES_BULK
        return Demand.READ if not data or self.server.is_closed else self._advance(data)

    def proceed(self) -> Demand:
        return self._advance(b"")

    def _advance(self, data: bytes) -> Demand:
        self._take(data)
        return Demand.CONTINUE if self._events or self.server.has_input else Demand.READ

    def _take(self, data: bytes) -> None:
        """One turn: of what has arrived as much as there is time for, and what is answered at once."""
        began_ns = self._port.clock.now_ns()
        self._keepalive.received(began_ns)
        self._in_turn = True
        self._tasks_left = GRPC_TASKS_PER_TURN_MAX
        events = self._events
        try:
            while True:
                if not events:
                    events += self.server.receive(data, began_ns, GRPC_FRAMES_PER_STEP_MAX)
                    data = b""
                while events:
                    self._on_event(events.popleft(), began_ns)
                    if events and not self._has_time(began_ns):
                        break
                if events or not self.server.has_input or not self._has_time(began_ns):
                    break
        finally:
            self._in_turn = False
        if self.server.is_settled:
            self._lifetime.settled()
        if not self._unsent:
            self._send_nowait()
        if self._unsent or self.server.has_output or self._is_over:
            self.wake()

    def _has_time(self, began_ns: int) -> bool:
        """Returns True if what began then may go on in this turn of the loop."""
        if self._tasks_left <= 0:
            return False
        return self._port.clock.now_ns() - began_ns < GRPC_CONNECTION_SLICE_NS_MAX or not self.turns.is_long

    def _on_event(self, event: Event, now_ns: int) -> None:
        if isinstance(event, DataArrived):
            exchange = self.exchanges.get(event.stream_id)
            if exchange is not None:
                exchange.on_data(event.data, ended=event.ended)
            else:
                self.server.credit(event.stream_id, len(event.data))
        elif isinstance(event, RequestBegan):
            self._begin(event.stream_id, event.head, now_ns)
        elif isinstance(event, StreamEnded):
            exchange = self.exchanges.get(event.stream_id)
            if exchange is not None:
                exchange.cancel()
        else:
            self._on_fault(event)

    def _begin(self, stream_id: int, head: RequestHead, now_ns: int) -> None:
        handler = self._port.handlers.get(head.path)
        if head.refused is not None:
            self.server.finish(stream_id, refusal(head.refused))
            return
        if handler is None:
            unknown = RefusedCall(status=Status.UNIMPLEMENTED, message=f"Method not found: {echo(head.path)}")
            self.server.finish(stream_id, refusal(unknown))
            return
        deadline_ns = None if head.timeout_ns is None else now_ns + head.timeout_ns
        if deadline_ns is not None:
            self._deadlines.add(stream_id, deadline_ns)
            self._alarm.bring_forward(deadline_ns)
        if isinstance(handler, StreamHandler):
            self.task_begun()
            stream = StreamExchange(self, stream_id, head, deadline_ns)
            self.exchanges[stream_id] = stream
            self.spawn(stream.run, handler)
        else:
            self.exchanges[stream_id] = UnaryExchange(self, stream_id, head, deadline_ns, handler)

    def _on_fault(self, event: ConnectionEnded) -> None:
        # The peer's doing, and possibly done on purpose: not a warning, or an abuser fills the log.
        _log.debug(
            "gRPC connection ended by us",
            extra={"context": {"peer": self.peer, "code": event.code.name, "why": event.text}},
        )
        self._close(event.code, event.text)

    # Writing

    async def write(self) -> None:
        """Write what a turn could not, until the connection is over; then give the peer time to read it."""
        try:
            while True:
                if not self._unsent:
                    self._send_nowait()
                if self._unsent:
                    self._drop_sent(await self._wire.send_some(self._unsent))
                elif self.server.has_output:
                    await trio.lowlevel.checkpoint()
                elif self._is_over:
                    break
                else:
                    await self._writer.park()
            await self._wire.send_eof()
            await trio.sleep(GRPC_LINGER_S_MAX)
        except GONE:
            pass
        self._reading.cancel()

    @property
    def _is_over(self) -> bool:
        """True if nothing more will be written once the output is."""
        return self.server.is_closed or self.server.is_drained

    def _write_now(self) -> None:
        """Write what has been put together; the writer sees to what the peer does not take, and to a peer that is gone."""
        try:
            if not self._unsent:
                self._send_nowait()
        except GONE:
            self._writer.unpark_all()
            return
        if self._unsent or self.server.has_output or self._is_over:
            self._writer.unpark_all()

    def _send_nowait(self) -> None:
        pieces = self.server.take_output()
        if pieces:
            self._unsent = pieces
            self._drop_sent(self._wire.send_nowait(pieces))

    def _drop_sent(self, sent: int) -> None:
        """`sent` bytes of `_unsent` have been written."""
        self._unsent = unsent(self._unsent, sent)
        for exchange in tuple(self.behind):
            exchange.on_progress()

    # Time

    async def keep_time(self) -> None:
        """Do what is due when it is due, until the connection is closed."""
        while not self.server.is_closed:
            now_ns = await self._alarm.wait()
            for stream_id in self._deadlines.advance(now_ns):
                exchange = self.exchanges.get(stream_id)
                if exchange is not None:  # a handler that was told of an earlier one may have answered this one meanwhile
                    exchange.abort(Status.DEADLINE_EXCEEDED, DEADLINE_TEXT)
            for step in self._lifetime.advance(now_ns):
                self._perform(step, now_ns)
            keepalive = self._keepalive.advance(now_ns, calls=self.server.open_streams > 0, frames_sent=self.server.frames_sent)
            if keepalive is KeepaliveStep.PING:
                self.server.ping()
            elif keepalive is KeepaliveStep.CLOSE:
                self._close(Http2Code.NO_ERROR, "keepalive watchdog timeout")
            self.wake()
            self._set_alarm()

    def _perform(self, step: LifetimeStep, now_ns: int) -> None:
        if step is LifetimeStep.BEGIN_GOAWAY:
            self.server.begin_goaway()
            self._lifetime.goaway_begun(now_ns)
        elif step is LifetimeStep.FINISH_GOAWAY:
            self.server.finish_goaway()
        elif step is LifetimeStep.CLOSE_UNSETTLED:
            self._close(Http2Code.SETTINGS_TIMEOUT, step.value)
        else:
            self._close(Http2Code.NO_ERROR, step.value)

    def _set_alarm(self) -> None:
        for due_ns in (
            self._keepalive.next_deadline_ns(),
            self._lifetime.next_deadline_ns(),
            self._deadlines.next_deadline_ns(),
        ):
            if due_ns is not None:
                self._alarm.bring_forward(due_ns)

    # The end

    def begin_drain(self) -> None:
        """The server stops: end when the calls in flight have ended."""
        self.server.begin_goaway()
        self._lifetime.goaway_begun(self._port.clock.now_ns())
        self._set_alarm()
        self.wake()

    async def abort_calls(self) -> None:
        """The peer has left: cancel what is open, some calls in each turn of the loop, as each has tasks that end."""
        with trio.CancelScope(shield=True):  # a turn for each GRPC_TASKS_PER_TURN_MAX calls
            for number, exchange in enumerate(tuple(self.exchanges.values())):
                if number % GRPC_TASKS_PER_TURN_MAX == 0:
                    await trio.lowlevel.checkpoint()
                exchange.abort(Status.UNAVAILABLE, _CLOSED_TEXT)

    def end(self) -> None:
        """Cancel what is open, and say so to the peer if it takes it at once. Idempotent."""
        self._abort_calls()
        self.server.close(Http2Code.NO_ERROR, "")
        try:
            if not self._unsent:
                self._send_nowait()
        except GONE:
            return

    def _close(self, code: Http2Code, text: str) -> None:
        """End the connection with a GOAWAY, which the peer has a moment to read."""
        self._abort_calls()
        self.server.close(code, text)
        self._reading.deadline = trio.current_time() + 2 * GRPC_LINGER_S_MAX
        self.wake()

    def _abort_calls(self) -> None:
        for exchange in tuple(self.exchanges.values()):
            exchange.abort(Status.UNAVAILABLE, _CLOSED_TEXT)


async def serve_grpc(
    options: GrpcOptions,
    handlers: Handlers,
    clock: Clock,
    *,
    deliveries: Deliveries | None = None,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `handlers` as `serve_port` does.

    From `stop` on every connection gets a GOAWAY, and only calls that were under way to us when it was sent are still begun. The
    answers on a connection in one block of `deliveries` leave in one piece.
    """
    port = GrpcPort(options, handlers, clock, deliveries)

    async def serve(wire: Wire, ends: Ends) -> None:
        await run_connection(port, wire, ends)

    await serve_port(port, serve, stop=stop, inherited=inherited, task_status=task_status)
