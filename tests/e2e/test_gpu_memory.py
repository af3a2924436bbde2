"""A whole server, in this process, on a machine whose GPU is a fake one: regions in its memory, pools on the metrics page. With
frontend processes the ports are in those, and the GPU is not."""

from __future__ import annotations

import base64
import gc
import io
import queue
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
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tpy.assembly import Stop, run_server
from tpy.cli.parsing import collect
from tpy.cli.serve_options import server_options
from tpy.devices import DeviceMemory, Devices
from tpy.frontends.transport import BoundAddress
from tpy.telemetry.logs import LogController
from tpy.testing import FakeDevice
from tpy_data.gpus import Gpu, GpuInventory

from .repositories import ModelFolder


@asynccontextmanager
async def served(repository: Path, devices: Devices, **flags: str) -> AsyncIterator[dict[str, BoundAddress]]:
    """The addresses of a server with these devices."""
    gpus = GpuInventory(gpus=tuple(Gpu(id=each, compute_capability=(9, 0)) for each in devices.ids))
    given = {"model_repository": str(repository), "http_port": "0", "grpc_port": "0", "metrics_port": "0", **flags}
    options = server_options(*collect({name: [text] for name, text in given.items()}, {}))
    stop, logs = Stop(), LogController(options.log, stream=io.StringIO())
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[Any]) -> None:
            await run_server(
                options,
                logs=logs,
                announce=lambda text: None,
                stop=stop,
                gpus=gpus,
                devices=devices,
                task_status=task_status,
            )

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


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
async def test_tensors_in_a_gpus_memory(tmp_path: Path, protocol: str, processes: int) -> None:
    ModelFolder(tmp_path, "m").identity()
    server, client_of = FakeDevice(0), FakeDevice(0)
    flags = {"allow_client_shm": "true", "frontend_processes": str(processes)}
    async with served(tmp_path, Devices([server]), **flags) as addresses:
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


class Regions:
    """Memory of a client's on the GPU: values for the server, and room behind them for an answer of `out` bytes."""

    def __init__(self, values: np.ndarray[Any, Any], out: int) -> None:
        self.device = FakeDevice(0)
        self.size = values.nbytes + out
        self.memory = self.device.allocate(self.size)
        self.device.copy_in(self.memory.address, values.view(np.uint8).reshape(-1))
        self.values = values
        self.handle = base64.b64encode(self.device.export_ipc(self.memory.address).handle)

    def tensors(self, module: ModuleType, datatype: str = "FP32", name: str = "") -> tuple[Any, Any]:
        """The input and the output of a request."""
        given = module.InferInput(f"INPUT{name}", list(self.values.shape), datatype)
        given.set_shared_memory("r", self.values.nbytes)
        wanted = module.InferRequestedOutput(f"OUTPUT{name}")
        wanted.set_shared_memory("r", self.size - self.values.nbytes, offset=self.values.nbytes)
        return given, wanted

    def answer(self) -> bytes:
        found = np.empty(self.size - self.values.nbytes, np.uint8)
        self.device.copy_out(found, self.memory.address + self.values.nbytes)
        return found.tobytes()


@pytest.fixture
def gpu_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository of models on the GPU: one, a decoupled one, one with a response cache, one after the other."""
    site = tmp_path / "site" / "gpu-1.0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: gpu\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text("[tpy.backends]\ngpu = tests.e2e.gpu_backend:create\n")
    monkeypatch.syspath_prepend(site.parent)
    repository = tmp_path / "models"
    pair = """max_batch_size: 8
        input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
        output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]"""
    more = {"one": "", "parts": "model_transaction_policy { decoupled: true }", "cached": "response_cache { enable: true }"}
    for name, rest in more.items():
        ModelFolder(repository, name).file("1/.keep", "").config(f'backend: "gpu"\n{pair}\n{rest}')
    steps = [("INPUT", "MIDDLE"), ("MIDDLE", "OUTPUT")]
    written = ", ".join(
        f"""{{ model_name: "one" model_version: -1 input_map {{ key: "INPUT" value: "{given}" }}
            output_map {{ key: "OUTPUT" value: "{made}" }} }}"""
        for given, made in steps
    )
    ModelFolder(repository, "two").file("1/.keep", "").config(
        f'platform: "ensemble"\n{pair}\nensemble_scheduling {{ step [ {written} ] }}'
    )
    return repository


@pytest.mark.parametrize(("processes", "copies"), [(0, (0, 0, 2)), (1, (1, 1, 1))], ids=["one process", "frontend process"])
@pytest.mark.parametrize(("model", "added"), [("one", 1), ("two", 2)])
@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
async def test_tensors_stay_on_the_gpu(
    gpu_backend: Path, protocol: str, model: str, added: int, processes: int, copies: tuple[int, int, int]
) -> None:
    """Once within it to where clients do not write, once to where the answer is wanted; that is the host's where the port is in
    another process."""
    server = FakeDevice(0)
    flags = {"allow_client_shm": "true", "frontend_processes": str(processes)}
    async with served(gpu_backend, Devices([server]), **flags) as addresses:
        values = np.arange(300_000, dtype=np.float32).reshape(2, -1)
        regions = Regions(values, values.nbytes)

        def use(triton: Any, module: Any) -> None:
            triton.register_cuda_shared_memory("r", regions.handle, 0, regions.size)
            given, wanted = regions.tensors(module)
            server.counts.clear()
            triton.infer(model, [given], outputs=[wanted])

        await OneClient(tritonclient.http if protocol == "HTTP" else tritonclient.grpc, addresses[protocol]).use(use)
    assert np.array_equal(np.frombuffer(regions.answer(), np.float32), values.reshape(-1) + added)
    pieces = 2 if processes else 0  # of at most a MiB
    assert (server.counts["in"], server.counts["out"], server.counts["within"]) == (max(copies[0], pieces), *copies[1:])


@pytest.mark.parametrize("processes", [0, 1])
async def test_each_response_of_a_decoupled_model_is_written(gpu_backend: Path, processes: int) -> None:
    """As Triton does: each at the same place."""
    server = FakeDevice(0)
    flags = {"allow_client_shm": "true", "frontend_processes": str(processes)}
    async with served(gpu_backend, Devices([server]), **flags) as addresses:
        values = np.array([[5], [7], [9]], np.float32)
        regions = Regions(values, 4)

        def use(triton: Any, module: Any) -> None:
            answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
            triton.register_cuda_shared_memory("r", regions.handle, 0, regions.size)
            given, wanted = regions.tensors(module)
            server.counts.clear()
            triton.start_stream(lambda result, error: answers.put((result, error)))
            triton.async_stream_infer("parts", [given], outputs=[wanted])
            for _ in values:
                result, error = answers.get(timeout=30)
                assert error is None
                assert list(result.get_response().raw_output_contents) == [b""]
            triton.stop_stream()

        await OneClient(tritonclient.grpc, addresses["gRPC"]).use(use)
    assert np.frombuffer(regions.answer(), np.float32) == [10]
    copies = (server.counts["in"], server.counts["out"], server.counts["within"])
    assert copies == ((3, 3, 1) if processes else (0, 0, 4))


async def test_a_cache_gets_what_is_in_a_gpus_memory(gpu_backend: Path) -> None:
    server = FakeDevice(0)
    flags = {"allow_client_shm": "true", "cache_config": "local,size=1048576"}
    async with served(gpu_backend, Devices([server]), **flags) as addresses:
        regions = Regions(np.ones((1, 4), np.float32), 16)

        def use(triton: Any, module: Any) -> int:
            triton.register_cuda_shared_memory("r", regions.handle, 0, regions.size)
            given, wanted = regions.tensors(module)
            for _ in range(2):
                triton.infer("cached", [given], outputs=[wanted])
            return int(triton.get_inference_statistics("cached")["model_stats"][0]["inference_stats"]["cache_hit"]["count"])

        assert await OneClient(tritonclient.http, addresses["HTTP"]).use(use) == 1
    assert np.frombuffer(regions.answer(), np.float32).tolist() == [2] * 4


@pytest.mark.parametrize("processes", [0, 1])
async def test_strings_in_a_gpus_memory(tmp_path: Path, processes: int) -> None:
    config = """backend: "identity" max_batch_size: 0
        input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]
        output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] } ]"""
    ModelFolder(tmp_path, "m").file("1/.keep", "").config(config)
    words = np.array([b"", b"a", b"b" * 300], dtype=object)
    written = np.frombuffer(serialize_byte_tensor(words).item(), np.uint8)
    regions = Regions(written, written.nbytes)
    regions.values = written.reshape(-1)
    flags = {"allow_client_shm": "true", "frontend_processes": str(processes)}
    async with served(tmp_path, Devices([FakeDevice(0)]), **flags) as addresses:

        def use(triton: Any, module: Any) -> None:
            triton.register_cuda_shared_memory("r", regions.handle, 0, regions.size)
            given, wanted = regions.tensors(module, "BYTES", "0")
            given.set_shape([3])
            triton.infer("m", [given], outputs=[wanted])
            wanted.set_shared_memory("r", 8, offset=written.nbytes)
            with pytest.raises(InferenceServerException, match=r"\(8 bytes\) should be at least 313 bytes to hold the results"):
                triton.infer("m", [given], outputs=[wanted])

        await OneClient(tritonclient.http, addresses["HTTP"]).use(use)
    assert regions.answer() == written.tobytes()


async def test_frontend_processes_forget_regions(tmp_path: Path) -> None:
    """Unregistered, a region is closed as soon as no process uses it; the name is free at once."""
    ModelFolder(tmp_path, "m").identity()
    server = FakeDevice(0)
    values = np.arange(4, dtype=np.int32).reshape(4, 1)
    async with served(tmp_path, Devices([server]), allow_client_shm="true", frontend_processes="2") as addresses:

        def use(triton: Any, module: Any) -> None:
            for number in range(3):
                regions = Regions(values + np.int32(number), values.nbytes)
                triton.register_cuda_shared_memory("r", regions.handle, 0, regions.size)
                given, wanted = regions.tensors(module, "INT32", "0")
                triton.infer("m", [given], outputs=[wanted])
                assert np.frombuffer(regions.answer(), np.int32).tolist() == (values + number).reshape(-1).tolist()
                triton.unregister_cuda_shared_memory("r")
                with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'r'"):
                    triton.infer("m", [given])

        await OneClient(tritonclient.grpc, addresses["gRPC"]).use(use)
        with trio.fail_after(10):
            while server.counts["opened"]:
                gc.collect()
                await trio.sleep(0.01)
