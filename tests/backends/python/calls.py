"""A server that models call in tests: it answers at once, or when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from tpy.backend import CallSink, Done, ServerCall, WaitingBatch
from tpy.errors import InvalidArgument, TpyError
from tpy.messages import InferenceRequest, InferenceResponse, LoadRequest, Tensor

from .conftest import Served


class Call:
    """One call. `deliver`, `refuse`: what the server would say."""

    def __init__(self, request: InferenceRequest, sink: CallSink, streams: bool, waiting: WaitingBatch | None) -> None:
        self.request = request
        self.streams = streams
        self.waiting = waiting
        self.sink = sink
        self.cancelled = threading.Event()
        self.taken_count = 0

    def cancel(self) -> None:
        self.cancelled.set()

    def taken(self, count: int) -> None:
        self.taken_count += count

    def answer(self, *outputs: Tensor, error: TpyError | None = None, final: bool = True) -> None:
        name = self.request.model_name
        self.sink.deliver(InferenceResponse(model_name=name, model_version=1, outputs=outputs, error=error, final=final))


def identity(call: Call) -> None:
    """Outputs are the inputs, under the name OUT."""
    call.answer(*(Tensor("OUT", each.datatype, each.array) for each in call.request.inputs))


class FakeServer:
    """Implements ServerCalls. `behave` is called with every inference call; `calls` keeps those while `keep` is set."""

    def __init__(self, behave: Callable[[Call], None] = identity) -> None:
        self.behave = behave
        self.keep = True
        self.calls: list[Call] = []
        self.count = 0
        self.arrived = threading.Semaphore(0)
        self.loads: list[LoadRequest] = []
        self.unloads: list[tuple[str, bool]] = []

    def infer(
        self, request: InferenceRequest, sink: CallSink, *, streams: bool, waiting: WaitingBatch | None = None
    ) -> ServerCall:
        call = Call(request, sink, streams, waiting)
        self.count += 1
        if self.keep:
            self.calls.append(call)
        self.behave(call)
        self.arrived.release()
        return call

    def load_model(self, request: LoadRequest, done: Done) -> None:
        self.loads.append(request)
        done(InvalidArgument("no such model") if request.model_name == "bad" else None)

    def unload_model(self, model_name: str, done: Done, *, unload_dependents: bool) -> None:
        self.unloads.append((model_name, unload_dependents))
        done(None)

    def is_model_ready(self, model_name: str, version: int | None, answer: Callable[[bool], None]) -> None:
        answer(model_name == "ready" and version in (None, 1))


def surround(served: Served, server: FakeServer) -> Served:
    """Have the model find this server around it; before it is first used."""
    served.context = msgspec.structs.replace(served.context, server=server)
    return served
