"""Shared memory with clients: 12 MB in and out through regions of the system, and through the socket beside it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.bench import Bench
from benchmarks.http_exchange import HttpRequest
from benchmarks.load import Load, keep_alive
from benchmarks.rows.tiny import LARGE, Contender, fleet, measure_rounds
from benchmarks.servers.models import IDENTITY_INPUT, IDENTITY_OUTPUT
from benchmarks.servers.process import HOST
from benchmarks.tensors import FloatArray, WrongAnswer, binary_request, check_identity

ROW = "system shared memory, 12 MB in and out (HTTP)"
THROUGH_THE_SOCKET = "tpy python worker, HTTP binary"
FLAGS = ("--allow-client-shm=true",)

_INPUT, _OUTPUT = "benchmark_input", "benchmark_output"
_TIMEOUT_S = 60


def measure(bench: Bench) -> None:
    """One request and four at a time, by our own load generator: what it sends and reads is small."""
    with fleet(bench, flags=FLAGS) as servers, segments(LARGE) as paths:
        able = [contender for contender in servers if contender.binary]
        requests = {contender.name: region_request(contender.model, LARGE) for contender in able}
        for contender in able:
            register(contender.server.ports.http, paths, LARGE.nbytes)
            check_region(contender, requests[contender.name], paths, LARGE)
        beside = next(contender for contender in able if THROUGH_THE_SOCKET.startswith(contender.name))
        able.append(Contender(THROUGH_THE_SOCKET, beside.server, beside.model))
        requests[THROUGH_THE_SOCKET] = binary_request(beside.model, IDENTITY_INPUT, LARGE)
        check_identity(beside.server.ports.http, requests[THROUGH_THE_SOCKET], LARGE)

        def drive(contender: Contender, connections: int, seconds: int) -> Load:
            port = contender.server.ports.http
            return keep_alive.drive(port, requests[contender.name], connections=connections, seconds=seconds)

        measure_rounds(bench, ROW, able, (1, 4), drive, whole_run=True, megabytes=LARGE.nbytes / 1e6)


@contextlib.contextmanager
def segments(values: FloatArray) -> Iterator[dict[str, Path]]:
    """Segments of the system for the length of the block, by the name of their region; the input's has the values."""
    paths = {name: Path(f"/dev/shm/tpy_{name}_{os.getpid()}") for name in (_INPUT, _OUTPUT)}
    try:
        paths[_INPUT].write_bytes(values.tobytes())
        paths[_OUTPUT].write_bytes(bytes(values.nbytes))
        yield paths
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


def region_request(model: str, values: FloatArray) -> HttpRequest:
    """A request whose input and output are in regions."""

    def place(region: str) -> dict[str, object]:
        return {"shared_memory_region": region, "shared_memory_byte_size": values.nbytes}

    given = {"name": IDENTITY_INPUT, "datatype": "FP32", "shape": list(values.shape), "parameters": place(_INPUT)}
    document = {"inputs": [given], "outputs": [{"name": IDENTITY_OUTPUT, "parameters": place(_OUTPUT)}]}
    body = json.dumps(document).encode()
    return HttpRequest(path=f"/v2/models/{model}/infer", headers={"Content-Type": "application/json"}, body=body)


def register(port: int, paths: dict[str, Path], byte_size: int) -> None:
    """Register the segments with a server, unless it has them already. Raises WrongAnswer."""
    for name, path in paths.items():
        status, said = _post(
            port, f"/v2/systemsharedmemory/region/{name}/register", {"key": f"/{path.name}", "byte_size": byte_size}
        )
        if status != http.client.OK and b"already in manager" not in said:
            raise WrongAnswer(f"region {name}: status {status}, {said.decode(errors='replace')}")


def check_region(contender: Contender, request: HttpRequest, paths: dict[str, Path], values: FloatArray) -> None:
    """Raises WrongAnswer unless the output's segment has the values after a request."""
    with paths[_OUTPUT].open("r+b") as file:
        file.write(bytes(values.nbytes))
    status, said = _post(contender.server.ports.http, request.path, json.loads(request.body))
    if status != http.client.OK or not np.array_equal(np.fromfile(paths[_OUTPUT], np.float32), values.ravel()):
        raise WrongAnswer(f"{contender.name}: status {status}, {said.decode(errors='replace')}")


def _post(port: int, path: str, document: object) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_S)) as connection:
        connection.request("POST", path, json.dumps(document))
        response = connection.getresponse()
        return response.status, response.read()
