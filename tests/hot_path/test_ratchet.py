"""The path of a plain request: how many functions of ours the loop's thread calls for it. The numbers may only become lower.

A request that is warm, of 16 floats, to a Python model in a worker with dynamic batching, alone on its connection. The numbers
are those with the native codec; in Python the codec's own functions come on top.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import tritonclient.grpc

from tests.e2e.repositories import ModelFolder
from tests.hot_path.traced import Traced, traced_server
from tests.hot_path.walks import Calls, assert_goes, files, walk
from tpy.hot import codec

pytestmark = [
    pytest.mark.skipif(codec.FORM != codec.NATIVE, reason=f"counted with the native codec; this is {codec.FORM}"),
    pytest.mark.skipif(sys.version_info >= (3, 12), reason="counted with Python 3.11, where a comprehension is a call"),
]

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor)]) for tensor in tensors]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
"""
BODY = b'{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","data":[%b]}]}' % b",".join(b"%d.5" % n for n in range(16))
LINE = b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = LINE + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
BINARY_HEAD = (
    b'{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","parameters":{"binary_data_size":64}}],'
    b'"parameters":{"binary_data_output":true}}'
)
BINARY_LINES = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(BINARY_HEAD), len(BINARY_HEAD) + 64)
BINARY_REQUEST = LINE + BINARY_LINES + BINARY_HEAD + bytes(64)


class Counts(NamedTuple):
    """The Python functions of ours that one request passes on the loop's thread."""

    calls: int
    functions: int
    files: int


def least(traced: Traced, ask: Callable[[], None]) -> Counts:
    """Of several requests: now and then the server does something else beside them."""
    return min(map(counted, warm_records(traced, ask)))


def warm_records(traced: Traced, ask: Callable[[], None]) -> list[Calls]:
    """The calls of several warm requests."""
    for _ in range(30):
        ask()
    return [_from_its_arrival(traced.record(ask)) for _ in range(8)]


def _from_its_arrival(calls: Calls) -> Calls:
    """Without those that belong to the beginning of the record: the loop has been woken for it."""
    turns = [number for number, call in enumerate(calls) if call[1] == "Reactor._take"]
    received = next(number for number, call in enumerate(calls) if call[1] == "SocketWire.receive")
    return calls[max(number for number in turns if number < received) :]


def counted(calls: Calls) -> Counts:
    """On a slow machine a connection also asks whether the turn of the loop is long."""
    calls = [call for call in calls if call[1] != "Reactor.is_long"]
    return Counts(len(calls), len({(file, name) for file, name, _ in calls}), len(set(files(calls))))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("hot-path")
    ModelFolder(folder / "models", "identity").config(CONFIG).file("1/model.py", MODEL)
    with traced_server(folder / "calls.json", repositories=[folder / "models"]) as server:
        yield server


def assert_not_more(found: Counts, most: Counts) -> None:
    assert all(one <= other for one, other in zip(found, most, strict=True)), (
        f"the path of a plain request became longer: {found}, at most {most}"
    )
    assert found.calls > most.calls - 6, f"lower the numbers: {found}, so far {most}"


def test_a_request_over_http(traced: Traced) -> None:
    with asking(traced) as ask:
        assert_not_more(least(traced, ask), Counts(calls=130, functions=122, files=41))


def test_a_request_with_blobs(traced: Traced) -> None:
    """As `tritonclient` sends it by default. The blob begins where its type does not, as most do."""
    assert len(BINARY_HEAD) % 4, "it begins elsewhere in memory then, too: a body is a `bytes`"
    with asking(traced, BINARY_REQUEST) as ask:
        assert_not_more(least(traced, ask), Counts(calls=131, functions=123, files=41))


def test_the_walk_of_a_request(traced: Traced) -> None:
    with asking(traced) as ask:
        assert_goes(walk("A request"), warm_records(traced, ask))


@contextlib.contextmanager
def asking(traced: Traced, request: bytes = REQUEST) -> Iterator[Callable[[], None]]:
    """Asks over one connection."""
    with socket.create_connection(("127.0.0.1", int(traced.server.http.rpartition(":")[2])), timeout=30) as connection:

        def ask() -> None:
            connection.sendall(request)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")

        yield ask


def test_a_request_over_grpc(traced: Traced) -> None:
    with tritonclient.grpc.InferenceServerClient(traced.server.grpc) as client:
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 16], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))

        def ask() -> None:
            assert client.infer("identity", [tensor]).as_numpy("OUTPUT0").shape == (1, 16)

        assert_not_more(least(traced, ask), Counts(calls=204, functions=179, files=51))
