"""gRPC calls of a decoupled model, the one of the generate transcripts: what it does is what the input says."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc import service_pb2 as pb

from .grpc_cases import GrpcCase

_ACTS = (
    "final",
    "one",
    "one.",
    "one two three",
    "one two three.",
    "a,b",
    "none",
    "none one",
    "!",
    "!bad",
    "!end",
    "one !",
    "one ! two",
    "one !end",
    "raise",
    "raise after one",
    "later",
    "list",
)


def _request(act: str, *, id: str = "", empty_final: bool = False, version: str = "") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="stream", id=id, model_version=version)
    request.inputs.add(name="DO", datatype="BYTES", shape=[1]).contents.bytes_contents.append(act.encode())
    if empty_final:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def _stream(name: str, *requests: pb.ModelInferRequest, metadata: tuple[tuple[str, str], ...] = ()) -> GrpcCase:
    messages = tuple(request.SerializeToString() for request in requests)
    return GrpcCase(name=name, method="ModelStreamInfer", messages=messages, metadata=metadata)


def _cases() -> Iterator[GrpcCase]:
    for act in _ACTS:
        yield _stream(act, _request(act, id="i"))
        yield _stream(f"{act}, empty final wanted", _request(act, id="i", empty_final=True))
    yield _stream("final of a version, empty final wanted", _request("final", version="1", empty_final=True))
    yield _stream("unknown version", _request("one", version="9"), _request("one."))
    unary = _request("one").SerializeToString()
    yield GrpcCase(name="unary", method="ModelInfer", messages=(unary,))
    # Last: a Triton that ends a call while its model goes on may end itself (2.51 does after "one !").
    for act in ("!end", "raise"):
        yield _stream(f"{act}, status wanted", _request(act), metadata=(("triton_grpc_error", "true"),))


CASES: tuple[GrpcCase, ...] = tuple(_cases())
