"""The metrics page: Triton's names and labels, parsed back by the official client library's rules."""

from __future__ import annotations

import re

from tpy.messages import Duration, FailureCounts, InferenceStatistics, MemoryUsage, ModelStatistics
from tpy.telemetry.host import HostSampler
from tpy.telemetry.metrics import FAMILIES, render

STATS = ModelStatistics(
    name='m"1',
    version=3,
    inference_count=8,
    execution_count=2,
    inference=InferenceStatistics(success=Duration(4, 9_999_999), queue=Duration(4, 1_500)),
    failures=FailureCounts(rejected=1, backend=2),
    pending_requests=5,
    load_duration_ns=1_500_000_000,
    memory_usage=(MemoryUsage(kind="CPU", id=0, byte_size=9), MemoryUsage(kind="GPU", id=1, byte_size=7)),
    metric_tags=(("team", "a\nb"),),
)


def samples(page: bytes) -> dict[str, str]:
    lines = page.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))  # type: ignore[misc]


def test_values_labels_and_microseconds() -> None:
    found = samples(render([STATS]))
    labels = '_team="a\\nb",model="m\\"1",version="3"'
    failures = 'nv_inference_request_failure{_team="a\\nb",model="m\\"1",reason="%s",version="3"}'
    assert found[f"nv_inference_request_success{{{labels}}}"] == "4"
    assert found[f"nv_inference_count{{{labels}}}"] == "8"
    assert found[f"nv_inference_exec_count{{{labels}}}"] == "2"
    assert found[f"nv_inference_request_duration_us{{{labels}}}"] == "9999"
    assert found[f"nv_inference_queue_duration_us{{{labels}}}"] == "1"
    assert found[failures % "BACKEND"] == "2"
    assert found[failures % "CANCELED"] == "0"
    assert found[f"nv_inference_pending_request_count{{{labels}}}"] == "5"
    assert found[f"nv_model_load_duration_secs{{{labels}}}"] == "1.5"
    memory = 'tpy_model_memory_bytes{_team="a\\nb",id="%d",model="m\\"1",type="%s",version="3"}'
    assert (found[memory % (0, "CPU")], found[memory % (1, "GPU")]) == ("9", "7")


def test_families_are_announced_without_models() -> None:
    page = render([], caching=True).decode()
    assert all(f"# TYPE {family.name} {family.kind.value}\n" in page for family in FAMILIES)
    without = render([]).decode()
    assert "nv_cache" not in without
    assert all((family.name in without) is not family.of_cache for family in FAMILIES)


def test_counter_latencies_can_be_switched_off() -> None:
    page = render([STATS], counter_latencies=False).decode()
    assert not re.search("duration_us|_per_model", page)
    assert 'nv_inference_request_success{_team="a\\nb",model="m\\"1",version="3"} 4\n' in page
    assert "nv_inference_pending_request_count" in page


def test_namespace_label() -> None:
    assert 'namespace=""' in render([STATS], namespacing=True).decode()


def test_machine_samples_are_plausible() -> None:
    sampler = HostSampler()
    assert sampler.families == ()
    sampler.sample()
    values = {family.name: family.samples[0].value for family in sampler.families}
    assert 0.0 <= values["nv_cpu_utilization"] <= 1.0
    assert 0 < values["nv_cpu_memory_used_bytes"] < values["nv_cpu_memory_total_bytes"]
