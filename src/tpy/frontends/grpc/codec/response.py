"""InferenceResponse to the pieces of a ModelInferResponse or ModelStreamInferResponse.

Tensors always travel as raw contents. A small message is one piece; in a large one the tensors are separate pieces, views over
the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpy.errors import Internal, InvalidArgument
from tpy.frontends.binary_tensor import write_binary
from tpy.frontends.classification import classify
from tpy.frontends.grpc.codec.parameters import GrpcOutputPlan
from tpy.frontends.grpc.codec.wire import RESPONSE_CLASS, STREAM_RESPONSE_CLASS, infer_response, raw_output
from tpy.frontends.missing_outputs import missing_outputs
from tpy.hot.codec import write_model_infer
from tpy.limits import (
    GRPC_INLINE_ELEMENTS_MAX,
    GRPC_JOINED_BYTES_MAX,
    GRPC_MESSAGE_BYTES_MAX,
    INLINE_STRING_OUTPUT_BYTES_MAX,
    REGION_INLINE_BYTES_MAX,
)
from tpy.messages import DataType, InferenceResponse, ModelDescription, ParameterValue, Tensor, content_bytes, held_bytes
from tpy.messages.inference import parameter_problem

Pieces = list[bytes | memoryview]

_FINAL = "triton_final_response"
_IS_FINAL, _IS_NOT_FINAL = (
    RESPONSE_CLASS(parameters={_FINAL: {"bool_param": is_final}}).SerializeToString() for is_final in (True, False)
)
"""The field of this parameter."""

_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1


def is_large(response: InferenceResponse, plan: GrpcOutputPlan) -> bool:
    """Returns True if encoding takes long: many or large BYTES elements, many elements to classify, large outputs or GPUs to copy
    to."""
    for output in response.outputs:
        counted = output.datatype is DataType.BYTES or output.name in plan.class_counts
        if counted and output.array.size > GRPC_INLINE_ELEMENTS_MAX:
            return True
        if output.datatype is DataType.BYTES and content_bytes(output.array) > INLINE_STRING_OUTPUT_BYTES_MAX:
            return True
        region = plan.regions.get(output.name) if plan.regions else None
        if region is not None and (
            region.gpu is not None or held_bytes((output,), REGION_INLINE_BYTES_MAX + 1) > REGION_INLINE_BYTES_MAX
        ):
            return True
    return False


def encode_response(response: InferenceResponse, plan: GrpcOutputPlan, description: ModelDescription) -> Pieces:
    """A ModelInferResponse. Raises the response's `error` when it has one; InvalidArgument for one that no gRPC message can hold
    and for classification of types without an order; Internal for parameters that protobuf cannot carry."""
    if response.error is not None:
        raise response.error
    return _encode(response, plan, description, response.parameters)[0]


def encode_standard(response: InferenceResponse, plan: GrpcOutputPlan, parameters: bytes = b"") -> bytes | None:
    """As `encode_response`, of a response that the native codec writes, in one piece; None for all others. `parameters` are
    fields that it gets."""
    if response.error is not None or response.parameters or len(response.outputs) < len(plan.requested):
        return None
    if plan.class_counts or plan.regions:
        return None
    return write_model_infer(
        response.id, response.model_name, response.model_version, response.outputs, GRPC_JOINED_BYTES_MAX, parameters
    )


def encode_stream_response(response: InferenceResponse, plan: GrpcOutputPlan, description: ModelDescription) -> Pieces:
    """A ModelStreamInferResponse. Raises as `encode_response`."""
    if response.error is not None:
        raise response.error
    written = encode_standard(response, plan, _IS_FINAL if response.final else _IS_NOT_FINAL)
    if written is not None:
        return [infer_response(len(written)) + written]
    return stream_in_python(response, plan, description)


def stream_in_python(response: InferenceResponse, plan: GrpcOutputPlan, description: ModelDescription) -> Pieces:
    """As `encode_stream_response`, which it is the specification of, of a response without error."""
    pieces, size = _encode(response, plan, description, {**response.parameters, _FINAL: response.final})
    start = infer_response(size)
    return [start, *pieces] if len(pieces) > 1 else [start + pieces[0]]


def encode_empty_final(model_name: str, model_version: str, request_id: str) -> bytes:
    """The message that only says that a decoupled request has ended. `model_version` is what the request said."""
    message = STREAM_RESPONSE_CLASS()
    inner = message.infer_response
    inner.model_name, inner.model_version, inner.id = model_name, model_version, request_id
    inner.parameters[_FINAL].bool_param = True
    return _serialised(message)


def encode_stream_error(text: str, *, request_id: str, response: InferenceResponse | None = None) -> bytes:
    """A failure inside the stream: on arrival, or in a `response` of the model, which then also names it and says whether it was
    the last one."""
    message = STREAM_RESPONSE_CLASS(error_message=text)
    inner = message.infer_response
    inner.SetInParent()
    inner.id = request_id
    if response is not None:
        inner.model_name = response.model_name
        inner.parameters[_FINAL].bool_param = response.final
    return _serialised(message)


def _encode(
    response: InferenceResponse, plan: GrpcOutputPlan, description: ModelDescription, parameters: Mapping[str, ParameterValue]
) -> tuple[Pieces, int]:
    if len(response.outputs) < len(plan.requested) and description.requires_outputs:
        missing = missing_outputs(response, plan.requested)
        if missing is not None:
            raise missing
    message = RESPONSE_CLASS(model_name=response.model_name, model_version=str(response.model_version), id=response.id)
    for key, value in parameters.items():
        _set_parameter(message.parameters[key], key, value)
    blobs: Pieces = []
    size = 0
    for tensor in response.outputs:
        class_count = plan.class_counts.get(tensor.name, 0) if plan.class_counts else 0
        if class_count:
            tensor = _classified(tensor, class_count, response.described_by or description)
        message.outputs.add(name=tensor.name, datatype=tensor.datatype.value, shape=tensor.array.shape)
        before, blob = raw_output(_stored(tensor, plan) if plan.regions else _blob(tensor))
        blobs += before, blob
        size += len(before) + len(blob)
    head = _serialised(message)
    size += len(head)
    if size > GRPC_MESSAGE_BYTES_MAX:
        raise InvalidArgument(f"Response has byte size {size} which exceeds gRPC's byte size limit {GRPC_MESSAGE_BYTES_MAX}.")
    if size <= GRPC_JOINED_BYTES_MAX:
        return [b"".join((head, *blobs))], size
    return [head, *blobs], size


def _stored(tensor: Tensor, plan: GrpcOutputPlan) -> bytes | memoryview:
    """The bytes of an output to be sent, when some outputs are written into regions."""
    region = plan.regions.get(tensor.name)
    if region is None:
        return _blob(tensor)
    if tensor.array.size:
        region.store(tensor)
    return b""


def _blob(tensor: Tensor) -> bytes | memoryview:
    array = tensor.array
    if tensor.datatype is not DataType.BYTES and array.nbytes <= GRPC_JOINED_BYTES_MAX:
        return array.tobytes()  # copied anyway when it is joined
    return write_binary(array, tensor.datatype)


def _classified(tensor: Tensor, class_count: int, description: ModelDescription) -> Tensor:
    described = description.output_by_name.get(tensor.name)
    labels = described.labels if described is not None else ()
    return classify(tensor, class_count=class_count, batches=description.batches, labels=labels)


def _set_parameter(parameter: Any, key: str, value: ParameterValue) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, str):
        try:
            parameter.string_param = value
        except ValueError:  # half a surrogate pair: only model code makes them
            raise Internal(parameter_problem(key, value)) from None
    elif isinstance(value, float):
        parameter.double_param = value
    elif _INT64_MIN <= value <= _INT64_MAX:
        parameter.int64_param = value
    elif 0 <= value <= _UINT64_MAX:
        parameter.uint64_param = value
    else:
        raise Internal(parameter_problem(key, value))


def _serialised(message: Any) -> bytes:
    serialised: bytes = message.SerializeToString()
    return serialised
