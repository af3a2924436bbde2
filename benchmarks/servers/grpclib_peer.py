"""A server as one writes it with stock grpclib on asyncio: an identity model, and what a load generator asks before it begins.

    python grpclib_peer.py HTTP_PORT GRPC_PORT

Its messages are Google's protobuf classes, the fastest that there are for Python, so that what is compared is the transport. The
HTTP port only says that it is ready.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase
from grpclib.server import Server, Stream

from tpy._proto import message_class

_HOST = "127.0.0.1"
_SERVICE = "inference.GRPCInferenceService"
_INPUT, _OUTPUT = "INPUT0", "OUTPUT0"
_READY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _UpbCodec(CodecBase):
    """The codec that grpclib has itself, for classes of their own pool."""

    __content_subtype__ = "proto"

    def encode(self, message: Message, message_type: type[Message]) -> bytes:
        return bytes(message.SerializeToString())

    def decode(self, data: bytes, message_type: type[Message]) -> Message:
        return message_type.FromString(data)


def _response(method: str) -> type[Any]:
    return message_class(f"inference.{method}Response")


def _infer(request: Any) -> Any:
    answer = _response("ModelInfer")(model_name=request.model_name, model_version="1", id=request.id)
    given = request.inputs[0]
    answer.outputs.add(name=_OUTPUT, datatype=given.datatype, shape=given.shape)
    answer.raw_output_contents.extend(request.raw_input_contents)
    return answer


def _metadata(request: Any) -> Any:
    answer = _response("ModelMetadata")(name=request.name, versions=["1"], platform="")
    answer.inputs.add(name=_INPUT, datatype="FP32", shape=[-1])
    answer.outputs.add(name=_OUTPUT, datatype="FP32", shape=[-1])
    return answer


def _config(request: Any) -> Any:
    answer = _response("ModelConfig")()
    answer.config.name = request.name
    answer.config.input.add(name=_INPUT, data_type="TYPE_FP32", dims=[-1])
    answer.config.output.add(name=_OUTPUT, data_type="TYPE_FP32", dims=[-1])
    return answer


_ANSWERS: dict[str, Callable[[Any], Any]] = {
    "ModelInfer": _infer,
    "ModelMetadata": _metadata,
    "ModelConfig": _config,
    "ModelReady": lambda request: _response("ModelReady")(ready=True),
    "ServerLive": lambda request: _response("ServerLive")(live=True),
    "ServerReady": lambda request: _response("ServerReady")(ready=True),
    "ServerMetadata": lambda request: _response("ServerMetadata")(name="grpclib"),
    "ModelStatistics": lambda request: _response("ModelStatistics")(),
}


class _Service:
    """A service as grpclib wants it."""

    def __mapping__(self) -> dict[str, Handler]:
        return {
            f"/{_SERVICE}/{method}": Handler(
                _handler(answer), Cardinality.UNARY_UNARY, message_class(f"inference.{method}Request"), _response(method)
            )
            for method, answer in _ANSWERS.items()
        }


def _handler(answer: Callable[[Any], Any]) -> Callable[[Stream[Any, Any]], Any]:
    async def handle(stream: Stream[Any, Any]) -> None:
        await stream.send_message(answer(await stream.recv_message()))

    return handle


async def _say_ready(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(_READY)
    await writer.drain()
    writer.close()


async def _serve(http_port: int, grpc_port: int) -> None:
    server = Server([_Service()], codec=_UpbCodec())
    await server.start(_HOST, grpc_port)
    async with await asyncio.start_server(_say_ready, _HOST, http_port):
        await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:])))
