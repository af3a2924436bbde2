"""The requests of the gRPC port: read field by field, so that no more is given to protobuf than a bound says, and tensors stay
where they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.grpc.codec.fields import (
    Field,
    FieldBudget,
    TooManyFields,
    count_nested_fields,
    each_field,
    length_delimited,
    unparsable,
)
from tpy.limits.tensorflow_serving import EXAMPLES_MAX, TASKS_MAX
from tpy_platforms.tensorflow_serving.examples import read_input
from tpy_platforms.tensorflow_serving.models import ModelSpec
from tpy_platforms.tensorflow_serving.protos import pb

_SPEC, _SECOND, _THIRD = (length_delimited(number) for number in (1, 2, 3))
_KEY, _VALUE = length_delimited(1), length_delimited(2)


class PredictFields(NamedTuple):
    """A PredictRequest, its tensors unread."""

    spec: bytes
    inputs: Mapping[str, memoryview]
    outputs: Sequence[str]


def read_predict(message: memoryview) -> PredictFields:
    """Raises InvalidArgument for a message of more fields than a request has, Internal for a broken one."""
    spec: list[memoryview] = []
    inputs: dict[str, memoryview] = {}
    outputs: list[str] = []
    budget = FieldBudget(limits.GRPC_REQUEST_FIELDS_MAX)
    for tag, _, body, end in _fields(message, budget):
        if tag == _SPEC:
            spec.append(message[body:end])
        elif tag == _SECOND:
            entry = message[body:end]
            key, value = memoryview(b""), memoryview(b"")
            for inner, _, at, stop in _fields(entry, budget):
                if inner == _KEY:
                    key = entry[at:stop]
                elif inner == _VALUE:
                    value = entry[at:stop]
            inputs[_text(key)] = value
        elif tag == _THIRD:
            outputs.append(_text(message[body:end]))
    return PredictFields(whole_spec(spec), inputs, outputs)


def read_examples(message: memoryview, fields_max: int, examples_max: int) -> tuple[list[memoryview], list[bytes]]:
    """The occurrences of the first field of a message, the model spec or the tasks, and the examples of the Input in the second
    one. Raises TooManyFields."""
    first: list[memoryview] = []
    inputs: list[memoryview] = []
    for tag, _, body, end in each_field(message, FieldBudget(fields_max)):
        if tag == _SPEC:
            first.append(message[body:end])
        elif tag == _SECOND:
            inputs.append(message[body:end])
    return first, read_input(inputs, examples_max)


def read_many_examples(message: memoryview) -> tuple[list[memoryview], list[bytes]]:
    """The same up to the bounds. Raises InvalidArgument beyond them."""
    try:
        return read_examples(message, limits.GRPC_REQUEST_FIELDS_MAX, EXAMPLES_MAX)
    except TooManyFields:
        raise InvalidArgument(
            f"more than {EXAMPLES_MAX} examples, or {limits.GRPC_REQUEST_FIELDS_MAX} fields around them, at most as many are "
            "accepted"
        ) from None


def read_tasks(parts: Sequence[memoryview]) -> list[Any]:
    """The tasks of a MultiInference. Raises InvalidArgument for none, and for more than are accepted."""
    if not parts:
        raise InvalidArgument("Inference request is empty: it has no tasks")
    if len(parts) > TASKS_MAX:
        raise InvalidArgument(f"more than {TASKS_MAX} tasks, at most as many are accepted")
    return [parsed(pb.InferenceTask, part) for part in parts]


def whole_spec(parts: Sequence[memoryview]) -> bytes:
    """A model spec in parts, the occurrences of its field, which protobuf merges. Raises InvalidArgument for one that is larger
    than a spec is, before it is copied."""
    size = sum(map(len, parts))
    if size > limits.GRPC_CONTROL_BYTES_MAX:
        raise InvalidArgument(f"a ModelSpec of {size} bytes, at most {limits.GRPC_CONTROL_BYTES_MAX} are accepted")
    return b"".join(parts)


def _fields(message: memoryview, budget: FieldBudget | None = None) -> Iterator[Field]:
    """The fields of a message. Raises InvalidArgument for more than a request has."""
    try:
        yield from each_field(message, budget or FieldBudget(limits.GRPC_REQUEST_FIELDS_MAX))
    except TooManyFields:
        raise InvalidArgument(f"more than {limits.GRPC_REQUEST_FIELDS_MAX} fields, at most as many are accepted") from None


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise unparsable() from None


def parsed(
    kind: Any,
    message: memoryview,
    bytes_max: int = limits.GRPC_CONTROL_BYTES_MAX,
    fields_max: int = limits.GRPC_CONTROL_FIELDS_MAX,
) -> Any:
    """A small message. Raises Internal for a broken one, InvalidArgument for one that is larger than such messages are."""
    name = kind.DESCRIPTOR.name
    if len(message) > bytes_max:
        raise InvalidArgument(f"a {name} of {len(message)} bytes, at most {bytes_max} are accepted")
    try:
        count_nested_fields(message, kind.DESCRIPTOR, FieldBudget(fields_max))
    except TooManyFields:
        raise InvalidArgument(f"a {name} with more than {fields_max} fields, at most as many are accepted") from None
    try:
        return kind.FromString(bytes(message))
    except DecodeError:
        raise unparsable() from None


def parsed_reload(message: memoryview) -> Any:
    """A ReloadConfigRequest. Raises as `parsed`."""
    return parsed(pb.ReloadConfigRequest, message, limits.GRPC_HEAD_BYTES_MAX, limits.GRPC_LOAD_FIELDS_MAX)


def read_spec(data: bytes) -> ModelSpec:
    """The model that the bytes of a ModelSpec name. Raises as `parsed`, InvalidArgument without a name."""
    return spec_of(parsed(pb.ModelSpec, memoryview(data)))


def spec_of(said: Any) -> ModelSpec:
    """The model that a ModelSpec names. Raises InvalidArgument without a name, and for a version below 0."""
    if not said.name:
        raise InvalidArgument("Missing ModelSpec: expected model_spec.name")
    version = said.version.value if said.HasField("version") else None
    if version is not None and version < 0:
        raise InvalidArgument(f"model_spec.version: expected at least 0, got {version}")
    return ModelSpec(name=said.name, version=version, label=said.version_label, signature=said.signature_name)
