"""Strings: answers that nobody reads, and tensors of traces."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2

from tests.e2e.repositories import ModelFolder

from .arena import Arena, Outcome, measured, serving

_POUR = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            size = int(pb_utils.get_input_tensor_by_name(request, "BYTES").as_numpy().item())
            text = np.array([b"x" * size], object)
            for _ in range(200):
                answer = pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])
                request.get_response_sender().send(answer)
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_CONFIG = """
backend: "python"
input [ { name: "BYTES" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
_ANSWER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            size = int(pb_utils.get_input_tensor_by_name(request, "BYTES").as_numpy().item())
            text = np.array([b"x" * size], object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return answers
"""
_SINK = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        done = np.zeros(1, np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("DONE", done)]) for _ in requests]
"""
_SINK_CONFIG = """
backend: "python"
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "DONE" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_MIB = 1024 * 1024
_UNREAD_S = 6.0
"""Time that the server has to pile up what nobody reads."""

_PATIENCE_S = 20.0
_SECRET = "nobody-may-read-this"
_TRACED = 120


def _write(repository: Path) -> None:
    ModelFolder(repository, "pour").config(_CONFIG).python(_POUR)
    ModelFolder(repository, "answer").config(_CONFIG.partition("model_tr")[0]).python(_ANSWER)
    ModelFolder(repository, "sink").config(_SINK_CONFIG).python(_SINK)


def unread_events(folder: Path, *, clients: int, frontends: int = 0) -> Outcome:
    """Clients of generate_stream that are sent strings of 8 MiB and read none of them."""
    body = json.dumps({"BYTES": 8 * _MIB}).encode()
    head = b"POST /v2/models/pour/generate_stream HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with ExitStack() as open_ones, serving(folder, f"--frontend-processes={frontends}", write=_write) as arena:
        host, _, port = arena.server.http.rpartition(":")
        with measured(arena) as outcome:
            for _ in range(clients):
                client = open_ones.enter_context(socket.create_connection((host, int(port))))
                client.sendall(head + body)
            arena.within(_UNREAD_S, lambda: False)
        open_ones.close()
    return outcome


def unread_answers(folder: Path, *, requests: int) -> Outcome:
    """A stream of tiny requests, each answered by a string of a MiB, of which the client reads none."""
    message = service_pb2.ModelInferRequest(model_name="answer", raw_input_contents=[_MIB.to_bytes(4, "little")])
    message.inputs.add(name="BYTES", datatype="INT32", shape=[1])
    request = message.SerializeToString()
    over = threading.Event()

    def ask() -> Iterator[bytes]:
        yield from [request] * requests
        over.wait()

    with serving(folder, write=_write) as arena, grpc.insecure_channel(arena.server.grpc) as channel, measured(arena) as outcome:
        answers = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(ask())
        arena.within(_UNREAD_S, lambda: False)
        over.set()
        answers.cancel()
    return outcome


def _set_traces(arena: Arena, level: str) -> None:
    status, _ = arena.ask("POST", "/v2/trace/setting", {"trace_level": [level], "trace_rate": "1", "trace_count": "-1"})
    arena.outcome.wrong += status != 200


def kept_credentials(folder: Path, *, frontends: int) -> Outcome:
    """Credentials in headers that a pattern makes parameters of requests: recordings and traces do not have them."""
    kept = folder / "kept"
    kept.mkdir()
    flags = (
        f"--frontend-processes={frontends}",
        f"--recording-directory={kept}",
        f"--trace-config=triton,file={kept / 'trace.json'}",
        "--trace-config=level=TENSORS",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        "--http-header-forward-pattern=.*",
        "--http-restricted-api=logging:X-Team-Word=opens",
    )
    names = ("Authorization", "Proxy-Authorization", "Cookie", "X-API-Key", "api-key", "X-Amz-Security-Token", "x-team-word")
    document = {"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
    with serving(folder, *flags, write=_write) as arena:
        with measured(arena) as outcome:
            outcome.wrong += arena.ask("POST", "/v2/recording", {"action": "start"})[0] != 200
            headers = {**dict.fromkeys(names, _SECRET), "X-Harmless": "harmless-word"}
            outcome.wrong += arena.ask("POST", "/v2/models/sink/infer", document, headers=headers)[0] != 200
            outcome.wrong += arena.ask("POST", "/v2/recording", {"action": "stop"})[0] != 200
        arena.server.process.terminate()
        arena.server.process.wait(_PATIENCE_S)
        found = b"".join([file.read_bytes() for file in kept.iterdir()])
        outcome.note(f"{len(found)} bytes")
        outcome.wrong += found.count(_SECRET.encode()) + (b"harmless-word" not in found)
        arena.outcome = Outcome()  # it has been told to end, which is no fault
    return outcome


def traced_tensors(folder: Path) -> Outcome:
    """A client turns on traces of tensors, and sends large strings: some have too much for a trace, and some fit."""
    flags = (f"--trace-config=triton,file={folder / 'trace.json'}", "--trace-config=triton,log-frequency=1000000")
    with serving(folder, *flags, write=_write) as arena, measured(arena) as outcome:
        _set_traces(arena, "TENSORS")
        for number in range(_TRACED):
            text = "x" * (4 * _MIB if number % 2 else _MIB - 1024)
            document = {"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": [text]}]}
            outcome.wrong += arena.ask("POST", "/v2/models/sink/infer", document)[0] != 200
        _set_traces(arena, "OFF")
    return outcome
