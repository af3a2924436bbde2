"""pb_utils.MetricFamily, in a process and in the server: texts are Triton's, values are shared, nothing outlives its holder."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from tpy.backend import InstanceFailure
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.telemetry.exposition import MetricKind

from .conftest import Serve, Served, request

CALC = """
class TritonPythonModel:
    def initialize(self, args):
        self.names = {"pb": pb_utils, "nan": float("nan"), "inf": float("inf")}
    def execute(self, requests):
        out = []
        for r in requests:
            code = given(r).ravel()[0].decode()
            try:
                try:
                    told = repr(eval(code, self.names))
                except SyntaxError:
                    exec(code, self.names)
                    told = "ok"
            except BaseException as error:
                told = f"{type(error).__name__}: {error}"
            out.append(answer(tensor(np.array([told.encode()], np.object_))))
        return out
"""
REFUSED = "Failed to process the request for model 'm_0', message: "
MONOTONIC = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
HISTOGRAM = "TRITONSERVER_METRIC_KIND_HISTOGRAM"


def ask(served: Served, code: str) -> str:
    array: Any = np.empty(1, np.object_)
    array[0] = code.encode()
    text: bytes = served.output(request(array))[0]
    return text.decode()


def registry(served: Served) -> CustomMetrics:
    metrics = served.context.metrics
    assert isinstance(metrics, CustomMetrics)
    return metrics


def shown(served: Served) -> dict[str, dict[str, float]]:
    return {
        family.name: {",".join(f"{k}={v}" for k, v in sample.labels.items()): sample.value for sample in family.samples}
        for family in registry(served).families()
    }


def test_half_characters_do_not_end_the_worker(serve: Serve) -> None:
    """JSON cannot carry them: those of texts become question marks, as in log lines and calls; in a process nothing is sent."""
    served = serve(CALC)
    assert ask(served, r"c = pb.MetricFamily('half', 'h\ud800', pb.MetricFamily.COUNTER)") == "ok"
    assert ask(served, r"k = c.Metric({'a': 'b\ud800'})") == "ok"
    assert ask(served, "k.increment(2)") == "None"
    assert ask(served, r"pb.MetricFamily('half\ud800', 'h', pb.MetricFamily.COUNTER)").startswith("TritonModelException")


def test_what_triton_says(serve: Serve) -> None:
    served = serve(CALC)
    kinds = "pb.MetricFamily"
    for code, told in (
        (f"c = {kinds}(name='x_count', description='d', kind={kinds}.COUNTER)", "ok"),
        ("k = c.Metric(labels={'a': 'b'})", "ok"),
        ("k.value()", "0.0"),
        ("k.increment(2)", "None"),
        ("k.increment(0.5)", "None"),
        ("k.value()", "2.5"),
        (
            "k.increment(-1)",
            f"TritonModelException: Failed to increment metric value: {REFUSED}{MONOTONIC}",
        ),
        (
            "k.set(1)",
            f"TritonModelException: Failed to set metric value: {REFUSED}TRITONSERVER_METRIC_KIND_COUNTER does not support Set",
        ),
        ("c.Metric(labels=5)", "TritonModelException: Failed to create metric. Labels must be a dictionary."),
        ("c.Metric(buckets=[1.0])", "TritonModelException: Failed to create metric. Unexpected buckets found."),
        ("c.Metric(labels={'a-b': 'c'})", f"TritonModelException: Error when creating Metric: {REFUSED}Invalid label name"),
        ("k2 = c.Metric(labels={'a': 'b'})", "ok"),
        ("k2.increment(1)", "None"),
        ("k.value()", "3.5"),
        (f"g = {kinds}('x_gauge', '', {kinds}.GAUGE)", "ok"),
        ("gm = g.Metric(labels={'m': '1'})", "ok"),
        ("gm.set(5)", "None"),
        ("gm.increment(-2.5)", "None"),
        ("gm.value()", "2.5"),
        ("gm.set(nan)", "None"),
        ("gm.value()", "nan"),
        ("gm.set(inf)", "None"),
        ("gm.value()", "inf"),
        (f"h = {kinds}('x_hist', 'h', {kinds}.HISTOGRAM)", "ok"),
        ("h.Metric()", "TritonModelException: Failed to create metric. Missing required buckets."),
        ("h.Metric(buckets=(1, 2))", "TritonModelException: Failed to create metric. Buckets must be a list."),
        (
            "h.Metric(buckets=[2, 1])",
            f"TritonModelException: Error when creating Metric: {REFUSED}Bucket Boundaries must be strictly sorted",
        ),
        ("hm = h.Metric(labels={'z': '1'}, buckets=[0.1, 1, 2.5, 10])", "ok"),
        ("[hm.observe(v) for v in (0.05, 1, 2, 99)]", "[None, None, None, None]"),
        (
            "hm.value()",
            f"TritonModelException: Failed to get metric value: {REFUSED}{HISTOGRAM} does not support Value",
        ),
        (
            f"{kinds}('x_count', 'd', {kinds}.GAUGE)",
            f"TritonModelException: Error when creating MetricFamily: {REFUSED}Family name already exists with different type",
        ),
        (
            f"{kinds}('bad name', 'd', {kinds}.GAUGE)",
            f"TritonModelException: Error when creating MetricFamily: {REFUSED}Invalid metric name",
        ),
    ):
        assert ask(served, code) == told, code
    for code in ("k.increment('x')", "k.increment(None)", "pb.MetricFamily('x', 'd')", "pb.MetricFamily(5, 'd', 0)"):
        assert ask(served, code).startswith("TypeError: "), code
    assert shown(served) == {"x_count": {"a=b": 3.5}, "x_gauge": {"m=1": float("inf")}, "x_hist": {"z=1": 102.05}}


def test_a_family_that_is_gone(serve: Serve) -> None:
    served = serve(CALC)
    ask(served, "c = pb.MetricFamily('x', 'd', pb.MetricFamily.COUNTER)")
    ask(served, "k = c.Metric()")
    assert shown(served) == {"x": {"": 0.0}}
    ask(served, "del c")
    assert shown(served) == {}
    assert ask(served, "k.increment(1)") == (
        "TritonModelException: Failed to increment metric value: Invalid metric operation as the corresponding "
        "'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER "
        "its corresponding 'Metric' objects have been deleted."
    )


def test_metrics_end_with_the_instance(serve: Serve) -> None:
    served = serve(CALC)
    ask(served, "c = pb.MetricFamily('x', 'd', pb.MetricFamily.COUNTER); k = c.Metric(); k.increment(1)")
    assert shown(served) == {"x": {"": 1.0}}
    served.close()
    assert shown(served) == {}


def test_a_killed_worker_takes_its_metrics_along(make: Serve) -> None:
    served = make(CALC)
    other = registry(served).family("x", "", MetricKind.COUNTER)
    other.metric({}).increment(10)
    ask(served, "c = pb.MetricFamily('x', 'd', pb.MetricFamily.COUNTER)")
    ask(served, "k = c.Metric(); k2 = c.Metric(labels={'a': 'b'}); k.increment(1)")
    assert shown(served) == {"x": {"": 11.0, "a=b": 0.0}}
    os.kill(served.python.pid, signal.SIGKILL)
    with pytest.raises(InstanceFailure):
        served.run()
    assert shown(served) == {"x": {"": 11.0}}


def test_everywhere_in_the_model_and_from_its_threads(make: Serve) -> None:
    served = make("""
        import threading
        class TritonPythonModel:
            def initialize(self, args):
                self.family = pb_utils.MetricFamily("x", "", pb_utils.MetricFamily.COUNTER)
                self.metric = self.family.Metric()
                self.metric.increment(1)
            def execute(self, requests):
                def work():
                    for _ in range(100):
                        self.metric.increment(1)
                    seen.append(self.metric.value())
                seen = []
                threads = [threading.Thread(target=work) for _ in range(4)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                return [answer(tensor(np.array([max(seen)], np.float32))) for _ in requests]
            def finalize(self):
                self.metric.increment(1)
    """)
    assert served.output().tolist() == [401.0]
    assert shown(served) == {"x": {"": 401.0}}
    assert served.logged("error") == []
    served.close()
    assert served.logged("error") == []


def test_a_family_per_request_is_stopped_at_the_bound(make: Serve) -> None:
    served = make("""
        class TritonPythonModel:
            def execute(self, requests):
                kept = []
                try:
                    while True:
                        kept.append(pb_utils.MetricFamily(f"x{len(kept)}", "", pb_utils.MetricFamily.COUNTER))
                except pb_utils.TritonModelException as error:
                    assert "metric families of models already" in str(error), error
                return [answer(tensor(np.array([len(kept)], np.float32))) for _ in requests]
    """)
    assert served.output().tolist() == [1000.0]
    assert shown(served) == {}


def test_outside_a_model() -> None:
    import triton_python_backend_utils as pb_utils

    with pytest.raises(pb_utils.TritonModelException, match="in a served model only"):
        pb_utils.MetricFamily("x", "", pb_utils.MetricFamily.COUNTER)
