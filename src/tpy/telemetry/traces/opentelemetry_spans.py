"""OpenTelemetrySpans: mode opentelemetry. Traces are spans, sent by the SDK's batch processor in a separate thread.

InferRequest            from the arrival of the request to its answer
+-- NAME                the model; of an ensemble, and of a model that makes calls, the others are below it
    +-- queue           until its batch begins
    +-- compute
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tpy.errors import InvalidArgument
from tpy.limits import TRACES_CLOSE_S_MAX
from tpy.messages import RequestRecord
from tpy.telemetry.traces.core.settings import ActiveSetting
from tpy.telemetry.traces.options import TraceOptions
from tpy.telemetry.traces.trace import Trace

_EXPORT_S_MAX = 10.0
"""One request to the collector, as in the SDK."""

_FRONTEND_EVENTS = ("HTTP_", "GRPC_", "INFER_RESPONSE_COMPLETE")


class OpenTelemetrySpans:
    """A TraceSink."""

    def __init__(self, options: TraceOptions) -> None:
        """Raises InvalidArgument for settings that the SDK refuses."""
        settings = options.otel
        resource = Resource.create({"service.name": "triton-inference-server", **options.resource})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        try:
            processor = BatchSpanProcessor(
                _exporter(settings["url"]),
                max_queue_size=int(settings["bsp_max_queue_size"]),
                schedule_delay_millis=int(settings["bsp_schedule_delay"]),
                max_export_batch_size=int(settings["bsp_max_export_batch_size"]),
            )
        except ValueError as error:
            raise InvalidArgument(f"--trace-config opentelemetry: {error}") from None
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("triton-server")
        self._propagator = TraceContextTextMapPropagator()
        self._roots: dict[Trace, tuple[Any, int]] = {}
        """The spans of requests under way, and the time of the Unix epoch on the server's clock when each arrived."""

    def asked_for(self, headers: Mapping[str, str]) -> bool:
        """A caller who names a trace has his request in it."""
        return bool(self._propagator.extract(headers))

    def begin(self, trace: Trace) -> None:
        """Open the span of the model, and tell its context to the model."""
        record = trace.record
        if record is None:
            return
        if trace.parent is None:
            epoch_ns = time.time_ns() - time.monotonic_ns()
            root = self._tracer.start_span(
                "InferRequest",
                context=self._propagator.extract(record.headers),
                kind=SpanKind.SERVER,
                start_time=epoch_ns + (record.begun_ns or record.received_ns or record.submitted_ns),
            )
            self._roots[trace] = root, epoch_ns
            parent = root
        else:
            parent, epoch_ns = trace.parent.span, self._roots[trace.root][1]
        trace.span = self._tracer.start_span(
            record.model,
            context=set_span_in_context(parent),
            kind=SpanKind.SERVER,
            start_time=epoch_ns + record.submitted_ns,
        )
        record.trace_id = format_trace_id(trace.span.get_span_context().trace_id)
        context: dict[str, str] = {}
        self._propagator.inject(context, set_span_in_context(trace.span))
        record.context = json.dumps(context)

    def take(self, trace: Trace, *, collected: bool) -> None:
        """End the spans. Those of a refused request say why it was refused."""
        trace.active.end(collected=collected)
        trace.release()  # spans have no tensors
        found = self._roots.pop(trace, None)
        record = trace.record
        if found is None or record is None:
            return
        root, epoch_ns = found
        for part in (trace, *trace.children):
            if part.record is not None and part.span is not None:
                self._end(part, part.record, root, epoch_ns)
        _set_status(root, record)
        root.end(epoch_ns + max(record.finished_ns, record.ended_ns))

    def replaced(self, active: ActiveSetting) -> None:
        """Nothing waits for a setting."""

    def close(self) -> None:
        """Send what is left, as far as the collector takes it in time."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(TRACES_CLOSE_S_MAX)

    def _end(self, trace: Trace, record: RequestRecord, root: Any, epoch_ns: int) -> None:
        span, compute = trace.span, None
        for name, value in (
            ("model_name", record.model),
            ("model_version", record.version or -1),
            ("trace_id", trace.id),
            ("trace_parent_id", trace.parent_id),
            ("request_id", record.id),
        ):
            if value != "":
                span.set_attribute(f"triton.{name}", value)
        within = set_span_in_context(span)
        for name, at_ns in trace.timestamps():
            at_ns += epoch_ns
            if name == "COMPUTE_START":
                self._tracer.start_span("queue", context=within, start_time=epoch_ns + record.submitted_ns).end(at_ns)
                compute = self._tracer.start_span("compute", context=within, kind=SpanKind.SERVER, start_time=at_ns)
            owner = compute if compute is not None and name.startswith("COMPUTE_") else span
            (root if name.startswith(_FRONTEND_EVENTS) else owner).add_event(name, timestamp=at_ns)
            if name == "COMPUTE_END" and compute is not None:
                compute.end(at_ns)
            if name == "REQUEST_END":
                _set_status(span, record)
                span.end(at_ns)


def _exporter(url: str) -> SpanExporter:
    """The exporter for a collector: OTLP over gRPC for `grpc://` and, with TLS, `grpcs://`, else over HTTP. Raises
    InvalidArgument for another scheme, and where a package is missing."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "http", url
    if scheme not in ("http", "https", "grpc", "grpcs") or not rest.strip("/"):
        raise InvalidArgument(
            f"--trace-config opentelemetry,url: expected http://, https://, grpc:// or grpcs:// and a host, got '{url}'"
        )
    if scheme in ("http", "https"):
        return OverHttp(endpoint=f"{scheme}://{rest}", timeout=_EXPORT_S_MAX)
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
    except ImportError as error:
        raise InvalidArgument(
            f"--trace-config opentelemetry,url: {error}; opentelemetry-exporter-otlp-proto-grpc comes with tpy's extra 'otel'"
        ) from None
    return OverGrpc(endpoint=rest.rstrip("/"), insecure=scheme == "grpc", timeout=_EXPORT_S_MAX)


def _set_status(span: Any, record: RequestRecord) -> None:
    if record.status not in ("", "OK"):
        span.set_status(Status(StatusCode.ERROR, record.error))
