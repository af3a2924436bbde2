"""Record what Python models see of metrics, response senders and traces: `python -m tests.conformance.python_api_record HOST:PORT
HOST:METRICS_PORT > transcripts/python_api.json`, against a server on what `--build DIRECTORY` writes.

The recorded version crashes on most misuse of metrics, and hangs where a request gets no response; such cases are not here.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "CODE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

EVALUATES = """
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def word(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(text).encode()], dtype=object))])


class TritonPythonModel:
    def initialize(self, args):
        self.names = {"pb": pb_utils, "kind": pb_utils.MetricFamily, "nan": float("nan"), "inf": float("inf")}

    def execute(self, requests):
        answers = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            method = getattr(self, code, None)
            answers.append(word(self.evaluate(request, code)) if method is None else method(request))
        return answers

    def evaluate(self, request, code):
        self.names["request"] = request
        try:
            try:
                return repr(eval(code, self.names))
            except SyntaxError:
                exec(code, self.names)
                return "ok"
        except BaseException as error:
            return f"{type(error).__name__}: {error}"

    def attempt(self, *calls):
        told = self.names["told"] = []
        for call in calls:
            try:
                told.append(repr(call()))
            except BaseException as error:
                told.append(f"{type(error).__name__}: {error}")

    def sent(self, request):
        request.get_response_sender().send(word("sent"), FINAL)

    def thread(self, request):
        import threading

        sender = request.get_response_sender()
        threading.Timer(0.1, lambda: sender.send(word("late"), FINAL)).start()

    def twice(self, request):
        sender = request.get_response_sender()
        self.attempt(lambda: sender.send(word("one"), FINAL), lambda: sender.send(word("two"), FINAL))

    def apart(self, request):
        sender = request.get_response_sender()
        end = lambda: sender.send(flags=FINAL)
        self.attempt(lambda: sender.send(word("one")), end, end)

    def several(self, request):
        sender = request.get_response_sender()
        more = lambda: sender.send(word("more"), FINAL)
        self.attempt(lambda: sender.send(word("one")), more, more, lambda: sender.send(flags=FINAL))

    def nothing(self, request):
        sender = request.get_response_sender()
        self.attempt(lambda: sender.send(flags=FINAL), lambda: sender.send(word("after"), FINAL))

    def misused(self, request):
        sender = request.get_response_sender()
        self.attempt(lambda: sender.send(word("x"), 7), lambda: sender.send(None, 0), lambda: sender.send(word("right"), FINAL))

    def both(self, request):
        request.get_response_sender().send(word("sent"), FINAL)
        return word("returned")

    def wrong(self, request):
        return 5

    def rescheduled_with_response(self, request):
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return word("x")
"""

CASES = (
    "c = kind(name='x_count', description='counts', kind=kind.COUNTER)",
    "k = c.Metric(labels={'a': 'b\"q\\\\ \\n z'})",
    "k.value()",
    "k.increment(2)",
    "k.increment(0.5)",
    "k.value()",
    "k.increment(-1)",
    "c.Metric(labels=5)",
    "c.Metric(buckets=[1.0])",
    "c.Metric(labels={'a': 'x', 'b': 'y'}).increment(1)",
    "k2 = c.Metric(labels={'a': 'b\"q\\\\ \\n z'})",
    "k2.increment(1)",
    "k.value()",
    "other = kind('x_count', 'another description', kind.COUNTER)",
    "other.Metric(labels={'a': 'x', 'b': 'y'}).value()",
    "g = kind('x_gauge', '', kind.GAUGE)",
    "gm = g.Metric(labels={'m': '1'})",
    "gm.set(5)",
    "gm.increment(-2.5)",
    "gm.value()",
    "gm.set(1e20)",
    "small = g.Metric(labels={'m': '2'})",
    "small.set(0.1)",
    "large = g.Metric(labels={'m': '3'})",
    "large.set(1234567.25)",
    "h = kind('x_hist', 'h', kind.HISTOGRAM)",
    "h.Metric()",
    "h.Metric(buckets=(1, 2))",
    "hm = h.Metric(labels={'z': '1'}, buckets=[0.1, 1, 2.5, 10])",
    "[hm.observe(value) for value in (0.05, 1, 2, 99)]",
    "h.Metric(labels={'z': '1'}, buckets=[5]).observe(3)",
    "empty = kind('x_empty', 'd', kind.COUNTER)",
    "kind('nv_inference_count', 'd', kind.GAUGE)",
    "PAGE",
    "del c",
    "k.increment(1)",
    "k.value()",
    "del other, g, h, empty",
    "PAGE",
    "request.trace().get_context()",
    "request.flags(), request.correlation_id(), request.timeout(), request.parameters()",
    "request.is_cancelled(), request.get_response_sender().is_cancelled()",
    *(
        each
        for name in ("sent", "thread", "twice", "apart", "several", "nothing", "misused")
        for each in ((name,) if name in ("sent", "thread") else (name, "told"))
    ),
    "both",
    "wrong",
    "rescheduled_with_response",
)


def build(repository: Path, *, more: str = "") -> None:
    """Write the repository; `more` goes into the configuration."""
    version = repository / "python_api" / "1"
    version.mkdir(parents=True)
    (repository / "python_api" / "config.pbtxt").write_text(CONFIG + more)
    (version / "model.py").write_text(EVALUATES)


def ask(address: str, metrics: str, case: str) -> Any:
    """The model's response, or the lines of its metrics, sorted."""
    if case == "PAGE":
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30) as response:
            return sorted(line for line in response.read().decode().splitlines() if "x_" in line and "inference" not in line)
    body = json.dumps({"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [case]}]}).encode()
    try:
        with urllib.request.urlopen(f"http://{address}/v2/models/python_api/infer", body, timeout=30) as response:
            return json.loads(response.read())["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        return [error.code, json.loads(error.read())["error"]]


if __name__ == "__main__":
    if sys.argv[1] == "--build":
        build(Path(sys.argv[2]))
    else:
        json.dump([[case, ask(sys.argv[1], sys.argv[2], case)] for case in CASES], sys.stdout, indent=1)
        print()
