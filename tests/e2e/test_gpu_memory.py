"""A whole server, in this process, on a machine whose GPU is a fake one: regions in its memory, pools on the metrics page."""

from __future__ import annotations

import base64
import io
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import trio
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tpy.assembly import Stop, run_server
from tpy.cli.parsing import collect
from tpy.cli.serve_options import server_options
from tpy.devices import DeviceMemory, Devices
from tpy.frontends.transport import BoundAddress
from tpy.telemetry.logs import LogController
from tpy.testing import FakeDevice

from .repositories import ModelFolder


@asynccontextmanager
async def served(repository: Path, devices: Devices, **flags: str) -> AsyncIterator[dict[str, BoundAddress]]:
    """The addresses of a server with these devices."""
    given = {"model_repository": str(repository), "http_port": "0", "grpc_port": "0", "metrics_port": "0", **flags}
    options = server_options(*collect({name: [text] for name, text in given.items()}, {}))
    stop, logs = Stop(), LogController(options.log, stream=io.StringIO())
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[Any]) -> None:
            await run_server(options, logs=logs, announce=lambda text: None, stop=stop, devices=devices, task_status=task_status)

        yield (await nursery.start(serve)).addresses
        stop.ask("the test is over")


class OneClient:
    """A client of one protocol, used in a thread."""

    def __init__(self, module: ModuleType, address: BoundAddress) -> None:
        self.module = module
        self.url = f"127.0.0.1:{address.port}"

    async def use(self, use: Any) -> Any:
        def in_thread() -> Any:
            client = self.module.InferenceServerClient(self.url)
            try:
                return use(client, self.module)
            finally:
                client.close()

        return await trio.to_thread.run_sync(in_thread)


def place(device: FakeDevice, values: np.ndarray[Any, Any]) -> DeviceMemory:
    """A client's memory on the GPU, with room for an answer behind the values."""
    memory = device.allocate(2 * values.nbytes)
    device.copy_in(memory.address, values.view(np.uint8).reshape(-1))
    device.counts.clear()
    return memory


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
async def test_tensors_in_a_gpus_memory(tmp_path: Path, protocol: str) -> None:
    ModelFolder(tmp_path, "m").identity()
    server, client_of = FakeDevice(0), FakeDevice(0)
    async with served(tmp_path, Devices([server]), allow_client_shm="true") as addresses:
        client = OneClient(tritonclient.http if protocol == "HTTP" else tritonclient.grpc, addresses[protocol])
        values = np.arange(4, dtype=np.int32).reshape(4, 1)
        memory = place(client_of, values)
        handle = client_of.export_ipc(memory.address).handle

        def use(triton: Any, module: Any) -> Any:
            encoded = base64.b64encode(handle)
            for size in (0, 2 * values.nbytes + 1):
                with pytest.raises(InferenceServerException, match="failed to register shared memory region: invalid args"):
                    triton.register_cuda_shared_memory("r", encoded, 0, size)
            with pytest.raises(InferenceServerException, match="failed to register shared memory region: invalid args"):
                triton.register_cuda_shared_memory("r", encoded, 1, 32)
            triton.register_cuda_shared_memory("r", encoded, 0, 2 * values.nbytes)
            with pytest.raises(InferenceServerException, match="already in manager"):
                triton.register_cuda_shared_memory("r", encoded, 0, 32)
            given = module.InferInput("INPUT0", list(values.shape), "INT32")
            given.set_shared_memory("r", values.nbytes)
            wanted = module.InferRequestedOutput("OUTPUT0")
            wanted.set_shared_memory("r", values.nbytes, offset=values.nbytes)
            triton.infer("m", [given], outputs=[wanted])
            status = triton.get_cuda_shared_memory_status()
            triton.unregister_cuda_shared_memory("r")
            with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'r'"):
                triton.infer("m", [given])
            return status

        status = await client.use(use)
    if protocol == "HTTP":
        assert status == [{"name": "r", "device_id": 0, "byte_size": 32}]
    else:
        (region,) = status.regions.values()
        assert (region.name, region.device_id, region.byte_size) == ("r", 0, 32)
    answered = np.empty(16, np.uint8)
    client_of.copy_out(answered, memory.address + values.nbytes)
    assert (answered.view(np.int32).reshape(4, 1) == values).all()
    assert (server.counts["out"], server.counts["in"]) == (1, 1)


async def test_pools_are_on_the_metrics_page(tmp_path: Path) -> None:
    ModelFolder(tmp_path, "m").identity()
    devices = Devices([FakeDevice(0)], pinned_pool_bytes=1 << 20)
    kept = devices.pinned.allocate(1000)
    async with served(tmp_path, devices) as addresses:
        url = f"http://127.0.0.1:{addresses['metrics'].port}/metrics"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())

        page = await trio.to_thread.run_sync(read)
    assert kept.size == 1000
    assert "\nnv_pinned_memory_pool_total_bytes 1048576\n" in page
    assert "\nnv_pinned_memory_pool_used_bytes 1024\n" in page
    assert "# HELP nv_pinned_memory_pool_used_bytes Pinned memory pool used memory size, in bytes\n" in page


async def test_frontend_processes_have_no_gpu(tmp_path: Path) -> None:
    ModelFolder(tmp_path, "m").identity()
    device = FakeDevice(0)
    memory = device.allocate(64)
    handle = device.export_ipc(memory.address).handle
    async with served(tmp_path, Devices([device]), allow_client_shm="true", frontend_processes="1") as addresses:

        def use(triton: Any, module: Any) -> None:
            with pytest.raises(InferenceServerException, match="failed to register shared memory region: invalid args"):
                triton.register_cuda_shared_memory("r", base64.b64encode(handle), 0, 64)

        await OneClient(tritonclient.grpc, addresses["gRPC"]).use(use)
