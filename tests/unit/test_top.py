"""`tpy top`: snapshots to rows, rows to lines, keys to views; and what its parts make of a metrics page."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.pace import at_pace
from tpy.messages import (
    EngineActivity,
    InstanceActivity,
    InstanceState,
    LevelActivity,
    ModelExplanation,
    QueueActivity,
)
from tpy.units import MIB, NS_PER_MS, NS_PER_S
from tpy_tools.commands.client import ClientError
from tpy_tools.commands.top import SORT_NAMES
from tpy_tools.commands.top.core.metrics import ScrapedMetrics, parse
from tpy_tools.commands.top.core.rows import (
    SORT_KEYS,
    LatencySource,
    ModelRow,
    ServerSnapshot,
    VersionCounters,
    counters_of,
    explained,
    in_order,
    latencies_of,
    quantile,
    rows_between,
)
from tpy_tools.commands.top.core.table import COLUMNS, columns_for, header, line, number, summary
from tpy_tools.commands.top.core.view import View, frame, page_of, pressed
from tpy_tools.commands.top.run import _Live

KEY = ("m", "1")
READY = {KEY: ("READY", "")}
FIRST = VersionCounters(succeeded=10, failed=1, success_ns=100, rows=10, batches=10, executing_ns=NS_PER_S)
THEN = VersionCounters(
    succeeded=30,
    failed=2,
    success_ns=100 + 20 * NS_PER_MS,
    queue_ns=5 * NS_PER_MS,
    rows=50,
    batches=15,
    executing_ns=4 * NS_PER_S,
)


def snapshot(at_s: float, counters: VersionCounters | None = None, **changes: Any) -> ServerSnapshot:
    return ServerSnapshot(at_s=at_s, counters={} if counters is None else {KEY: counters}, states=READY, **changes)


def only(rows: list[ModelRow]) -> ModelRow:
    (row,) = rows
    return row


def test_rates_are_of_the_time_between_two_snapshots() -> None:
    row = only(rows_between(snapshot(5.0, FIRST), snapshot(7.0, THEN)))
    assert (row.rate, row.errors, row.batch) == (10, 0.5, 8)
    assert (row.mean_ns, row.queue_ns, row.executing) == (NS_PER_MS, NS_PER_MS / 4, 1.5)


def test_the_first_snapshot_has_no_rates() -> None:
    row = only(rows_between(None, snapshot(5.0, FIRST)))
    assert (row.state, row.rate, row.mean_ns, row.batch) == ("READY", 0, None, None)


@pytest.mark.parametrize("before", [THEN, None])
def test_after_a_restart_counters_begin_at_0(before: VersionCounters | None) -> None:
    row = only(rows_between(snapshot(5.0, before), snapshot(7.0, FIRST)))
    assert (row.rate, row.errors, row.executing) == (5, 0.5, 0.5)


def test_what_is_not_served_has_its_reason_and_no_numbers() -> None:
    states = {("bad", "1"): ("UNAVAILABLE", "it is broken"), **READY}
    rows = rows_between(snapshot(1.0, FIRST), ServerSnapshot(at_s=2.0, counters={KEY: FIRST}, states=states))
    assert [(row.name, row.state, row.reason) for row in rows] == [("bad", "UNAVAILABLE", "it is broken"), ("m", "READY", "")]
    assert line(rows[0], 80).endswith("UNAVAILABLE: it is broken")


def test_versions_are_in_the_order_of_their_numbers() -> None:
    states = {("m", version): ("READY", "") for version in ("10", "9", "1")}
    assert [row.version for row in rows_between(None, ServerSnapshot(at_s=1.0, states=states))] == ["1", "9", "10"]


PAGE = r"""# HELP nv_inference_pending_request_count Instantaneous number of pending requests
nv_inference_pending_request_count{model="m",version="1"} 7
nv_inference_pending_request_count{model="we\"ird",version="2"} 3
tpy_inference_request_duration_seconds_bucket{model="m",version="1",le="0.01"} 90
tpy_inference_request_duration_seconds_bucket{model="m",version="1",le="0.1"} 100
tpy_inference_request_duration_seconds_bucket{model="m",version="1",le="+Inf"} 100
tpy_inference_request_duration_seconds_sum{model="m",version="1"} 1
nv_inference_request_summary_us{model="m",version="1",quantile="0.5"} 250
nv_inference_request_summary_us{model="m",version="1",quantile="0.99"} NaN
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1048576
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 4194304
nv_cpu_utilization 0.25
nv_cpu_memory_used_bytes{broken
something_else 5
"""


def test_a_metrics_page() -> None:
    found = parse(PAGE)
    assert found.pending == {KEY: 7, ('we"ird', "2"): 3}
    assert found.buckets[KEY] == {0.01: 90, 0.1: 100, float("inf"): 100}
    assert found.gpus == {"GPU-a": {"utilization": 0.5, "memory_used": MIB, "memory_total": 4 * MIB}}
    assert found.host == {"cpu": 0.25}
    above = summary([], LatencySource.HISTOGRAMS, found, "")
    assert above[1] == "CPU 25%; GPU 0 50%, 1 of 4 MiB"


def test_percentiles_are_those_of_the_interval() -> None:
    before = ScrapedMetrics(buckets={KEY: {0.01: 90.0, 0.1: 100.0, float("inf"): 100.0}})
    after = ScrapedMetrics(buckets={KEY: {0.01: 90.0, 0.1: 110.0, float("inf"): 110.0}})
    row = only(rows_between(snapshot(1.0, FIRST, metrics=before), snapshot(2.0, THEN, metrics=after)))
    assert row.p50_ns == pytest.approx(0.055 * NS_PER_S), "the ten that came are all in the second bucket"
    restarted = only(rows_between(snapshot(1.0, THEN, metrics=after), snapshot(2.0, FIRST, metrics=before)))
    assert restarted.p50_ns is not None
    assert restarted.p50_ns < 0.01 * NS_PER_S, "of another server: its counts are all new"


def test_percentiles_of_summaries() -> None:
    metrics = parse("\n".join(each for each in PAGE.splitlines() if "bucket" not in each))
    row = only(rows_between(snapshot(1.0, FIRST, metrics=metrics), snapshot(2.0, THEN, metrics=metrics)))
    assert (row.p50_ns, row.p99_ns, row.queued) == (250_000, None, 7)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (parse(PAGE), LatencySource.HISTOGRAMS),
        (ScrapedMetrics(quantiles={KEY: {0.5: 1.0}}), LatencySource.SUMMARIES),
        (ScrapedMetrics(), LatencySource.AVERAGES),
        (None, LatencySource.AVERAGES),
    ],
)
def test_the_head_says_where_latencies_come_from(metrics: ScrapedMetrics | None, said: LatencySource) -> None:
    assert latencies_of(snapshot(1.0, metrics=metrics)) is said
    assert summary([], said, metrics, "")[-1] == said.value
    assert "no page" in summary([], said, None, "no page")[-1]


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ({}, 0.5, None),
        ({1.0: 0.0, float("inf"): 0.0}, 0.5, None),
        ({1.0: 10.0, 2.0: 20.0, float("inf"): 20.0}, 0.5, 1.0),
        ({1.0: 10.0, 2.0: 20.0, float("inf"): 20.0}, 0.75, 1.5),
        ({1.0: 0.0, float("inf"): 5.0}, 0.99, 1.0),
    ],
)
def test_quantiles_of_buckets(buckets: dict[float, float], share: float, value: float | None) -> None:
    assert quantile(buckets, share) == value


def test_an_entry_of_the_statistics() -> None:
    duration = {"count": 2, "ns": 5}
    entry = {
        "inference_count": 4,
        "execution_count": 2,
        "inference_stats": {"success": duration, "fail": {"count": 1, "ns": 9}, "queue": {"count": 2, "ns": 3}},
        "batch_stats": [{"batch_size": 2, **dict.fromkeys(("compute_input", "compute_infer", "compute_output"), duration)}],
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 7}, {"type": "GPU", "id": 0, "byte_size": 8}],
    }
    assert counters_of(entry) == VersionCounters(
        succeeded=2, failed=1, success_ns=5, queue_ns=3, rows=4, batches=2, executing_ns=15, memory_bytes=15
    )


def test_the_engine_adds_what_it_knows() -> None:
    instances = tuple(
        InstanceActivity(name=f"m_{index}", kind="KIND_CPU", state=state)
        for index, state in enumerate((InstanceState.IDLE, InstanceState.FAILED, InstanceState.PASSIVE))
    )
    activity = EngineActivity(queue=QueueActivity(levels=(LevelActivity(waiting=4),)))
    said = ModelExplanation(name="m", version=1, instances=instances, activity=activity, limit="rate_limiter")
    row = explained(ModelRow(name="m", version="1", state="READY", executing=0.5), said)
    assert (row.instances, row.alive, row.queued, row.waits_for) == (2, 1, 4, "rate_limiter")
    assert "0.5/2!" in line(row, 200)
    assert line(row, 200).endswith("rate limiter")


ROWS = [ModelRow(name=name, version="1", rate=rate, p99_ns=p99) for name, rate, p99 in (("b", 1, None), ("a", 3, 5), ("c", 2, 9))]


@pytest.mark.parametrize(
    ("key", "order"), [("rate", "acb"), ("name", "abc"), ("p99", "cab"), ("errors", "bac"), ("memory", "bac")]
)
def test_sorting(key: str, order: str) -> None:
    assert "".join(row.name for row in in_order(ROWS, key)) == order


def test_sorting_the_other_way_round() -> None:
    assert [row.name for row in in_order(ROWS, "rate", reverse=True)] == ["b", "c", "a"]
    assert [row.name for row in in_order(ROWS, "name", reverse=True)] == ["c", "b", "a"]


def test_every_sort_key_has_its_name() -> None:
    assert tuple(SORT_KEYS) == SORT_NAMES


@pytest.mark.parametrize("width", [1, 10, 20, 40, 60, 80, 120, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    row = ModelRow(name="a_model_with_a_name_that_is_far_too_long_for_any_terminal", version="1", state="READY", rate=123456.7)
    lines = frame("title " * 40, ["above " * 40], [row] * 3, View(), width=width, height=24)
    assert max(len(text) for text in lines) <= width
    assert len(lines) == 24


def test_a_narrow_terminal_keeps_what_matters_most() -> None:
    assert [column.title for column in columns_for(40)] == ["STATE", "REQ/S", "QUEUE"]
    assert columns_for(200) == list(COLUMNS)
    assert "[P99]" in header(200, "p99")


def test_names_cannot_speak_to_the_terminal() -> None:
    row = ModelRow(name="\x1b[2Jevil", version="1", state="UNAVAILABLE", reason="\x1b]0;title\x07")
    assert "\x1b" not in line(row, 80)
    assert "\x07" not in line(row, 80)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.2"), (99.95, "100.0"), (1234, "1234"), (12_345, "12.3k"), (999_999, "1000k"), (2_500_000, "2.5M")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_keys() -> None:
    view = View()

    def press(view: View | None, key: str) -> View:
        after = pressed(view or View(), key, page=10, count=25)
        assert after is not None
        return after

    assert press(view, "s").sort == "errors"
    assert press(View(sort=SORT_NAMES[-1]), "s").sort == "rate"
    assert press(view, "r").reverse
    assert press(view, "\x1b[6~").offset == 10
    assert press(press(press(view, " "), " "), " ").offset == 15, "the last page is full"
    assert press(view, "\x1b[A").offset == 0
    assert press(view, "\x1b[F").offset == 15
    assert press(press(view, "\x1b[F"), "\x1b[H").offset == 0
    assert press(view, "x") == view
    assert pressed(view, "q", page=10, count=25) is None


def test_a_thousand_models() -> None:
    keys = [(f"model_{number:04}", "1") for number in range(1000)]
    states = dict.fromkeys(keys, ("READY", ""))
    before = ServerSnapshot(at_s=1.0, counters=dict.fromkeys(keys, FIRST), states=states)
    after = msgspec.structs.replace(before, at_s=2.0, counters=dict.fromkeys(keys, THEN))
    began_s = time.process_time()
    rows = in_order(rows_between(before, after), "name")
    lines = frame("title", ["above"], rows, View(offset=990), width=100, height=30)
    assert time.process_time() - began_s < at_pace(1)
    assert page_of(["above"], 30) == 26
    assert sum("model_" in text for text in lines) == 10
    assert lines[-1].startswith("991 to 1000 of 1000  by rate  q quit")


@pytest.mark.parametrize(("height", "above", "models"), [(24, 3, 18), (9, 3, 3), (7, 1, 3), (5, 1, 1), (4, 0, 1)])
def test_a_low_screen_has_rows_before_other_lines(height: int, above: int, models: int) -> None:
    keys = [(f"model_{number:04}", "1") for number in range(100)]
    rows = rows_between(
        None, ServerSnapshot(at_s=1.0, counters=dict.fromkeys(keys, FIRST), states=dict.fromkeys(keys, ("READY", "")))
    )
    lines = frame("title", ["a", "b", "c"], rows, View(), width=100, height=height)
    assert len(lines) == height
    assert sum(text in ("a", "b", "c") for text in lines) == above
    assert page_of(["a", "b", "c"], height) == sum(text.startswith("model_") for text in lines) == models
    assert lines[-1].startswith(f"1 to {models} of 100")


class Servers:
    """A source whose server answers with these snapshots, one after the other; a ClientError is raised."""

    def __init__(self, *answers: ServerSnapshot | ClientError) -> None:
        self.answers = list(answers)

    def snapshot(self) -> ServerSnapshot:
        answer = self.answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    def explain(self, rows: Sequence[ModelRow]) -> list[ModelRow]:
        return list(rows)


class Terminal:
    """A screen on which q is pressed when this many tables were drawn."""

    size = (100, 20)

    def __init__(self, tables: int) -> None:
        self.drawn: list[list[str]] = []
        self._tables = tables

    def draw(self, lines: Sequence[str], *, bold: int) -> None:
        self.drawn.append(list(lines))

    def key(self, wait_s: float) -> str:
        return "q" if len(self.drawn) >= self._tables else ""


def test_a_live_table_goes_on_when_the_server_is_started_again() -> None:
    gone = ClientError("no server at host:1 (refused)")
    servers = Servers(snapshot(1.0, FIRST), snapshot(3.0, THEN), gone, snapshot(5.0, FIRST))
    terminal = Terminal(4)
    _Live(servers, terminal, "host:1", View(), interval_s=0.0).run(first_s=0.0)  # type: ignore[arg-type]  # both fakes
    tables = ["\n".join(lines) for lines in terminal.drawn]
    assert re.search(r"^m +1 +READY +10 ", tables[1], re.M)
    assert "no server at host:1" in tables[2]
    assert "READY" not in tables[2]
    assert re.search(r"^m +1 +READY +5 ", tables[3], re.M), "a new server counts from 0"
    assert len(tables) == 4
