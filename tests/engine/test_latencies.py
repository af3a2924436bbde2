"""Distributions of durations in virtual time: what is counted in which family, and exemplars of traced requests."""

from __future__ import annotations

import math

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from tests.engine.ensembles import CHAIN, MembersBackend, plus, serve_all, submit
from tests.engine.fakes import Rig, ScriptedBackend, config, request, rig
from tests.engine.test_decoupled import DECOUPLED, StreamSink, decoupled_backend, word
from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult
from tpy.config.histograms import COMPUTE_DURATION, FIRST_RESPONSE, QUEUE_DURATION, REQUEST_DURATION
from tpy.config.model_config import HistogramOptions, MetricControl, MetricIdentifier, ModelMetrics, ResponseCache
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType, Histogram, InferenceRequest, Latency, RequestRecord, Summary, Tensor
from tpy.observers import RequestObserver
from tpy.telemetry.latencies import LatencyOptions, quantiles_of
from tpy_data.cache.options import LocalCacheOptions

HISTOGRAMS = LatencyOptions(histograms=True)
SUMMARIES = LatencyOptions(summaries=True, quantiles=(0.5, 0.99))


def latencies(r: Rig, model: str = "m") -> dict[str, Latency]:
    (stats,) = r.plane.statistics(model, with_latencies=True)
    return {each.family: each for each in stats.latencies}


def below(latency: Latency, bound: float) -> int:
    """The observations up to this bound."""
    found = latency.histogram
    assert isinstance(found, Histogram)
    return sum(found.counts[: found.buckets.index(bound) + 1])


def count(latency: Latency) -> int:
    return latency.summary.count if latency.summary is not None else sum(latency.histogram.counts if latency.histogram else ())


class Traced(RequestObserver):
    """Traces every request."""

    def admitted(self, record: RequestRecord, request: InferenceRequest) -> None:
        record.trace_id = f"trace of {request.id}"


async def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    async with rig() as r:
        await r.serve(config())
        await r.submit().wait()
        assert latencies(r) == {}


async def test_histograms_of_request_queue_and_execution(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=40.0001, latencies=HISTOGRAMS) as r:
        await r.serve(config())
        r.observers.add(Traced())
        sinks = [r.submit(request(id=str(number))) for number in range(2)]
        for sink in sinks:
            await sink.wait()
        found = latencies(r)
        assert list(found) == [REQUEST_DURATION, QUEUE_DURATION, COMPUTE_DURATION, FIRST_RESPONSE]
        assert (count(found[FIRST_RESPONSE]), found[FIRST_RESPONSE].total) == (2, 120), "whole milliseconds, as in Triton"
        assert [below(found[REQUEST_DURATION], bound) for bound in (0.025, 0.05, 0.1)] == [0, 1, 2]
        assert [below(found[QUEUE_DURATION], bound) for bound in (0.0001, 0.025, 0.05)] == [1, 1, 2]
        assert round(found[REQUEST_DURATION].total, 3) == 0.12
        assert round(found[QUEUE_DURATION].total, 3) == 0.04
        assert count(found[COMPUTE_DURATION]) == 2
        histogram = found[REQUEST_DURATION].histogram
        assert histogram is not None
        exemplars = [each for each in histogram.exemplars if each is not None]
        assert [(each.trace_id, round(each.value, 3)) for each in exemplars] == [("trace of 0", 0.04), ("trace of 1", 0.08)]


async def test_summaries_have_tritons_families() -> None:
    async with rig(latencies=SUMMARIES) as r:
        await r.serve(config())
        for _ in range(3):
            await r.submit().wait()
        found = latencies(r)
        phases = ("request", "queue", "compute_input", "compute_infer", "compute_output")
        names = [f"nv_inference_{phase}_summary_us" for phase in phases]
        assert list(found) == names
        assert {count(each) for each in found.values()} == {3}
        summary = found[names[0]].summary
        assert isinstance(summary, Summary)
        assert summary.quantiles == (0.5, 0.99)


async def test_failures_are_in_no_distribution() -> None:
    def fail(batch: ExecutionBatch) -> list[ExecutionResult]:
        return [ExecutionResult(error=Internal("no"))] * len(batch.requests)

    both = LatencyOptions(histograms=True, summaries=True)
    async with rig(backend=ScriptedBackend(fail), latencies=both) as r:
        await r.serve(config())
        await r.submit().wait()
        found = latencies(r)
        assert {count(each) for each in found.values()} == {0}
        summary = found["nv_inference_request_summary_us"].summary
        assert summary is not None
        assert all(math.isnan(value) for _, value in quantiles_of(summary))


async def test_the_first_response_of_decoupled_models_in_buckets_of_their_own(autojump_clock: MockClock) -> None:
    def plan(each: ExecutionRequest) -> None:
        each.sender.send(word(1), final=False)
        each.sender.send(word(2), final=False)
        each.sender.send(None, final=True)

    control = MetricControl(
        metric_identifier=MetricIdentifier(family=FIRST_RESPONSE), histogram_options=HistogramOptions(buckets=(1.0, 2.5))
    )
    async with rig(backend=decoupled_backend(plan), latencies=HISTOGRAMS) as r:
        await r.serve(config(model_transaction_policy=DECOUPLED, model_metrics=ModelMetrics(metric_control=(control,))))
        assert count(latencies(r)[FIRST_RESPONSE]) == 0, "there from the start"
        r.observers.add(Traced())
        for number in range(3):
            sink = StreamSink()
            r.submit_for(sink, request(id=str(number)))
            await sink.final.wait()
        found = latencies(r)[FIRST_RESPONSE].histogram
        assert found is not None
        assert (found.buckets, sum(found.counts)) == ((1.0, 2.5), 3)
        assert [each.trace_id for each in found.exemplars if each is not None] == ["trace of 2"]


async def test_a_request_without_a_response_has_no_first_one() -> None:
    backend = decoupled_backend(lambda each: each.sender.send(None, final=True))
    async with rig(backend=backend, latencies=HISTOGRAMS) as r:
        await r.serve(config(model_transaction_policy=DECOUPLED))
        sink = StreamSink()
        r.submit_for(sink)
        await sink.final.wait()
        found = latencies(r)
        assert (count(found[FIRST_RESPONSE]), count(found[REQUEST_DURATION])) == (0, 1)


async def test_an_ensemble_and_its_members(autojump_clock: MockClock) -> None:
    backend = MembersBackend({"a": plus(10), "b": plus(100)})
    async with rig(backend=backend, latency_ms=5, latencies=HISTOGRAMS) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        stream = submit(r)
        await trio.sleep(0.011)
        assert stream.ended
        for model, seconds in (("e", 0.01), ("a", 0.005), ("b", 0.005)):
            found = latencies(r, model)
            assert (count(found[REQUEST_DURATION]), round(found[REQUEST_DURATION].total, 4)) == (1, seconds)
            assert (count(found[FIRST_RESPONSE]), found[FIRST_RESPONSE].total) == (1, 1000 * seconds)


async def test_models_whose_answers_are_cached() -> None:
    """As Triton: no summary of whole requests, but of the cache; hits have a time in the queue."""

    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        return [ExecutionResult([Tensor("OUT", DataType.FP32, np.zeros((1, 4), np.float32))]) for _ in batch.requests]

    both = LatencyOptions(histograms=True, summaries=True)
    async with rig(backend=ScriptedBackend(execute), latencies=both, cache=LocalCacheOptions(size_bytes=1 << 20)) as r:
        await r.serve(config(response_cache=ResponseCache(enable=True)))
        for _ in range(3):
            await r.submit().wait()
        found = latencies(r)
        assert "nv_inference_request_summary_us" not in found
        assert count(found["nv_inference_queue_summary_us"]) == 3
        assert count(found["nv_inference_compute_infer_summary_us"]) == 1
        assert count(found["nv_cache_hit_summary_per_model"]) == 2
        assert count(found["nv_cache_miss_summary_per_model"]) == 1
        assert count(found[REQUEST_DURATION]) == 3
        assert count(found[FIRST_RESPONSE]) == 3
        assert count(found[COMPUTE_DURATION]) == 1


async def test_refusals_have_their_reason() -> None:
    async with rig() as r:
        await r.serve(config())
        with pytest.raises(InvalidArgument):
            r.submit(request(1, 99))
        (stats,) = r.plane.statistics("m")
        assert (stats.failures.refused_invalid, stats.failures.refused_queue_full, stats.failures.refused_admission) == (1, 0, 1)
