"""Metrics of models: shared by name and labels, gone with their last holder, bounded, and unable to break the page."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.errors import AlreadyExists, InvalidArgument, TpyError, Unavailable, Unsupported
from tpy.limits import CUSTOM_METRIC_FAMILIES_MAX, CUSTOM_METRIC_TEXT_MAX, CUSTOM_METRICS_MAX, CUSTOM_METRICS_OF_FAMILY_MAX
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.telemetry.exposition import MetricKind, text_page
from tpy.telemetry.host import SERVER_FAMILIES

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM


def page(metrics: CustomMetrics) -> list[str]:
    return text_page(metrics.families()).decode().splitlines()


def test_the_text_of_each_kind() -> None:
    metrics = CustomMetrics()
    counter = metrics.family("c", 'some \\ "text"\nline', COUNTER)
    counter.metric({}).increment(1)
    counter.metric({"a": 'b"q\\ \n z'}).increment(2.5)
    gauge = metrics.family("g", "", GAUGE)
    for name, value in (("1", 1e20), ("2", 0.1), ("3", 1234567.25), ("4", float("inf")), ("5", float("nan"))):
        gauge.metric({"m": name}).set(value)
    histogram = metrics.family("h", "h", HISTOGRAM).metric({"z": "1"}, [0.1, 1, 2.5, 10])
    for value in (0.05, 1, 2, 99):
        histogram.observe(value)
    metrics.family("empty", "not shown", GAUGE)
    assert page(metrics) == [
        '# HELP c some \\\\ "text"\\nline',
        "# TYPE c counter",
        "c 1",
        'c{a="b\\"q\\\\ \\n z"} 2.5',
        "# TYPE g gauge",
        'g{m="1"} 1e+20',
        'g{m="2"} 0.1',
        'g{m="3"} 1234567.25',
        'g{m="4"} +Inf',
        'g{m="5"} NaN',
        "# HELP h h",
        "# TYPE h histogram",
        'h_count{z="1"} 4',
        'h_sum{z="1"} 102.05',
        'h_bucket{z="1",le="0.1"} 1',
        'h_bucket{z="1",le="1"} 2',
        'h_bucket{z="1",le="2.5"} 3',
        'h_bucket{z="1",le="10"} 3',
        'h_bucket{z="1",le="+Inf"} 4',
    ]


def test_holders_share_and_the_last_one_takes_it_away() -> None:
    metrics = CustomMetrics()
    one = metrics.family("x", "first", COUNTER)
    two = metrics.family("x", "second", COUNTER)
    one.metric({"a": "1"}).increment(1)
    two.metric({"a": "1"}).increment(2)
    two.metric({"a": "2"}).increment(5)
    assert one.metric({"a": "1"}).value() == 3
    assert one.metric({"a": "1"}) is one.metric({"a": "1"})
    assert page(metrics)[0] == "# HELP x first"
    two.close()
    two.close()
    assert page(metrics)[2:] == ['x{a="1"} 3']
    one.close()
    assert page(metrics) == []
    metrics.family("x", "anew", GAUGE)


def test_what_a_kind_does_not_do() -> None:
    metrics = CustomMetrics()
    counter = metrics.family("c", "", COUNTER).metric({})
    gauge = metrics.family("g", "", GAUGE).metric({})
    histogram = metrics.family("h", "", HISTOGRAM).metric({}, [1.0])
    monotonic = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
    with pytest.raises(InvalidArgument, match=re.escape(monotonic)):
        counter.increment(-1)
    gauge.increment(-2.5)
    assert gauge.value() == -2.5
    for call, text in (
        (lambda: counter.set(1), "COUNTER does not support Set"),
        (lambda: counter.observe(1), "COUNTER does not support Observe"),
        (lambda: gauge.observe(1), "GAUGE does not support Observe"),
        (lambda: histogram.increment(1), "HISTOGRAM does not support Increment"),
        (lambda: histogram.set(1), "HISTOGRAM does not support Set"),
        (histogram.value, "HISTOGRAM does not support Value"),
    ):
        with pytest.raises(Unsupported, match=text):
            call()


@pytest.mark.parametrize("name", ["", "9x", "bad name", "x-y", "x\n", "ü", "x{a}"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidArgument, match="Invalid metric name"):
        CustomMetrics().family(name, "", COUNTER)


@pytest.mark.parametrize("name", ["", "__x", "bad-name", "a:b", "a\n", "ü"])
def test_bad_labels(name: str) -> None:
    with pytest.raises(InvalidArgument, match="Invalid label name"):
        CustomMetrics().family("x", "", COUNTER).metric({name: "v"})


def test_names_that_are_taken() -> None:
    metrics = CustomMetrics(SERVER_FAMILIES)
    metrics.family("h", "", HISTOGRAM)
    metrics.family("c_sum", "", COUNTER)
    for name, kind, text in (
        ("nv_inference_count", GAUGE, "Family name already exists with different type"),
        ("nv_inference_count", COUNTER, "metric family 'nv_inference_count' is the server's own"),
        ("nv_cpu_utilization", GAUGE, "the server's own"),
        ("h", COUNTER, "Family name already exists with different type"),
        ("h_sum", COUNTER, "lines with the same name"),
        ("c", HISTOGRAM, "lines with the same name"),
    ):
        with pytest.raises(AlreadyExists, match=text):
            metrics.family(name, "", kind)


@pytest.mark.parametrize("buckets", [[2.0, 1.0], [1.0, 1.0], [float("nan")], [1.0, float("inf")]])
def test_bad_buckets(buckets: list[float]) -> None:
    with pytest.raises(InvalidArgument, match="Bucket Boundaries must be strictly sorted"):
        CustomMetrics().family("x", "", HISTOGRAM).metric({}, buckets)


def test_le_is_the_histograms_own() -> None:
    with pytest.raises(InvalidArgument, match="Invalid label name"):
        CustomMetrics().family("x", "", HISTOGRAM).metric({"le": "1"}, [1.0])


def test_everything_is_bounded() -> None:
    metrics = CustomMetrics()
    family = metrics.family("f0", "", COUNTER)
    for number in range(1, CUSTOM_METRIC_FAMILIES_MAX):
        metrics.family(f"f{number}", "", COUNTER)
    with pytest.raises(Unavailable):
        metrics.family("more", "", COUNTER)
    others = [metrics.family(f"f{number}", "", COUNTER) for number in range(CUSTOM_METRICS_MAX // CUSTOM_METRICS_OF_FAMILY_MAX)]
    for number in range(CUSTOM_METRICS_MAX):
        others[number % len(others)].metric({"n": str(number)})
    with pytest.raises(Unavailable, match=f"there are {CUSTOM_METRICS_MAX} metrics of models already"):
        metrics.family("f900", "", COUNTER).metric({"n": "more"})
    for other in others:
        other.close()
    family.close()
    metrics.family("more", "", COUNTER).metric({})
    with pytest.raises(InvalidArgument):
        metrics.family("x", "d" * (CUSTOM_METRIC_TEXT_MAX + 1), COUNTER)


def test_labels_of_one_family_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """As clients can make a model do; the other families are not touched, and there is one log line."""
    metrics = CustomMetrics()
    family = metrics.family("users", "", COUNTER)
    for number in range(CUSTOM_METRICS_OF_FAMILY_MAX):
        family.metric({"user": str(number)})
    for number in range(10):
        with pytest.raises(Unavailable, match=f"metric family 'users' has {CUSTOM_METRICS_OF_FAMILY_MAX} metrics already"):
            family.metric({"user": f"more {number}"})
    assert len(caplog.records) == 1
    family.metric({"user": "1"}).increment(1)
    metrics.family("other", "", COUNTER).metric({"user": "more"})
    family.close()
    metrics.family("users", "", COUNTER).metric({"user": "more"})


def test_what_is_on_its_way_is_applied_before_reading() -> None:
    metrics = CustomMetrics()
    metric = metrics.family("x", "", COUNTER).metric({})
    undo = metrics.before_reading(lambda: metric.increment(1))
    assert page(metrics)[1:] == ["x 1"]
    undo()
    assert page(metrics)[1:] == ["x 1"]


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_text_makes_a_line_of_its_own(description: str, label: str, value: str) -> None:
    metrics = CustomMetrics()
    family = metrics.family("x", description, COUNTER)
    try:
        family.metric({label: value}).increment(1)
    except TpyError:
        family.metric({"a": value}).increment(1)
    lines = text_page(metrics.families()).split(b"\n")
    assert len(lines) == 3 + bool(description)
    assert lines[-2].startswith(b"x{")
    assert lines[-2].endswith(b"} 1")


@pytest.mark.parametrize(
    "name",
    ["tpy_inference_batch_size_bucket", "nv_inference_request_summary_us_count", "tpy_inference_queue_duration_seconds_sum"],
)
def test_lines_of_the_servers_histograms_and_summaries_cannot_be_a_models(name: str) -> None:
    with pytest.raises(AlreadyExists):
        CustomMetrics(SERVER_FAMILIES).family(name, "", GAUGE)
