"""The numbers of engines: vLLM's names beside ours, and statistics of one version."""

from __future__ import annotations

from tpy.messages import Histogram, ModelStatistics
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample
from tpy_data.generation.engine_numbers import statistics, with_aliases

_FIRST = {"model": "chat", "version": "1", "instance": "chat_0"}
_SECOND = {"model": "chat", "version": "1", "instance": "chat_1"}


def family(name: str, *samples: Sample, kind: MetricKind = MetricKind.GAUGE) -> MeasuredFamily:
    return MeasuredFamily(name=name, kind=kind, help="", samples=samples)


def test_families_are_told_again_under_vllms_names_and_labels() -> None:
    told = with_aliases([family("tpy_llm_requests_running", Sample(_FIRST, 3), Sample(_SECOND, 4))], {("chat", "1"): 5})
    values = {each.name: [(dict(sample.labels), sample.value) for sample in each.samples] for each in told}
    assert values["vllm:num_requests_running"] == [
        ({"model_name": "chat", "engine": "chat_0"}, 3),
        ({"model_name": "chat", "engine": "chat_1"}, 4),
    ]
    assert values["vllm:num_requests_waiting"] == [({"model_name": "chat", "engine": "0"}, 5)]


def test_what_waits_is_in_the_server_and_in_the_engines() -> None:
    preempted = family("tpy_llm_requests_preempted", Sample(_FIRST, 1), Sample(_SECOND, 2))
    told = {each.name: each for each in with_aliases([preempted], {("chat", "1"): 5, ("gone", "2"): 7})}
    waiting = {each.labels["model"]: each.value for each in told["tpy_llm_requests_waiting"].samples}
    assert waiting == {"chat": 8, "gone": 7}


def test_a_model_that_has_vllms_families_itself_keeps_them() -> None:
    own = family("vllm:num_requests_running", Sample({"model": "other"}, 1))
    told = with_aliases([own, family("tpy_llm_requests_running", Sample(_FIRST, 3))], {})
    (running,) = [each for each in told if each.name == "vllm:num_requests_running"]
    assert [each.value for each in running.samples] == [1, 3]


def test_statistics_are_those_of_one_version() -> None:
    families = [
        family("tpy_llm_generation_tokens_total", Sample(_FIRST, 3), Sample(_SECOND, 4), kind=MetricKind.COUNTER),
        family("tpy_llm_kv_cache_usage_ratio", Sample(_FIRST, 0.25), Sample(_SECOND, 0.5)),
        family("tpy_llm_requests_preempted", Sample(_FIRST, 1)),
        family(
            "tpy_llm_inter_token_seconds",
            Sample(_FIRST, 0.5, histogram=Histogram((1.0,), (2, 1))),
            kind=MetricKind.HISTOGRAM,
        ),
        family("other", Sample(_FIRST, 9)),
    ]
    row = ModelStatistics(name="chat", version=1, pending_requests=2)
    assert statistics(row, families).generation == {
        "generation_tokens_total": 7,
        "kv_cache_usage_ratio": 0.5,
        "inter_token_seconds_count": 3,
        "inter_token_seconds_sum": 0.5,
        "requests_waiting": 3,
    }
    assert statistics(ModelStatistics(name="other", version=1), families).generation == {}
