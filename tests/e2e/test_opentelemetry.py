"""Mode opentelemetry: a real `tpy serve` sends its spans to a receiver of OTLP over HTTP."""

from __future__ import annotations

import http.client
import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tpy.errors import InvalidArgument
from tpy.telemetry.traces.options import OTEL_DEFAULTS, TraceOptions
from tpy.telemetry.traces.tracer import tracing

from .repositories import ModelFolder
from .server import ServerProcess
from .waiting import wait_until

collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"

CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
CONTEXT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [np.array([request.trace().get_context() or ""], object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)]) for text in texts]
"""
CALLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            asked = dict(model_name="context", requested_output_names=["OUTPUT0"], inputs=request.inputs())
            pb_utils.InferenceRequest(**asked).exec()
            answer = pb_utils.InferenceRequest(**asked, request_id="inner", trace=request.trace()).exec()
            answers.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return answers
"""
HELD = """
import os
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    '''Removes the file that its input names, and waits until it is there again.'''

    def execute(self, requests):
        for request in requests:
            (gate,) = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            os.unlink(gate)
            while not os.path.exists(gate):
                time.sleep(0.005)
        return [pb_utils.InferenceResponse([]) for request in requests]
"""


class Receiver:
    """Takes the spans that exporters post to it."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = collector.ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
                for group in request.resource_spans:
                    receiver.resources.append({each.key: each.value.string_value for each in group.resource.attributes})
                    receiver.spans += [span for scope in group.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, count: int) -> dict[str, Any]:
        """The next so many spans, by name."""
        wait_until(lambda: len(self.spans) >= count)
        taken, self.spans = self.spans, []
        assert len(taken) == count, [span.name for span in taken]
        return {span.name: span for span in taken}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture(scope="module")
def server(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("otel") / "models"
    ModelFolder(repository, "context").python(CONTEXT).config(CONFIG)
    ModelFolder(repository, "calls").python(CALLS).config(CONFIG)
    ModelFolder(repository, "held").python(HELD).config(CONFIG.replace("TYPE_FP32", "TYPE_STRING"))
    settings = (
        *("mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={receiver.url}"),
        *("opentelemetry,resource=service.name=tests", "opentelemetry,bsp_schedule_delay=50"),
    )
    flags = [word for setting in settings for word in ("--trace-config", setting)]
    with ServerProcess(*flags, "--metrics-config=histogram_latencies=true", repositories=[repository]) as found:
        yield found


def ask(server: ServerProcess, model: str, *, headers: dict[str, str] | None = None, over_grpc: bool = False) -> str:
    kind = tritonclient.grpc if over_grpc else tritonclient.http
    with kind.InferenceServerClient(server.grpc if over_grpc else server.http) as client:
        tensor = kind.InferInput("INPUT0", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        answer = client.infer(model, [tensor], request_id="7", headers=headers)
        text: bytes = answer.as_numpy("OUTPUT0")[0]
        return text.decode()


def events(span: Any) -> list[str]:
    return [event.name for event in span.events]


@pytest.mark.parametrize("over_grpc", [False, True])
def test_a_callers_trace_goes_on_in_server_and_model(receiver: Receiver, server: ServerProcess, over_grpc: bool) -> None:
    context = json.loads(ask(server, "context", headers={"traceparent": TRACEPARENT}, over_grpc=over_grpc))
    spans = receiver.take(4)
    root, model, queue, compute = (spans[name] for name in ("InferRequest", "context", "queue", "compute"))
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert root.parent_span_id.hex() == CALLER
    assert model.parent_span_id == root.span_id
    assert queue.parent_span_id == compute.parent_span_id == model.span_id
    assert context == {"traceparent": f"00-{TRACE}-{model.span_id.hex()}-01"}
    for outer, inner in ((root, model), (model, compute)):
        assert outer.start_time_unix_nano <= inner.start_time_unix_nano <= inner.end_time_unix_nano <= outer.end_time_unix_nano
    attributes = {each.key: each.value.string_value or each.value.int_value for each in model.attributes}
    assert attributes.pop("triton.trace_id") > 0
    assert attributes == {
        **{"triton.model_name": "context", "triton.model_version": 1},
        **{"triton.trace_parent_id": 0, "triton.request_id": "7"},
    }
    assert events(compute) == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert events(model) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    frontend = ("GRPC_WAITREAD", "GRPC_SEND") if over_grpc else ("HTTP_RECV", "HTTP_SEND")
    assert {f"{name}_{end}" for name in frontend for end in ("START", "END")} <= set(events(root))
    assert receiver.resources[-1]["service.name"] == "tests"


@pytest.mark.parametrize("over_grpc", [False, True])
def test_a_request_that_is_cancelled_while_it_executes_has_its_compute_span(
    receiver: Receiver, server: ServerProcess, tmp_path: Path, over_grpc: bool
) -> None:
    """Its execution until then."""
    gate = tmp_path / "gate"
    gate.touch()
    body = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [str(gate)]}]}
    if over_grpc:
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            tensor = tritonclient.grpc.InferInput("INPUT0", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([str(gate)], object))
            headers = {"traceparent": TRACEPARENT}
            call = client.async_infer("held", [tensor], lambda result, error: None, headers=headers)
            wait_until(lambda: not gate.exists())
            call.cancel()
            spans = receiver.take(4)
    else:
        host, port = server.http.split(":")
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("POST", "/v2/models/held/infer", json.dumps(body), {"traceparent": TRACEPARENT})
        wait_until(lambda: not gate.exists())
        connection.close()
        spans = receiver.take(4)
    model, compute = spans["held"], spans["compute"]
    gate.touch()
    assert compute.parent_span_id == model.span_id
    assert compute.end_time_unix_nano > compute.start_time_unix_nano >= model.start_time_unix_nano
    assert model.status.code == 2
    assert events(compute) == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


def test_calls_are_children_when_they_were_given_the_trace(receiver: Receiver, server: ServerProcess) -> None:
    ask(server, "calls", headers={"traceparent": TRACEPARENT})
    wait_until(lambda: len(receiver.spans) >= 7)
    taken, receiver.spans = receiver.spans, []
    assert sorted(span.name for span in taken) == ["InferRequest", "calls", "compute", "compute", "context", "queue", "queue"]
    (outer,) = [span for span in taken if span.name == "calls"]
    (inner,) = [span for span in taken if span.name == "context"]
    assert inner.parent_span_id == outer.span_id


def test_at_rate_0_only_those_are_traced_who_ask(receiver: Receiver, server: ServerProcess) -> None:
    assert ask(server, "context") == ""
    assert ask(server, "context", headers={"traceparent": "no"}) == ""
    with tritonclient.http.InferenceServerClient(server.http) as client:
        shown = client.get_trace_settings()
        assert (shown["trace_mode"], shown["trace_rate"], shown["url"]) == ("opentelemetry", "0", receiver.url)
        client.update_trace_settings("context", {"trace_rate": "1"})
        assert json.loads(ask(server, "context"))["traceparent"]
        client.update_trace_settings("context", {"trace_rate": None})
    root = receiver.take(4)["InferRequest"]
    assert root.parent_span_id == b""
    page = urllib.request.Request(f"http://{server.metrics}/metrics", headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(page) as answer:
        exemplars = re.findall(r'tpy_inference_request_duration_seconds_bucket.*# {trace_id="(\w+)"}', answer.read().decode())
    assert root.trace_id.hex() in exemplars, "a trace that began here"


class GrpcReceiver:
    """The same over gRPC: the requests as they came."""

    def __init__(self) -> None:
        self.exports: list[Any] = []

        def export(request: Any, context: Any) -> Any:
            self.exports.append(request)
            return collector.ExportTraceServiceResponse()

        method = grpc.unary_unary_rpc_method_handler(
            export, collector.ExportTraceServiceRequest.FromString, lambda response: response.SerializeToString()
        )
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server = grpc.server(ThreadPoolExecutor(1))
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": method})])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def spans(self) -> list[list[Any]]:
        """The spans of each request."""
        return [
            [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
            for request in self.exports
        ]

    def close(self) -> None:
        self._server.stop(None).wait()


@pytest.mark.parametrize("processes", [0, 1])
def test_a_collector_over_grpc(tmp_path: Path, processes: int) -> None:
    """With the settings of the batch processor and of the resource; with a frontend process as without."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    receiver = GrpcReceiver()
    ModelFolder(tmp_path / "models", "context").python(CONTEXT).config(CONFIG)
    settings = (
        *("mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url=grpc://127.0.0.1:{receiver.port}"),
        *("opentelemetry,resource=service.name=a", "opentelemetry,resource=host=b"),
        *("opentelemetry,bsp_schedule_delay=50", "opentelemetry,bsp_max_export_batch_size=3"),
    )
    flags = [f"--frontend-processes={processes}", *(word for setting in settings for word in ("--trace-config", setting))]
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:
        for over_grpc in (False, True):
            assert TRACE in ask(server, "context", headers={"traceparent": TRACEPARENT}, over_grpc=over_grpc)
        wait_until(lambda: sum(map(len, receiver.spans)) == 8)
    receiver.close()
    assert max(map(len, receiver.spans)) <= 3
    spans = [span for group in receiver.spans for span in group]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    roots = [span for span in spans if span.name == "InferRequest"]
    assert [root.parent_span_id.hex() for root in roots] == [CALLER, CALLER]
    assert {"HTTP_RECV_START", "GRPC_SEND_END"} <= {name for root in roots for name in events(root)}
    (group,) = receiver.exports[0].resource_spans
    resource = {each.key: each.value.string_value for each in group.resource.attributes}
    assert (resource["service.name"], resource["host"]) == ("a", "b")


@pytest.mark.parametrize("url", ["ftp://collector", "grpc://", "http:///"])
def test_a_url_that_is_none_is_said(url: str) -> None:
    options = TraceOptions(mode="opentelemetry", otel={**OTEL_DEFAULTS, "url": url})
    with pytest.raises(InvalidArgument) as refused, tracing(options):
        pass
    assert refused.value.message.endswith(f"expected http://, https://, grpc:// or grpcs:// and a host, got '{url}'")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1/traces", "grpc://127.0.0.1:9"])
def test_a_collector_that_is_away_costs_spans_only(tmp_path: Path, url: str) -> None:
    ModelFolder(tmp_path / "models", "context").python(CONTEXT).config(CONFIG)
    settings = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={url}")
    flags = [word for setting in settings for word in ("--trace-config", setting)]
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:
        assert ask(server, "context")
