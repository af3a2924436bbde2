"""config.pbtxt: what text format allows, and every problem with its place."""

from __future__ import annotations

import pytest

from tpy import limits
from tpy.config import ConfigError, Problem, Severity, Source, parse_pbtxt
from tpy.config.model_config import ControlKind, InputFormat, InstanceKind
from tpy.messages import DataType


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_pbtxt(text, path="m/config.pbtxt")
    lines = str(caught.value).split("\n")
    assert lines == [str(problem) for problem in caught.value.problems]
    return lines


def test_the_ways_of_writing_the_same() -> None:
    plain = parse_pbtxt(
        'name: "model" max_batch_size: 8 input { name: "a" data_type: TYPE_FP32 dims: 3 dims: -1 } input { name: "b" }'
    ).config
    for text in (
        "# comment\nname: 'mo' \"del\"; max_batch_size: 0x8, input [{ name: 'a', data_type: 11; dims: [3, -1] }, { name: 'b' }]",
        'name:"\\x6d\\157\\x64el" max_batch_size:010 input:<name:"a" data_type:TYPE_FP32 dims:[3]dims:[-1]> input:{name:"b"} #',
        '\tname : "model"\r\nmax_batch_size : 8\r\ninput : [{ name:"a" data_type: TYPE_FP32 dims: [ 03, -01 ] } , { name:"b" }]',
    ):
        assert parse_pbtxt(text).config == plain


def test_values_of_every_kind() -> None:
    config = parse_pbtxt(
        """
        input { name: "i" format: FORMAT_NCHW optional: t is_shape_tensor: 1 allow_ragged_batch: false }
        instance_group { kind: KIND_GPU gpus: [ ] } instance_group { kind: 2 }
        sequence_batching { control_input { name: "c" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ -1.5f, 1e3 ] } } }
        parameters { key: "k" value { string_value: "tab\\there" } }
        parameters { key: "l" value: { string_value: "" } }
        model_metrics { metric_control { histogram_options { buckets: [ 1, .5, inf ] } } }
        """
    ).config
    tensor = config.input[0]
    assert (tensor.format, tensor.optional, tensor.is_shape_tensor) == (InputFormat.FORMAT_NCHW, True, True)
    assert tensor.data_type is DataType.INVALID
    assert [group.kind for group in config.instance_group] == [InstanceKind.KIND_GPU, InstanceKind.KIND_CPU]
    assert config.sequence_batching is not None
    control = config.sequence_batching.control_input[0].control[0]
    assert (control.kind, control.fp32_false_true) == (ControlKind.CONTROL_SEQUENCE_READY, (-1.5, 1000.0))
    assert config.parameter("k") == "tab\there"
    assert config.parameter("none", "default") == "default"
    assert config.model_metrics is not None
    options = config.model_metrics.metric_control[0].histogram_options
    assert options is not None
    assert options.buckets == (1.0, 0.5, float("inf"))


def test_every_problem_is_found_where_it_is() -> None:
    text = """name: "x"
max_batchsize: 4
input [ { name: "a" data_type: FP32 dims: [1, x, -1] name: "q" }, { nme: "b", data_type: TYPE_BYTES } ]
output { name: "y dims: 3 }
output { name: "z" dims: [ 3 }
dynamic_batching { preferred_batch_size [ 1 ] max_queue_delay_microseconds: -5 }
sequence_batching { }
parameters { key: "k" value: { string_value: 3 } }
parameters [ { key: "k2" value: { string_val: "3" } }, 5 ]
instance_group [ { kind: KIND_CPUU count: 99999999999 gpus: [0,] passive: yes } ]
version_policy: 3
name: [ "again" ]
backend "python"
"""
    assert problems_of(text) == [
        "m/config.pbtxt:2:1: max_batchsize: ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?",
        "m/config.pbtxt:3:32: input[0].data_type: 'FP32' is not a value of DataType; did you mean 'TYPE_FP32'?",
        "m/config.pbtxt:3:47: input[0].dims[1]: 'x' is not an integer; expected an integer",
        "m/config.pbtxt:3:54: input[0].name: 'name' is given more than once, first in line 3",
        "m/config.pbtxt:3:69: input[1].nme: ModelInput has no field 'nme'; did you mean 'name'?",
        "m/config.pbtxt:3:90: input[1].data_type: 'TYPE_BYTES' is not a value of DataType; did you mean 'TYPE_STRING'?",
        "m/config.pbtxt:4:16: output[0].name: string without its closing quote on the same line",
        "m/config.pbtxt:5:1: output[0]: 'output' begins before output[0] is closed; expected '}' before it",
        "m/config.pbtxt:5:30: output[1].dims: unexpected '}' in the list that begins in line 5; expected ',' or ']'",
        "m/config.pbtxt:6:41: dynamic_batching.preferred_batch_size: no ':' between 'preferred_batch_size' and '['; expected ':'",
        (
            "m/config.pbtxt:6:77: dynamic_batching.max_queue_delay_microseconds: "
            "-5 is outside the range of uint64, 0 to 18446744073709551615; expected an integer >= 0"
        ),
        "m/config.pbtxt:7:1: sequence_batching: 'sequence_batching' cannot be given together with 'dynamic_batching' in line 6",
        "m/config.pbtxt:8:46: parameters[\"k\"].string_value: '3' is not a string; expected a string in quotes",
        (
            'm/config.pbtxt:9:35: parameters["k2"].string_val: '
            "ModelParameter has no field 'string_val'; did you mean 'string_value'?"
        ),
        "m/config.pbtxt:9:56: parameters: '5' is not a map entry; expected { key: ... value: ... }",
        "m/config.pbtxt:10:26: instance_group[0].kind: 'KIND_CPUU' is not a value of Kind; did you mean 'KIND_CPU'?",
        (
            "m/config.pbtxt:10:43: instance_group[0].count: "
            "99999999999 is outside the range of int32, -2147483648 to 2147483647; expected an integer"
        ),
        "m/config.pbtxt:10:64: instance_group[0].gpus[1]: no value before ']'; expected an integer",
        "m/config.pbtxt:10:75: instance_group[0].passive: 'yes' is neither true nor false; expected true or false",
        "m/config.pbtxt:11:17: version_policy: '3' is not a message; expected '{ ... }', a ModelVersionPolicy",
        "m/config.pbtxt:12:1: name: 'name' is given more than once, first in line 1",
        "m/config.pbtxt:12:7: name: 'name' takes one value, not a list",
        "m/config.pbtxt:13:9: backend: no ':' between 'backend' and '\"python\"'; expected ':'",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name", "1:5: name: no ':' between 'name' and the end of the file; expected ':'"),
        ("name:", "1:6: name: no value before the end of the file; expected a string in quotes"),
        ('name: "a', "1:7: name: string without its closing quote on the same line"),
        ('name: "\\q"', "1:7: name: '\"\\q\"' has an escape that is not known or is not UTF-8; expected a string in quotes"),
        ('name: "\\xff"', "1:7: name: '\"\\xff\"' has an escape that is not known or is not UTF-8; expected a string in quotes"),
        ("input {", "1:8: input[0]: the file ends before the '}' of input[0]; expected '}'"),
        ("input { >", "1:9: input[0]: '>' closes input[0]; expected '}'"),
        ("}", "1:1: unexpected '}'; expected a field name"),
        ("$", "1:1: unexpected character '$'"),
        ("max_batch_size: 08", "1:17: max_batch_size: '08' is not an integer; expected an integer"),
        ("max_batch_size: 1.0", "1:17: max_batch_size: '1.0' is not an integer; expected an integer"),
        ("instance_group { kind: 7 }", "1:24: instance_group[0].kind: '7' is not a value of Kind; expected one of KIND_AUTO, "),
        ("zzz: 1", "1:1: zzz: ModelConfig has no field 'zzz'; expected one of name, platform, backend, "),
        ("[a.b] { }", "1:1: unexpected '['; expected a field name"),
        (
            "version_policy { specific { versions: 1, 2 } }",
            "1:42: version_policy.specific: unexpected '2'; expected a field name; several values need brackets: [ 1, 2 ]",
        ),
        ("parameters { ky: 1 }", "1:14: parameters[0]: unexpected 'ky' in a map entry; expected key and value"),
        ('parameters { key: "a" key: "b" }', "1:23: parameters[\"a\"]: 'key' is given more than once in a map entry"),
        (
            "version_policy { latest { } all { } }",
            "1:29: version_policy.all: 'all' cannot be given together with 'latest' in line 1",
        ),
    ],
)
def test_one_problem(text: str, problem: str) -> None:
    assert problems_of(text)[0].startswith(f"m/config.pbtxt:{problem}")


def test_a_text_without_end_of_problems_is_given_up() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pbtxt("$ " * 100_000)
    assert len(caught.value.problems) == limits.CONFIG_PROBLEMS_MAX


def test_a_text_beyond_the_bound_is_not_read() -> None:
    with pytest.raises(ConfigError, match=r"^big: the configuration has \d+ bytes; expected at most \d+ bytes$"):
        parse_pbtxt("#" * (limits.CONFIG_BYTES_MAX + 1), path="big")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_batch_size: {long}", "max_batch_size: 999"),
        ("max_batch_size: 0x{long}", "max_batch_size: 0x999"),
        ("input {{ data_type: {long} }}", "input[0].data_type: '999"),
        ("dynamic_batching {{ priority_queue_policy {{ key: {long} }} }}", "dynamic_batching.priority_queue_policy[999"),
        ("a{long}: 1", "a999"),
        ("name: a{long}", "name: 'a999"),
        ('parameters {{ key: "{long}" value {{ foo: 1 }} }}', 'parameters["999'),
    ],
)
def test_very_long_words_are_refused_in_short(text: str, problem: str) -> None:
    [found] = problems_of(text.format(long="9" * 100_000))
    assert problem in found
    assert len(found) < 2_000


def test_places_of_fields() -> None:
    source = parse_pbtxt(
        """name: "m"
input [ { name: "a" dims: [ 1, -1 ] }, { dims: 3 dims: 4 } ]
input < name: "c" >
parameters [ { value { string_value: "3" } key: "a.b\\"]" }, { key: "z" } ]
dynamic_batching { priority_queue_policy { key: 0x2 value { max_queue_size: 1 } } }
""",
        path="p",
    ).source
    places = {field: tuple(place) for field, place in source.locations.items()}
    assert places["name"] == (1, 1)
    assert places["input"] == (2, 1)
    assert places["input[0]"] == (2, 9)
    assert places["input[0].dims[1]"] == (2, 32)
    assert places["input[1].dims[1]"] == (2, 50)
    assert places["input[2].name"] == (3, 9)
    assert places['parameters["a.b\\"]"].string_value'] == (4, 24)
    assert places['parameters["z"]'] == (4, 61)
    assert places["dynamic_batching.priority_queue_policy[2].max_queue_size"] == (5, 61)


def test_a_field_that_is_not_there_is_placed_at_what_encloses_it() -> None:
    source = parse_pbtxt('input {\n name: "a" }\nparameters { key: "x.y" value { } }', path="p").source
    assert source.locate("input[0].reshape.shape[1]") == (1, 1)
    assert source.locate('parameters["x.y"].string_value') == (3, 1)
    assert source.locate("output[0].dims") == (1, 1)
    assert Source().locate("input[0]") == (0, 0)


def test_how_a_problem_is_printed() -> None:
    assert str(Problem(message="wrong", field="name")) == "name: wrong"
    assert str(Problem(message="wrong", path="p", line=3, column=4, expected="right")) == "p:3:4: wrong; expected right"
    warning = Problem(message="odd", path="p", line=3, column=4, field="name", severity=Severity.WARNING)
    assert str(warning) == "p:3:4: warning: name: odd"
    assert str(ConfigError([warning, Problem(message="wrong")])) == "wrong"
