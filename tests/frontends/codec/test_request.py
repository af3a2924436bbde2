"""Requests: what the recorded exchanges do not show."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tpy.errors import ErrorCode, InvalidArgument, NotFound
from tpy.frontends.http.codec import parse_header_length, parse_infer
from tpy.frontends.http.codec.document import load_document
from tpy.frontends.http.codec.generate import parse_generate
from tpy.frontends.http.codec.parameters import HttpRequestParameters, read_parameters
from tpy.frontends.http.codec.response import HTTP_STATUS
from tpy.messages import DataType, InferenceRequest, SequencePosition

from .exchanges import describe

MODEL = describe("m", {"max_batch_size": 0, "inputs": [["IN0", "FP32", [-1]]]})


def parse(document: Any, blobs: bytes = b"") -> InferenceRequest:
    head = json.dumps(document).encode()
    length = len(head) if blobs else None
    return parse_infer(head + blobs, header_length=length, description=MODEL, version=None, received_ns=0)[0]


def item(data: Any, *, datatype: str = "FP32", shape: list[int] | None = None) -> dict[str, Any]:
    return {"inputs": [{"name": "IN0", "datatype": datatype, "shape": shape or [len(data)], "data": data}]}


def refusal(document: Any, blobs: bytes = b"") -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse(document, blobs)
    return caught.value.message


@pytest.mark.parametrize("word", ["TYPE_FP32", "float32", ""])
def test_a_word_that_is_no_datatype_is_answered_with_those_that_are(word: str) -> None:
    assert refusal(item([1.0], datatype=word)).startswith(
        f"invalid datatype for input IN0; '{word}' is not one of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16,"
    )


def test_generate_says_which_members_are_inputs() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_generate(b'{"in0": [1, 2]}', description=MODEL, version=None, received_ns=0)
    assert str(caught.value) == (
        "parameter 'in0' has invalid type. It should be either 'int', 'bool', or 'string'. Allowed inputs are: IN0 (FP32 [-1])"
    )


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        (item(["a"]), "expected a number for input 'IN0' (FP32), got \"a\" as element 0"),
        (item([1.0, None]), "expected a number for input 'IN0' (FP32), got null as element 1 (a missing value is NaN)"),
        (item([1.5], datatype="INT32"), "expected a whole number for input 'IN0' (INT32), got 1.5 as element 0"),
        (item([1], datatype="BOOL"), "expected true or false for input 'IN0' (BOOL), got 1 as element 0"),
        (item([5], datatype="BYTES"), "expected a text in quotes for input 'IN0' (BYTES), got 5 as element 0"),
        (item([1, 2], shape=[1, 4]), "expected 4 elements, as the shape of input 'IN0' says, got 2"),
        (item([1, 2, 3], shape=[1, 1]), "expected 1 element, as the shape of input 'IN0' says, got more"),
        ({"inputs": [{"name": "IN0", "datatype": "FP32", "shape": [1], "data": 1}]}, "expected an array, got 1"),
        ({"inputs": [{"name": "IN0", "datatype": "FP32", "data": [1]}]}, "got an object with name, datatype, data"),
        ({"inputs": [{"name": "IN0", "datatype": "FP32", "shape": [1]}]}, "got an object with name, datatype, shape"),
        ({"inputs": [{"name": 7, "datatype": "FP32", "shape": [1], "data": [1]}]}, "expected a text in quotes, got 7"),
        (
            {"inputs": [{"name": "IN0", "datatype": "FP32", "shape": [-1], "data": [1]}]},
            "expected a whole number of at least 0, got -1 in the shape of input 'IN0'",
        ),
        ({"inputs": {"IN0": [1]}}, "expected an array, got an object"),
        ({"X": [1, 2], "id": "a"}, "(values by name alone are for the model's /generate), got an object with X, id"),
        ([1, 2], "(values by name alone are for the model's /generate), got an array"),
        ({"inputs": [], "parameters": {"priority": "high"}}, 'expected a whole number of at least 0, got "high"'),
        ({"inputs": [], "id": 7}, "expected a text in quotes, got 7"),
    ],
)
def test_a_refusal_says_what_was_expected_and_what_came(document: Any, hint: str) -> None:
    said = refusal(document)
    assert said.endswith(hint)
    assert "; expected " in said


def test_broken_json_is_shown_with_its_place() -> None:
    with pytest.raises(InvalidArgument, match=r" at 1; expected JSON, got \{ >>> X: \[1, 2, 3\]\}$"):
        parse_infer(b"{X: [1, 2, 3]}", header_length=None, description=MODEL, version=None, received_ns=0)
    with pytest.raises(InvalidArgument, match=r"got no body$"):
        parse_generate(b"", description=MODEL, version=None, received_ns=0)
    with pytest.raises(InvalidArgument) as caught:
        parse_infer(
            b'{"' + b"a" * 900 + b"\x00\n\xff" + b"b" * 900, header_length=None, description=MODEL, version=None, received_ns=0
        )
    assert len(caught.value.message) < 200
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ([1, 2, 3], "expected 4 elements or a multiple of it for IN0 (FP32 [-1,4]), got 3"),
        ([[1, 2], [3, 4]], "got 2, whose nesting is not that of the shape"),
        ([[1, 2, 3, 4], [5, 6, 7]], "got 2, whose nesting is not that of the shape"),
        ([[1, 2, 3, 4], [5, 6, 7], [8]], "got 3, whose nesting is not that of the shape"),
    ],
)
def test_generate_says_how_many_elements_an_input_takes(value: Any, hint: str) -> None:
    model = describe("m", {"max_batch_size": 4, "inputs": [["IN0", "FP32", [4]]]})
    with pytest.raises(InvalidArgument) as caught:
        parse_generate(json.dumps({"IN0": value}).encode(), description=model, version=None, received_ns=0)
    assert caught.value.message.startswith("The schema can not convert input 'IN0' to tensor with proper shape; ")
    assert caught.value.message.endswith(hint)


@pytest.mark.parametrize(
    ("dims", "value", "expected"),
    [
        ([-1, 4], [[1, 2, 3, 4], [5, 6, 7, 8]], (2, 4)),
        ([-1, -1], [[1, 2], [3, 4], [5, 6]], (3, 2)),
        ([-1, 2, 2], [[1, 2], [3, 4]], (1, 2, 2)),
        ([2, 2], [[1, 2], [3, 4]], (2, 2)),
        ([-1, 4], [1, 2, 3, 4], (1, 4)),
        ([-1, 3, -1], [[[1.5] * 50] * 3] * 1000, (1000, 3, 50)),
    ],
)
def test_generate_takes_rows_by_their_shape(dims: list[int], value: Any, expected: tuple[int, ...]) -> None:
    model = describe("m", {"max_batch_size": 0, "inputs": [["IN0", "FP32", dims]]})
    body = json.dumps({"IN0": value}).encode()
    request = parse_generate(body, description=model, version=None, received_ns=0)
    array = request.inputs[0].array
    assert array.shape == expected
    assert array.reshape(-1).tolist() == np.array(value, np.float32).reshape(-1).tolist()


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("count", [3, 100_000])
def test_null_is_a_missing_value_for_generate(datatype: str, count: int) -> None:
    model = describe("m", {"max_batch_size": 0, "inputs": [["IN0", datatype, [-1]]]})
    body = json.dumps({"IN0": [1.5, None, *[2.0] * (count - 2)]}).encode()
    array = parse_generate(body, description=model, version=None, received_ns=0).inputs[0].array
    assert np.isnan(array).tolist() == [False, True, *[False] * (count - 2)]
    assert array.dtype == {"FP32": np.float32, "FP64": np.float64}[datatype]


def test_null_elsewhere() -> None:
    """Triton's texts, and for floating inputs what stands for a missing value."""
    model = describe("m", {"max_batch_size": 0, "inputs": [["IN0", "INT32", [-1]]]})
    with pytest.raises(InvalidArgument, match=r"got null as element 1$"):
        parse_generate(b'{"IN0": [1, null]}', description=model, version=None, received_ns=0)
    body = b'{"inputs": [{"name": "IN0", "datatype": "FP32", "shape": [2], "data": [1, null]}]}'
    with pytest.raises(InvalidArgument, match=r"got null as element 1 \(a missing value is NaN\)$"):
        parse_infer(body, header_length=None, description=MODEL, version=None, received_ns=0)


def test_generate_takes_an_object() -> None:
    with pytest.raises(InvalidArgument, match=r"non-object; expected an object of names and values, got an array$"):
        parse_generate(b"[1, 2]", description=MODEL, version=None, received_ns=0)


def test_fields_reach_the_request() -> None:
    parameters = {"sequence_id": 7, "sequence_start": True, "priority": 2, "timeout": 1500, "mine": "x", "half": 0.5}
    body = json.dumps({"id": "a", **item([1.0]), "parameters": parameters, "outputs": [{"name": "B"}, {"name": "A"}]}).encode()
    request, plan = parse_infer(
        body, header_length=None, description=MODEL, version=3, received_ns=99, forwarded={"h": "v", "mine": "header"}
    )
    assert (request.model_name, request.model_version, request.id, request.received_ns) == ("m", 3, "a", 99)
    assert request.sequence == SequencePosition(correlation_id=7, start=True, end=False)
    assert (request.priority, request.timeout_us) == (2, 1500)
    assert request.parameters == {"mine": "header", "half": 0.5, "h": "v"}
    assert request.requested_outputs == ("B", "A")
    assert not plan.choice("A").binary


def test_content_types_of_inputs_are_parameters() -> None:
    document = item([1.0])
    document["inputs"][0]["parameters"] = {"content_type": "np", "other": 1}
    assert parse(document).parameters == {"IN0.content_type": "np"}
    assert parse({**document, "parameters": {"IN0.content_type": "pd", "mine": 1}}).parameters == {
        "IN0.content_type": "pd",
        "mine": 1,
    }
    for nothing in ("", 5, None, ["np"], {}):
        document["inputs"][0]["parameters"] = {"content_type": nothing}
        assert parse(document).parameters == {}


def test_a_request_without_parameters_asks_for_nothing_special() -> None:
    assert HttpRequestParameters() == read_parameters({})
    none = read_parameters({})
    assert (none.priority, none.timeout_us, none.sequence, none.binary_output, none.own) == (0, 0, None, False, {})


@pytest.mark.parametrize("nothing", [0, ""])
def test_sequence_id_of_nothing_is_no_sequence(nothing: Any) -> None:
    assert parse({**item([1.0]), "parameters": {"sequence_id": nothing, "sequence_start": True}}).sequence is None


def test_binary_input_is_a_view_over_the_body() -> None:
    head = json.dumps(
        {"inputs": [{"name": "IN0", "datatype": "INT16", "shape": [2, 2], "parameters": {"binary_data_size": 8}}]}
    ).encode()
    body = bytearray(head + np.arange(4, dtype=np.int16).tobytes())
    request, _ = parse_infer(body, header_length=len(head), description=MODEL, version=None, received_ns=0)
    array = request.inputs[0].array
    assert array.tolist() == [[0, 1], [2, 3]]
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))


def test_raw_input_is_a_view_over_the_body() -> None:
    body = np.arange(3, dtype=np.float32).tobytes()
    request, plan = parse_infer(body, header_length=0, description=MODEL, version=None, received_ns=0)
    assert np.shares_memory(request.inputs[0].array, np.frombuffer(body, np.uint8))
    assert plan.choice("anything").binary


def test_bool_bytes_other_than_0_and_1_are_true() -> None:
    document = {"inputs": [{"name": "IN0", "datatype": "BOOL", "shape": [3], "parameters": {"binary_data_size": 3}}]}
    array = parse(document, b"\x00\x01\x02").inputs[0].array
    assert array.dtype == np.bool_
    assert array.tobytes() == b"\x00\x01\x01"


def test_integers_out_of_range_are_refused_with_their_place() -> None:
    assert refusal(item([1, 300], datatype="UINT8")) == (
        "Unable to parse 'data': element 1 of input 'IN0' is 300, out of range for UINT8 (0 to 255)"
    )
    assert "is -129, out of range for INT8 (-128 to 127)" in refusal(item([-129], datatype="INT8"))


def test_floats_out_of_range_are_refused() -> None:
    assert "element 1 of input 'IN0' is 1e+39, out of range for FP32" in refusal(item([1, 1e39]))
    assert parse(item([float("inf")])).inputs[0].array.tolist() == [float("inf")]


def test_nesting_is_limited() -> None:
    def nested(depth: int, value: Any) -> Any:
        for _ in range(depth):
            value = [value]
        return value

    assert parse(item(nested(99, 1.0), shape=[1])).inputs[0].array.tolist() == [1.0]
    limit = "JSON nesting depth exceeds maximum allowed limit (100)"
    assert refusal(item(nested(100, 1.0), shape=[1])) == f"Unable to parse 'data': {limit}"
    assert refusal(item(nested(100, "a"), datatype="BYTES", shape=[1])) == limit


def test_brackets_without_end_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="failed to parse the request JSON buffer: "):
        parse_infer(b"[" * 200_000, header_length=None, description=MODEL, version=None, received_ns=0)
    with pytest.raises(InvalidArgument, match="failed to parse the request JSON buffer: "):
        parse_infer(b"[NaN," + b"[" * 200_000, header_length=None, description=MODEL, version=None, received_ns=0)


def test_one_byte_order_mark_is_passed_over() -> None:
    assert load_document(b"\xef\xbb\xbf[1]") == [1]
    assert load_document(memoryview(b"\xef\xbb\xbf[NaN, 1]")) != []
    with pytest.raises(InvalidArgument, match=r"Invalid value\. at 0"):
        load_document(b"\xef\xbb\xbf" * 3)


def test_long_broken_documents_get_the_parsers_words() -> None:
    with pytest.raises(
        InvalidArgument, match=r"^failed to parse the request JSON buffer: .+\. at [0-9]+; expected JSON, got .*$"
    ):
        parse_infer(b"[" + b"1," * 100_000 + b"]", header_length=None, description=MODEL, version=None, received_ns=0)


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ([2**62, 2], "causes total element count to exceed maximum size of 9223372036854775807"),
        ([2**63], "contains one or more invalid dimensions"),
        ([1] * 33, "has 33 dimensions, at most 32 are supported"),
        ([0, 2**62, 2**62], "is too large"),
    ],
)
def test_shapes_that_nothing_can_hold(shape: list[int], problem: str) -> None:
    dims = ",".join(map(str, shape))
    assert refusal(item([1.0], shape=shape)) == f"invalid shape for input 'IN0': shape [{dims}] {problem}"


def test_large_shapes_allocate_nothing() -> None:
    assert "shape does not match" in refusal(item([1.0], shape=[2**62]))
    assert "expected 4611686018427387904 string elements" in refusal(item(["a"], datatype="BYTES", shape=[2**62]))
    sized = {"name": "IN0", "datatype": "BYTES", "shape": [2**40], "parameters": {"binary_data_size": 5}}
    assert "string elements" in refusal({"inputs": [sized]}, b"\x01\x00\x00\x00a")


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_a_region_that_nobody_registered_is_refused(where: str) -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    document: dict[str, Any] = item([1.0])
    if where == "inputs":
        document["inputs"] = [{"name": "IN0", "datatype": "FP32", "shape": [2], "parameters": region}]
    else:
        document["outputs"] = [{"name": "OUT0", "parameters": region}]
    with pytest.raises(NotFound, match=r"^Unable to find shared memory region: 'r'$"):
        parse(document)


def test_half_a_surrogate_pair_is_refused_beside_a_literal() -> None:
    body = b'{"id":"\\ud800","inputs":[{"name":"IN0","datatype":"FP32","shape":[1],"data":[NaN]}]}'
    with pytest.raises(InvalidArgument, match="surrogate pair"):
        parse_infer(body, header_length=None, description=MODEL, version=None, received_ns=0)


def test_integers_beyond_64_bits_are_floats_beside_a_literal() -> None:
    body = b'{"inputs":[{"name":"IN0","datatype":"FP32","shape":[2],"data":[NaN,100000000000000000000]}]}'
    request, _ = parse_infer(body, header_length=None, description=MODEL, version=None, received_ns=0)
    assert request.inputs[0].array[1] == np.float32(1e20)


@pytest.mark.parametrize("number", ["1e400", "-1e309", "1" * 400])
def test_numbers_that_no_double_holds_are_refused_beside_a_literal_as_without_one(number: str) -> None:
    """They became infinities."""
    begin = b'{"inputs":[{"name":"IN0","datatype":"FP64","shape":[2],"data":[NaN,'
    body = begin + number.encode() + b"]}]}"
    with pytest.raises(InvalidArgument, match=f"Number too big to be stored in double. at {len(begin)}"):
        parse_infer(body, header_length=None, description=MODEL, version=None, received_ns=0)


def test_inputs_keep_their_order_and_types() -> None:
    document = {
        "inputs": [
            {"name": "b", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 9}},
            {"name": "a", "datatype": "BF16", "shape": [1], "parameters": {"binary_data_size": 2}},
        ]
    }
    first, second = parse(document, b"\x00\x00\x00\x00\x01\x00\x00\x00\xff" + b"\x80\x3f").inputs
    assert (first.name, first.datatype, first.array.tolist()) == ("b", DataType.BYTES, [b"", b"\xff"])
    assert (second.name, second.datatype, float(second.array[0])) == ("a", DataType.BF16, 1.0)


def test_header_length() -> None:
    assert parse_header_length(None, 10) is None
    assert parse_header_length(b"0", 10) == 0
    assert parse_header_length(b"10", 10) == 10
    for value in (b"11", b"-1", b"2147483647", b"-2147483648"):
        with pytest.raises(InvalidArgument, match=r"inference header size should be in range \(0, 10\), got: "):
            parse_header_length(value, 10)


def test_the_shape_of_what_generate_brings() -> None:
    """The innermost variable dimension takes what the fixed ones leave; without one the count must fit."""
    inputs = [["FLEXIBLE", "FP32", [-1, 2]], ["FIXED", "FP32", [2, 2]], ["OTHER", "FP32", [3]]]
    model = describe("m", {"max_batch_size": 0, "inputs": inputs, "labels": []})
    body = json.dumps({"FLEXIBLE": [1, 2, 3, 4, 5, 6], "FIXED": [1, 2, 3, 4], "mine": 5}).encode()
    request = parse_generate(body, description=model, version=None, received_ns=0)
    assert {tensor.name: tensor.array.shape for tensor in request.inputs} == {"FLEXIBLE": (3, 2), "FIXED": (2, 2)}
    assert request.parameters == {"mine": 5}
    for wrong in ({"FLEXIBLE": [1, 2, 3]}, {"OTHER": [1, 2]}):
        with pytest.raises(InvalidArgument, match="can not convert input"):
            parse_generate(json.dumps(wrong).encode(), description=model, version=None, received_ns=0)


@pytest.mark.parametrize("elements", [1, 20_000, 100_000])
@pytest.mark.parametrize(
    "twice", ['"A": %s, "A": [1]', '"A": [1], "A": %s', '"parameters": {"A": %s, "A": [1]}', '"A": %s, "parameters": {"A": [1]}']
)
def test_generate_refuses_an_input_that_is_there_twice(twice: str, elements: int) -> None:
    """Also in documents that are read in pieces; the same text inside of a string is no input."""
    model = describe("m", {"max_batch_size": 0, "inputs": [["A", "FP32", [-1]], ["S", "BYTES", [1]]], "labels": []})
    numbers = json.dumps([0.5] * elements)
    with pytest.raises(InvalidArgument, match="input 'A' already exists in request"):
        parse_generate(f"{{{twice % numbers}}}".encode(), description=model, version=None, received_ns=0)
    once = json.dumps({"A": [0.5] * elements, "S": '"A": "A":'}).encode()
    request = parse_generate(once, description=model, version=None, received_ns=0)
    assert {tensor.name: tensor.array.size for tensor in request.inputs} == {"A": elements, "S": 1}


def test_the_status_of_each_error() -> None:
    other = {"INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "UNSUPPORTED": 501, "FORBIDDEN": 403}
    other |= {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "RESOURCE_EXHAUSTED": 429}
    assert {code.name: status for code, status in HTTP_STATUS.items()} == {code.name: 400 for code in ErrorCode} | other
