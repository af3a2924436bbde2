"""EnsembleRequest and StepRequest: one request to an ensemble, and its requests to the models of the steps. They are the core's
runs, the frontend's handle and the members' sinks at once: no table of requests anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import msgspec

from tpy.errors import TpyError
from tpy.messages import InferenceRequest, InferenceResponse, RequestRecord
from tpy.services import ResponseSink
from tpy.units import NS_PER_US
from tpy_data.engine.requests.handle import EngineHandle, Execution, WaitingRequest
from tpy_data.schedulers.core import Phase
from tpy_data.schedulers.core.ensemble import EnsembleRun, Frame, StepRun


class RequestOwner(Protocol):
    """The engine that runs them."""

    def cancel(self, run: EnsembleRequest) -> None:
        """Forget the request."""
        ...

    def pause(self, run: EnsembleRequest) -> None:
        """Deliver no more of it for now."""
        ...

    def resume(self, run: EnsembleRequest) -> None:
        """Deliver again."""
        ...

    def step_answered(self, step: StepRequest, response: InferenceResponse) -> None:
        """The model of a step has answered."""
        ...


class EnsembleRequest(EnsembleRun):
    """`request` is what was asked, without its inputs. `error` is that of the first step that failed. The times of steps add up
    in `input_ns`, `infer_ns`, `output_ns`. `has_responded`: its first response was sent."""

    __slots__ = ("error", "has_responded", "infer_ns", "input_ns", "output_ns", "owner", "request", "sink")

    def __init__(self, request: InferenceRequest, batch_size: int, sink: ResponseSink, owner: RequestOwner) -> None:
        # The fields of Ticket are set here: its constructor's keyword call is felt on this path.
        self.batch_size = batch_size
        self.signature = None
        self.priority = request.priority
        self.timeout_ns = request.timeout_us * NS_PER_US
        self.deadline_ns = request.deadline_ns
        self.sequence = request.sequence
        self.live = None
        self.phase = Phase.QUEUED
        self.queued_ns = 0
        self.arrival = 0
        self.request = msgspec.structs.replace(request, inputs=())  # the core has them, and lets go of each in its time
        self.sink = sink
        self.owner = owner
        self.error: TpyError | None = None
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0
        self.has_responded = False

    @property
    def record(self) -> RequestRecord | None:
        """The request's; None: nobody observes it."""
        return self.request.record

    def cancel(self) -> None:
        """As `RequestHandle.cancel`."""
        self.owner.cancel(self)

    def pause(self) -> None:
        """As `RequestHandle.pause`."""
        self.owner.pause(self)

    def resume(self) -> None:
        """As `RequestHandle.resume`."""
        self.owner.resume(self)

    def waiting(self) -> Iterator[WaitingRequest]:
        """As `EngineHandle.waiting`: those of its steps."""
        for handle in self._handles():
            yield from handle.waiting()

    def recall(self) -> None:
        """As `EngineHandle.recall`."""
        for handle in self._handles():
            handle.recall()

    def times(self, now_ns: int) -> Execution:
        """The times of all its steps together. Nothing waits for the ensemble itself: its queue takes no time."""
        return Execution(self.queued_ns, self.input_ns, self.infer_ns, self.output_ns)

    def add_times(self, step: EngineHandle | None, now_ns: int) -> None:
        """A step of this handle has ended."""
        times = None if step is None else step.times(now_ns)
        if times is not None:
            self.input_ns += times.input_ns
            self.infer_ns += times.infer_ns
            self.output_ns += times.output_ns

    def _handles(self) -> list[EngineHandle]:
        """Those of its steps now."""
        handles = [cast(StepRequest, step).handle for step in self.steps]
        return [handle for handle in handles if handle is not None]


class StepRequest(StepRun):
    """`handle` is that of the step's request while it is under way."""

    __slots__ = ("handle",)

    def __init__(self, run: EnsembleRun, step: int, frame: Frame, inputs: Sequence[object]) -> None:
        super().__init__(run, step, frame, inputs)
        self.handle: EngineHandle | None = None

    @property
    def request(self) -> EnsembleRequest:
        """The ensemble's request that it is a step of."""
        return cast(EnsembleRequest, self.run)

    def deliver(self, response: InferenceResponse) -> None:
        """As `ResponseSink.deliver`."""
        self.request.owner.step_answered(self, response)
