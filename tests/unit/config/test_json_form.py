"""The JSON of a load override: protobuf's rules, Triton's words."""

from __future__ import annotations

import json
import math

import pytest

from tpy import limits
from tpy.config import ConfigError, parse_json, to_json
from tpy.config.model_config import (
    HistogramOptions,
    InstanceKind,
    MetricControl,
    ModelConfig,
    ModelMetrics,
    SequenceBatching,
    StrategyDirect,
)
from tpy.errors import ErrorCode
from tpy.messages import DataType


def test_both_spellings_and_every_way_of_writing_a_number() -> None:
    config = parse_json(
        json.dumps(
            {
                "name": "m",
                "maxBatchSize": "4",
                "input": [{"name": "IN", "dataType": "type_fp32", "dims": ["1", -1, 3.0]}],
                "output": {"name": "OUT", "data_type": 11, "dims": 2},
                "instance_group": [{"kind": "KIND_GPU", "gpus": [0]}, {"kind": 2}],
                "dynamicBatching": {
                    "priorityQueuePolicy": {"2": {"maxQueueSize": 1}, "1": {}},
                    "max_queue_delay_microseconds": "5",
                },
                "parameters": {"k": {"stringValue": "v"}},
                "version_policy": None,
            }
        )
    )
    assert config.max_batch_size == 4
    assert config.input[0].data_type is DataType.FP32
    assert config.input[0].dims == (1, -1, 3)
    assert config.output[0].dims == (2,)
    assert [group.kind for group in config.instance_group] == [InstanceKind.KIND_GPU, InstanceKind.KIND_CPU]
    assert config.dynamic_batching is not None
    assert list(config.dynamic_batching.priority_queue_policy) == [1, 2]
    assert config.dynamic_batching.max_queue_delay_microseconds == 5
    assert config.parameter("k") == "v"
    assert config.version_policy is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", ": Root element must be a message."),
        ('{"nme":"x"}', "nme: Cannot find field."),
        ('{"input":[{"name":"IN","data_typ":"TYPE_FP32"}]}', "(input[0]) data_typ: Cannot find field."),
        ('{"parameters":{"a":{"stringvalue":"x"}}}', "(parameters[0].value) stringvalue: Cannot find field."),
        ('{"max_batch_size":"x"}', '(max_batch_size): invalid value "x" for type TYPE_INT32'),
        ('{"max_batch_size":4.5}', "(max_batch_size): invalid value 4.5 for type TYPE_INT32"),
        ('{"maxBatchSize":99999999999}', "(max_batch_size): invalid value 99999999999 for type TYPE_INT32"),
        ('{"max_batch_size":true}', "(max_batch_size): invalid value true for type TYPE_INT32"),
        ('{"backend":3}', "(backend): invalid value 3 for type TYPE_STRING"),
        (
            '{"input":[{"data_type":"TYPE_XX"}]}',
            '(input[0].data_type): invalid value "TYPE_XX" for type type.googleapis.com/inference.DataType',
        ),
        (
            '{"dynamicBatching":{},"sequence_batching":{}}',
            ": invalid value oneof field 'scheduling_choice' is already set. Cannot set 'sequence_batching' for type oneof",
        ),
    ],
)
def test_problems_in_tritons_words(text: str, message: str) -> None:
    """The texts that Triton 2.51 logged for the same overrides."""
    with pytest.raises(ConfigError) as caught:
        parse_json(text)
    assert str(caught.value) == f"Invalid config override: {message}"
    assert caught.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a":NaN}',
        '{"max_batch_size":1} x',
        "[" * 100_000,
        '{"parameters": [1]}',
        '{"version_policy": {"latest": 3}}',
        b"\xff{}",
    ],
)
def test_what_is_no_configuration(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^Invalid config override: "):
        parse_json(text)


def test_all_problems_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json('{"nme": 1, "input": [{"dims": ["x"]}], "dynamic_batching": {"priority_queue_policy": {"y": {}}}}')
    assert [problem.field for problem in caught.value.problems] == [
        "nme",
        "input[0].dims[0]",
        "dynamic_batching.priority_queue_policy[0].key",
    ]


def test_an_override_beyond_the_bound_is_not_read() -> None:
    with pytest.raises(ConfigError, match="longer than"):
        parse_json(" " * (limits.CONFIG_BYTES_MAX + 1))


def test_numbers_that_are_not_short() -> None:
    for text in ("1" * 5000, '"' + "1" * 5000 + '"', "1e999", "-1e999", '"1e9999"'):
        with pytest.raises(ConfigError, match="Invalid config override"):
            parse_json(f'{{"max_batch_size": {text}}}')


def test_floats_are_printed_as_protobuf_prints_them() -> None:
    batching = SequenceBatching(direct=StrategyDirect(minimum_slot_utilization=0.10000000149011612))
    assert to_json(ModelConfig(sequence_batching=batching))["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1
    buckets = (0.1, math.inf, -math.inf)
    metrics = ModelMetrics(metric_control=(MetricControl(histogram_options=HistogramOptions(buckets=buckets)),))
    written = to_json(ModelConfig(model_metrics=metrics))
    assert written["model_metrics"]["metric_control"][0]["histogram_options"]["buckets"] == [0.1, "Infinity", "-Infinity"]
    assert parse_json(json.dumps(written)).model_metrics == metrics


@pytest.mark.parametrize("text", ['{"name": "\\ud800"}', '{"parameters": {"\\udfff": {}}}', '{"metric_tags": {"a": "\\ud800x"}}'])
def test_text_that_is_no_unicode_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid value .* for type TYPE_STRING"):
        parse_json(text)
