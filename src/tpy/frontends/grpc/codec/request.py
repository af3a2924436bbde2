"""ModelInferRequest to InferenceRequest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from google.protobuf.message import DecodeError

from tpy import limits
from tpy.echo import echo, echo_list, request_prefix
from tpy.errors import InvalidArgument
from tpy.frontends.binary_tensor import element_count, read_binary
from tpy.frontends.bytes_tensor import ELEMENT_BYTES_MIN
from tpy.frontends.grpc.codec.contents import read_contents
from tpy.frontends.grpc.codec.parameters import NO_PLAN, NONE, GrpcOutputPlan, read_parameters
from tpy.frontends.grpc.codec.wire import REQUEST_CLASS, ParsedRequest
from tpy.frontends.shared_memory import NO_REGIONS, RegionRange, TensorResolver, read_region, residency_of
from tpy.hot.codec import read_model_infer
from tpy.limits import TENSOR_DIMS_MAX
from tpy.messages import DataType, InferenceRequest, ModelDescription, ParameterValue, Tensor
from tpy.messages.allowed import allowed_inputs, with_hint
from tpy.messages.datatypes import BY_WORD
from tpy.messages.inference import NO_PARAMETERS

_REGION, _OFFSET, _SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


def region_of(parameters: Any, tensor: str, tensors: TensorResolver) -> RegionRange | None:
    """Returns the range that `shared_memory_region` and its fellows name, None without them. Raises InvalidArgument for a wrong
    type and for one without the other, and as TensorResolver."""
    name = _value(parameters, _REGION, "string_param", tensor)
    offset = _value(parameters, _OFFSET, "int64_param", tensor)
    size = _value(parameters, _SIZE, "int64_param", tensor)
    if name is None:
        return None
    if size is None:
        raise InvalidArgument(f"'{_SIZE}' must be specified along with '{_REGION}' parameter for tensor '{echo(tensor)}'")
    return tensors.resolve(name, offset or 0, size)


def _value(parameters: Any, key: str, kind: str, tensor: str) -> Any:
    if key not in parameters:
        return None
    if key is not _REGION and _REGION not in parameters:
        raise InvalidArgument(f"'{key}' can not be specified without '{_REGION}' parameter for tensor '{echo(tensor)}'")
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgument(f"invalid value type for '{key}' parameter for tensor '{echo(tensor)}', expected {kind}.")
    return getattr(parameter, kind)


_VERSION_MAX = 2**63 - 1
_BYTES = DataType.BYTES.value
_SHOWN_DIMS = 4_096
"""Of a shape that has too many; an error text shows fewer."""
_LEADING_NUMBER = re.compile(r"\s*([+-]?[0-9]+)", re.ASCII)


def parse_version(text: str) -> int | None:
    """The version of a request; "" means the newest: None. Like Triton, takes the number that the text begins with.

    Raises InvalidArgument for a text that begins with none, and for a version that no folder can have.
    """
    if not text:
        return None
    match = _LEADING_NUMBER.match(text)
    if match is None or len(match[1]) > len(str(_VERSION_MAX)) + 1 or abs(int(match[1])) > _VERSION_MAX:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{echo(text)}' (details: stol), "
            "version should be an integral value > 0"
        )
    version = int(match[1])
    if version < 0:
        raise InvalidArgument(f"invalid model version specified '{echo(text)}' , version should be an integral value > 0")
    return version


Decoded = tuple[InferenceRequest, GrpcOutputPlan]

_DATATYPES = {word.encode(): (kind, kind.number) for word, kind in BY_WORD.items()}


Standard = tuple[str, str, str, tuple[Tensor, ...], tuple[str, ...], Mapping[str, Any] | None]
"""A ModelInferRequest: model, version, id, tensors, names of outputs, and its parameters, None for none."""


def read_standard(message: memoryview) -> Standard | None:
    """The parts of a small request, where the native codec reads it, which `standard_request` puts together. None: it is to be
    parsed and decoded."""
    if len(message) > limits.GRPC_WHOLE_PARSE_BYTES_MAX:
        return None
    standard = read_model_infer(message, _DATATYPES, Tensor)
    if standard is None:
        return None
    model, version, identifier, inputs, requested, fields = standard
    try:
        parameters = REQUEST_CLASS.FromString(fields).parameters if fields else None
    except DecodeError:
        return None
    return model, version, identifier, inputs, requested, parameters


def standard_request(
    standard: Standard,
    *,
    version: int | None,
    received_ns: int,
    deadline_ns: int | None,
    forwarded: Mapping[str, ParameterValue] | None = None,
) -> Decoded:
    """As `decode_request`, of what `read_standard` gave."""
    model, _, identifier, inputs, requested, given = standard
    parameters = NONE if given is None else read_parameters(given)
    own = parameters.own or NO_PARAMETERS
    request = InferenceRequest(
        model_name=model,
        model_version=version,
        id=identifier,
        inputs=inputs,
        requested_outputs=requested,
        parameters={**own, **forwarded} if forwarded else own,
        sequence=parameters.sequence,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        received_ns=received_ns,
        deadline_ns=deadline_ns,
    )
    if not requested and not parameters.empty_final:
        return request, NO_PLAN
    return request, GrpcOutputPlan(requested=requested, empty_final=parameters.empty_final)


def is_heavy(parsed: ParsedRequest, message_bytes: int) -> bool:
    """Returns True if decoding takes long: many inputs, much of typed contents, or many elements of BYTES tensors, which are
    looked at one by one. `message_bytes` is the size of the request."""
    inputs = parsed.head.inputs
    if len(inputs) > limits.GRPC_INLINE_INPUTS_MAX:
        return True
    if message_bytes <= limits.GRPC_WHOLE_PARSE_BYTES_MAX:
        return False
    if parsed.contents and sum(map(len, parsed.contents.values())) > limits.GRPC_INLINE_BYTES_MAX:
        return True
    strings = size = 0
    for item, raw in zip(inputs, parsed.raws, strict=False):
        if item.datatype == _BYTES:
            size += len(raw)
            # No more of them are looked at than there should be, nor than there can be.
            count = element_count(tuple(item.shape[:TENSOR_DIMS_MAX]))
            strings += max(0, min(count, len(raw) // ELEMENT_BYTES_MIN))
    return strings > limits.GRPC_INLINE_STRINGS_MAX or size > limits.GRPC_INLINE_STRING_BYTES_MAX


def decode_request(
    parsed: ParsedRequest,
    *,
    description: ModelDescription,
    version: int | None,
    received_ns: int,
    deadline_ns: int | None,
    forwarded: Mapping[str, ParameterValue] | None = None,
    tensors: TensorResolver = NO_REGIONS,
) -> Decoded:
    """The request and how to answer it. Raw tensors become views, which keep the message's bytes alive.

    `version` is what `parse_version` made of the request's. `forwarded` are parameters made from metadata; they join the caller's
    parameters and override them. `tensors` finds tensors that are not in the message. Raises InvalidArgument; for tensors that
    are not in the message also what TensorResolver and RegionRange.load raise; nothing else, whatever the message.
    """
    head = parsed.head
    parameters = read_parameters(head.parameters) if len(head.parameters) else NONE
    inputs, uses_regions, content_types = _read_inputs(parsed, description, tensors)
    own = {**content_types, **parameters.own} if content_types else parameters.own
    requested: tuple[str, ...] = ()
    plan = NO_PLAN
    if len(head.outputs):
        requested, class_counts, regions = _read_outputs(head.outputs, request_prefix(head.id), tensors)
        plan = GrpcOutputPlan(requested=requested, class_counts=class_counts, regions=regions, empty_final=parameters.empty_final)
    elif parameters.empty_final:
        plan = GrpcOutputPlan(empty_final=True)
    request = InferenceRequest(
        model_name=head.model_name,
        model_version=version,
        id=head.id,
        inputs=inputs,
        requested_outputs=requested,
        parameters={**own, **forwarded} if forwarded else own,
        sequence=parameters.sequence,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        deadline_ns=deadline_ns,
        received_ns=received_ns,
        residency=residency_of(inputs, plan.regions) if uses_regions or plan.regions else None,
    )
    return request, plan


def _read_inputs(
    parsed: ParsedRequest, description: ModelDescription, resolver: TensorResolver
) -> tuple[tuple[Tensor, ...], bool, dict[str, str]]:
    """The inputs, whether one is in a region, and the parameters `NAME.content_type` of inputs with a content type."""
    head, raws, contents = parsed
    model = head.model_name
    prefix = request_prefix(head.id)
    tensors: dict[str, Tensor] = {}
    content_types: dict[str, str] = {}
    uses_regions = False
    raw_at = 0
    raw_count = len(raws)
    for index, item in enumerate(head.inputs):
        name = item.name
        if name in tensors:
            raise InvalidArgument(f"{prefix}input '{echo(name)}' already exists in request")
        region = None
        if len(item.parameters):
            region = region_of(item.parameters, name, resolver)
            if kind := item.parameters["content_type"].string_param if "content_type" in item.parameters else "":
                content_types[f"{name}.content_type"] = kind
        datatype = BY_WORD.get(item.datatype, DataType.INVALID)
        dimensions = len(item.shape)
        shape = tuple(item.shape) if dimensions <= TENSOR_DIMS_MAX else tuple(item.shape[:_SHOWN_DIMS])
        if dimensions > TENSOR_DIMS_MAX:
            _refuse_shape(name, shape, f"has {dimensions} dimensions, at most {TENSOR_DIMS_MAX} are supported")
        if shape and min(shape) < 0 and element_count(shape) >= 0:  # an odd number of negative sizes fails by the byte size
            _refuse_shape(name, shape, "contains one or more invalid dimensions")
        if region is not None:
            uses_regions = True
            if item.HasField("contents"):
                raise InvalidArgument(
                    f"unexpected 'content' provided when using shared memory for input tensor '{echo(name)}' for model '{model}'"
                )
            if datatype is DataType.INVALID:
                _refuse_datatype(name, description, prefix)
            array = read_region(region, datatype, shape, tensor=name, description=description, prefix=prefix)
        elif item.HasField("contents"):
            if raw_count:
                raise InvalidArgument(
                    f"contents field must not be specified when using raw_input_contents for '{echo(name)}' for model '{model}'"
                )
            given = contents.get(index, item.contents)
            array = read_contents(given, datatype, shape, tensor=name, model=model, prefix=prefix)
        elif raw_at == raw_count:
            raise InvalidArgument(f"unable to find data for input tensor '{echo(name)}' for model '{model}' in request.")
        else:
            if datatype is DataType.INVALID:
                _refuse_datatype(name, description, prefix)
            array = read_binary(raws[raw_at], datatype, shape, tensor=name, model=model, prefix=prefix)
            raw_at += 1
        tensors[name] = Tensor(name, datatype, array)
    return tuple(tensors.values()), uses_regions, content_types


def _read_outputs(
    outputs: Any, prefix: str, tensors: TensorResolver
) -> tuple[tuple[str, ...], dict[str, int], dict[str, RegionRange]]:
    """The names of the requested outputs, what is wanted as classes, and what in regions."""
    names: dict[str, None] = {}
    class_counts: dict[str, int] = {}
    regions: dict[str, RegionRange] = {}
    for item in outputs:
        if item.name in names:
            raise InvalidArgument(f"{prefix}output '{echo(item.name)}' already exists in request")
        names[item.name] = None
        parameters = item.parameters
        if not len(parameters):
            continue
        if "classification" in parameters:
            parameter = parameters["classification"]
            if parameter.WhichOneof("parameter_choice") != "int64_param":
                raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
            if parameter.int64_param <= 0:
                raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
            if "shared_memory_region" in parameters:
                raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
            class_counts[item.name] = parameter.int64_param
        region = region_of(parameters, item.name, tensors)
        if region is not None:
            regions[item.name] = region
    return tuple(names), class_counts, regions


def _refuse_datatype(name: str, description: ModelDescription, prefix: str) -> NoReturn:
    described = description.input_by_name.get(name)
    if described is None:
        allowed = allowed_inputs((each.name, each.datatype, each.shape) for each in description.inputs)
        text = f"unexpected inference input '{echo(name)}' for model '{description.name}'"
        raise InvalidArgument(with_hint(text, allowed))
    raise InvalidArgument(
        f"{prefix}inference input '{echo(name)}' data-type is '<invalid>', but model '{description.name}' expects "
        f"'{described.datatype.value}'"
    )


def _refuse_shape(name: str, shape: tuple[int, ...], problem: str) -> NoReturn:
    raise InvalidArgument(f"invalid shape for input '{echo(name)}': shape [{echo_list(shape)}] {problem}")
