"""Reads an inference request: JSON, JSON with blobs behind it, or the raw binary request, a body that is nothing but the only
input's data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpy.echo import echo, request_prefix
from tpy.errors import InvalidArgument
from tpy.frontends.binary_tensor import read_binary
from tpy.frontends.bytes_tensor import object_array
from tpy.frontends.http.codec.document import (
    NON_BOOLEAN,
    NON_STRING,
    NON_UNSIGNED,
    array_member,
    is_unsigned,
    load_document,
    missing,
    refuse_type,
    region_of,
    string_member,
)
from tpy.frontends.http.codec.inputs import InputReader
from tpy.frontends.http.codec.numbers import holds_numbers, load_with_numbers
from tpy.frontends.http.codec.parameters import (
    BINARY,
    BINARY_PLAN,
    JSON,
    JSON_PLAN,
    NONE,
    HttpOutputPlan,
    OutputChoice,
    read_parameters,
)
from tpy.frontends.http.codec.pieces import LongString
from tpy.frontends.shared_memory import NO_REGIONS, RegionRange, TensorResolver, residency_of
from tpy.hot.codec import Infer, read_infer
from tpy.limits import HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX, JSON_LISTS_BYTES_MAX, JSON_WHOLE_BYTES_MAX
from tpy.messages import DataType, InferenceRequest, ModelDescription, ParameterValue, Tensor, TensorDescription
from tpy.messages.datatypes import BY_WORD
from tpy.messages.inference import NO_PARAMETERS

_PREFIX = "[request id: <id_unknown>] "
"""A raw request has no place for an id."""

_NAME = "raw_input"
"""Triton's name of the input when its size is wrong."""


def _read_raw_input(body: bytes | bytearray | memoryview, description: ModelDescription) -> Tensor:
    """The model's only input, its shape deduced: batch 1, and one variable dimension from the size of `body`.

    Raises InvalidArgument when the model has several inputs, several variable dimensions, a BYTES input that is not one
    element, or when `body` has another size than the shape needs.
    """
    if len(description.inputs) != 1:
        raise InvalidArgument(
            f"{_PREFIX}Raw request must only have 1 input (found 1) to be deduced but got {len(description.inputs)} inputs in "
            f"'{description.name}' model configuration"
        )
    described = description.inputs[0]
    shape = _deduced_shape(described, len(body), batches=description.batches)
    array: np.ndarray[Any, Any]
    if described.datatype is DataType.BYTES:
        array = object_array([bytes(body)], shape)
    else:
        array = read_binary(body, described.datatype, shape, tensor=_NAME, model=description.name, prefix=_PREFIX)
    return Tensor(described.name, described.datatype, array)


def _deduced_shape(described: TensorDescription, body_bytes: int, *, batches: bool) -> tuple[int, ...]:
    shape = [1, *described.shape[1:]] if batches else list(described.shape)
    variable = [axis for axis, size in enumerate(shape) if size == -1]
    if len(variable) > 1:
        raise InvalidArgument(
            f"{_PREFIX}The shape of the raw input '{described.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    element_count = 1
    for size in shape:
        element_count *= size if size != -1 else 1
    if described.datatype is DataType.BYTES:
        if variable or element_count != 1:
            raise InvalidArgument(f"{_PREFIX}For BYTE datatype raw input '{described.name}', the model must have input shape [1]")
    elif variable:
        shape[variable[0]] = body_bytes // max(1, element_count * described.datatype.itemsize)
    return tuple(shape)


_INT32_MAX = 2**31 - 1
_NO_INPUTS = (
    'expected {"inputs": [{"name": ..., "datatype": ..., "shape": [...], "data": [...]}]} (values by name alone are for the '
    "model's /generate)"
)
_DATATYPES = {word.encode(): (kind, kind.number) for word, kind in BY_WORD.items()}
_NUMBER = re.compile(rb"[ \t]*([+-]?[0-9]+)[ \t]*")


def parse_header_length(value: bytes | None, body_length: int) -> int | None:
    """The number in `Inference-Header-Content-Length`, None without the header. `body_length` counts decompressed bytes.

    Raises InvalidArgument unless it is a number between 0 and `body_length`.
    """
    if value is None:
        return None
    if value.isdigit() and len(value) < len(str(_INT32_MAX)) and int(value) <= body_length:
        return int(value)
    match = _NUMBER.fullmatch(value)
    text = value.decode("latin-1")
    if match is None:
        raise InvalidArgument(f"Unable to parse Inference-Header-Content-Length, got: {echo(text)}")
    digits = match[1]
    if len(digits) > len(str(_INT32_MAX)) + 1 or not -_INT32_MAX - 1 <= int(digits) <= _INT32_MAX:
        raise InvalidArgument(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ {-_INT32_MAX - 1}, {_INT32_MAX} ], got: {echo(text)}"
        )
    length = int(digits)
    if not 0 <= length <= body_length:
        raise InvalidArgument(f"inference header size should be in range (0, {body_length}), got: {echo(text)}")
    return length


def parse_infer(
    body: bytes | bytearray | memoryview,
    *,
    header_length: int | None,
    description: ModelDescription,
    version: int | None,
    received_ns: int,
    forwarded: Mapping[str, ParameterValue] | None = None,
    tensors: TensorResolver = NO_REGIONS,
) -> tuple[InferenceRequest, HttpOutputPlan]:
    """The request in `body` and how to answer it.

    `body` is decompressed and belongs to the request from now on: binary tensors are views over it (a memoryview must be of
    single bytes). `header_length` is what `parse_header_length` gave: None means JSON only, 0 a raw binary request, else the
    length of the JSON part in bytes; an empty body is a raw request, too. `version` is the one of the URL. `forwarded` are
    parameters made from headers; they join the caller's parameters and override them. `tensors` finds tensors that are not in
    `body`.

    Raises InvalidArgument; for tensors that are not in `body` also what TensorResolver and RegionRange.load raise; nothing else,
    whatever the bytes.
    """
    if header_length is None:
        header_length = len(body)
    if header_length == 0:
        request = InferenceRequest(
            model_name=description.name,
            model_version=version,
            inputs=(_read_raw_input(body, description),),
            parameters=dict(forwarded) if forwarded else {},
            received_ns=received_ns,
        )
        return request, BINARY_PLAN
    if type(body) is bytes and header_length <= HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX:
        standard = read_infer(body, header_length, _DATATYPES, Tensor)
        if standard is not None and (decoded := _standard_request(standard, description, version, received_ns, forwarded)):
            return decoded
    return parse_in_python(body, header_length, description, version, received_ns, forwarded, tensors)


def parse_in_python(
    body: bytes | bytearray | memoryview,
    header_length: int,
    description: ModelDescription,
    version: int | None,
    received_ns: int,
    forwarded: Mapping[str, ParameterValue] | None,
    tensors: TensorResolver,
) -> tuple[InferenceRequest, HttpOutputPlan]:
    """As `parse_infer`, which it is the specification of, of a request that has JSON."""
    text = body if header_length == len(body) else memoryview(body)[:header_length]
    if _is_mostly_numbers(len(text), description.inputs):
        document = load_with_numbers(text)
        if document is not None:
            try:
                return _read(document, body, header_length, description, version, received_ns, forwarded, tensors)
            except InvalidArgument:  # what is said of it is to be that which is said of lists
                pass
    return _read(load_document(text), body, header_length, description, version, received_ns, forwarded, tensors)


def _standard_request(
    standard: Infer[Tensor],
    description: ModelDescription,
    version: int | None,
    received_ns: int,
    forwarded: Mapping[str, ParameterValue] | None,
) -> tuple[InferenceRequest, HttpOutputPlan] | None:
    """As `_read`, of a document that the native codec has read; None for one whose parameters are not JSON."""
    request_id, inputs, outputs, is_binary, text = standard
    parameters = NONE
    if text:
        try:
            document = load_document(text)
        except InvalidArgument:
            return None
        parameters = read_parameters(document)
        is_binary = parameters.binary_output
    plan = BINARY_PLAN if is_binary else JSON_PLAN
    requested: tuple[str, ...] = ()
    if outputs:
        requested = tuple([name for name, _ in outputs])
        choices = {name: BINARY if wants_blob else JSON for name, wants_blob in outputs}
        plan = HttpOutputPlan(choices=choices, default=plan.default)
    own = parameters.own or NO_PARAMETERS
    request = InferenceRequest(
        model_name=description.name,
        model_version=version,
        id=request_id,
        inputs=inputs,
        requested_outputs=requested,
        parameters={**own, **forwarded} if forwarded else own,
        sequence=parameters.sequence,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        received_ns=received_ns,
    )
    return request, plan


def _is_mostly_numbers(size: int, inputs: Sequence[TensorDescription]) -> bool:
    """Returns True if JSON of `size` bytes may be long arrays of numbers for the most part."""
    return JSON_LISTS_BYTES_MAX * (len(inputs) + 1) < size <= JSON_WHOLE_BYTES_MAX and any(
        holds_numbers(each.datatype) for each in inputs
    )


def _read(
    document: object,
    body: bytes | bytearray | memoryview,
    blobs_at: int,
    description: ModelDescription,
    version: int | None,
    received_ns: int,
    forwarded: Mapping[str, ParameterValue] | None,
    tensors: TensorResolver,
) -> tuple[InferenceRequest, HttpOutputPlan]:
    members: dict[str, object] = document if type(document) is dict else {}
    request_id = members.get("id", "")
    if type(request_id) is LongString:
        request_id = request_id.decode()
    if type(request_id) is not str:
        refuse_type("id", NON_STRING, request_id)
    parameters = read_parameters(members["parameters"]) if "parameters" in members else NONE
    reader = InputReader(body, blobs_at=blobs_at, description=description, request_id=request_id, tensors=tensors)
    if "inputs" not in members:
        missing("inputs", document, _NO_INPUTS)
    inputs = reader.read(array_member(members, "inputs"))
    plan = BINARY_PLAN if parameters.binary_output else JSON_PLAN
    own = {**reader.content_types, **parameters.own} if reader.content_types else parameters.own
    requested: tuple[str, ...] = ()
    regions: dict[str, RegionRange] = {}
    if "outputs" in members:
        choices = _read_outputs(array_member(members, "outputs"), request_id, tensors)
        if choices:
            requested = tuple(choices)
            plan = HttpOutputPlan(choices=choices, default=plan.default)
            regions = {name: choice.region for name, choice in choices.items() if choice.region is not None}
    request = InferenceRequest(
        model_name=description.name,
        model_version=version,
        id=request_id,
        inputs=inputs,
        requested_outputs=requested,
        parameters={**own, **forwarded} if forwarded else own,
        sequence=parameters.sequence,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        received_ns=received_ns,
        residency=residency_of(inputs, regions) if regions or reader.uses_regions else None,
    )
    return request, plan


def _read_outputs(outputs: list[object], request_id: str, tensors: TensorResolver) -> dict[str, OutputChoice]:
    """Returns the choice of each requested output, in the order of the request."""
    choices: dict[str, OutputChoice] = {}
    for item in outputs:
        parameters = item.get("parameters") if type(item) is dict else None
        choice = _read_choice(parameters, tensors) if type(parameters) is dict and parameters else JSON
        name = string_member(item, "name")
        if name in choices:
            raise InvalidArgument(f"{request_prefix(request_id)}output '{echo(name)}' already exists in request")
        choices[name] = choice
    return choices


def _read_choice(parameters: dict[str, object], tensors: TensorResolver) -> OutputChoice:
    """The choice in an output's own parameters. Without `binary_data` there it is JSON, whatever the request says for all."""
    binary = parameters.get("binary_data", False)
    if "shared_memory_region" in parameters:
        if "classification" in parameters:
            raise InvalidArgument("Output can't set both 'shared_memory_region' and 'classification'")
        if type(binary) is not bool:
            raise InvalidArgument(f"Unable to set 'binary_data': {NON_BOOLEAN}")
        if binary:
            raise InvalidArgument("Output can't set both 'shared_memory_region' and 'binary_data'")
        return OutputChoice(region=region_of(parameters, tensors))
    classification = parameters.get("classification", 0)
    if not is_unsigned(classification):
        raise InvalidArgument(f"Unable to set 'classification': {NON_UNSIGNED}")
    if type(binary) is not bool:
        refuse_type("binary_data", NON_BOOLEAN, binary)
    if type(classification) is int and classification:
        return OutputChoice(binary=binary, classification=classification)
    return BINARY if binary else JSON
