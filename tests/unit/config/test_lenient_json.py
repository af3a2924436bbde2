"""JSON of load overrides as protobuf's parser takes it: every case asked of Triton 2.51."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpy.config import ModelConfig
from tpy.config.json_form import parse_json
from tpy.config.lenient_json import loads
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelParameter, ResponseCache
from tpy.config.problem import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("{'a': 'it\"s'}", {"a": 'it"s'}),
        ('{a: "b", $c_1: [true, null,],}', {"a": "b", "$c_1": [True, None]}),
        ('{"a": 2., "b": 2.e1}', {"a": 2.0, "b": 20.0}),
        (r'{"a": "\x41\'\u0041\n", }', {"a": "x41'A\n"}),
        ("{'a': 'line\nline\t\x01'}", {"a": "line\nline\t\x01"}),
        ('{"a": "no, comma }", b: "{[:,"}', {"a": "no, comma }", "b": "{[:,"}),
        ("[1, [], {}, ]", [1, [], {}]),
    ],
)
def test_what_is_taken_beyond_the_standard(text: str, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "{,}", "[,]", "{a}", "{a: b}", "{a: TRUE}", '{"a": 02}', '{"a": +2}', '{"a": .5}', '{"a": 0x2}', '{"a" 1}',
        '{"a": 1 "b": 2}', '{"a": 1,, "b": 2}', '{"a": 1} x', '{"a": 1},', '{"a": NaN}', '{"a": 1} // c', '/* c */{}',
        "{'a': 'b}", '{"a"="b"}', '{"a": 1;}', '{"a": "\\u00"}',
    ],
)  # fmt: skip
def test_what_is_not(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        loads(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=30)
@given(VALUES)
def test_what_is_standard_means_what_it_meant(value: Any) -> None:
    assert loads(json.dumps(value)) == value


@settings(max_examples=30)
@given(VALUES)
def test_a_comma_behind_the_last_member_changes_nothing(value: Any) -> None:
    assert loads(f'{{"a": {json.dumps(value, ensure_ascii=False)},}}') == {"a": value}


def test_values_of_fields_as_protobuf_takes_them() -> None:
    text = """{'response_cache': {enable: "Yes"}, "instance_group": [null, {"kind": "kind-cpu"}, {"kind": "2"}, {"kind": 2.0}],
        "parameters": {"a": null}}"""
    on_cpu = InstanceGroup(kind=InstanceKind.KIND_CPU)
    assert parse_json(text) == ModelConfig(
        response_cache=ResponseCache(enable=True), instance_group=(on_cpu,) * 3, parameters={"a": ModelParameter()}
    )


def test_broken_json_is_reported_by_its_first_error() -> None:
    with pytest.raises(ConfigError, match=r"not JSON: Expecting ',' delimiter: line 1 column 21"):
        parse_json('{"max_batch_size":1 "name": "m"}')
