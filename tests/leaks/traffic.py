"""Requests as fast as two cores allow: pipelined over HTTP, many calls at once over gRPC."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np

from tests.e2e.server import ServerProcess
from tpy._proto import message_class

MODELS = ("affine", "copy", "chain", "count", "coming-onnx", "coming-python")
"""The last two come and go."""

_BATCH = 8
"""Requests sent before their answers are read, over HTTP."""

_OUTSTANDING = 32
_REQUESTS_OF_A_CONNECTION = 2000
_LARGE = 4096
"""Rows of every 200th request: large enough for shared memory to python workers and for threads to parse it."""

_PATIENCE_S = 30.0


class Progress:
    """Counts answers by status, from many threads; hands out how many requests are still to be sent."""

    def __init__(self, requests: int) -> None:
        self._left = requests
        self._changed = threading.Condition()
        self.done = 0
        self.outcomes: Counter[str] = Counter()

    def take(self, count: int) -> bool:
        """Returns True if `count` more are to be sent."""
        with self._changed:
            if self._left <= 0:
                return False
            self._left -= count
            return True

    def note(self, outcomes: Counter[str]) -> None:
        """These were answered."""
        with self._changed:
            self.outcomes += outcomes
            self.done += outcomes.total()
            self._changed.notify_all()

    def wait_done(self, goal: int, alive: Callable[[], bool]) -> None:
        """Wait until so many are answered, or nobody asks any more."""
        with self._changed:
            while self.done < goal and alive():
                self._changed.wait(1.0)


def _rows(number: int) -> int:
    return _LARGE if number % 200 == 0 else 1 + number % 4


def _http_request(model: str, rows: int) -> bytes:
    tensor: dict[str, object] = {"name": "INPUT", "shape": [rows, 3], "datatype": "FP32"}
    raw = b""
    if rows % 2:
        tensor["data"] = [[float(row), 0.5, -1.0] for row in range(rows)]
    else:
        raw = np.ones((rows, 3), np.float32).tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": not rows % 2}}).encode()
    length = f"Content-Length: {len(head) + len(raw)}\r\nInference-Header-Content-Length: {len(head)}\r\n"
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{length}\r\n".encode() + head + raw


def http_thread(server: ServerProcess, progress: Progress) -> None:
    """Ask until all requests are sent; a new connection now and then, sometimes left with requests in flight."""
    models = [model for model in MODELS if model != "count"]
    requests = [
        _http_request(model, _rows(number)) for number, model in zip(range(1, 1 + 200 * len(models)), itertools.cycle(models))
    ]
    upcoming = itertools.cycle(requests)
    host, port = server.http.split(":")
    for turn in itertools.count():
        with socket.create_connection((host, int(port)), timeout=_PATIENCE_S) as connection, connection.makefile("rb") as answers:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_REQUESTS_OF_A_CONNECTION // _BATCH):
                if not progress.take(_BATCH):
                    return
                connection.sendall(b"".join(next(upcoming) for _ in range(_BATCH)))
                progress.note(Counter(f"HTTP {_status(answers)}" for _ in range(_BATCH)))
            if turn % 2:
                connection.sendall(b"".join(next(upcoming) for _ in range(_BATCH)))  # and does not wait for the answers


def _status(answers: Any) -> int:
    status = int(answers.readline().split()[1])
    length = 0
    while (line := answers.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    answers.read(length)
    return status


def _grpc_request(model: str, rows: int) -> bytes:
    request = message_class("inference.ModelInferRequest")(model_name=model)
    values = np.full([1] if model == "count" else [rows, 3], 3, np.float32)
    request.inputs.add(name="INPUT", datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    encoded: bytes = request.SerializeToString()
    return encoded


def grpc_thread(server: ServerProcess, progress: Progress) -> None:
    """The same over gRPC; every eighth call is a stream to `count`, some of which are left half-way."""
    models = [model for model in MODELS if model != "count"]
    requests = [
        _grpc_request(model, _rows(number)) for number, model in zip(range(1, 1 + 200 * len(models)), itertools.cycle(models))
    ]
    upcoming, counting = itertools.cycle(requests), _grpc_request("count", 1)
    service = "/inference.GRPCInferenceService/"
    while True:
        with grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            unary, stream = channel.unary_unary(f"{service}ModelInfer"), channel.stream_stream(f"{service}ModelStreamInfer")
            for turn in range(_REQUESTS_OF_A_CONNECTION // _OUTSTANDING):
                if not progress.take(_OUTSTANDING):
                    return
                calls = [unary.future(next(upcoming), timeout=_PATIENCE_S) for _ in range(_OUTSTANDING - 4)]
                outcomes = Counter(_streamed(stream, counting, leave=turn % 3 == 0) for _ in range(4))
                progress.note(outcomes + Counter(_code(call) for call in calls))


def _streamed(stream: grpc.StreamStreamMultiCallable, request: bytes, *, leave: bool) -> str:
    answers: Iterator[bytes] = stream(iter([request]), timeout=_PATIENCE_S)
    if leave:
        next(answers)
        answers.cancel()  # type: ignore[attr-defined]
        return "gRPC left"
    return f"gRPC stream of {sum(1 for _ in answers)}"


def _code(call: Any) -> str:
    error = call.exception()
    return "gRPC OK" if error is None else f"gRPC {error.code().name}"
