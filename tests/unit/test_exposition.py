"""The metrics page in both formats, read by the parsers of the official client library, and by promtool where there is one."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Sequence

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tpy.ids import ModelId, Version
from tpy.messages import (
    BatchStatistics,
    CacheStatistics,
    Duration,
    Exemplar,
    FailureCounts,
    Histogram,
    Latency,
    LengthActivity,
    MemoryGrowth,
    MemoryUsage,
    ModelStatistics,
    QueueActivity,
    Summary,
    TunedWait,
    TuningActivity,
)
from tpy.refusals import Refusals
from tpy.telemetry.cache import cache_families
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample, openmetrics_page, text_page
from tpy.telemetry.host import SERVER_FAMILIES, HostSampler, pinned_pool_families
from tpy.telemetry.metrics import (
    LATENCY_FAMILIES,
    dropped_lines_family,
    refused_family,
    render,
    server_growth_families,
    server_load_family,
)
from tpy.telemetry.repositories import RepositoryUse, held_models, repository_families
from tpy.telemetry.rollouts import RolloutShare, rollout_families
from tpy.tenants import TenantRules
from tpy_data.engine.budget.metrics import BudgetUse, GpuBudgetUse, budget_families
from tpy_data.engine.tenancy.metrics import tenant_families
from tpy_data.engine.tuning.metrics import batching_families
from tpy_data.schedulers.core.tenants import tenants_of

EXEMPLAR = Exemplar("4bf92f3577b34da6a3ce929d0e0e4736", 0.75, 1_763_850_000_125)
HISTOGRAM = Histogram((0.5, 1.0), (3, 2, 1), (None, EXEMPLAR, None))
SUMMARY = Summary((0.5, 0.999), ({7: 1, 105: 1}, {105: 1, 238: 1}), 9)
IDLE = Summary((0.5,), ({},), 9)


def summary_of(family: str) -> Summary:
    return IDLE if "compute" in family else SUMMARY


def latencies() -> tuple[Latency, ...]:
    return tuple(
        Latency(name, 752, HISTOGRAM) if kind is MetricKind.HISTOGRAM else Latency(name, 752, summary=summary_of(name))
        for name, (kind, _) in LATENCY_FAMILIES.items()
    )


GROWTH = MemoryGrowth(
    first_bytes=5,
    last_bytes=9,
    requests=1000,
    period_ns=1,
    trend_bytes=4,
    trend_bytes_min=3,
    trend_bytes_max=5,
    leaks=True,
)

MODEL = ModelStatistics(
    name='m"\\1\n',
    version=1,
    failures=FailureCounts(refused_invalid=1, refused_queue_full=2, refused_unavailable=3),
    batches=tuple(
        BatchStatistics(batch_size=size, compute_input=Duration(), compute_infer=Duration(count), compute_output=Duration())
        for size, count in ((1, 4), (3, 2), (4, 1), (2000, 1))
    ),
    memory_usage=(MemoryUsage(kind="GPU", id=1, byte_size=7),),
    memory_growths=(GROWTH, GROWTH),
    latencies=latencies(),
    caches=True,
    max_batch_size=4,
    load=0.5,
)


QUEUE = QueueActivity(
    tuning=TuningActivity(
        target_ns=20_000_000,
        waits=(TunedWait(1, True, 500_000, 8, 314), TunedWait(2, True, 250_000, 8, 100)),
        batch_rows=8,
        batch_ns=4_000_000,
        late=3,
        may_wait=True,
    ),
    lengths=LengthActivity(max_padding=0.2, padding=0.125),
)


def page(*, openmetrics: bool, more: Sequence[MeasuredFamily] = ()) -> str:
    """Everything that a server can show but GPUs; `more` comes behind it."""
    sampler = HostSampler()
    sampler.sample()
    host = [
        *sampler.families,
        *cache_families(CacheStatistics(bytes_max=8, bytes_used=1)),
        *pinned_pool_families(1, 0),
        *repository_families([RepositoryUse("s3://bucket/a", True, 1, 2, 3)], 9),
        held_models({"models": 3}),
        *budget_families(BudgetUse(9, 5, 1, {"loaded": 2}, 3, {"room": 1}, {"late": 1}, [GpuBudgetUse(0, "GPU-a", 7, 2)])),
        *tenant_families(tenants_of([TenantRules(name="a")])),
        *batching_families([(ModelId(name, space), Version(1), QUEUE) for name, space in (("m", ""), ("m", "n"))]),
        *rollout_families(
            [RolloutShare(ModelId("m", space), 2, 50.0) for space in ("", "n")],
            {(ModelId("m", space), "running"): 1 for space in ("", "n")},
        ),
        refused_family(Refusals().counts),
        dropped_lines_family({"server": 0}),
        server_load_family([MODEL]),
        *server_growth_families(GROWTH),
        *more,
    ]
    return render([MODEL], host, caching=True, openmetrics=openmetrics).decode()


def values(text: str, openmetrics: bool) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in parse_openmetrics(text) if openmetrics else parse_text(text):
        for sample in family.samples:
            labels = {key: str(float(value)) if key == "le" else value for key, value in sample.labels.items()}
            name = sample.name
            if not re.search(rf"^{name}[{{ ]", text, re.MULTILINE):  # the text parser adds it to the names of counters
                name = name.removesuffix("_total")
            key = name, frozenset(labels.items())
            assert key not in found, "a series that is there twice"
            found[key] = sample.value
    return found


def test_both_formats_have_the_same_series() -> None:
    """Above all under the same names: Prometheus asks for OpenMetrics, and Triton's dashboards must go on."""
    text, openmetrics = values(page(openmetrics=False), False), values(page(openmetrics=True), True)
    assert text.keys() == openmetrics.keys()
    same = {key for key in text if not key[0].startswith("nv_cpu")}
    assert all(text[key] == openmetrics[key] or math.isnan(text[key]) for key in same)
    assert ("nv_inference_request_success", frozenset({("model", 'm"\\1\n'), ("version", "1")})) in text


def test_types_in_openmetrics() -> None:
    kinds = {family.name: family.type for family in parse_openmetrics(page(openmetrics=True))}
    assert kinds["nv_inference_request_success"] == "unknown", "a counter must be called _total there"
    assert kinds["tpy_inference_refused"] == "counter"
    assert kinds["nv_inference_queue_summary_us"] == "summary"
    assert kinds["tpy_inference_batch_size"] == "histogram"


def test_exemplars_are_in_openmetrics_only() -> None:
    marked = {
        sample.labels["le"]: sample.exemplar
        for family in parse_openmetrics(page(openmetrics=True))
        if family.name == "tpy_inference_queue_duration_seconds"
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert list(marked) == ["1.0"]
    assert marked["1.0"].labels == {"trace_id": EXEMPLAR.trace_id}
    assert (marked["1.0"].value, float(marked["1.0"].timestamp)) == (0.75, 1_763_850_000.125)
    assert EXEMPLAR.trace_id not in page(openmetrics=False)


def test_summaries_and_histograms_are_written_as_triton_writes_them() -> None:
    """The lines of Triton 2.51 with summary_latencies=true, and of its documentation for the histogram."""
    text = page(openmetrics=False)
    labels = 'model="m\\"\\\\1\\n",version="1"'
    assert (
        "# HELP nv_inference_queue_summary_us Summary of inference queuing duration in microseconds (includes cached requests)\n"
        "# TYPE nv_inference_queue_summary_us summary\n"
        f"nv_inference_queue_summary_us_count{{{labels}}} 9\n"
        f"nv_inference_queue_summary_us_sum{{{labels}}} 752\n"
        f'nv_inference_queue_summary_us{{{labels},quantile="0.5"}} 105\n'
        f'nv_inference_queue_summary_us{{{labels},quantile="0.999"}} 238\n'
    ) in text
    assert f'nv_inference_compute_infer_summary_us{{{labels},quantile="0.5"}} NaN\n' in text
    assert (
        "# TYPE nv_inference_first_response_histogram_ms histogram\n"
        f"nv_inference_first_response_histogram_ms_count{{{labels}}} 6\n"
        f"nv_inference_first_response_histogram_ms_sum{{{labels}}} 752\n"
        f'nv_inference_first_response_histogram_ms_bucket{{{labels},le="0.5"}} 3\n'
        f'nv_inference_first_response_histogram_ms_bucket{{{labels},le="1"}} 5\n'
        f'nv_inference_first_response_histogram_ms_bucket{{{labels},le="+Inf"}} 6\n'
    ) in text


def test_batch_sizes_come_from_the_statistics() -> None:
    found = {
        sample.labels.get("le", sample.name.rpartition("_")[2]): sample.value
        for family in parse_text(page(openmetrics=False))
        if family.name == "tpy_inference_batch_size"
        for sample in family.samples
    }
    assert [found[bound] for bound in ("1", "2", "4", "1024", "+Inf")] == [4, 4, 7, 7, 8]
    assert (found["count"], found["sum"]) == (8, 4 + 6 + 4 + 2000)
    assert "tpy_inference_batch_size_bucket" not in render([ModelStatistics(name="m", version=1)]).decode()


def test_refusals_by_reason() -> None:
    found = re.findall(r'tpy_inference_refused_total\{.*reason="(\w+)",version="1"\} (\d)', page(openmetrics=False))
    assert dict(found) == {"INVALID": "1", "QUEUE_FULL": "2", "UNAVAILABLE": "3"}


def test_choices_of_batching() -> None:
    text = page(openmetrics=False)
    found = re.findall(r'^tpy_batching_(\w+)\{model="m",version="1"\} (\S+)$', text, re.MULTILINE)
    assert {name: float(value) for name, value in found} == {
        "rows": 8,
        "expected_seconds": 0.004,
        "wait_seconds": 0.0005,
        "target_seconds": 0.02,
        "late_total": 3,
        "padding_ratio": 0.125,
    }
    assert text.count('{model="m",namespace="n",version="1"}') == len(found)


def test_every_family_of_the_page_is_reserved() -> None:
    names = re.findall(r"^# TYPE (\S+) (\S+)$", page(openmetrics=False), re.MULTILINE)
    assert {name: MetricKind(kind) for name, kind in names}.items() <= SERVER_FAMILIES.items()
    assert {name for name in SERVER_FAMILIES if not name.startswith(("nv_gpu", "nv_energy"))} == {name for name, _ in names}


def test_families_of_models_in_openmetrics() -> None:
    """Whatever they are called, the page can be read."""
    negative = Histogram((-1.0, 100.0), (1, 2, 3))
    made = [
        MeasuredFamily(name="a", kind=MetricKind.GAUGE, help='say "a\\b"\n', samples=[Sample({}, math.inf)]),
        MeasuredFamily(name="a_total", kind=MetricKind.COUNTER, help="", samples=[Sample({"k": 'v"\n'}, 1)]),
        MeasuredFamily(name="b_total", kind=MetricKind.COUNTER, help="", samples=[Sample({}, 2)]),
        MeasuredFamily(name="c", kind=MetricKind.COUNTER, help="", samples=[Sample({}, 3)]),
        MeasuredFamily(name="d", kind=MetricKind.HISTOGRAM, help="", samples=[Sample({}, 4, negative)]),
    ]
    found = {family.name: family for family in parse_openmetrics(openmetrics_page(made).decode())}
    assert {name: family.type for name, family in found.items()} == {
        "a": "gauge",
        "a_total": "unknown",
        "b": "counter",
        "c": "unknown",
        "d": "histogram",
    }
    assert found["a"].documentation == 'say "a\\b"\n'
    assert [sample.name for sample in found["d"].samples] == ["d_bucket"] * 3
    assert "d_sum 4\n" in text_page(made).decode()


def test_promtool_finds_nothing_about_our_families() -> None:
    """Names, units and help of what begins with tpy_: Triton's names are Triton's."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    ours = "".join(line + "\n" for line in page(openmetrics=False).splitlines() if re.match(r"(# \w+ )?tpy_", line))
    assert ours.count("# TYPE tpy_") == sum(name.startswith("tpy_") for name in SERVER_FAMILIES)
    checked = subprocess.run([promtool, "check", "metrics"], input=ours, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    wrong = subprocess.run(
        [promtool, "check", "metrics"], input="# TYPE tpy_x_ms counter\ntpy_x_ms 1\n", capture_output=True, text=True, check=False
    )
    assert wrong.returncode != 0
