"""The engine, seen from a frontend process: `open_engine` is the connection, `EngineLink` what goes over it.

The tasks, in the nursery of `open_engine`:

    open_engine
    +-- _read           Link.read: responses, results, what is served
        +-- _write      Link.write, to the last byte
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import msgspec
import trio

from tpy.errors import Internal, InvalidArgument, InvariantViolation, TpyError, Unavailable
from tpy.limits.remote import REMOTE_CALLS_MAX, REMOTE_OUTBOUND_BYTES_MAX, REMOTE_WINDOW_BYTES
from tpy.messages import InferenceRequest, InferenceResponse, LogSettings, ModelDescription, held_bytes
from tpy.observers import RequestObservers
from tpy.remote.core import messages as m
from tpy.remote.core import questions as q
from tpy.remote.core.caller import Caller, PendingRequest
from tpy.remote.core.framing import ProtocolError
from tpy.remote.core.replica import Replica, ReplicaUpdate, VersionEntry
from tpy.remote.core.tensors import Place, is_long, long_read, response_of, submit_of
from tpy.remote.finished import FinishedReporter
from tpy.remote.link import Link, Wire
from tpy.remote.memory import OwnMemory, PeerMemory
from tpy.remote.regions import RegionReplicas, region_offset
from tpy.sending import GONE
from tpy.services import RequestHandle, ResponseSink

T = TypeVar("T")

NO_COPY = -1
"""In place of a copy's number: the engine refuses the request."""


class EngineGone(Exception):
    """The engine's process has ended, or closed the connection: there is nothing more to do here."""


class _PendingCall:
    """A call that is not answered."""

    __slots__ = ("answered", "result")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.result: m.Result | None = None


class EngineLink:
    """Requests and calls to the engine, with the replica of its serving table. `configuration` is its first message;
    `stop_asked` is set when this process is to take no more connections."""

    def __init__(self, link: Link, configuration: m.Configure, replica: Replica, own: OwnMemory, peer: PeerMemory) -> None:
        self.configuration = configuration
        self.replica = replica
        self.regions = RegionReplicas(self.ask, link.send)
        self.regions.update(replica.regions)
        self.stop_asked = trio.Event()
        self.on_log_settings: Callable[[LogSettings], None] | None = None
        """Called when the settings of the log have changed."""
        self.observers = RequestObservers()
        """Empty while nobody in the engine observes requests."""
        self._reporter = FinishedReporter(link.send)
        self._report_if_observed()
        self._link = link
        self._own = own
        self._peer = peer
        self._caller = Caller(link.send)
        self._calls: dict[int, _PendingCall] = {}
        self._newest_call = 0
        self._changed = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    @property
    def pending_requests(self) -> int:
        """Requests that have not ended."""
        return self._caller.pending

    @property
    def shared_bytes(self) -> int:
        """Bytes of this process's shared memory that are taken."""
        return self._own.taken_bytes

    def send_ready(self) -> None:
        """The ports are served."""
        self._link.send(m.Ready())

    def send_failed(self, error: TpyError) -> None:
        """They cannot be."""
        self._link.send(m.Failed(m.Failure.of(error)))

    def send_refused(self, reason: str) -> None:
        """A port has refused a request for this reason, before it came to a model."""
        self._link.send(m.Refused(reason))

    def send_lost_lines(self, lines: int) -> None:
        """Lines of this process's log could not be written in time."""
        self._link.send(m.LostLines(lines))

    def hold(self, copy: int) -> None:
        """Have the engine keep a copy of a version, also when it is not in the replica any more."""
        self._link.send(m.Hold(copy))

    def release(self, copy: int) -> None:
        """The end of one `hold`."""
        self._link.send(m.LetGo(copy))

    def submit(self, copy: int, request: InferenceRequest, sink: ResponseSink) -> RequestHandle:
        """See ResolvedModel. Raises Unavailable when too much waits for the engine; what it refuses itself comes to `sink`."""
        if self._link.unsent_bytes > REMOTE_OUTBOUND_BYTES_MAX:
            raise Unavailable(f"the server has too many requests: {self._link.unsent_bytes} bytes wait in a frontend process")
        pending = self._caller.begin(sink)
        record = request.record
        origin = None if record is None else self._reporter.origin_of(record)
        make = partial(self._frame, pending.number, copy, request, origin)
        if is_long(request.inputs):
            self._link.send_later(partial(self._frame_or_failure, make, pending, request))
        else:
            try:
                self._link.send_encoded(make())
            except TpyError:
                self._caller.withdraw(pending)
                raise
        if record is not None:
            self._reporter.submitted(record, pending.number)
        return pending

    def _frame(self, number: int, copy: int, request: InferenceRequest, origin: m.Origin | None) -> bytes:
        """The message for a request. Raises InvalidArgument and Unavailable."""

        def message(place: Place) -> m.Submit:
            return submit_of(number, copy, request, place, region_offset, origin)

        try:
            return self._own.frame(message)
        except ValueError as error:
            raise InvalidArgument(f"the request cannot be passed on to the engine: {error}") from error
        except MemoryError:
            raise Unavailable("the server has no memory for this request") from None

    def _frame_or_failure(self, make: Callable[[], bytes], pending: PendingRequest, request: InferenceRequest) -> bytes:
        """The same in a thread: without the frame its caller is told, and the engine sees a request of this number to no copy."""
        try:
            return make()
        except TpyError as error:
            failed = InferenceResponse(
                model_name=request.model_name, model_version=request.model_version or 0, id=request.id, error=error, refused=True
            )
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(pending.receive, failed, 0)
            nothing = msgspec.structs.replace(request, inputs=(), parameters={}, id="", requested_outputs=())
            return m.encode(submit_of(pending.number, NO_COPY, nothing, lambda size: None))

    async def ask(self, question: q.Question, kind: type[T]) -> T:
        """The answer of a service. Raises what it raises."""
        if len(self._calls) >= REMOTE_CALLS_MAX:
            raise Unavailable(f"the server has too many calls: a frontend process may have {REMOTE_CALLS_MAX}")
        self._newest_call += 1
        number, asked = self._newest_call, _PendingCall()
        try:
            self._link.send(m.Call(number, question))
        except ValueError as error:
            raise InvalidArgument(f"the call cannot be passed on to the engine: {error}") from error
        self._calls[number] = asked
        try:
            await asked.answered.wait()
        finally:
            del self._calls[number]
            if asked.result is None:
                self._link.send(m.CancelCall(number))
        if asked.result is None:
            raise InvariantViolation("a call was answered without result")
        if asked.result.error is not None:
            raise asked.result.error.error()
        return m.decode_value(asked.result.value, kind)

    async def wait_changed(self, seen: int) -> int:
        """See ReadinessService."""
        await trio.lowlevel.checkpoint()
        while seen == self.replica.server.revision:
            await self._changed.wait()
        return self.replica.server.revision

    def job_of(self, message: msgspec.Struct) -> Callable[[], msgspec.Struct] | None:
        """See Link.read."""
        return long_read(message, self._peer.view, self._peer.read)

    def handle(self, message: msgspec.Struct) -> None:
        """Handle a message of the engine. Raises ProtocolError for one that is not allowed now."""
        match message:
            case m.Response():
                self._receive(message)
            case m.Result():
                if (asked := self._calls.get(message.number)) is not None:
                    asked.result = message
                    asked.answered.set()
                elif not 0 < message.number <= self._newest_call:
                    raise ProtocolError(f"the result of call {message.number}, the newest is {self._newest_call}")
            case m.Release():
                for offset in message.offsets:
                    self._own.release(offset)
            case ReplicaUpdate():
                self._update(message)
            case m.Stop():
                self.stop_asked.set()
            case _:
                raise ProtocolError(f"{type(message).__name__} at the wrong time")

    def _report_if_observed(self) -> None:
        self.observers.discard(self._reporter)
        if self.replica.server.observed:
            self.observers.add(self._reporter)

    def _receive(self, message: m.Response) -> None:
        pending = self._caller.find(message.number)
        if message.observed:
            self._reporter.observed(message.number)
        response = response_of(message, self._peer.view)
        if pending is not None:
            pending.receive(response, held_bytes(response.outputs, REMOTE_WINDOW_BYTES))

    def _update(self, update: ReplicaUpdate) -> None:
        log = self.replica.server.log
        self.replica.update(update)
        self.regions.update(update.regions)
        self._report_if_observed()
        self._link.send(m.Seen(update.server.revision))
        if update.server.log != log and self.on_log_settings is not None:
            self.on_log_settings(update.server.log)
        changed, self._changed = self._changed, trio.Event()
        changed.set()


class RemoteModel:
    """A copy of a version, as the replica has it: implements tpy.services.ResolvedModel. The engine has it until the replica is
    updated, and longer for whoever holds it."""

    __slots__ = ("_engine", "_entry")

    def __init__(self, engine: EngineLink, entry: VersionEntry) -> None:
        self._engine = engine
        self._entry = entry

    @property
    def copy(self) -> int:
        """See ResolvedModel."""
        return self._entry.copy

    @property
    def description(self) -> ModelDescription:
        """See ResolvedModel."""
        return self._entry.description

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> RequestHandle:
        """See ResolvedModel."""
        return self._engine.submit(self._entry.copy, request, sink)

    def hold(self) -> None:
        """See ResolvedModel."""
        self._engine.hold(self._entry.copy)

    def release(self) -> None:
        """See ResolvedModel."""
        self._engine.release(self._entry.copy)


@asynccontextmanager
async def open_engine(wire: Wire, *, own: int, peer: int) -> AsyncIterator[EngineLink]:
    """The connection to the engine for the length of the block; `own` and `peer` are descriptors of the shared memories, to be
    closed by the caller.

    Leaving the block writes what was sent. The block is cancelled, and EngineGone raised in a group, when the engine is gone;
    ProtocolError when it broke the protocol.
    """
    link = Link(wire, m.FROM_ENGINE)
    incoming = _Startup(link)
    async with trio.open_nursery() as reading:
        reading.start_soon(_read, link, incoming)
        async with trio.open_nursery() as writing:
            writing.start_soon(_write, link)
            await incoming.complete.wait()
            yield incoming.engine(own, peer)
            link.finish()
        reading.cancel_scope.cancel()


class _Startup:
    """Takes the updates of the replica up to the configuration; later messages go to the EngineLink that is made of
    this."""

    def __init__(self, link: Link) -> None:
        self.complete = trio.Event()
        self._link = link
        self._configuration: m.Configure | None = None
        self._replica: Replica | None = None
        self._early: list[msgspec.Struct] = []
        self._engine: EngineLink | None = None

    def handle(self, message: msgspec.Struct) -> None:
        """A message. Raises ProtocolError."""
        if self._engine is not None:
            self._engine.handle(message)
        elif self._configuration is not None:
            self._early.append(message)
        elif isinstance(message, ReplicaUpdate):
            if self._replica is None:
                self._replica = Replica(message)
            else:
                self._replica.update(message)
            self._link.send(m.Seen(message.server.revision))
        elif isinstance(message, m.Configure) and self._replica is not None:
            self._configuration = message
            self.complete.set()
        else:
            raise ProtocolError(f"{type(message).__name__} before the configuration")

    def job_of(self, message: msgspec.Struct) -> Callable[[], msgspec.Struct] | None:
        """See Link.read."""
        return None if self._engine is None else self._engine.job_of(message)

    def engine(self, own: int, peer: int) -> EngineLink:
        """The engine's services. Raises Internal if the shared memory cannot be mapped."""
        link = self._link
        if self._configuration is None or self._replica is None:
            raise InvariantViolation("the engine has not begun")

        def release() -> None:
            link.send(m.Release(peer_memory.take_released()))

        size = self._configuration.arena_bytes
        try:
            peer_memory = PeerMemory(peer, size, release)
            own_memory = OwnMemory(own, size)
        except (OSError, ValueError) as error:
            raise Internal(f"shared memory of {size} bytes cannot be mapped: {error}") from error
        engine = self._engine = EngineLink(link, self._configuration, self._replica, own_memory, peer_memory)
        for message in self._early:
            engine.handle(message)
        self._early.clear()
        return engine


async def _read(link: Link, incoming: _Startup) -> None:
    try:
        await link.read(incoming.handle, incoming.job_of)
    except GONE as error:
        raise EngineGone from error
    raise EngineGone


async def _write(link: Link) -> None:
    try:
        await link.write()
    except GONE as error:
        raise EngineGone from error
