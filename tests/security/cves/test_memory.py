"""Shared memory, of clients and of workers; memory and descriptors that are kept, or used after their end."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from tests.chaos.models import write_models
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until
from tests.security.attacker import Answer, Attacker, tensor

REGION_BYTES = 4096
ROUNDS = 200
GROWTH_BYTES_MAX = 30_000_000
LARGE_BYTES = 40_000_000
"""Of a parameter: more than a message to a worker holds."""


class Shared:
    """A server that takes regions of clients, and one of its segments."""

    def __init__(self, attacker: Attacker, key: str) -> None:
        self.attacker = attacker
        self.key = key
        self.path = Path("/dev/shm", key)

    def register(self, name: str, key: str | None = None, *, offset: int = 0, size: int = REGION_BYTES) -> Answer:
        document = {"key": f"/{self.key if key is None else key}", "offset": offset, "byte_size": size}
        return self.attacker.ask("POST", f"/v2/systemsharedmemory/region/{name}/register", json.dumps(document).encode())

    def unregister(self, name: str) -> None:
        assert self.attacker.ask("POST", f"/v2/systemsharedmemory/region/{name}/unregister").status == 200

    def infer(self, model: str, given: dict[str, Any] | None = None, wanted: dict[str, Any] | None = None) -> Answer:
        """With the input, or the output, or both in a region."""
        source = tensor([1.0, 2.0, 3.0])
        if given is not None:
            source = {key: value for key, value in tensor(None, parameters=_place(**given)).items() if key != "data"}
        document: dict[str, Any] = {"inputs": [source]}
        if wanted is not None:
            document["outputs"] = [{"name": "OUTPUT", "parameters": _place(**wanted)}]
        return self.attacker.infer(document, model)


def _place(region: str = "r", offset: int = 0, size: int = 12) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size}


@pytest.fixture(scope="module")
def taker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    home = tmp_path_factory.mktemp("shared")
    write_models(home / "models")
    with ServerProcess("--allow-client-shm=true", repositories=[home / "models"], fresh=True) as server:
        yield Attacker(server, home)


@pytest.fixture
def shared(taker: Attacker) -> Iterator[Shared]:
    """Afterwards the server still serves, and no region is left."""
    shared = Shared(taker, f"tpy-cve-{uuid4()}")
    shared.path.write_bytes(np.arange(REGION_BYTES // 4, dtype=np.float32).tobytes())
    yield shared
    shared.path.unlink(missing_ok=True)
    taker.ask("POST", "/v2/systemsharedmemory/unregister")
    taker.check_served()


def test_cve_2024_0088(shared: Shared) -> None:
    """119, improper memory access: places beyond a region, in requests and when it is registered."""
    assert shared.register("r").status == 200
    for model in ("affine", "copy"):
        for offset in (REGION_BYTES - 11, REGION_BYTES, 2**40, 2**63 - 1):
            assert shared.infer(model, given={"offset": offset}).status == 400, offset
            assert shared.infer(model, wanted={"offset": offset}).status == 400, offset
        assert shared.infer(model, given={"offset": REGION_BYTES - 12}).status == 200
    assert shared.register("beyond", offset=REGION_BYTES - 1, size=2).status == 400
    assert shared.register("part", size=64).status == 200
    for model in ("affine", "copy"):  # the segment goes on there
        assert shared.infer(model, given={"region": "part", "offset": 53}).status == 400
        assert shared.infer(model, wanted={"region": "part", "offset": 53}).status == 400


def test_cve_2024_0116(shared: Shared) -> None:
    """125, out-of-bounds read: a region is released while requests use it. They hold it until they end."""
    for _ in range(20):
        assert shared.register("r").status == 200
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(shared.attacker.connect()) for _ in range(4)]
            source = {key: value for key, value in tensor(None, parameters=_place()).items() if key != "data"}
            body = json.dumps({"inputs": [source]}).encode()
            request = b"POST /v2/models/copy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            for connection in connections:
                connection.sendall(request)
            shared.unregister("r")
            for connection in connections:
                said = connection.recv(65_536)
                assert said.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 404 ")), said
                assert not said.startswith(b"HTTP/1.1 200 ") or b'"data":[0.0,1.0,2.0]' in said, said


def test_cve_2026_24266(shared: Shared) -> None:
    """416, use after free: a region that is no more, under its name and under that of another."""
    assert shared.register("r").status == 200
    assert shared.infer("copy", given={}).status == 200
    shared.unregister("r")
    for model in ("affine", "copy"):
        assert shared.infer(model, given={}).status == 404
        assert shared.infer(model, wanted={}).status == 404


def test_cve_2025_23329(shared: Shared) -> None:
    """284, access control: the shared memory of the Python backend. That of workers has no name that a client could register."""
    large = shared.attacker.infer({"inputs": [tensor([1.0] * 24, shape=[8, 3])]}, "copy")
    assert large.status == 200
    for process in Path("/proc").glob(f"{shared.attacker.server.process.pid}/task/*/children"):
        for worker in process.read_text().split():
            assert "/dev/shm/" not in Path(f"/proc/{worker}/maps").read_text()
    file = shared.attacker.home / "file"
    file.write_bytes(bytes(REGION_BYTES))
    for key in (
        "triton_python_backend_shm_region_1",
        "memfd:tpy-tensors",
        f"../..{file}",
        "../proc/self/mem",
        "..",
        "tpy-tensors",
    ):
        assert shared.register("stolen", key).status in (400, 404, 500), key


def test_cve_2025_23320(shared: Shared) -> None:
    """209, information in an error text: the name of the Python backend's memory, for a request that is too large."""
    answer = shared.attacker.infer({"inputs": [tensor([1.0, 2.0, 3.0])], "parameters": {"p": "x" * LARGE_BYTES}}, "copy")
    assert answer.status == 500
    assert "parameters" in answer.error
    assert not [word for word in ("shm", "memfd", "/proc", "/dev") if word in answer.error], answer.error


def test_cve_2025_23324(shared: Shared) -> None:
    """190, integer overflow: offset and size of a region that wrap around together."""
    assert shared.register("r").status == 200
    for offset, size in ((2**64 - 12, 12), (2**63 - 1, 2**63 - 1), (2**63, 2**63), (2**64 - 1, 13), (12, 2**64 - 6)):
        for place in ({"given": {"offset": offset, "size": size}}, {"wanted": {"offset": offset, "size": size}}):
            answer = shared.infer("copy", **place)
            assert answer.status == 400, (place, answer)
            assert "'r'" in answer.error, (place, answer)


def test_cve_2025_23319(shared: Shared) -> None:
    """805, access with a wrong length: a region that is larger than its segment."""
    for size in (REGION_BYTES + 1, 2**40, 2**63 - 1, 2**64):
        assert shared.register("r", size=size).status == 400, size


def test_cve_2025_23318(shared: Shared) -> None:
    """805, access with a wrong length: less room for an output than it has bytes."""
    assert shared.register("r").status == 200
    before = shared.path.read_bytes()
    for model in ("affine", "copy"):
        assert shared.infer(model, wanted={"size": 8}).status == 500  # Triton's, as it executes the request first
        assert shared.infer(model, wanted={"size": 11, "offset": REGION_BYTES - 11}).status == 500
    assert shared.path.read_bytes() == before


def test_cve_2025_23328(shared: Shared) -> None:
    """787, out-of-bounds write: an output at the end of a region, whose bytes behind it are another's."""
    assert shared.register("r", size=64).status == 200
    assert shared.infer("copy", wanted={"offset": 52}).status == 200
    assert shared.infer("copy", wanted={"offset": 53}).status == 400
    after = np.frombuffer(shared.path.read_bytes(), np.float32)
    assert after[13:16].tolist() == [1.0, 2.0, 3.0]
    assert after[16:].tolist() == list(range(16, REGION_BYTES // 4))


def test_cve_2025_23333(shared: Shared) -> None:
    """125, out-of-bounds read: the data of a Python model's tensor in memory that its owner makes shorter."""
    assert shared.register("r").status == 200
    os.truncate(shared.path, 4)
    for model in ("affine", "copy"):
        answer = shared.infer(model, given={"offset": 1024})
        assert answer.status in (400, 500), answer
        assert shared.infer(model).status == 200


def test_cve_2025_23334(shared: Shared) -> None:
    """125, out-of-bounds read: the size of a Python model's tensor is not that of its shape."""
    assert shared.register("r").status == 200
    for size in (0, 4, 11, 13, 4096):
        assert shared.infer("copy", given={"size": size}).status == 400, size


def test_cve_2026_47482(shared: Shared) -> None:
    """401, memory that is not released: by requests that fail, each in its way, and regions that come and go."""

    def round_of_failures() -> None:
        assert shared.register("r").status == 200
        shared.infer("copy", given={"offset": REGION_BYTES})
        shared.infer("affine", wanted={"size": 1})
        shared.attacker.infer({"inputs": [tensor([1.0] * 30_000, shape=[10_000, 3])]}, "copy")
        shared.unregister("r")

    for _ in range(20):
        round_of_failures()
    resident = shared.attacker.resident_bytes()
    maps = Path(f"/proc/{shared.attacker.server.process.pid}/maps")
    for _ in range(ROUNDS):
        round_of_failures()
    assert shared.attacker.resident_bytes() - resident < GROWTH_BYTES_MAX
    wait_until(lambda: shared.key not in maps.read_text())


def test_cve_2026_47478(shared: Shared) -> None:
    """910, use of an expired descriptor: clients that go while their answer is made; others get theirs meanwhile, on connections
    that have the same numbers."""
    server = shared.attacker.server
    shared.infer("copy")
    files = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    body = json.dumps({"inputs": [tensor([1.0, 2.0, 3.0])]}).encode()
    request = b"POST /v2/models/copy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    for number in range(100):
        with shared.attacker.connect() as gone:
            gone.sendall(request)
        answer = shared.attacker.infer({"id": str(number), "inputs": [tensor([float(number), 0.0, 0.0])]}, "copy")
        said = json.loads(answer.body)
        assert (said["id"], said["outputs"][0]["data"][0]) == (str(number), number)
    wait_until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) <= files)
