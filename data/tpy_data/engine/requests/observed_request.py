"""ObservedRequest: stands between a request that has a record and its sink, and between its caller and its handle, so that the
record says what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tpy.clock import Clock
from tpy.errors import ErrorCode, TpyError
from tpy.messages import InferenceRequest, InferenceResponse, RequestRecord
from tpy.services import ResponseSink
from tpy_data.engine.requests.handle import EngineHandle, Execution, WaitingRequest

Submit = Callable[[InferenceRequest, ResponseSink], EngineHandle]


class RelayedRequest:
    """The sink of a request, and its EngineHandle. `handle` is the request's own, from when it was submitted until its last
    response, which may come before the submission returns."""

    __slots__ = ("_is_over", "_sink", "handle")

    def __init__(self, sink: ResponseSink) -> None:
        self._sink = sink
        self._is_over = False
        self.handle: EngineHandle | None = None

    def begun(self, handle: EngineHandle) -> None:
        """It was submitted, unless it is over already."""
        if not self._is_over:
            self.handle = handle

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        if response.final:
            self._is_over = True
            self.handle = None  # which has this sink: both, and the request's tensors, would stay until the next collection
        self._sink.deliver(response)

    def cancel(self) -> None:
        """See EngineHandle."""
        if self.handle is not None:
            self.handle.cancel()

    def pause(self) -> None:
        """See EngineHandle."""
        if self.handle is not None:
            self.handle.pause()

    def resume(self) -> None:
        """See EngineHandle."""
        if self.handle is not None:
            self.handle.resume()

    def waiting(self) -> Iterable[WaitingRequest]:
        """See EngineHandle."""
        return () if self.handle is None else self.handle.waiting()

    def recall(self) -> None:
        """See EngineHandle."""
        if self.handle is not None:
            self.handle.recall()

    def times(self, now_ns: int) -> Execution | None:
        """See EngineHandle."""
        return None if self.handle is None else self.handle.times(now_ns)


class ObservedRequest(RelayedRequest):
    """See the module."""

    __slots__ = ("_clock", "_record")

    def __init__(self, record: RequestRecord, sink: ResponseSink, clock: Clock) -> None:
        super().__init__(sink)
        self._record = record
        self._clock = clock

    def submit(self, request: InferenceRequest, submit: Submit) -> EngineHandle:
        """Submit the request in this way; returns what stands for its handle. Raises what `submit` raises."""
        self._record.admit(request, self._clock.now_ns())
        try:
            handle = submit(request, self)
        except TpyError as refusal:
            self._end(refusal.code.value, refusal.message)
            raise
        if not self._record.ended_ns:  # it may have been answered already
            self.handle = handle
        return self

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        self._record.respond(response)
        if response.final:
            error = response.error
            if error is None:
                self._end("OK")
            else:
                self._end(error.code.value, error.message)
        super().deliver(response)

    def cancel(self) -> None:
        """See EngineHandle."""
        super().cancel()
        self._end(ErrorCode.CANCELLED.value)

    def _end(self, status: str, error: str = "") -> None:
        now_ns, record = self._clock.now_ns(), self._record
        execution = self.times(now_ns)
        if execution is not None and not record.ended_ns:
            record.started_ns, record.input_ns, record.infer_ns, record.output_ns = execution
        elif record.started_ns is not None and not record.ended_ns:  # it is executing still
            record.infer_ns = now_ns - record.started_ns
        record.end(now_ns, status, error)


def submit_observed(request: InferenceRequest, sink: ResponseSink, submit: Submit, clock: Clock) -> EngineHandle:
    """Submit a request, observed where it has a record. Raises what `submit` raises."""
    record = request.record
    if record is None:
        return submit(request, sink)
    return ObservedRequest(record, sink, clock).submit(request, submit)
