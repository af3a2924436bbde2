"""Reports for load balancers: measured when asked for, at most so often; rates over a second at least; Triton's two names."""

from __future__ import annotations

import pytest

from tpy.assembly.server_load import ServerLoad
from tpy.frontends.load_report import load_text
from tpy.messages import LoadReport, ModelStatistics
from tpy.messages.statistics import Duration, InferenceStatistics
from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample
from tpy.telemetry.host import CPU_UTILIZATION, MEMORY_TOTAL, MEMORY_USED


def model(name: str, version: int, load: float | None, succeeded: int = 0, failed: int = 0) -> ModelStatistics:
    inference = InferenceStatistics(success=Duration(count=succeeded), fail=Duration(count=failed))
    return ModelStatistics(name=name, version=version, load=load, inference=inference)


def family(name: str, *values: float, label: str = "", labels: tuple[str, ...] = ("",)) -> MeasuredFamily:
    samples = [Sample({label: text}, value) for text, value in zip(labels, values, strict=True)]
    return MeasuredFamily(name=name, kind=MetricKind.GAUGE, help="", samples=samples)


def kv_cache(used: float, blocks: float, tokens: float) -> MeasuredFamily:
    kinds = ("used", "max", "tokens_per")
    return family("nv_trt_llm_kv_cache_block_metrics", used, blocks, tokens, label="kv_cache_block_type", labels=kinds)


def test_loads_rates_and_the_machine() -> None:
    models = [model("m", 1, 0.5, 10, 1), model("m", 2, 2.0), model("ensemble", 1, None)]
    machine = [family(CPU_UTILIZATION, 0.25), family(MEMORY_TOTAL, 8.0), family(MEMORY_USED, 2.0)]
    load = ServerLoad(lambda: models, list, lambda: machine)
    first = load.report("m", None, 100.0)
    assert first.numbers == {"application_utilization": 2.0, "cpu_utilization": 0.25, "mem_utilization": 0.25}
    assert first.named == {"tpy_load": 2.0, "tpy_server_load": 2.0}
    assert load.report("m", 1, 100.0).named["tpy_load"] == 0.5
    assert load.report("ensemble", None, 100.0).named == {"tpy_server_load": 2.0}
    models[:] = [model("m", 1, 1.0, 40, 11)]
    assert load.report("m", 1, 100.2) == load.report("m", 1, 100.0)  # not measured again so soon
    assert "eps" not in load.report("m", 1, 100.5).numbers
    later = load.report("m", 1, 102.0)
    assert (later.numbers["rps_fractional"], later.numbers["eps"], later.numbers["application_utilization"]) == (20.0, 5.0, 1.0)
    models.clear()
    gone = load.report("m", 1, 104.0)
    assert (gone.named, gone.numbers["rps_fractional"]) == ({"tpy_server_load": 0.0}, 0.0)


@pytest.mark.parametrize(
    ("families", "named"),
    [
        ([kv_cache(3, 12, 64)], {"kv_cache_utilization": 0.25, "max_token_capacity": 768}),
        ([kv_cache(0, 0, 64)], {"kv_cache_utilization": 0.0, "max_token_capacity": 0}),
        ([family("nv_trt_llm_kv_cache_block_metrics", 3, label="kv_cache_block_type", labels=("used",))], {}),
        ([family("other", 1.0)], {}),
    ],
)
def test_tritons_names_come_of_the_gauges_of_its_llm_backend(families: list[MeasuredFamily], named: dict[str, float]) -> None:
    assert ServerLoad(list, lambda: families, list).report("", None, 0.0).named == {"tpy_server_load": 0.0, **named}


def test_the_two_forms() -> None:
    report = LoadReport(numbers={"cpu_utilization": 0.25, "eps": 0.0}, named={"tpy_load": 3.0, "max_token_capacity": 123456789.0})
    assert load_text(report, "text") == (
        "TEXT cpu_utilization=0.25, eps=0, named_metrics.tpy_load=3, named_metrics.max_token_capacity=123456789"
    )
    assert load_text(report, "json") == (
        'JSON {"cpu_utilization":0.25,"eps":0.0,"named_metrics":{"tpy_load":3.0,"max_token_capacity":123456789.0}}'
    )
