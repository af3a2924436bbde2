"""tf.Example out of JSON and of messages, and what models answer for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpy.errors import Internal, InvalidArgument
from tpy.frontends.grpc.codec.fields import TooManyFields
from tpy.frontends.http.codec.response import dump_json
from tpy.limits.tensorflow_serving import CONTEXTS_BYTES_MAX, EXAMPLES_MAX
from tpy.messages import DataType, Tensor
from tpy_platforms.tensorflow_serving.examples import classes_of, examples_of, examples_tensor, read_input, values_of
from tpy_platforms.tensorflow_serving.models import CLASSIFY, REGRESS, SignatureNotServed
from tpy_platforms.tensorflow_serving.protos import pb, tf

from .signatures import arguments, signature

TEXT = arguments(inputs=DataType.BYTES)
CLASSIFIER = signature(TEXT, arguments(classes=DataType.BYTES, scores=DataType.FP32))
REGRESSOR = signature(TEXT, arguments(outputs=DataType.FP32))


def features(data: bytes) -> dict[str, list[Any]]:
    found = tf.Example.FromString(data).features.feature
    return {name: list(getattr(each, each.WhichOneof("kind")).value) for name, each in found.items()}


def test_features_of_json() -> None:
    document = {
        "context": {"all": "c", "own": 1},
        "examples": [
            {"f": 1.5, "i": [1, -2], "s": ["a", {"b64": "/w=="}], "mixed": [1, 2.5]},
            {"own": 2},
            {"b": True, "bs": [False, 2]},
        ],
    }
    first, second, third = map(features, examples_of(document))
    assert first == {"all": [b"c"], "own": [1], "f": [1.5], "i": [1, -2], "s": [b"a", b"\xff"], "mixed": [1.0, 2.5]}
    assert third == {"all": [b"c"], "own": [1], "b": [1], "bs": [0, 2]}
    assert second == {"all": [b"c"], "own": [2]}, "an example's features are before those of the context"


def test_a_context_is_not_multiplied_without_bound() -> None:
    count = 1000
    context = {"c": "x" * (CONTEXTS_BYTES_MAX // count)}
    document: dict[str, Any] = {"examples": [{}] * count, "context": context}
    message = pb.Input(
        example_list_with_context={
            "examples": [tf.Example()] * count,
            "context": tf.Example(features={"feature": {"c": {"bytes_list": {"value": [context["c"].encode()]}}}}),
        }
    ).SerializeToString()
    told = rf"for {count} examples comes to \d+ bytes, at most {CONTEXTS_BYTES_MAX} are accepted"
    with pytest.raises(InvalidArgument, match=told):
        examples_of(document)
    with pytest.raises(InvalidArgument, match=told):
        read_input([memoryview(message)])


def test_a_context_in_many_parts_is_joined_once() -> None:
    part = tf.Example(features={"feature": {"c": {"bytes_list": {"value": [b"x" * 100]}}}}).SerializeToString()
    whole = pb.Input(example_list_with_context={"context": part and tf.Example.FromString(part)}).SerializeToString()
    one = pb.Input(example_list_with_context={"examples": [tf.Example()]}).SerializeToString()
    assert read_input([memoryview(whole), memoryview(one), memoryview(whole)]) == [part * 2]
    assert read_input([memoryview(whole)] * 3) == []
    with pytest.raises(InvalidArgument, match="comes to"):
        read_input([memoryview(whole)] * (CONTEXTS_BYTES_MAX // len(part) + 1) + [memoryview(one)], 10**6)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "Expecting 'examples' value to be an list/array, got null"),
        ({"examples": [1]}, r"examples\[0\]: Expecting an object of features, got 1"),
        ({"examples": [{"a": None}]}, r"examples\[0\]: feature 'a': expected texts or numbers, got null"),
        ({"examples": [{"a": [1, "b"]}]}, "feature 'a': expected texts or numbers"),
        ({"examples": [{"a": [True, 1.5]}]}, "feature 'a': expected texts or numbers"),
        ({"examples": [{"a": 2**63}]}, "feature 'a': a number has more than 64 bits"),
        ({"examples": [{"a": {"b64": "?"}}]}, "feature 'a': Unable to base64 decode"),
        ({"examples": [], "context": []}, "context: Expecting an object of features"),
    ],
)
def test_what_is_no_feature_is_refused(document: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        examples_of(document)


def test_examples_of_messages_are_taken_as_they_are() -> None:
    one, two, context = (tf.Example(features={"feature": {name: {"int64_list": {"value": [1]}}}}) for name in "abc")
    plain = pb.Input(example_list={"examples": [one, two]}).SerializeToString()
    assert read_input([memoryview(plain)]) == [one.SerializeToString(), two.SerializeToString()]
    with_context = pb.Input(example_list_with_context={"examples": [one], "context": context}).SerializeToString()
    assert [set(features(each)) for each in read_input([memoryview(with_context)])] == [{"a", "c"}]
    for parts in ((plain, plain), (with_context, with_context), (plain, with_context), (with_context, plain, plain)):
        merged = pb.Input.FromString(b"".join(parts))
        kind = getattr(merged, merged.WhichOneof("kind"))
        assert len(read_input(list(map(memoryview, parts)))) == len(kind.examples)
    many = pb.Input(example_list={"examples": [tf.Example()] * EXAMPLES_MAX}).SerializeToString()
    with pytest.raises(TooManyFields):
        read_input([memoryview(many)])
    half = pb.Input(example_list={"examples": [tf.Example()] * (EXAMPLES_MAX // 2)}).SerializeToString()
    with pytest.raises(TooManyFields):
        read_input([memoryview(half)] * 2)
    with pytest.raises(Internal, match="Unable to parse"):
        read_input([memoryview(b"\x0a\x02\x0a\x05")])


def test_which_models_take_examples() -> None:
    assert (CLASSIFIER.method, REGRESSOR.method) == (CLASSIFY, REGRESS)
    assert examples_tensor([b"a", b"b"], CLASSIFIER, CLASSIFY).array.tolist() == [b"a", b"b"]
    with pytest.raises(SignatureNotServed, match=r"Expected regression signature method_name to be .*regress. Was: .*classify"):
        examples_tensor([b"a"], CLASSIFIER, REGRESS)
    with pytest.raises(InvalidArgument, match="Input is empty"):
        examples_tensor([], REGRESSOR, REGRESS)


def test_answers() -> None:
    classes = Tensor("classes", DataType.BYTES, np.array([[b"a", b"b"]], object))
    scores = Tensor("scores", DataType.FP32, np.array([[0.5, 0.25]], np.float32))
    assert classes_of([classes, scores], 1) == [[("a", 0.5), ("b", 0.25)]]
    assert classes_of([scores], 1) == [[("", 0.5), ("", 0.25)]]
    assert classes_of([classes], 1) == [[("a", 0.0), ("b", 0.0)]]
    scores = Tensor("scores", DataType.FP32, np.array([[np.nan, np.inf]], np.float32))
    assert dump_json(classes_of([classes, scores], 1)) == b'[[["a",NaN],["b",Infinity]]]'
    for shape in ((2,), (2, 1)):
        assert values_of([Tensor("outputs", DataType.FP32, np.ones(shape, np.float32))], 2) == [1.0, 1.0]


def test_answers_of_another_form_are_faults_of_the_model() -> None:
    scores = Tensor("scores", DataType.FP32, np.zeros((1, 2), np.float32))
    for outputs, told in (
        ([scores, Tensor("classes", DataType.BYTES, np.array([[b"a"]], object))], r"'scores': expected the shape of 'classes'"),
        ([Tensor("scores", DataType.FP64, np.zeros((1, 2)))], r"expected FP32\[1,classes\], the model gave FP64\[1,2\]"),
        ([Tensor("scores", DataType.FP32, np.zeros((3, 2), np.float32))], r"the model gave FP32\[3,2\]"),
        ([Tensor("classes", DataType.BYTES, np.array([[b"\xff"]], object))], "not UTF-8"),
    ):
        with pytest.raises(Internal, match=told):
            classes_of(outputs, 1)
    with pytest.raises(Internal, match="the model gave neither"):
        classes_of([], 1)
    for outputs in ([], [scores, scores]):
        with pytest.raises(Internal, match=f"the model gave {len(outputs)} outputs"):
            values_of(outputs, 1)
    with pytest.raises(Internal, match=r"expected FP32\[2\] or FP32\[2,1\], the model gave FP32\[1,2\]"):
        values_of([Tensor("outputs", DataType.FP32, np.zeros((1, 2), np.float32))], 2)
