"""Tracer: the observer that traces requests, and the trace settings as callers see them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Protocol

from tpy.errors import ErrorCode, InvalidArgument
from tpy.limits import TRACE_PARTS_RECENT_MAX, TRACES_COLLECTED_MAX, TRACES_HELD_BYTES_MAX, TRACES_RECENT_MAX
from tpy.messages import InferenceRequest, InferenceResponse, RequestRecord, TracedRequest
from tpy.observers import RequestObserver
from tpy.telemetry.access_log import trace_id_of
from tpy.telemetry.traces.core.settings import (
    COUNT,
    FILE,
    FREQUENCY,
    LEVEL,
    MODE,
    RATE,
    ActiveSetting,
    TraceSettings,
    Updates,
    level_texts,
    parse_updates,
)
from tpy.telemetry.traces.options import OPENTELEMETRY, TRITON, TraceOptions
from tpy.telemetry.traces.trace import TensorMemory, Trace
from tpy.telemetry.traces.trace_file import TraceFiles


class TraceSink(Protocol):
    """Takes traces. Must not wait."""

    def asked_for(self, headers: Mapping[str, str]) -> bool:
        """Returns True if a caller with these headers asks for a trace."""
        ...

    def begin(self, trace: Trace) -> None:
        """A request, or a part of one, is given to its model."""
        ...

    def take(self, trace: Trace, *, collected: bool) -> None:
        """A request, with all that belongs to it, is over; not `collected` when it was refused."""
        ...

    def replaced(self, active: ActiveSetting) -> None:
        """No further request is sampled by this setting."""
        ...

    def close(self) -> None:
        """Return when all that was taken is written."""
        ...


class Tracer(RequestObserver):
    """Traces the requests that the settings ask for. Without a `sink` it has settings only, by which nothing is traced."""

    active = False
    """True while a level is set."""

    def __init__(self, options: TraceOptions, sink: TraceSink | None) -> None:
        self._options = options
        self._settings = TraceSettings(options.setting, has_file=sink is not None, may_be_asked=options.mode == OPENTELEMETRY)
        self._sink = sink
        self._ids = count(1)
        self._numbers = count(1)
        self._recent: deque[TracedRequest] = deque(maxlen=TRACES_RECENT_MAX)
        self._memory = TensorMemory()
        self.active = self._settings.may_trace

    # Settings

    def settings(self, model: str = "") -> dict[str, tuple[str, ...]]:
        """The settings in force for the model, "" for the server, as texts in the order in which Triton answers them."""
        active, options = self._settings.active(model), self._options
        shown = {
            LEVEL: level_texts(active.setting.levels),
            RATE: (str(active.setting.rate),),
            COUNT: (str(active.remaining),),
        }
        if options.mode == TRITON:
            return {
                **shown,
                FREQUENCY: (str(active.setting.log_frequency),),
                FILE: (options.file,),
                MODE: (options.mode,),
            }
        return {**shown, MODE: (options.mode,), **{name: (text,) for name, text in options.otel.items()}}

    def update(self, model: str, updates: Updates) -> None:
        """Change settings. Raises InvalidArgument and Unsupported with Triton's texts."""
        for former in self._settings.update(model, parse_updates(updates)):
            if self._sink is not None:
                self._sink.replaced(former)
        self.active = self._settings.may_trace

    # Requests

    def sample(self, protocol: str, model: str, headers: Mapping[str, str]) -> Trace | None:
        """One in `trace_rate` requests is traced. Calls from models are traced as parts of the request whose trace they were
        given."""
        if protocol == "call":
            return None
        active = self._settings.active(model)
        if "traceparent" in headers and self._sink is not None and active.setting.levels and self._sink.asked_for(headers):
            active.take()
        elif not active.sample():
            return None
        return Trace(active, next(self._ids), self._memory)

    def admitted(self, record: RequestRecord, request: InferenceRequest) -> None:
        """Note the request."""
        trace = record.attachments.get(self)
        if trace is None:
            trace = self._begin_part(record)
            if trace is None:
                return
        trace.record = record
        if trace.parent is None or record.parent is None:
            record.trace_id = trace_id_of(record) or str(trace.id)
        else:
            record.trace_id = record.parent.trace_id
        if self._sink is not None:
            self._sink.begin(trace)
        trace.note_tensors("TENSOR_QUEUE_INPUT", request.inputs)

    def responded(self, record: RequestRecord, response: InferenceResponse) -> None:
        """Note the outputs."""
        trace = record.attachments.get(self)
        if trace is not None:
            trace.note_tensors("TENSOR_BACKEND_OUTPUT", response.outputs)

    def finished(self, record: RequestRecord) -> None:
        """One part of the trace is over."""
        trace = record.attachments.get(self)
        if trace is None:
            return
        root = trace.root
        root.open -= 1
        if root.open:
            return
        collected = root.record is not None and not _was_refused(root.record)
        if collected:
            self._keep(root)
        if self._sink is not None:
            self._sink.take(root, collected=collected)

    # Recent traces

    async def recent_after(self, number: int) -> Sequence[TracedRequest]:
        """See TraceService."""
        return [trace for trace in self._recent if trace.number > number]

    def _keep(self, root: Trace) -> None:
        parts = root.parts(TRACE_PARTS_RECENT_MAX)
        left_out = max(0, 1 + len(root.children) - TRACE_PARTS_RECENT_MAX)
        self._recent.append(TracedRequest(number=next(self._numbers), parts=parts, left_out=left_out))

    def _begin_part(self, record: RequestRecord) -> Trace | None:
        """The trace of a step or call. None for one that began when its request was over."""
        parent: Trace | None = None if record.parent is None else record.parent.attachments.get(self)
        if parent is None or not parent.root.open:
            return None
        trace = record.attachments[self] = Trace(parent.active, next(self._ids), self._memory, parent)
        parent.has_steps |= record.protocol == "step"
        return trace


def _was_refused(record: RequestRecord) -> bool:
    """Returns True for a request that was wrong: Triton traces none of those."""
    return record.started_ns is None and record.status == ErrorCode.INVALID_ARG.value


class _ToFiles:
    """Mode triton: collects traces by their settings, and writes them as those say (TraceSink)."""

    def __init__(self, files: TraceFiles) -> None:
        self._files = files
        self._collected: dict[ActiveSetting, list[Trace]] = {}

    def asked_for(self, headers: Mapping[str, str]) -> bool:
        return False

    def begin(self, trace: Trace) -> None:
        pass

    def take(self, trace: Trace, *, collected: bool) -> None:
        active = trace.active
        traces = self._collected.setdefault(active, [])
        if collected:
            traces.append(trace)
        else:
            trace.release()
        full = len(traces) >= TRACES_COLLECTED_MAX or trace.memory.held > TRACES_HELD_BYTES_MAX // 2
        if active.end(collected=collected) or full:
            self._write(active, numbered=True)
        elif not active.setting.log_frequency and active.remaining < 0:
            self._write(active, numbered=False)

    def replaced(self, active: ActiveSetting) -> None:
        self._write(active, numbered=active.setting.log_frequency > 0)

    def close(self) -> None:
        for active in list(self._collected):
            self.replaced(active)
        self._files.close()

    def _write(self, active: ActiveSetting, *, numbered: bool) -> None:
        traces: Sequence[Trace] = self._collected.pop(active, ())
        self._files.write(traces, numbered=numbered)


@contextmanager
def tracing(options: TraceOptions) -> Iterator[Tracer]:
    """The tracer for the length of the block; its end writes what is not written.

    Raises InvalidArgument for a file that cannot be written.
    """
    sink = _sink(options)
    try:
        yield Tracer(options, sink)
    finally:
        if sink is not None:
            sink.close()


def _sink(options: TraceOptions) -> TraceSink | None:
    if options.mode == OPENTELEMETRY:
        try:
            from tpy.telemetry.traces.opentelemetry_spans import OpenTelemetrySpans
        except ImportError as error:
            raise InvalidArgument(
                f"--trace-config mode=opentelemetry: {error}; its packages come with tpy's extra 'otel'"
            ) from None
        return OpenTelemetrySpans(options)
    return _ToFiles(TraceFiles(options.file)) if options.file else None
