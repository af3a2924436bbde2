"""Resources that the server shares with its workers, and with nobody else (CVE-2025-23319, CVE-2025-23320, CVE-2025-23334: the
name of the python backend's shared memory was in an error text, and clients could register it; CVE-2024-0088: offsets of
regions)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import grpc
import pytest

from tpy._proto import message_class

from .attacker import Attacker, tensor

SERVICE = "/inference.GRPCInferenceService/"
DISABLED = "disabled"
OF_TWO_SEGMENTS = "%2e%2e%2fpasswd"
"""No path of the API once it is decoded."""
REGIONS = ["x", "triton_python_backend_shm_region_1", "..", OF_TWO_SEGMENTS, "memfd:tpy", "x" * 3000]


def _sockets(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def _listening(pid: int) -> set[str]:
    """Inodes of the listening sockets of a process."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == "0A"} & _sockets(pid)


def _workers(pid: int) -> list[int]:
    """The processes below the server: workers, and the template that they are forked from."""
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return children + [worker for child in children for worker in _workers(child)]


@pytest.mark.parametrize("region", REGIONS, ids=lambda region: region[:20])
@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_clients_register_no_memory(attacker: Attacker, kind: str, region: str) -> None:
    body = json.dumps({"key": f"/{region}", "offset": 2**63 - 1, "byte_size": 2**64 - 1, "raw_handle": {"b64": "AA=="}}).encode()
    path = f"/v2/{kind}sharedmemory"
    refused = attacker.ask("POST", f"{path}/region/{region}/register", body)
    assert refused.status == (404 if region == OF_TWO_SEGMENTS else 501)
    assert region not in refused.error
    if region != OF_TWO_SEGMENTS:
        nothing = attacker.ask("POST", f"{path}/region/{region}/unregister", body)
        assert nothing.status == 501
        assert attacker.ask("GET", f"{path}/region/{region}/status").status == 404
    regions = attacker.ask("GET", f"{path}/status")
    assert (regions.status, regions.body) == (200, b"[]")
    name = f"{kind.capitalize()}SharedMemory"
    request = message_class(f"inference.{name}RegisterRequest")(name=region, byte_size=2**64 - 1)
    with grpc.insecure_channel(attacker.server.grpc) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"{SERVICE}{name}Register")(request.SerializeToString(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert channel.unary_unary(f"{SERVICE}{name}Status")(b"", timeout=20) == b""


@pytest.mark.parametrize("offset", [0, -1, 2**31, 2**63 - 1, 2**64 - 1, 2**64])
def test_tensors_name_no_memory(attacker: Attacker, offset: int) -> None:
    parameters = {"shared_memory_region": "x", "shared_memory_offset": offset, "shared_memory_byte_size": 12}
    source = {key: value for key, value in tensor(None, parameters=parameters).items() if key != "data"}
    given = {"inputs": [source]}
    wanted = {"inputs": [tensor([1.0, 2.0, 3.0])], "outputs": [{"name": "OUTPUT", "parameters": parameters}]}
    for model in ("affine", "copy"):
        for document in (given, wanted):
            answer = attacker.infer(document, model)
            assert answer.status == (400 if offset < 0 or offset == 2**64 else 404)
            assert "shared_memory_offset" in answer.error or answer.error == "Unable to find shared memory region: 'x'"


def test_errors_of_workers_name_nothing_of_the_server(attacker: Attacker) -> None:
    """Requests to a python model that fail for their size, type and content."""
    documents = [
        {"inputs": [tensor([1.0] * 300_000, shape=[100_000, 3])]},
        {"inputs": [tensor([1.0] * 3, shape=[1, 3], name="OTHER")]},
        {"inputs": [tensor(["x"], shape=[1, 1], datatype="BYTES")]},
        {"id": "x" * 1_000_000, "inputs": [tensor([1.0, 2.0, 3.0])], "parameters": {"p" * 1_000_000: "v" * 1_000_000}},
        {"inputs": [tensor([1.0, 2.0, 3.0])], "parameters": {f"p{n}": n for n in range(50_000)}},
    ]
    for document in documents:
        answer = attacker.infer(document, "copy")
        if answer.status != 200:
            for word in ("/dev/shm", "memfd", "/proc", "socket", "Traceback", "/tpy/", str(attacker.home)):
                assert word not in answer.error


def test_workers_share_what_is_theirs(attacker: Attacker) -> None:
    """Memory without a name, sockets without a path; none of the server's ports."""
    attacker.infer({"inputs": [tensor([1.0] * 24, shape=[8, 3])]}, "copy")
    pid = attacker.server.process.pid
    ports = _listening(pid)
    assert len(ports) >= 3
    named = {
        row.split()[6]: row.split()[7] for row in Path("/proc/net/unix").read_text().splitlines()[1:] if len(row.split()) > 7
    }
    workers = _workers(pid)
    assert len(workers) >= 3
    for process in (pid, *workers):
        assert "/dev/shm/" not in Path(f"/proc/{process}/maps").read_text()
        assert not _sockets(process) & named.keys(), named
    for worker in workers:
        assert not _sockets(worker) & ports


@pytest.mark.parametrize("rounds", [40])
def test_streams_that_are_cancelled_in_the_middle(attacker: Attacker, rounds: int) -> None:
    """CVE-2025-23322: a stream that was cancelled before its request was through was released twice."""
    request = message_class("inference.ModelInferRequest")(model_name="count")
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1])
    request.raw_input_contents.append(b"\x00\x40\x1c\x46")  # 10,000 responses
    with grpc.insecure_channel(attacker.server.grpc) as channel:
        for number in range(rounds):
            stream = channel.stream_stream(f"{SERVICE}ModelStreamInfer")(iter([request.SerializeToString()] * 3), timeout=20)
            for _ in range(number % 3):
                next(stream)
            stream.cancel()
