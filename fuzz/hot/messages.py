"""Messages of ModelInfer: what the native codec reads or writes is what protobuf and Python read and write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fuzz.chance import Chance
from fuzz.hot.documents import random_response
from fuzz.target import Violation
from fuzz.tensors import description_of, random_tensor, raw, same, spoiled
from tpy.errors import TpyError
from tpy.frontends.grpc.codec import (
    NO_PLAN,
    Decoded,
    GrpcOutputPlan,
    decode_request,
    encode_response,
    encode_standard,
    encode_stream_response,
    parse_request,
    read_standard,
    standard_request,
)
from tpy.frontends.grpc.codec.response import Pieces, stream_in_python
from tpy.frontends.grpc.codec.wire import REQUEST_CLASS
from tpy.messages import DataType, InferenceResponse, ModelDescription, Tensor

REQUESTS = (
    "a message that the native codec reads is read as protobuf and Python read it, bit for bit, or refused in the same words;"
    " what it does not read is left to them, whatever the order, repetition and lengths of fields, and whatever bytes are wrong"
)
RESPONSES = (
    "an answer that the native codec writes is the bytes that protobuf and Python write, for any numbers, texts and shapes"
)

_PARAMETERS = (
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "triton_enable_empty_final_response",
    "own",
    "\u00e4",
    "",
    "triton_x",
)
_KINDS = ("bool_param", "int64_param", "string_param", "double_param", "uint64_param")

_MODEL: ModelDescription = description_of([Tensor("A", DataType.FP32, np.zeros(2, np.float32))])
Read = Callable[[memoryview], Decoded | None]


def native(message: memoryview) -> Decoded | None:
    """The request as the server reads it first; None: it leaves it to Python."""
    standard = read_standard(message)
    return None if standard is None else standard_request(standard, version=None, received_ns=5, deadline_ns=7)


def specified(message: memoryview) -> Decoded:
    """The request as protobuf and Python read it."""
    return decode_request(parse_request(message), description=_MODEL, version=None, received_ns=5, deadline_ns=7)


def _set_parameter(parameter: Any, name: str, chance: Chance, *, fault: float) -> None:
    kind = "bool_param" if name.endswith(("start", "end", "response")) else "int64_param"
    if name == "sequence_id":
        kind = chance.choice(("int64_param", "string_param"))
    if chance.random() < fault or name == "own":
        kind = chance.choice(_KINDS)
    values = {"bool_param": (True, False), "string_param": ("", "x", "\u00e4", "x" * 200), "double_param": (0.5, float("inf"))}
    whole = (0, 1, 7, 2**63 - 1) if kind == "uint64_param" else (0, 1, 7, 2**63 - 1, -1, -(2**63))
    setattr(parameter, kind, chance.choice(values.get(kind, whole)))


def message_of(chance: Chance) -> bytes:
    """A message that is in the standard form, or nearly."""
    fault = chance.choice((0.0, 0.0, 0.05, 0.2))

    def is_faulty() -> bool:
        return chance.random() < fault

    head: Any = REQUEST_CLASS(
        model_name="\u00e4" if is_faulty() else "m",
        model_version=chance.choice(("", "", "1", "x")),
        id=chance.choice(("", "", "7", "\u00e4" if is_faulty() else "seven")),
    )
    if chance.random() < 0.4:
        for name in chance.sample(_PARAMETERS, chance.choice((1, 2, 3))):
            _set_parameter(head.parameters[name], name, chance, fault=fault)
    fields = []
    for index in range(chance.choice((1, 1, 1, 2, 3))):
        tensor = random_tensor(chance, f"I{0 if is_faulty() else index}", text=not is_faulty())
        item = head.inputs.add(name=tensor.name, datatype=tensor.datatype.value, shape=tensor.array.shape)
        if is_faulty():
            item.shape.append(chance.choice((0, -1, 2**28, 2**40)))
        if is_faulty():
            item.datatype = chance.choice(("", "FLOAT", "fp32"))
        if is_faulty():
            item.contents.int_contents.append(1)
        content = raw(tensor)
        fields.append(content + b"\2" if is_faulty() else content)
    for index in range(chance.choice((0, 0, 1, 2))):
        output = head.outputs.add(name=f"O{0 if is_faulty() else index}")
        if is_faulty():
            output.parameters["classification"].int64_param = 1
    if is_faulty():
        fields.append(b"more")
    if is_faulty() and fields:
        fields.pop()
    begin: bytes = head.SerializeToString()
    # Raw tensors in front, in the middle, or behind, as a writer may put them.
    rest = REQUEST_CLASS(raw_input_contents=fields).SerializeToString()
    twice = REQUEST_CLASS(id="again").SerializeToString() if is_faulty() else b""
    return chance.choice((begin + rest, begin + rest, rest + begin)) + twice


def compare(message: bytes, read: Read = native) -> bool:
    """Raise Violation where the two differ. Returns whether the native codec has read it."""
    found = _read_or_refused(read, message)
    if found is None:
        return False
    expected = _read_or_refused(specified, message)
    if isinstance(found, str) or isinstance(expected, str) or expected is None:
        if found != expected:
            raise Violation(f"{message!r}\n  read as {found}\n  Python: {expected}")
        return True
    request, own_plan = found
    wanted, plan = expected
    fields = (
        "id",
        "requested_outputs",
        "sequence",
        "priority",
        "timeout_us",
        "residency",
        "model_name",
        "received_ns",
        "deadline_ns",
    )
    if (
        any(getattr(request, field) != getattr(wanted, field) for field in fields)
        or repr(dict(request.parameters)) != repr(dict(wanted.parameters))
        or own_plan != plan
        or len(request.inputs) != len(wanted.inputs)
        or not all(map(same, request.inputs, wanted.inputs))
        or any(_kind(one) != _kind(other) for one, other in zip(request.inputs, wanted.inputs, strict=True))
    ):
        raise Violation(f"{message!r}\n  read as {request} {own_plan}\n  Python: {wanted} {plan}")
    return True


def _read_or_refused(read: Read, message: bytes) -> Decoded | str | None:
    try:
        return read(memoryview(message))
    except TpyError as error:
        return f"{type(error).__name__}: {error.message}"


def _kind(tensor: Tensor) -> tuple[object, ...]:
    array = tensor.array
    return array.dtype, array.flags.aligned, array.flags.c_contiguous, tensor.datatype is DataType.BYTES or array.flags.writeable


def run_requests(chance: Chance, read: Read = native) -> int:
    """One message, and the same with bytes that are wrong."""
    message = message_of(chance)
    compare(message, read)
    for _ in chance.rounds((1, 3)):
        compare(bytes(spoiled(chance, message)), read)
    return 3


def attack(data: bytes) -> int:
    """Any message."""
    compare(data)
    return 1


def run_responses(chance: Chance) -> int:
    """One answer."""
    response = random_response(chance)
    plan = chance.choice((NO_PLAN, GrpcOutputPlan(requested=("OUT",))))
    found = encode_standard(response, plan)
    if found is not None and found != (expected := _written(response, plan)):
        raise Violation(f"{response}\n  written as {found!r}\n  Python: {expected!r}")
    if response.error is None:
        description = description_of(list(response.outputs))
        streamed = [
            _joined(partial(encode, response, plan, description)) for encode in (encode_stream_response, stream_in_python)
        ]
        if streamed[0] != streamed[1]:
            raise Violation(f"{response}\n  streamed as {streamed[0]!r}\n  Python: {streamed[1]!r}")
    return 1


def _written(response: InferenceResponse, plan: GrpcOutputPlan) -> bytes | str:
    return _joined(lambda: encode_response(response, plan, description_of(list(response.outputs))))


def _joined(encode: Callable[[], Pieces]) -> bytes | str:
    try:
        return b"".join(encode())
    except TpyError as error:
        return f"{type(error).__name__}: {error.message}"
