"""tf.Example: rows of named features. A model for classification or regression takes them serialised, in its input `inputs`, and
answers `classes` and `scores`, or `outputs`, with one row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument
from tpy.frontends.bytes_tensor import object_array
from tpy.frontends.grpc.codec.fields import FieldBudget, each_field, length_delimited
from tpy.frontends.http.codec.document import shown
from tpy.frontends.http.codec.pieces import LongArray, LongString
from tpy.limits.tensorflow_serving import CONTEXTS_BYTES_MAX, EXAMPLES_MAX
from tpy.messages import DataType, Tensor
from tpy_platforms.tensorflow_serving.models import CLASSIFY, REGRESS, ServingSignature, SignatureNotServed, tensor_of
from tpy_platforms.tensorflow_serving.protos import tf
from tpy_platforms.tensorflow_serving.rows import decoded

_KIND: Final = {CLASSIFY: "classification", REGRESS: "regression"}
_LIST, _LIST_WITH_CONTEXT = length_delimited(1), length_delimited(2)
_EXAMPLE, _CONTEXT = length_delimited(1), length_delimited(2)
_INT64 = np.iinfo(np.int64)
_MATRIX: Final = 2

Labelled = tuple[str, float]


def examples_tensor(examples: Sequence[bytes], signature: ServingSignature, method: str) -> Tensor:
    """The only input of a model for classification or regression. Raises SignatureNotServed for another model, InvalidArgument
    without examples."""
    if signature.method != method:
        raise SignatureNotServed(
            f"Expected {_KIND[method]} signature method_name to be {method}. Was: {signature.method}: model "
            f"'{signature.model}' has to have a text input 'inputs', and "
            + ("outputs 'classes' and 'scores'" if method == CLASSIFY else "an output 'outputs'")
        )
    if not examples:
        raise InvalidArgument("Input is empty.")
    [argument] = signature.inputs.values()
    return tensor_of(argument, DataType.BYTES, object_array(list(examples), (len(examples),)))


def read_input(parts: Sequence[memoryview], fields_max: int = EXAMPLES_MAX) -> list[bytes]:
    """The serialised examples of an Input in `parts`, the occurrences of its field, which protobuf merges. A context is put in
    front of each example, so that its features are those of all. Raises Internal for a broken message, TooManyFields for more
    than `fields_max`, InvalidArgument for contexts that are too large."""
    examples: list[bytes] = []
    context: list[memoryview] = []
    budget = FieldBudget(fields_max)
    kind = 0
    for data in parts:
        for tag, _, body, end in each_field(data, budget):
            if tag not in (_LIST, _LIST_WITH_CONTEXT):
                continue
            if tag != kind:  # of both kinds the last one counts
                kind = tag
                examples.clear()
                context.clear()
            for inner, _, at, stop in each_field(data[body:end], budget):
                if inner == _EXAMPLE:
                    examples.append(bytes(data[body + at : body + stop]))
                elif inner == _CONTEXT and tag == _LIST_WITH_CONTEXT:
                    context.append(data[body + at : body + stop])
    return _with_context(context, examples)


def _with_context(context: Sequence[bytes | memoryview], examples: list[bytes]) -> list[bytes]:
    """The context, in parts, in front of each. Raises InvalidArgument where a small request would stand for far more."""
    length = sum(map(len, context))
    if not length:
        return examples
    size = length * len(examples)
    if size > CONTEXTS_BYTES_MAX:
        raise InvalidArgument(
            f"a context of {length} bytes for {len(examples)} examples comes to {size} bytes, "
            f"at most {CONTEXTS_BYTES_MAX} are accepted: send fewer at a time"
        )
    whole = b"".join(context) if examples else b""
    return [whole + each for each in examples]


def examples_of(document: Mapping[str, object]) -> list[bytes]:
    """The same of JSON: `examples`, objects of values by feature, and `context`. Raises InvalidArgument."""
    examples = document.get("examples")
    if type(examples) is not list:
        raise InvalidArgument(f"Expecting 'examples' value to be an list/array, got {shown(examples)}")
    if len(examples) > EXAMPLES_MAX:
        raise InvalidArgument(f"{len(examples)} examples, at most {EXAMPLES_MAX} are accepted")
    context = _example(document["context"], "context") if "context" in document else b""
    found = [_example(each, f"examples[{number}]") for number, each in enumerate(cast("list[object]", examples))]
    return _with_context([context], found)


def _example(value: object, where: str) -> bytes:
    if type(value) is not dict:
        raise InvalidArgument(f"{where}: Expecting an object of features, got {shown(value)}")
    features = cast("dict[str, object]", value)
    found = {name: _feature(each, f"{where}: feature '{echo(name)}'") for name, each in features.items()}
    content: bytes = tf.Example(features={"feature": found}).SerializeToString(deterministic=True)
    return content


def _feature(value: object, where: str) -> Any:
    """The feature of one value, or of a list of them: all texts, all whole numbers or booleans, or numbers."""
    values: list[Any] = [value]
    if type(value) is LongArray:
        values = [each for piece in value.pieces() for each in piece.parse()]
    elif type(value) is list:
        values = value
    kinds = set(map(type, values))
    if kinds <= {str, dict, LongString}:
        texts = [decoded(each, where) if type(each) is dict else each.encode() for each in values]
        return tf.Feature(bytes_list={"value": texts})
    if kinds <= {int, bool}:  # a boolean is 0 or 1, as in TensorFlow Serving
        if not all(_INT64.min <= each <= _INT64.max for each in values):
            raise InvalidArgument(f"{where}: a number has more than 64 bits")
        return tf.Feature(int64_list={"value": map(int, values)})
    if kinds <= {int, float}:
        return tf.Feature(float_list={"value": values})
    raise InvalidArgument(f"{where}: expected texts or numbers, got {shown(value)}")


def classes_of(outputs: Sequence[Tensor], count: int) -> list[list[Labelled]]:
    """The labels with their scores of each example; without an output for them, labels are "" and scores 0. Raises Internal for
    outputs of another form."""
    found = {tensor.name: tensor for tensor in outputs}
    classes, scores = found.get("classes"), found.get("scores")
    for tensor, datatype in ((classes, DataType.BYTES), (scores, DataType.FP32)):
        if tensor is not None and (tensor.datatype is not datatype or tensor.array.ndim != _MATRIX or len(tensor.array) != count):
            raise _wrong(tensor, f"{datatype.value}[{count},classes]")
    if classes is None and scores is None:
        raise Internal("expected the outputs 'classes' and 'scores', or one of them; the model gave neither")
    if classes is not None and scores is not None and classes.array.shape != scores.array.shape:
        raise _wrong(scores, f"the shape of 'classes', {list(classes.array.shape)}")
    labels: Any = None if classes is None else [[_label(each) for each in row] for row in classes.array.tolist()]
    values: Any = None if scores is None else scores.array.tolist()
    if labels is None:
        labels = [[""] * len(row) for row in values]
    if values is None:
        values = [[0.0] * len(row) for row in labels]
    return [list(zip(*row, strict=True)) for row in zip(labels, values, strict=True)]


def _label(element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise Internal("output 'classes' holds a label that is not UTF-8") from None


def values_of(outputs: Sequence[Tensor], count: int) -> list[float]:
    """The value of each example. Raises Internal for an output of another form."""
    if len(outputs) != 1:
        raise Internal(f"expected the output 'outputs', the model gave {len(outputs)} outputs")
    [tensor] = outputs
    if tensor.datatype is not DataType.FP32 or tensor.array.size != count or tensor.array.shape[:1] != (count,):
        raise _wrong(tensor, f"FP32[{count}] or FP32[{count},1]")
    values: list[float] = tensor.array.reshape(-1).tolist()
    return values


def _wrong(tensor: Tensor, expected: str) -> Internal:
    shape = ",".join(map(str, tensor.array.shape))
    return Internal(f"output '{tensor.name}': expected {expected}, the model gave {tensor.datatype.value}[{shape}]")
