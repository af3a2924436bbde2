"""Numbers of engines as others read them: metric families under vLLM's names besides ours, and the statistics of one version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tpy.messages import ModelStatistics
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample

PREFIX: Final = "tpy_llm_"
"""All families of engines."""

_WAITING: Final = "tpy_llm_requests_waiting"
_PREEMPTED: Final = "tpy_llm_requests_preempted"

ALIASES: Final[Mapping[str, str]] = {
    "tpy_llm_requests_running": "vllm:num_requests_running",
    _WAITING: "vllm:num_requests_waiting",
    "tpy_llm_kv_cache_usage_ratio": "vllm:kv_cache_usage_perc",
    "tpy_llm_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "tpy_llm_inter_token_seconds": "vllm:inter_token_latency_seconds",
    "tpy_llm_request_seconds": "vllm:e2e_request_latency_seconds",
    "tpy_llm_prompt_tokens_total": "vllm:prompt_tokens_total",
    "tpy_llm_generation_tokens_total": "vllm:generation_tokens_total",
    "tpy_llm_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "tpy_llm_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "tpy_llm_preemptions_total": "vllm:num_preemptions_total",
}
"""The names that endpoint pickers, autoscalers and dashboards read."""

FAMILIES: Final = frozenset({*ALIASES, _PREEMPTED})
"""All of ours."""

Queued = Mapping[tuple[str, str], int]
"""By model and version, the requests that wait in the server."""


def with_aliases(families: Sequence[MeasuredFamily], queued: Queued) -> tuple[MeasuredFamily, ...]:
    """The families, with the requests that wait, in the server or in an engine; and all of them again under vLLM's names, joined
    with families that models have under these."""
    told = [*families, _waiting(families, queued)]
    by_name = {family.name: family for family in told}
    for family in told:
        alias = ALIASES.get(family.name)
        if alias is not None:
            known = by_name.get(alias)
            samples = [msgspec.structs.replace(each, labels=_vllms(each.labels)) for each in family.samples]
            if known is not None and known.kind is family.kind:
                samples = [*known.samples, *samples]
            by_name[alias] = MeasuredFamily(name=alias, kind=family.kind, help=family.help, samples=samples)
    return tuple(by_name[name] for name in sorted(by_name))


def statistics(row: ModelStatistics, families: Sequence[MeasuredFamily]) -> ModelStatistics:
    """The statistics of a version with the numbers of its engines, of all its instances together, by our names without the
    prefix; of a histogram, how many there were and their sum. The KV cache's use is that of the fullest engine."""
    found: dict[str, float] = {}
    for family in families:
        samples = [each for each in family.samples if _is_of(each, row)]
        if not family.name.startswith(PREFIX) or not samples:
            continue
        name = family.name.removeprefix(PREFIX)
        total = sum([each.value for each in samples])
        if family.kind is MetricKind.HISTOGRAM:
            found[f"{name}_count"] = sum([sum(each.histogram.counts) for each in samples if each.histogram is not None])
            found[f"{name}_sum"] = total
        elif name.endswith("_ratio"):
            found[name] = max([each.value for each in samples])
        else:
            found[name] = total
    if found:
        found["requests_waiting"] = row.pending_requests + found.pop("requests_preempted", 0)
    return msgspec.structs.replace(row, generation=found)


def _is_of(sample: Sample, row: ModelStatistics) -> bool:
    return sample.labels.get("model") == row.name and sample.labels.get("version") == str(row.version)


def _waiting(families: Sequence[MeasuredFamily], queued: Queued) -> MeasuredFamily:
    """By model and version. Engines that are gone for now have a queue all the same."""
    waiting: dict[tuple[str, str], float] = dict(queued)
    for family in families:
        if family.name == _PREEMPTED:
            for sample in family.samples:
                key = sample.labels.get("model", ""), sample.labels.get("version", "")
                waiting[key] = waiting.get(key, 0) + sample.value
    samples = [Sample({"model": model, "version": version}, count) for (model, version), count in sorted(waiting.items())]
    text = "Requests that wait for room in an engine, in the server and in the engine"
    return MeasuredFamily(name=_WAITING, kind=MetricKind.GAUGE, help=text, samples=samples)


def _vllms(labels: Mapping[str, str]) -> Mapping[str, str]:
    """vLLM's labels: the model, and the engine among those of its server."""
    return {"model_name": labels.get("model", ""), "engine": labels.get("instance", "0")}
