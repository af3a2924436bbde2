"""One frontend process, seen from the engine: its requests and calls are answered by the services of this process.

The tasks, in the nursery of `run_session`, which reads:

    run_session
    +-- write               Link.write
    +-- one per call        questions to services that may take their time
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import trio

from tpy.errors import Internal, InvalidArgument, InvariantViolation, NotFound, TpyError, Unavailable
from tpy.limits.remote import REMOTE_ARENA_BYTES, REMOTE_CALLS_MAX
from tpy.messages import IndexEntry, InferenceResponse
from tpy.messages.inference import parameter_problem
from tpy.regions import CountedRegion, DeviceRegion, RegionArray
from tpy.remote.core import messages as m
from tpy.remote.core import questions as q
from tpy.remote.core.answerer import Answerer
from tpy.remote.core.framing import ProtocolError
from tpy.remote.core.tensors import is_long, long_read, message_of, request_of
from tpy.remote.finished import RemoteRecords
from tpy.remote.link import Link
from tpy.remote.memory import OwnMemory, PeerMemory
from tpy.remote.published_copies import HeldCopies
from tpy.remote.publisher import Publisher, Subscription
from tpy.sending import GONE
from tpy.services import ResolvedModel, Services, offered
from tpy.unexpected import unexpected_error

_log = logging.getLogger(__name__)


class FrontendSession:
    """`ready` is set when the ports are served, `failure` is why they cannot be. `over` is set when the process has closed the
    connection."""

    def __init__(
        self,
        link: Link,
        services: Services,
        publisher: Publisher,
        subscription: Subscription,
        *,
        memories: tuple[OwnMemory, PeerMemory],
        nursery: trio.Nursery,
    ) -> None:
        self.ready = trio.Event()
        self.over = trio.Event()
        self.failure: TpyError | None = None
        self._link = link
        self._services = services
        self._publisher = publisher
        self._subscription = subscription
        self._own, self._peer = memories
        self._nursery = nursery
        self._answerer = Answerer(self._respond)
        self._copies = HeldCopies(publisher.copies)
        self._calls: dict[int, trio.CancelScope] = {}
        self._records = RemoteRecords(services.observers)

    @property
    def open_requests(self) -> int:
        """Requests that are not answered."""
        return self._answerer.open

    @property
    def may_serve(self) -> bool:
        """True once the process has been told to begin."""
        return self._subscription.seen >= 0

    @property
    def shared_bytes(self) -> int:
        """Bytes of the engine's shared memory that are taken."""
        return self._own.taken_bytes

    def end(self) -> None:
        """The process is gone: nobody waits for anything."""
        self._answerer.cancel_all()
        self._records.end()
        self._copies.let_all_go()

    def job_of(self, message: msgspec.Struct) -> Callable[[], msgspec.Struct] | None:
        """See Link.read."""
        return long_read(message, self._peer.view, self._peer.read)

    def handle(self, message: msgspec.Struct) -> None:
        """Handle a message. Raises ProtocolError for one that is not allowed now."""
        match message:
            case m.Submit():
                self._submit(message)
            case m.Hold():
                self._copies.hold(message.copy)
            case m.LetGo():
                self._copies.let_go(message.copy)
            case m.ForgetRegion():
                self._subscription.regions.pop(message.number, None)
            case m.Cancel():
                self._records.cancel(message.number)
                if (request := self._answerer.find(message.number)) is not None:
                    request.cancel()
            case m.Taken():
                if (request := self._answerer.find(message.number)) is not None:
                    request.taken(message.count)
            case m.Finished():
                self._records.finish(message)
            case m.Refused():
                self._services.refusals.count(message.reason)
            case m.LostLines():
                if self._services.log is not None:
                    self._services.log.lost(message.lines)
            case m.Release():
                for offset in message.offsets:
                    self._own.release(offset)
            case m.Call():
                self._begin_call(message)
            case m.CancelCall():
                if (scope := self._calls.get(message.number)) is not None:
                    scope.cancel()
            case m.Seen():
                self._subscription.take_seen(message.revision)
            case m.Ready():
                self.ready.set()
            case m.Failed():
                self.failure = message.failure.error()
            case _:
                raise InvariantViolation(f"a message without meaning: {type(message).__name__}")

    # Requests

    def _submit(self, message: m.Submit) -> None:
        remote = self._answerer.begin(message.number)
        try:
            request = request_of(message, self._peer.view, self._find_array)
        except TpyError as error:
            remote.deliver(_refused(message, error))
            return
        record = self._records.open(message)
        if record is not None:
            request = msgspec.structs.replace(request, record=record)
        try:
            handle = self._model(message).submit(request, remote)
        except TpyError as error:
            remote.deliver(_refused(message, error))
        except Exception:
            remote.deliver(_refused(message, unexpected_error("a request from a frontend process failed unexpectedly")))
        else:
            remote.submitted(handle)

    def _find_array(self, place: q.RegionOffset, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """See core.tensors.Find. Raises Unavailable when there are too many copies."""
        size = math.prod(shape) * dtype.itemsize
        return RegionArray(CountedRegion(self._region(place, size), size), shape, dtype, place.offset).as_array()

    def _region(self, place: q.RegionOffset, size: int) -> DeviceRegion:
        region = self._subscription.regions.get(place.number)
        if region is None:
            raise NotFound("Unable to find shared memory region: it was unregistered")
        if not 0 <= place.offset < place.offset + size <= region.facts.byte_size:
            raise InvalidArgument(f"{size} bytes at {place.offset} of a region of {region.facts.byte_size}")
        return region

    def _model(self, message: m.Submit) -> ResolvedModel:
        if not message.copy:
            return self._services.inference.resolve(message.model_name, message.model_version)
        model = self._copies.find(message.copy)
        if model is None:  # not waited for: it took no notice of an update for REMOTE_SEEN_S_MAX
            raise Unavailable(f"model '{message.model_name}' was updated while a frontend process did not respond, try again")
        return model

    def _respond(self, number: int, response: InferenceResponse) -> None:
        """See core.answerer.Send."""
        make = partial(self._frame, number, response, self._records.has(number))
        if is_long(response.outputs):
            self._link.send_later(make)
        else:
            self._link.send_encoded(make())

    def _frame(self, number: int, response: InferenceResponse, observed: bool) -> bytes:
        try:
            return self._own.frame(partial(message_of, number, response, observed=observed))
        except MemoryError:
            failure: TpyError = Unavailable("the server has no memory for this response")
        except ValueError as error:
            problems = [found for key, value in response.parameters.items() if (found := parameter_problem(key, value))]
            failure = Internal(problems[0] if problems else f"the response cannot be sent: {error}")
        return m.encode(msgspec.structs.replace(_failed(number, response, failure), observed=observed))

    # Calls

    def _begin_call(self, message: m.Call) -> None:
        if message.number in self._calls or len(self._calls) >= REMOTE_CALLS_MAX:
            raise ProtocolError(f"call {message.number}; {len(self._calls)} earlier calls are still unanswered")
        scope = self._calls[message.number] = trio.CancelScope()
        self._nursery.start_soon(self._call, message, scope)

    async def _call(self, message: m.Call, scope: trio.CancelScope) -> None:
        failure: m.Failure | None = None
        value = b""
        with scope:
            try:
                value = m.encode_value(await self._answer(message.question))
            except TpyError as error:
                failure = m.Failure.of(error)
            except Exception:
                failure = m.Failure.of(unexpected_error("a call from a frontend process failed unexpectedly"))
        del self._calls[message.number]
        if not scope.cancelled_caught:
            self._link.send(m.Result(message.number, failure, value))

    async def _answer(self, question: q.Question) -> object:
        """Ask the service. What frontends could see of the answer in the replica is there before the answer."""
        services, publisher = self._services, self._publisher
        match question:
            case q.ModelReady(model_name=name, version=version):
                ready = await services.repository.model_ready(name, version)
                publisher.take_name(name)
                return ready
            case q.Index(ready_only=ready_only):
                return await self._index(ready_only=ready_only)
            case q.Statistics(model_name=name, version=version):
                return await services.diagnostics.statistics(name, version)
            case q.Counters():
                return await services.diagnostics.counters()
            case q.Explain(model_name=name, version=version):
                return await services.diagnostics.explain(name, version)
            case q.Graph(model_name=name, version=version):
                return await services.diagnostics.graph(name, version)
            case q.Rollout(model_name=name, action=action, plan=plan):
                rollout = await services.diagnostics.rollout(name, action, plan)
                if action:
                    await publisher.publish()
                return rollout
            case q.TraceSettings(model_name=name, updates=updates):
                settings = await services.diagnostics.trace_settings(name, updates)
                if updates:
                    await publisher.publish()
                return settings
            case q.Load(load=load):
                try:
                    await services.repository.load(load)
                finally:
                    await publisher.publish()
            case q.Unload(model_name=name, unload_dependents=unload_dependents):
                await services.repository.unload(name, unload_dependents=unload_dependents)
                await publisher.publish()
            case q.RegisterSystem(registration=registration) | q.RegisterCuda(registration=registration):
                await services.shared_memory.register(registration)
                await publisher.publish()
            case q.Unregister(kind=kind, name=name):
                await services.shared_memory.unregister(kind, name)
                await publisher.publish()
            case q.ReadRegion(place=place, size=size):
                copy = await trio.to_thread.run_sync(self._region(place, size).read, place.offset, size)
                return copy.data
            case q.WriteRegion(place=place, data=data):
                await trio.to_thread.run_sync(self._region(place, len(data)).write, place.offset, data)
            case q.RecordingState():
                return await services.recordings.status()
            case q.ChangeRecording(options=options):
                status = await services.recordings.change(options)
                await publisher.publish()
                return status
            case q.LogLines(after=after):
                return await offered(services.log).lines_after(after)
            case q.RecentTraces(after=after):
                return await offered(services.traces).recent_after(after)
            case q.CheckConfig(model_name=name, config=config):
                return await offered(services.checks).check_config(name, config)
            case q.Metrics(openmetrics=openmetrics):
                return await offered(services.metrics).page(openmetrics=openmetrics)
            case q.ServerLoad(model_name=name, version=version):
                return await offered(services.metrics).load(name, version)
            case q.Gpus():
                return await offered(services.metrics).gpus()
            case q.UpdateLog(settings=settings):
                await services.diagnostics.update_log_settings(settings)
                await publisher.publish()
        return None

    async def _index(self, *, ready_only: bool) -> Sequence[IndexEntry]:
        rows = await self._services.repository.index()
        self._publisher.take_rows(rows)
        return await self._services.repository.index(ready_only=True) if ready_only else rows


async def run_session(
    link: Link,
    services: Services,
    publisher: Publisher,
    *,
    options: bytes,
    memories: tuple[int, int],
    task_status: trio.TaskStatus[FrontendSession] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer a frontend process until it closes the connection. It begins with `options`, knowing what is served; `memories` are
    the descriptors of the engine's memory and of the process's, to be closed by the caller. The publisher has been refreshed
    once.

    Raises ProtocolError, in a group, when the process breaks the protocol. However it ends, its requests are cancelled.
    """

    def release() -> None:
        link.send(m.Release(peer.take_released()))

    def begin() -> None:
        link.send(m.Configure(options, REMOTE_ARENA_BYTES, services.diagnostics.log_settings()))

    own, peer = OwnMemory(memories[0], REMOTE_ARENA_BYTES), PeerMemory(memories[1], REMOTE_ARENA_BYTES, release)
    try:
        async with trio.open_nursery() as nursery:
            with publisher.subscribed(link.send_encoded, begin) as subscription:
                session = FrontendSession(link, services, publisher, subscription, memories=(own, peer), nursery=nursery)
                link.send(subscription.first)
                nursery.start_soon(link.write)
                task_status.started(session)
                try:
                    await link.read(session.handle, session.job_of)
                finally:
                    session.end()
                nursery.cancel_scope.cancel()
    except* GONE:
        pass
    finally:
        own.close()
        peer.close()
    session.over.set()


def _refused(message: m.Submit, error: TpyError) -> InferenceResponse:
    return InferenceResponse(
        model_name=message.model_name, model_version=message.model_version or 0, id=message.id, error=error, refused=True
    )


def _failed(number: int, response: InferenceResponse, error: TpyError) -> m.Response:
    """The message for a response that has no form. Of a decoupled request, the others still come."""
    failure: Any = m.Failure.of(error)
    return m.Response(number, response.model_name, response.model_version, "", (), {}, failure, response.final, False, None)
