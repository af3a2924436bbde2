"""The requests about shared memory with clients over gRPC, in the order in which they are sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from .grpc_cases import GrpcCase
from .shared_memory_cases import FLOATS, INT64_MAX, INTS, OTHERS, OUTPUT_BYTES, PAGE, RESERVED, WORDS, Segments, region

Values = Mapping[str, Any]
NO_VALUES: Values = MappingProxyType({})


def grpc_cases(made: Segments) -> list[GrpcCase]:
    """All calls over gRPC."""
    return [*_grpc_registrations(made), *_grpc_infers(), *_grpc_streams(), *_grpc_ends()]


def _call(name: str, *requests: Message, method: str = "") -> GrpcCase:
    of = method or type(requests[0]).DESCRIPTOR.name.removesuffix("Request")
    return GrpcCase(name=name, method=of, messages=tuple(request.SerializeToString() for request in requests))


def _grpc_registrations(made: Segments) -> Iterator[GrpcCase]:
    key, system = made.key, pb.SystemSharedMemoryRegisterRequest
    yield _call("status before", pb.SystemSharedMemoryStatusRequest())
    yield _call("cuda status before", pb.CudaSharedMemoryStatusRequest())
    yield _call("status of unknown", pb.SystemSharedMemoryStatusRequest(name="nosuch"))
    yield _call("cuda status of unknown", pb.CudaSharedMemoryStatusRequest(name="nosuch"))
    yield _call("unregister unknown", pb.SystemSharedMemoryUnregisterRequest(name="nosuch"))
    yield _call("register in", system(name="in", key=key("in"), byte_size=64))
    yield _call("register out", system(name="out", key=key("out"), byte_size=OUTPUT_BYTES))
    yield _call("register words", system(name="words", key=key("words"), byte_size=len(WORDS) + 5))
    yield _call("register the second page", system(name="page", key=key("pages"), offset=PAGE, byte_size=PAGE))
    yield _call("register a name again", system(name="in", key=key("out"), byte_size=8))
    yield _call("register without a name", system(key=key("in"), byte_size=8))
    bad: tuple[tuple[str, dict[str, Any]], ...] = (
        ("nothing", {}),
        ("no key", {"byte_size": 8}),
        ("no bytes", {"key": key("spare")}),
        ("an offset within a page", {"key": key("spare"), "offset": 8, "byte_size": 8}),
        ("too many bytes", {"key": key("spare"), "byte_size": 65}),
        ("offset and size that overflow to nothing", {"key": key("spare"), "offset": 2**63, "byte_size": 2**63}),
        ("an unknown key", {"key": key("nosuch"), "byte_size": 8}),
        ("a path as key", {"key": "/../shm" + key("spare"), "byte_size": 8}),
        ("a key with NUL", {"key": key("spare") + "\0x", "byte_size": 8}),
        ("a key of the server's own", {"key": "/" + RESERVED, "byte_size": 8}),
    )
    for name, members in bad:
        yield _call(f"register {name}", system(name="nul" if "NUL" in name else "bad", **members))
    yield _call("status of one", pb.SystemSharedMemoryStatusRequest(name="page"))
    yield _call("status of all", pb.SystemSharedMemoryStatusRequest())
    cuda = pb.CudaSharedMemoryRegisterRequest
    yield _call("cuda status of a system region", pb.CudaSharedMemoryStatusRequest(name="in"))
    yield _call("register cuda", cuda(name="gpu", raw_handle=bytes(64), device_id=0, byte_size=8))
    yield _call("register cuda, a short handle", cuda(name="gpu", raw_handle=bytes(8), device_id=0, byte_size=8))
    yield _call("register cuda, nothing", cuda())
    yield _call("unregister cuda, of a system region", pb.CudaSharedMemoryUnregisterRequest(name="in"))
    yield _call("unregister cuda, all", pb.CudaSharedMemoryUnregisterRequest())


def _parameters(into: Any, values: Values) -> None:
    for name, value in values.items():
        field = {str: "string_param", bool: "bool_param", int: "int64_param", float: "double_param"}.get(type(value))
        if field is None:
            field, value = value
        setattr(into[name], field, value)


def _tensor(parameters: Values, datatype: str = "FP32", shape: Sequence[int] = (1, 4)) -> pb.ModelInferRequest.InferInputTensor:
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype=datatype, shape=shape)
    _parameters(tensor.parameters, parameters)
    return tensor


def _request(
    inputs: Sequence[pb.ModelInferRequest.InferInputTensor],
    outputs: Sequence[tuple[str, Values]] = (),
    *,
    model: str = "ident",
    raw: Sequence[bytes] = (),
    identity: str = "",
) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id=identity, inputs=inputs, raw_input_contents=raw)
    for name, values in outputs:
        _parameters(request.outputs.add(name=name).parameters, values)
    return request


_GRPC_IN = _tensor(region("in", 16))
_GRPC_OUT: tuple[str, Values] = ("OUTPUT0", region("out", 16))


def _grpc_infers() -> Iterator[GrpcCase]:
    plain = _tensor(NO_VALUES)
    yield _call("infer in and out", _request([_GRPC_IN], [_GRPC_OUT], identity="seven"))
    yield _call("infer out alone", _request([plain], [_GRPC_OUT], raw=[OTHERS]))
    yield _call("infer in alone", _request([_GRPC_IN]))
    offset = ("OUTPUT0", region("out", 16, 48))
    yield _call("infer at an offset", _request([_tensor(region("in", 16, 16))], [offset]))
    yield _call("infer into what is larger", _request([_GRPC_IN], [("OUTPUT0", region("out", 64))]))
    yield _call("infer into what is smaller", _request([_GRPC_IN], [("OUTPUT0", region("out", 15))]))
    yield _call("infer into no bytes", _request([_GRPC_IN], [("OUTPUT0", region("out", 0))]))
    yield _call("infer an empty output", _request([_tensor(NO_VALUES, shape=(1, 0))], [("OUTPUT0", region("out", 8))], raw=[b""]))
    contents = _tensor(region("in", 16))
    contents.contents.fp32_contents.extend([1, 2, 3, 4])
    yield _call("infer input and contents", _request([contents]))
    yield _call("infer input and raw contents", _request([_GRPC_IN], raw=[FLOATS]))
    inputs: tuple[tuple[str, Values], ...] = (
        ("unknown", region("nosuch", 16)),
        ("that is no name", region(7, 16)),
        ("without a name", region("", 16)),
        ("of no size", region("in")),
        ("of the size 0", region("in", 0)),
        ("too short", region("in", 12)),
        ("too long", region("in", 20)),
        ("of a string as size", region("in", "16")),
        ("of an unsigned size", region("in", ("uint64_param", 16))),
        ("of a negative size", region("in", -16)),
        ("of a string as offset", region("in", 16, "0")),
        ("of an unsigned offset", region("in", 16, ("uint64_param", 0))),
        ("of a negative offset", region("in", 16, -4)),
        ("of an offset at the end", region("in", 16, 64)),
        ("that goes beyond the end", region("in", 16, 56)),
        ("of the largest size", region("in", INT64_MAX)),
        ("of the largest offset and size", region("in", INT64_MAX, INT64_MAX)),
        ("size without a region", {"shared_memory_byte_size": 16}),
        ("offset without a region", {"shared_memory_offset": 0}),
    )
    for name, values in inputs:
        yield _call(f"infer input {name}", _request([_tensor(values)]))
    yield _call("infer input of an unknown datatype", _request([_tensor(region("in", 16), "FP99")]))
    outputs: tuple[tuple[str, Values], ...] = (
        ("unknown", region("nosuch", 16)),
        ("that is no name", region(7, 16)),
        ("of no size", region("out")),
        ("beyond the end", region("out", 16, 56)),
        ("of a string as size", region("out", "16")),
        ("of a string as offset", region("out", 16, "0")),
        ("with classes", {**region("out", 16), "classification": 1}),
        ("with no number of classes", {**region("out", 16), "classification": "x"}),
        ("size without a region", {"shared_memory_byte_size": 16}),
        ("offset without a region", {"shared_memory_offset": 0}),
    )
    for name, values in outputs:
        yield _call(f"infer output {name}", _request([_GRPC_IN], [("OUTPUT0", values)]))
    words = _tensor(region("words", len(WORDS)), "BYTES", (3,))
    yield _call("infer words", _request([words], [("OUTPUT0", region("out", 64))], model="text"))
    too_small = ("OUTPUT0", region("out", len(WORDS) - 1))
    yield _call("infer words that do not fit", _request([words], [too_small], model="text"))
    both = [
        pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="INT32", shape=[1, 4]),
        pb.ModelInferRequest.InferInputTensor(name="INPUT1", datatype="INT32", shape=[1, 4]),
    ]
    _parameters(both[0].parameters, region("in", 16, 32))
    mixed = [("OUTPUT1", NO_VALUES), ("OUTPUT0", region("out", 16, 16))]
    yield _call("infer one input and one output of two", _request(both, mixed, model="addsub", raw=[INTS[:16]]))
    yield _call("infer too few raw contents", _request(both, mixed, model="addsub"))


def _grpc_streams() -> Iterator[GrpcCase]:
    first = _request([_GRPC_IN], [_GRPC_OUT], identity="first")
    second = _request([_tensor(region("in", 16, 16))], [("OUTPUT0", region("out", 16, 32))], identity="second")
    too_small = _request([_GRPC_IN], [("OUTPUT0", region("out", 8))], identity="small")
    unknown = _request([_tensor(region("nosuch", 16))], identity="unknown")
    yield _call("stream", first, second, method="ModelStreamInfer")
    yield _call("stream with failures", unknown, too_small, first, method="ModelStreamInfer")


def _grpc_ends() -> Iterator[GrpcCase]:
    yield _call("unregister one", pb.SystemSharedMemoryUnregisterRequest(name="page"))
    yield _call("unregister it again", pb.SystemSharedMemoryUnregisterRequest(name="page"))
    yield _call("infer input of a region that is gone", _request([_tensor(region("page", 16))]))
    yield _call("unregister all", pb.SystemSharedMemoryUnregisterRequest())
    yield _call("status at the end", pb.SystemSharedMemoryStatusRequest())
