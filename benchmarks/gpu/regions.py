"""Requests whose tensors are in shared memory: of the system, or of a GPU."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.http_exchange import HttpRequest
from benchmarks.servers.process import HOST
from tpy.devices.cuda import CudaDevice

INPUT, OUTPUT = "image", "OUTPUT__0"


class NotRegistered(Exception):
    """The server takes no such regions."""


@contextlib.contextmanager
def system_regions(port: int, pictures: np.ndarray, output_bytes: int) -> Iterator[None]:
    """Regions of the system, called input and output, with the pictures. Raises NotRegistered."""
    paths = {name: Path(f"/dev/shm/tpy_gpu_{name}_{os.getpid()}") for name in ("input", "output")}
    sizes = {"input": pictures.nbytes, "output": output_bytes}
    try:
        paths["input"].write_bytes(pictures.tobytes())
        paths["output"].write_bytes(bytes(output_bytes))
        for name, path in paths.items():
            _register(port, "system", name, {"key": f"/{path.name}", "byte_size": sizes[name]})
        yield
    finally:
        _post(port, "/v2/systemsharedmemory/unregister", {})
        for path in paths.values():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def cuda_regions(port: int, pictures: np.ndarray, output_bytes: int) -> Iterator[None]:
    """The same in the memory of GPU 0, which the server opens by handle. Raises NotRegistered."""
    device = CudaDevice(0)
    memories = {"input": device.allocate(pictures.nbytes), "output": device.allocate(output_bytes)}
    device.copy_in(memories["input"].address, pictures.reshape(-1).view(np.uint8))
    try:
        for name, memory in memories.items():
            handle = base64.b64encode(device.export_ipc(memory.address).handle).decode()
            _register(port, "cuda", name, {"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": memory.size})
        yield
    finally:
        _post(port, "/v2/cudasharedmemory/unregister", {})


def region_request(model: str, shape: tuple[int, ...], datatype: str, input_bytes: int, output_bytes: int) -> HttpRequest:
    """A request with both tensors in the regions."""

    def place(region: str, size: int) -> dict[str, object]:
        return {"shared_memory_region": region, "shared_memory_byte_size": size}

    given = {"name": INPUT, "datatype": datatype, "shape": list(shape), "parameters": place("input", input_bytes)}
    document = {"inputs": [given], "outputs": [{"name": OUTPUT, "parameters": place("output", output_bytes)}]}
    headers = {"Content-Type": "application/json"}
    return HttpRequest(path=f"/v2/models/{model}/infer", headers=headers, body=json.dumps(document).encode())


def binary_request(model: str, pictures: np.ndarray, datatype: str) -> HttpRequest:
    """A request with the pictures behind its head, and the answer so too."""
    parameters = {"binary_data_size": pictures.nbytes}
    given = {"name": INPUT, "datatype": datatype, "shape": list(pictures.shape), "parameters": parameters}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return HttpRequest(path=f"/v2/models/{model}/infer", headers=headers, body=head + pictures.tobytes())


def _register(port: int, kind: str, name: str, document: dict[str, object]) -> None:
    status, said = _post(port, f"/v2/{kind}sharedmemory/region/{name}/register", document)
    if status != http.client.OK:
        raise NotRegistered(said)


def _post(port: int, path: str, document: object) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        connection.request("POST", path, json.dumps(document))
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
