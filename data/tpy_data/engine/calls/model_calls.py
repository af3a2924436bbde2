"""EngineCalls: the server as models and backends see it: models that they call, and a loop that reads for them. Calls come from
any thread and go on on the Trio thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import trio

from tpy.backend import CallSink, DescriptorReader, Done, ExecutionRequest, WaitingBatch
from tpy.errors import Internal, TpyError, Unavailable, Unsupported
from tpy.limits import (
    CALL_CIRCLE_CHECK_S,
    DECOUPLED_RESPONSE_BYTES_WAITING_MAX,
    DECOUPLED_RESPONSES_WAITING_MAX,
    REPOSITORY_CALLS_WAITING_MAX,
)
from tpy.messages import InferenceRequest, InferenceResponse, LoadRequest, ModelDescription, held_bytes
from tpy.observers import RequestObservers
from tpy.reactor import reactor_of_run
from tpy.services import LoadingService, ResponseSink
from tpy_data.engine.calls.core import CallingBatch, find_circle
from tpy_data.engine.requests.handle import NO_RESOURCES, EngineHandle, Resources, WaitingRequest
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.engine.watched import WatchedDescriptors
from tpy_data.exception_text import exception_text
from tpy_data.schedulers.core import Outcome

_log = logging.getLogger(__name__)

_STOPPING = Outcome.STOPPING.value


def _needs_stream(model_name: str) -> str:
    """Triton's words, quote included."""
    return (
        f"Model {model_name} is using the decoupled. The current BLS request call doesn't support models using the decoupled "
        "transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'"
    )


class _RepositoryOrder(NamedTuple):
    """A load (of `load`) or else an unload (of `unload`)."""

    load: LoadRequest | None
    unload: str
    unload_dependents: bool
    done: Done


class CallableModel(Protocol):
    """A copy of a model, as `tpy.services.ResolvedModel`, whose handles say what they wait for."""

    @property
    def description(self) -> ModelDescription: ...

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`."""
        ...


class CallableModels(Protocol):
    """The models of the engine, by name."""

    def resolve(self, model_name: str, version: int | None = None) -> CallableModel:
        """As `InferenceService.resolve`."""
        ...


class EngineCalls:
    """Implements tpy.backend.ServerCalls and LoopCalls. Make it inside `trio.run`; `run` is a task of the data plane's nursery.

    `repository` is set when the server is put together, before models are loaded; without it repository calls are refused.
    """

    def __init__(self, inference: CallableModels, observers: RequestObservers) -> None:
        self.repository: LoadingService | None = None
        self.tenant_of: Callable[[Sequence[ExecutionRequest]], str] | None = None
        """The name of the tenant of requests that are executed, where there are tenants."""
        self.inference = inference
        self.observers = observers
        self._reactor = reactor_of_run()
        self._thread = threading.get_ident()
        self._orders, self._arriving = trio.open_memory_channel[_RepositoryOrder](REPOSITORY_CALLS_WAITING_MAX)
        self._waiting: dict[WaitingBatch, set[ModelCall]] = {}
        self._calling = trio.Event()
        self._watched = WatchedDescriptors(self._reactor)

    async def run(self) -> None:
        """Perform repository calls, and watch calls that take long. Runs until cancelled; repository calls that wait then are
        refused."""
        with self._watched.running():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                async for order in self._arriving:
                    nursery.start_soon(self._perform, order)

    def soon(self, function: Callable[[], object]) -> bool:
        """Call `function` on the Trio thread. False when the loop has ended."""
        try:
            self._reactor.run_sync_soon(function)
        except trio.RunFinishedError:
            return False
        return True

    def infer(
        self, request: InferenceRequest, sink: CallSink, *, streams: bool, waiting: WaitingBatch | None = None
    ) -> ModelCall:
        """As `ServerCalls.infer`."""
        call = ModelCall(self, request, sink, streams=streams, waiting=waiting)
        if threading.get_ident() == self._thread:
            call.begin()
        elif not self.soon(call.begin):
            sink.refuse(Unavailable(_STOPPING))
        return call

    def watch(self, descriptor: int, reader: DescriptorReader) -> bool:
        """As `LoopCalls.watch`."""
        return self.soon(partial(self._watched.add, descriptor, reader))

    def load_model(self, request: LoadRequest, done: Done) -> None:
        """As `ServerCalls.load_model`."""
        self._order(_RepositoryOrder(request, "", False, done))

    def unload_model(self, model_name: str, done: Done, *, unload_dependents: bool) -> None:
        """As `ServerCalls.unload_model`."""
        self._order(_RepositoryOrder(None, model_name, unload_dependents, done))

    def is_model_ready(self, model_name: str, version: int | None, answer: Callable[[bool], None]) -> None:
        """As `ServerCalls.is_model_ready`."""
        if not self.soon(lambda: answer(self._is_ready(model_name, version))):
            answer(False)

    # On the Trio thread

    def _is_ready(self, model_name: str, version: int | None) -> bool:
        try:
            self.inference.resolve(model_name, version)
        except TpyError:
            return False
        return True

    def _order(self, order: _RepositoryOrder) -> None:
        def put() -> None:
            try:
                self._orders.send_nowait(order)
            except trio.WouldBlock:
                order.done(Unavailable(f"more than {REPOSITORY_CALLS_WAITING_MAX} calls to load or unload models wait"))

        if not self.soon(put):
            order.done(Unavailable(_STOPPING))

    async def _perform(self, order: _RepositoryOrder) -> None:
        failure: TpyError | None = Unavailable(_STOPPING)
        try:
            if self.repository is None:
                failure = Unsupported("this server has no model repository that models could change")
            elif order.load is not None:
                await self.repository.load(order.load)
                failure = None
            else:
                await self.repository.unload(order.unload, unload_dependents=order.unload_dependents)
                failure = None
        except TpyError as error:
            failure = error.with_traceback(None)
        except Exception as bug:
            _log.exception("a model's call to load or unload failed because of a bug")
            failure = Internal(exception_text(bug))
        finally:
            order.done(failure)

    async def _watch(self) -> None:
        """Look for circles that are not closed by making a call: by a later step of an ensemble, or an instance that fails."""
        while True:
            await self._calling.wait()
            await trio.sleep(CALL_CIRCLE_CHECK_S)
            if not self._waiting:
                self._calling = trio.Event()
            for call in [call for calls in self._waiting.values() for call in calls]:
                call.check_circle()

    def note_waiting(self, call: ModelCall, waiting: WaitingBatch) -> None:
        """The batch waits for this call from now on."""
        self._waiting.setdefault(waiting, set()).add(call)
        if not self._calling.is_set():
            self._calling.set()

    def forget_waiting(self, call: ModelCall, waiting: WaitingBatch) -> None:
        """The call has ended."""
        calls = self._waiting.get(waiting)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._waiting[waiting]

    def called_by(self, name: str) -> dict[str, tuple[int, int]]:
        """The models whose answers batches of model `name` wait for now: calls, and those of them that are queued."""
        found: dict[str, tuple[int, int]] = {}
        for waiting, calls in self._waiting.items():
            tickets = _tickets(waiting)
            if waiting.completed or not tickets or tickets[0].owner.name != name:
                continue
            for part in (part for call in calls for part in call.waiting_requests()):
                counted, queued = found.get(part.name, (0, 0))
                found[part.name] = counted + 1, queued + part.is_held_up
        return found

    def circle_of(self, wanted: ModelCall, waiting: WaitingBatch) -> list[str]:
        """The models of a circle of calls that this one, which the batch waits for, is kept from its end by; empty for none."""
        # A request behind another batch of its instance is queued, and may go to another one. First, because it can end calls.
        for owner in {tickets[0].owner for each in self._waiting if (tickets := _tickets(each))}:
            owner.recall()
        first: CallingBatch | None = None
        supply: Resources = NO_RESOURCES
        batches = []
        for each, calls in self._waiting.items():
            tickets = _tickets(each)
            if each.completed or not tickets:
                continue
            owner, live = tickets[0].owner, tickets[0].live
            batch = CallingBatch(
                name=owner.name,
                model=id(owner),
                instances=owner.instance_count,
                requests=frozenset(map(id, tickets)),
                calls=[part for call in calls if each is not waiting or call is wanted for part in call.waiting_requests()],
                instance=None if live is None else live.instance,
                holds=NO_RESOURCES if owner.gate is None else owner.gate.needs(),
            )
            if owner.gate is not None:
                supply = owner.gate.supply()
            batches.append(batch)
            if each is waiting:
                first = batch
        return [] if first is None else find_circle(first, batches, supply)


def _tickets(waiting: WaitingBatch) -> list[RequestTicket]:
    """The requests of a batch; none of a warm-up's."""
    return [request for request in waiting.requests if isinstance(request, RequestTicket)]


class ModelCall:
    """One inference call (a `ServerCall`); also the sink of its request. Everything but `cancel` and `taken` is on the Trio
    thread."""

    __slots__ = (
        "_bytes",
        "_ended",
        "_handle",
        "_owner",
        "_paused",
        "_request",
        "_sink",
        "_sizes",
        "_streams",
        "_waiting",
    )

    def __init__(
        self, owner: EngineCalls, request: InferenceRequest, sink: CallSink, *, streams: bool, waiting: WaitingBatch | None
    ) -> None:
        self._owner = owner
        self._request: InferenceRequest | None = request
        self._sink = sink
        self._streams = streams
        self._waiting = waiting
        self._handle: EngineHandle | None = None
        self._ended = False
        self._paused = False
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def cancel(self) -> None:
        """As `ServerCall.cancel`."""
        self._owner.soon(self._cancel)

    def taken(self, count: int) -> None:
        """As `ServerCall.taken`."""
        self._owner.soon(partial(self._take, count))

    def begin(self) -> None:
        """Submit the request."""
        request, self._request = self._request, None
        if self._ended or request is None:
            return
        try:
            self._submit(request)
        except TpyError as error:
            self._refuse(error.with_traceback(None))
        except Exception as bug:
            _log.exception("a model's call failed because of a bug")
            self._refuse(Internal(exception_text(bug)))

    def deliver(self, response: InferenceResponse) -> None:
        """As `ResponseSink.deliver`."""
        if self._ended:
            return
        if response.final:
            self._end()
        elif self._streams:
            size = held_bytes(response.outputs, DECOUPLED_RESPONSE_BYTES_WAITING_MAX)
            self._sizes.append(size)
            self._bytes += size
            self._check_room()
        self._sink.deliver(response)

    def waiting_requests(self) -> list[WaitingRequest]:
        """The parts of it that are queued or executed now, as far as that is known."""
        return [] if self._handle is None else list(self._handle.waiting())

    def check_circle(self) -> None:
        """Refuse the call when it can never end."""
        if self._ended or self._waiting is None or self._handle is None:
            return
        self._handle.recall()  # it may be held behind a batch that waits for this call
        if not any(part.is_held_up for part in self._handle.waiting()):
            return
        circle = self._owner.circle_of(self, self._waiting)
        if circle:
            self._cancel()
            path = " -> ".join(f"'{name}'" for name in circle)
            self._sink.refuse(
                Unavailable(f"the call can never end: models wait for each other in a circle ({path}), with no instance free")
            )

    def _submit(self, request: InferenceRequest) -> None:
        inference, name = self._owner.inference, request.model_name
        try:
            model = inference.resolve(name, request.model_version)
        except TpyError as error:
            raise type(error)(f"Failed for execute the inference request. Model '{name}' is not ready.") from None
        if model.description.decoupled and not self._streams:
            raise Unsupported(_needs_stream(name))
        if request.record is None and (record := self._owner.observers.open("call", model=name)) is not None:
            request = msgspec.structs.replace(request, record=record)
        if self._owner.tenant_of is not None and self._waiting is not None:
            tenant = self._owner.tenant_of(self._waiting.requests)
            request = msgspec.structs.replace(request, tenant=tenant, is_call=True)
        handle = model.submit(request, self)
        if self._ended:
            return
        self._handle = handle
        self._check_room()
        if self._waiting is not None:
            self._owner.note_waiting(self, self._waiting)
            self.check_circle()

    def _check_room(self) -> None:
        full = len(self._sizes) >= DECOUPLED_RESPONSES_WAITING_MAX or (
            len(self._sizes) > 0 and self._bytes >= DECOUPLED_RESPONSE_BYTES_WAITING_MAX
        )
        if self._handle is not None and full is not self._paused:
            self._paused = full
            if full:
                self._handle.pause()
            else:
                self._handle.resume()

    def _take(self, count: int) -> None:
        for _ in range(min(count, len(self._sizes))):
            self._bytes -= self._sizes.popleft()
        if not self._ended:
            self._check_room()

    def _cancel(self) -> None:
        if not self._ended:
            self._end()
            if self._handle is not None:
                self._handle.cancel()

    def _refuse(self, error: TpyError) -> None:
        self._end()
        self._sink.refuse(error)

    def _end(self) -> None:
        self._ended = True
        if self._waiting is not None:
            self._owner.forget_waiting(self, self._waiting)
