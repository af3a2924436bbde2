"""Every rule, with the text that Triton 2.51 gave for the same configuration (recorded/refusals.json), and all at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpy.config import Problem, Severity, check_text, normalise, parse_pbtxt, validate

REFUSALS = json.loads(Path(__file__).with_name("recorded").joinpath("refusals.json").read_text(encoding="utf-8"))
IO = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'


def check(text: str, *, name: str = "m", files: tuple[str, ...] | None = ("model.py",), complete: bool = True) -> list[Problem]:
    return check_text(text, path="config.pbtxt", directory_name=name, version_files=files, complete=complete)


def messages(problems: list[Problem], severity: Severity = Severity.ERROR) -> list[str]:
    return [problem.message for problem in problems if problem.severity is severity]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal["name"])
def test_what_triton_refuses_is_refused_with_its_text(refusal: dict[str, str]) -> None:
    files = () if "platform" in refusal["name"] or "file" in refusal["name"] else ("model.py",)
    problems = check(refusal["pbtxt"], name=refusal["name"], files=files)
    assert refusal["text"] in messages(problems)
    for problem in problems:
        assert (problem.path, problem.line) == ("config.pbtxt", 1)
        assert problem.column >= 1


def test_a_good_configuration_has_no_problem() -> None:
    assert check(f'backend: "python" max_batch_size: 4 {IO} dynamic_batching {{ }}') == []


def test_all_problems_are_reported_in_the_order_of_the_file() -> None:
    problems = check(
        """name: "other"
backend: "python"
max_batch_size: -1
input { name: "IN" data_type: TYPE_FP32 dims: [ 0, -2 ] }
input { data_type: TYPE_FP32 }
output { name: "OUT" dims: [ 4 ] reshape { shape: [ 5 ] } }
dynamic_batching { preferred_batch_size: [ 0, 2 ] priority_levels: 2 }
instance_group { kind: KIND_CPU gpus: [ 0 ] count: 5000 }
"""
    )
    assert [(problem.line, problem.field) for problem in problems] == [
        (1, "name"),
        (3, "max_batch_size"),
        (4, "input[0].dims[0]"),
        (4, "input[0].dims[1]"),
        (5, "input[1]"),
        (5, "input[1].dims"),
        (6, "output[0].data_type"),
        (6, "output[0].reshape"),
        (7, "dynamic_batching.default_priority_level"),
        (7, "dynamic_batching.preferred_batch_size[0]"),
        (7, "dynamic_batching.preferred_batch_size[1]"),
        (8, "instance_group[0].gpus"),
        (8, "instance_group[0].count"),
    ]


def test_what_a_backend_may_complete_is_not_missed() -> None:
    text = (
        'backend: "python" input { name: "IN" format: FORMAT_NHWC } batch_input { source_input: "LATER" data_type: TYPE_INT32 }'
    )
    assert check(text, complete=False) == []
    assert len(messages(check(text))) == 4
    wrong = 'backend: "python" input { name: "IN" dims: [ 0 ] }'
    assert len(messages(check(wrong, complete=False))) == 1


def test_a_model_whose_backend_cannot_be_resolved() -> None:
    expected = (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )
    assert messages(check(IO, files=None)) == [expected]
    assert messages(check(IO, files=("weights.bin",))) == [expected]


def test_rules_that_the_real_server_has_in_newer_versions() -> None:
    metrics = (
        'backend: "python" model_metrics { metric_control { } metric_control { metric_identifier { } histogram_options { } } }'
    )
    assert messages(check(metrics)) == [
        "metric control must specify 'metric_identifier'",
        "metric control must specify 'histogram_options'",
        "metric identifier must specify non-empty 'family'",
        "histogram options must specify non-empty 'buckets'",
    ]
    state = 'sequence_batching { state { input_name: "S" data_type: TYPE_INT32 dims: 1 use_growable_memory: true } }'
    assert messages(check(f'backend: "python" {IO} {state}')) == [
        "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'S'."
    ]
    twice = 'sequence_batching { state { input_name: "S" } state { input_name: "S" } }'
    assert messages(check(f'backend: "python" {IO} {twice}')) == ["State input name 'S' specified more than once."]


def test_what_the_server_makes_has_names_of_its_own() -> None:
    block = (
        'sequence_batching { control_input { name: "IN" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } '
        'control_input { name: "C" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } } '
        'state { input_name: "C" output_name: "O" } state { input_name: "IN" output_name: "O" } }'
    )
    assert messages(check(f'backend: "python" {IO} {block}')) == [
        "sequence batching control tensor 'IN' is an input as well for m",
        "state input 'C' is a control tensor as well for m",
        "state input 'IN' is a control tensor as well for m",
        "state output 'O' is specified more than once for m",
    ]


def test_tensorrt_takes_what_others_do_not() -> None:
    text = (
        'backend: "tensorrt" input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] is_shape_tensor: true'
        " is_non_linear_format_io: true }"
        ' output { name: "OUT" data_type: TYPE_FP32 dims: 4 } instance_group { kind: KIND_GPU profile: [ "0", "x" ] }'
    )
    assert messages(check(text)) == [
        "Non-linear IO format input requires 3 dims for m",
        (
            "instance group m_0 of model m and platform tensorrt_plan specifies invalid profile x. "
            "The field should contain the string representation of a non-negative integer."
        ),
    ]


def test_tensorrt_uses_graphs_and_priorities() -> None:
    text = (
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'
        " optimization { priority: PRIORITY_MAX cuda { graphs: true busy_wait_events: true output_copy_stream: true } }"
    )
    assert [problem.message for problem in check(f'backend: "tensorrt" {text}')] == [
        "'busy_wait_events' has no effect in this server",
        "'output_copy_stream' has no effect in this server",
    ]
    assert [problem.message for problem in check(f'backend: "python" {text}')] == [
        "'priority' has no effect in this server",
        "'cuda' has no effect in this server",
    ]


def test_reshape_of_too_many_elements() -> None:
    huge = "4294967296, 4294967296"
    text = f'backend: "python" input {{ name: "IN" data_type: TYPE_FP32 dims: [ {huge} ] reshape {{ shape: [ {huge} ] }} }}'
    assert messages(check(text)) == ["element count for tensor 'IN dims' exceeds maximum size of 9223372036854775807 for m"]


def test_warnings_do_not_refuse() -> None:
    problems = check(
        f"""backend: "python" {IO}
input {{ name: "IN" data_type: TYPE_FP32 dims: 4 allow_ragged_batch: true }}
optimization {{ priority: PRIORITY_MAX cuda {{ }} eager_batching: true gather_kernel_buffer_threshold: 1 }}
model_metrics {{ metric_control {{ metric_identifier {{ family: "f" }} histogram_options {{ buckets: 1 }} }} }}
instance_group {{ kind: KIND_CPU rate_limiter {{ }} }}
"""
    )
    assert messages(problems) == []
    assert [problem.field for problem in problems] == [
        "input[1].name",
        "input[1].allow_ragged_batch",
        "optimization.priority",
        "optimization.cuda",
        "optimization.eager_batching",
        "optimization.gather_kernel_buffer_threshold",
        "model_metrics.metric_control[0].metric_identifier.family",
    ]
    assert str(problems[2]) == "config.pbtxt:3:16: warning: optimization.priority: 'priority' has no effect in this server"


@pytest.mark.parametrize("buckets", ["1, 1", "2, 1", "1, inf", "nan", ", ".join(map(str, range(257)))])
def test_buckets_that_are_none(buckets: str) -> None:
    family = 'metric_identifier { family: "tpy_inference_queue_duration_seconds" }'
    text = (
        f'backend: "python" {IO} model_metrics {{ metric_control {{ {family} histogram_options {{ buckets: [ {buckets} ] }} }} }}'
    )
    [problem] = check(text)
    assert (problem.severity, problem.field) == (Severity.ERROR, "model_metrics.metric_control[0].histogram_options.buckets")


def test_an_ensemble_step_that_asks_for_version_0() -> None:
    text = """platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling { step { model_name: "a" input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } } }
"""
    assert messages(check(text), Severity.WARNING) == ["step 0 asks for version 0 of 'a'; the latest would be -1"]
    assert messages(check(text)) == []


def test_batching_strategies_of_sequences_are_refused() -> None:
    parameter = 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "x.so" } }'
    assert messages(check(f'backend: "python" {IO} {parameter} sequence_batching {{ }}')) == [
        "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy"
    ]
    assert messages(check(f'backend: "python" {IO} {parameter} dynamic_batching {{ }}')) == []


@pytest.mark.parametrize("key", ["a-b", "ü", "a b", 'x="1",y'])
def test_metric_tags_that_would_break_the_metrics_page_are_refused(key: str) -> None:
    tags = f'metric_tags {{ key: {json.dumps(key)} value: "any \\"text\\"" }} metric_tags {{ key: "team_1" value: "-" }}'
    assert messages(check(f'backend: "python" {IO} {tags}')) == [f"metric tag '{key}' of m cannot be part of the name of a label"]


def test_validation_without_a_file_names_the_field_only() -> None:
    config = normalise(parse_pbtxt(f'name: "m" backend: "python" max_batch_size: -1 {IO}').config)
    assert [str(problem) for problem in validate(config)] == ["max_batch_size: 'max_batch_size' must be non-negative value for m"]


def test_a_configuration_that_was_not_normalised() -> None:
    config = parse_pbtxt(f'backend: "python" {IO}').config
    assert messages(validate(config)) == ["model configuration must specify 'name'", "must specify 'version policy' for "]
