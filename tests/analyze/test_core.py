"""The search, on a machine that is a formula: instances share cores, an execution costs a fixed time and a little per row."""

from __future__ import annotations

import msgspec
import pytest

from tpy.config import ModelConfig, format_pbtxt, parse_pbtxt
from tpy_tools.analyze.core.checkpoint import CheckpointError, header_line, read_checkpoint, row_line
from tpy_tools.analyze.core.fields import FieldError
from tpy_tools.analyze.core.goal import Constraint, Figures, Goal, Row, average, together
from tpy_tools.analyze.core.search import Search, brute, quick
from tpy_tools.analyze.core.space import OFF, CandidateConfig, Point, Space, Value, is_served, make_space, read

BASE = parse_pbtxt('name: "m" backend: "python" max_batch_size: 4 instance_group { count: 1 kind: KIND_CPU }').config
WISHES: dict[str, list[Value]] = {
    "instances": [1, 2, 3, 4],
    "max_batch_size": [1, 4, 8, 16, 32],
    "delay_us": [OFF, 0, 1000, 4000],
    "parameter:threads": ["1", "2", "4"],
}
CLIENTS = [1, 2, 4, 8, 16, 32, 64]
CORES = 4


def machine(config: ModelConfig, clients: int) -> Figures:
    """Throughput and latency by Little's law."""
    instances, delay = int(str(read(config, "instances"))), read(config, "delay_us")
    threads = int(str(read(config, "parameter:threads") or 1))
    limit = 1 if delay == OFF else config.max_batch_size
    batch = max(1, min(limit, clients / instances))
    busy = instances * threads
    slower = 1.0 if busy <= CORES else (busy / CORES) ** 1.3
    execution_s = (0.004 + 0.0004 * batch) / threads**0.7 * slower
    wait_s = 0.0 if delay == OFF or batch >= limit else int(str(delay)) / 1e6
    capacity = instances * batch / (execution_s + wait_s)
    throughput = min(capacity, clients / (execution_s + wait_s))
    ms = clients / throughput * 1e3
    return Figures(
        throughput=throughput, avg_ms=ms, p50_ms=ms, p90_ms=ms, p95_ms=ms, p99_ms=ms * 1.5, memory_mb=100.0 * instances
    )


def run(search: Search, space: Space) -> dict[Point, Row]:
    rows: dict[Point, Row] = {}
    try:
        point = next(search)
        while True:
            config = space.configs({"m": BASE}, point.candidate)["m"]
            rows[point] = Row(point=point, figures=machine(config, point.concurrency))
            point = search.send(rows[point])
    except StopIteration:
        return rows


GOALS = {
    "throughput": Goal(),
    "throughput under a latency": Goal(constraints=(Constraint(metric="perf_latency_p99", maximum=15),)),
    "throughput in little memory": Goal(constraints=(Constraint(metric="cpu_used_ram", maximum=200),)),
    "latency": Goal(objectives=(("perf_latency_p99", 1.0),)),
    "latency with a throughput": Goal(
        objectives=(("perf_latency_p99", 1.0),), constraints=(Constraint(metric="perf_throughput", minimum=2000),)
    ),
    "both": Goal(objectives=(("perf_throughput", 2.0), ("perf_latency_p99", 1.0))),
}


@pytest.mark.parametrize("goal", GOALS.values(), ids=GOALS)
def test_the_quick_search_is_within_five_percent_of_the_best_in_a_fifth_of_the_time(goal: Goal) -> None:
    space = make_space({"m": BASE}, WISHES, CLIENTS)
    every, some = run(brute(space), space), run(quick(space, goal), space)
    best, found = goal.ranked(every.values())[0], goal.ranked(some.values())[0]
    assert goal.meets(best)
    assert goal.meets(found)
    assert goal.score(best)[1] - goal.score(found)[1] < 0.05
    assert len(some) * 5 < len(every)


def test_batching_is_switched_on_with_a_larger_batch() -> None:
    base = msgspec.structs.replace(BASE, max_batch_size=1)
    space = make_space({"m": base}, {"max_batch_size": [1, 8], "delay_us": [OFF, 0]}, [1])
    (size,) = (one for one in space.dimensions if one.knob == "max_batch_size")
    assert list(space.neighbours(CandidateConfig(), size, 1)) == [CandidateConfig((("max_batch_size", 8), ("delay_us", 0)))]


def test_settings_become_a_configuration() -> None:
    wishes: dict[str, list[Value]] = {**WISHES, "preferred_batch_size": [8]}
    space = make_space({"m": BASE}, wishes, [1])
    chosen: dict[str, Value] = {"instances": 3, "max_batch_size": 16, "delay_us": 1000, "parameter:threads": "2"}
    config = space.configs({"m": BASE}, space.candidate({**chosen, "preferred_batch_size": 8}))["m"]
    assert parse_pbtxt(format_pbtxt(config)).config == config
    assert {knob: read(config, knob) for knob in chosen} == chosen
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.preferred_batch_size == (8,)
    # A preferred size beyond the batch, or without batching, is no configuration of its own.
    assert space.candidate({"preferred_batch_size": 8, "delay_us": 0}) == space.candidate({"delay_us": 0})
    assert space.candidate({"preferred_batch_size": 8, "max_batch_size": 16}) == space.candidate({"max_batch_size": 16})
    assert space.configs({"m": BASE}, CandidateConfig()) == {"m": BASE}


def test_a_model_that_does_not_batch_keeps_its_batching() -> None:
    space = make_space({"m": msgspec.structs.replace(BASE, max_batch_size=0)}, WISHES, [1])
    assert [one.knob for one in space.dimensions] == ["instances", "parameter:threads"]
    assert space.notes[0] == "m: max_batch_size stays as it is: the model does not batch (max_batch_size 0)"


def test_members_of_an_ensemble_have_settings_of_their_own() -> None:
    ensemble = parse_pbtxt('name: "e" platform: "ensemble" ensemble_scheduling { step { model_name: "m" } }').config
    space = make_space({"e": ensemble, "m": BASE}, {"instances": [1, 2]}, [1])
    candidate = space.candidate({"m/instances": 2})
    assert str(candidate) == "m/instances=2"
    configs = space.configs({"e": ensemble, "m": BASE}, candidate)
    assert (configs["e"], read(configs["m"], "instances")) == (ensemble, 2)


def row(throughput: float, p99_ms: float, *, memory_mb: float | None = None, errors: int = 0, number: int = 1) -> Row:
    figures = Figures(
        throughput=throughput, avg_ms=1, p50_ms=1, p90_ms=1, p95_ms=1, p99_ms=p99_ms, memory_mb=memory_mb, errors=errors
    )
    return Row(point=Point(CandidateConfig((("instances", number),)), 1), figures=figures)


def test_the_order_of_rows() -> None:
    goal = Goal(constraints=(Constraint(metric="perf_latency_p99", maximum=20),))
    refused = Row(point=Point(CandidateConfig((("instances", 9),)), 1), problem="no room")
    rows = [refused, row(900, 30, number=1), row(100, 10, number=2), row(950, 22, number=3), row(800, 5, errors=3, number=4)]
    ranked = goal.ranked(rows)
    assert [dict(each.point.candidate.settings)["instances"] for each in ranked] == [2, 3, 1, 4, 9]
    assert [list(goal.broken(each)) for each in ranked] == [
        [],
        ["not perf_latency_p99 <= 20 ms"],
        ["not perf_latency_p99 <= 20 ms"],
        ["3 requests failed"],
        ["no room"],
    ]
    assert not goal.better(row(101, 5), row(100, 5))
    assert goal.better(row(103, 5), row(100, 5))


def test_a_bound_of_what_is_not_measured_is_not_met() -> None:
    goal = Goal(constraints=(Constraint(metric="gpu_used_memory", maximum=20),))
    assert not goal.meets(row(1, 1))
    assert goal.broken(row(1, 1)) == ["gpu_used_memory cannot be measured here"]


def test_goals_of_several_models() -> None:
    def both(a: float, b: float, *, p99_ms: float = 1) -> Row:
        parts = {name: row(value, p99_ms).figures for name, value in (("a", a), ("b", b))}
        return msgspec.structs.replace(row(a + b, p99_ms), parts=parts)

    fair = Goal(models={"a": Goal(), "b": Goal()})
    # Half as much of the fast one for three times as much of the slow one, though the sum is far less.
    assert fair.better(both(500, 30), both(1000, 10))
    # A model with a weight of 3 is not given up for that.
    weighted = Goal(models={"a": Goal(weight=3), "b": Goal()})
    assert not weighted.better(both(500, 30), both(1000, 10))
    bound = Goal(models={"a": Goal(), "b": Goal(constraints=(Constraint(metric="perf_latency_p99", maximum=20),))})
    assert not bound.meets(both(500, 30, p99_ms=30))
    assert bound.broken(both(500, 30, p99_ms=30)) == ["b: not perf_latency_p99 <= 20 ms"]
    assert bound.better(both(1, 1), both(500, 30, p99_ms=30))
    assert str(weighted) == "a: perf_throughput (weight 3) and b: perf_throughput (weight 1)"
    assert not fair.meets(row(1, 1))  # no figures of the models


def test_the_figures_of_several_models_together() -> None:
    one, other = row(100, 5, memory_mb=10).figures, row(20, 9).figures
    assert one is not None
    assert other is not None
    whole = together([one, other])
    assert (whole.throughput, whole.p99_ms, whole.memory_mb, whole.gpu_memory_mb) == (120, 9, 10, None)


def test_a_row_that_is_measured_again_is_the_average() -> None:
    again = average(row(100, 5), row(50, 8, errors=1))
    assert again.figures is not None
    assert (again.samples, again.figures.throughput, again.figures.p99_ms, again.figures.errors) == (2, 75, 6.5, 1)
    third = average(again, row(150, 6.5))
    assert third.figures is not None
    assert third.figures.throughput == pytest.approx(100)


def test_threads_are_the_parameter_of_the_backend() -> None:
    models = {name: msgspec.structs.replace(BASE, backend=name) for name in ("onnxruntime", "openvino", "pytorch", "python")}
    space = make_space(models, {"threads": ["1", "2"]}, [1])
    assert [one.label for one in space.dimensions] == [
        "onnxruntime/parameter:intra_op_thread_count",
        "openvino/parameter:INFERENCE_NUM_THREADS",
        "pytorch/parameter:INTRA_OP_THREAD_COUNT",
    ]
    assert space.notes == ("python: threads stays as it is: no parameter for a number of threads is known of backend 'python'",)
    assert make_space(models, {"threads?": ["1", "2"]}, [1]).notes == ()


def test_any_field_is_a_setting() -> None:
    high, low = '{"priority":"PRIORITY_MAX"}', '{"priority":"PRIORITY_MIN"}'
    space = make_space({"m": BASE}, {"field:optimization": [high, low]}, [1])
    config = space.configs({"m": BASE}, space.candidate({"field:optimization": low}))["m"]
    assert config.optimization is not None
    assert config.optimization.priority.name == "PRIORITY_MIN"
    assert not is_served(BASE, config, "field:optimization")
    # A server completes what was left out.
    served = parse_pbtxt('name: "m" optimization { priority: PRIORITY_MIN eager_batching: true }').config
    assert is_served(served, config, "field:optimization")
    wrong = make_space({"m": BASE}, {"field:instance_group": ['[{"count":"x"}]']}, [1])
    candidate = wrong.candidate({"field:instance_group": '[{"count":"x"}]'})
    with pytest.raises(FieldError, match="instance_group"):
        wrong.configs({"m": BASE}, candidate)


MEASURED = {"model": "m", "window": "1 s"}


def test_a_checkpoint_is_read_back_as_far_as_it_is_whole() -> None:
    rows = [row(1, 2, number=3), Row(point=Point(CandidateConfig(), 8), problem="no room")]
    content = header_line(MEASURED) + b"".join(map(row_line, rows))
    known, whole = read_checkpoint(content + row_line(rows[0])[:-5], MEASURED)
    assert list(known.values()) == rows
    assert whole == len(content)
    assert read_checkpoint(b"", MEASURED) == ({}, 0)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"format": "tpy-analyze", "version": 2}\n', "expected tpy-analyze version 1, got tpy-analyze version 2"),
        (b"batch,throughput\n", "line 1 is not the beginning of a checkpoint"),
        (header_line({**MEASURED, "window": "5 s"}), "its rows were measured with another window: 5 s, now 1 s"),
        (header_line(MEASURED) + b"{}\n", "line 2: "),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(content: bytes, text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(content, MEASURED)
    assert text in str(caught.value)


def test_another_load_is_said_by_what_differs() -> None:
    had = header_line({"load": '[{"protocol":"http","window_s":1.0},{"window_s":1.0}]'})
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(had, {"load": '[{"protocol":"http","window_s":0.1},{"window_s":1.0}]'})
    assert str(refused.value) == "its rows were measured with another load: window_s 1.0, now 0.1"
