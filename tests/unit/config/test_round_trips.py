"""A configuration survives every form it can take, and the syntax walk agrees with protobuf's own parser."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
from google.protobuf import text_format
from hypothesis import example, given
from hypothesis import strategies as st

from tpy._proto.pool import POOL
from tpy.config import ConfigError, ModelConfig, Problem, format_pbtxt, from_message, parse_json, parse_pbtxt, to_json, to_message
from tpy.config.model_config import EnsembleScheduling
from tpy.config.schema import (
    INTEGER_RANGE,
    MODEL_CONFIG,
    MODEL_CONFIG_CLASS,
    Cardinality,
    EnumSchema,
    FieldSchema,
    MessageSchema,
    Scalar,
)

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_SCALARS: dict[Scalar, st.SearchStrategy[Any]] = {
    **{kind: st.integers(*bounds) for kind, bounds in INTEGER_RANGE.items()},
    Scalar.FLOAT: st.floats(width=32, allow_nan=False),
    Scalar.DOUBLE: st.floats(allow_nan=False),
    Scalar.BOOL: st.booleans(),
    Scalar.STRING: _TEXT,
}


def _elements(kind: Scalar | EnumSchema | MessageSchema) -> st.SearchStrategy[Any]:
    if isinstance(kind, MessageSchema):
        return _messages(kind)
    if isinstance(kind, EnumSchema):
        return st.sampled_from(list(kind.number_of))
    return _SCALARS[kind]


def _values(field: FieldSchema) -> st.SearchStrategy[Any]:
    if field.cardinality is Cardinality.REPEATED:
        return st.lists(_elements(field.kind), max_size=2).map(tuple)
    if field.cardinality is Cardinality.MAP:
        assert field.key is not None
        return st.dictionaries(_SCALARS[field.key], _elements(field.kind), max_size=2)
    return _elements(field.kind)


@st.composite
def _messages(draw: st.DrawFn, schema: MessageSchema) -> msgspec.Struct:
    """Any message of the schema: a few of its fields, of each oneof at most one."""
    names = draw(st.lists(st.sampled_from(sorted(schema.fields)), max_size=4, unique=True)) if schema.fields else []
    chosen: set[str] = set()
    values = {}
    for name in names:
        field = schema.fields[name]
        if field.oneof is not None:
            if field.oneof in chosen:
                continue
            chosen.add(field.oneof)
        values[field.attribute] = draw(_values(field))
    return schema.struct(**values)


configurations = _messages(MODEL_CONFIG)


@given(configurations)
def test_text_struct_message_and_json_are_one(config: ModelConfig) -> None:
    text = format_pbtxt(config)
    parsed = parse_pbtxt(text)
    assert parsed.config == config
    message = to_message(parsed.config)
    assert from_message(message) == config
    assert from_message(MODEL_CONFIG_CLASS.FromString(message.SerializeToString())) == config
    assert parse_json(msgspec.json.encode(to_json(config))) == config


@given(configurations)
def test_every_given_field_has_a_place(config: ModelConfig) -> None:
    text = format_pbtxt(config)
    lines = text.split("\n")
    source = parse_pbtxt(text).source
    for field, place in source.locations.items():
        if field and not field.endswith("]"):
            name = field.rpartition(".")[2]
            assert lines[place.line - 1][place.column - 1 :].startswith(name)


_FRAGMENTS = st.sampled_from(
    [
        "name", "input", "dims", "parameters", "key", "value", "string_value", "dynamic_batching", "ensemble_scheduling",
        "max_batch_size", "optional", "kind", "instance_group", "data_type", "unknown", "TYPE_FP32", "KIND_CPU", "true", "1",
        "-1", "0x1", "08", "1.5", "1e3", "inf", "1f", '"a"', "'b'", '"', '"\\x41"', '"\\q"', ":", "{", "}", "[", "]", ",", ";",
        "<", ">", "#c\n", "\n", "$", "version_policy", "latest", "direct", "fp32_false_true", "@", "-", "/", "é", "99999999999",
    ]
)  # fmt: skip


@given(st.lists(_FRAGMENTS, max_size=24).map(" ".join))
@example("dims: [ 1, ]")
@example('name: "a" "b"')
@example("input { dims: 1 } input [ { dims: [ 1 ] } ]")
@example("parameters { key: 1 }")
def test_what_is_accepted_is_what_protobuf_accepts(text: str) -> None:
    """Whatever the text: a configuration equal to protobuf's, or at least one located problem. Never both, never neither."""
    problems: tuple[Problem, ...] = ()
    try:
        config = parse_pbtxt(text, path="config.pbtxt").config
    except ConfigError as error:
        problems = error.problems
    else:
        message = MODEL_CONFIG_CLASS()
        text_format.Parse(text, message, descriptor_pool=POOL)
        assert from_message(message) == config
        return
    assert problems
    for problem in problems:
        assert problem.path == "config.pbtxt"
        assert problem.line >= 1
        assert problem.column >= 1
        assert "\n" not in str(problem)


@given(configurations, st.data())
def test_the_walk_accepts_what_protobuf_accepts(config: ModelConfig, data: st.DataObject) -> None:
    """A damaged text that protobuf's parser still takes is taken, apart from enum numbers without a name, unknown escapes and
    fields that are given twice when the first time was their default."""
    text = format_pbtxt(config)
    cut = data.draw(st.integers(0, len(text)))
    damaged = text[:cut] + data.draw(_FRAGMENTS) + text[cut + data.draw(st.integers(0, 2)) :]
    message = MODEL_CONFIG_CLASS()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown escapes
            text_format.Parse(damaged, message, descriptor_pool=POOL)
        expected = from_message(message)
    except (text_format.ParseError, ValueError):
        return
    try:
        config = parse_pbtxt(damaged).config
    except ConfigError as error:
        stricter = ("more than once", "escape")
        if not all(any(word in problem.message for word in stricter) for problem in error.problems):
            raise
    else:
        assert config == expected


def test_sub_messages_that_are_given_but_empty_stay_given() -> None:
    config = parse_pbtxt("ensemble_scheduling { } response_cache { }").config
    assert config.ensemble_scheduling == EnsembleScheduling()
    assert config.dynamic_batching is None
    assert "response_cache" in to_json(config)
    assert "model_operations" not in to_json(config)
