"""Shared memory with clients: tritonclient's own utilities against `tpy serve --allow-client-shm true`, served by one process and
by frontend processes."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from .gated import GatedModel
from .repositories import ModelFolder
from .server import ServerProcess, command_of
from .waiting import wait_until

COUNT = 2
LARGE = 3_000_000

PARTS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in request.inputs()[0].as_numpy().reshape(-1):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.full(4, value, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

COPIED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""


TOO_SMALL = (
    "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be at least 16 bytes to hold the results"
)


def pair(datatype: str) -> str:
    return f"""
input [ {{ name: "INPUT0" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
"""


class Served:
    """A running server, the module of a client's protocol, and its address."""

    def __init__(self, server: ServerProcess, gated: GatedModel, processes: int) -> None:
        self.server = server
        self.gated = gated
        self.processes = processes

    def client(self, protocol: str) -> Any:
        module = MODULES[protocol]
        return module.InferenceServerClient(self.server.http if protocol == "http" else self.server.grpc)

    def pids(self) -> list[int]:
        """The processes that serve requests."""
        frontends = (each for each in self.server.children() if b"tpy.frontend_process" in command_of(each))
        return [self.server.process.pid, *frontends]

    def open_segments(self) -> list[int]:
        """The number of client segments that each of them has open."""
        return [sum(PREFIX in _target(found) for found in Path(f"/proc/{pid}/fd").iterdir()) for pid in self.pids()]


KEYS: dict[str, str] = {}
"""The newest key of a region's name: the client keeps segments by their keys, and takes those that there are."""

_numbers = count()


def new_key(name: str) -> str:
    KEYS[name] = f"/{PREFIX}{name}_{next(_numbers)}"
    return KEYS[name]


MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
PREFIX = f"tpy_e2e_{os.getpid()}_"


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


@pytest.fixture(scope="module", params=[0, COUNT], ids=["one process", "frontend processes"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp("shared") / "models"
    for name, datatype in (("numbers", "FP32"), ("words", "STRING")):
        ModelFolder(repository, name).file("1/.keep", "").config(f'backend: "identity"\nmax_batch_size: 0\n{pair(datatype)}')
    cached = ModelFolder(repository, "cached").file("1/.keep", "")
    cached.config(f'backend: "identity"\nmax_batch_size: 0\nresponse_cache {{ enable: true }}\n{pair("FP32")}')
    parts = ModelFolder(repository, "parts").python(PARTS)
    parts.config(f'backend: "python"\nmax_batch_size: 0\nmodel_transaction_policy {{ decoupled: true }}\n{pair("FP32")}')
    copied = ModelFolder(repository, "copied").python(COPIED)
    copied.config(f'backend: "python"\nmax_batch_size: 0\n{pair("FP32")}')
    gated = GatedModel(repository)
    flags = ("--allow-client-shm=true", f"--frontend-processes={request.param}", "--cache-config=local,size=1048576")
    with ServerProcess(*flags, repositories=[repository]) as server:
        yield Served(server, gated, request.param)


@contextmanager
def region(client: Any, name: str, size: int) -> Iterator[Any]:
    """A segment, registered, for the length of the block."""
    key = new_key(name)
    handle = shm.create_shared_memory_region(name, key, size)
    try:
        client.register_system_shared_memory(name, key, size)
        try:
            yield handle
        finally:
            client.unregister_system_shared_memory(name)
    finally:
        shm.destroy_shared_memory_region(handle)


def tensors(protocol: str, size: int, shape: list[int], datatype: str = "FP32", out: int | None = None) -> tuple[Any, Any]:
    """The input in region `in`, the output in region `out`."""
    given = MODULES[protocol].InferInput("INPUT0", shape, datatype)
    given.set_shared_memory("in", size)
    wanted = MODULES[protocol].InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("out", size if out is None else out)
    return given, wanted


@pytest.mark.parametrize("elements", [1, 4, LARGE])
@pytest.mark.parametrize("protocol", MODULES)
def test_tensors_go_through_regions(served: Served, protocol: str, elements: int) -> None:
    values = np.arange(elements, dtype=np.float32)
    with (
        served.client(protocol) as client,
        region(client, "in", values.nbytes) as given,
        region(client, "out", values.nbytes) as out,
    ):
        shm.set_shared_memory_region(given, [values])
        result = client.infer(
            "numbers",
            [(tensors(protocol, values.nbytes, [elements]))[0]],
            outputs=[tensors(protocol, values.nbytes, [elements])[1]],
        )
        assert np.array_equal(shm.get_contents_as_numpy(out, np.float32, [elements]), values)
        described = result.get_output("OUTPUT0")
        shape = described["shape"] if protocol == "http" else list(described.shape)
        assert shape == [elements]
        status = client.get_system_shared_memory_status()
        names = [row["name"] for row in status] if protocol == "http" else sorted(status.regions)
        assert names == ["in", "out"]


@pytest.mark.parametrize("protocol", MODULES)
def test_strings_go_through_regions(served: Served, protocol: str) -> None:
    words = np.array([b"", b"a", b"b" * 300, "grün".encode()], dtype=object)
    size = len(serialize_byte_tensor(words).item())
    with served.client(protocol) as client, region(client, "in", size) as given, region(client, "out", 4096) as out:
        shm.set_shared_memory_region(given, [serialize_byte_tensor(words)])
        item, wanted = tensors(protocol, size, [4], "BYTES", 4096)
        client.infer("words", [item], outputs=[wanted])
        assert list(shm.get_contents_as_numpy(out, np.object_, [4])) == list(words)


@pytest.mark.parametrize("protocol", MODULES)
def test_many_strings_go_through_regions(served: Served, protocol: str) -> None:
    """More than is decoded on the loop."""
    words = np.array([b"%d" % number for number in range(100_000)], dtype=object)
    size = len(serialize_byte_tensor(words).item())
    with served.client(protocol) as client, region(client, "in", size) as given, region(client, "out", size) as out:
        shm.set_shared_memory_region(given, [serialize_byte_tensor(words)])
        item, wanted = tensors(protocol, size, [words.size], "BYTES")
        client.infer("words", [item], outputs=[wanted])
        assert (shm.get_contents_as_numpy(out, np.object_, [words.size]) == words).all()


@pytest.mark.parametrize("elements", [4, LARGE])
def test_streams_use_regions(served: Served, elements: int) -> None:
    answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
    values = np.arange(elements, dtype=np.float32)
    with (
        served.client("grpc") as client,
        region(client, "in", values.nbytes) as given,
        region(client, "out", values.nbytes) as out,
    ):
        shm.set_shared_memory_region(given, [values])
        item, wanted = tensors("grpc", values.nbytes, [elements])
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("numbers", [item], outputs=[wanted], request_id="a")
        result, error = answers.get(timeout=30)
        assert error is None
        assert result.get_response().id == "a"
        assert np.array_equal(shm.get_contents_as_numpy(out, np.float32, [elements]), values)
        item.set_shared_memory("nosuch", values.nbytes)
        client.async_stream_infer("numbers", [item], request_id="b")
        assert "Unable to find shared memory region: 'nosuch'" in str(answers.get(timeout=30)[1])
        client.stop_stream()


def test_each_response_of_a_decoupled_model_is_written(served: Served) -> None:
    """Each at the same place, and each that does not fit is an error, as Triton 2.51 does it."""
    answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
    with served.client("grpc") as client, region(client, "in", 8) as given, region(client, "out", 16) as out:
        shm.set_shared_memory_region(given, [np.array([5, 7], np.float32)])
        item, wanted = tensors("grpc", 8, [2], out=16)
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("parts", [item], outputs=[wanted])
        for _ in range(2):
            result, error = answers.get(timeout=30)
            assert error is None
            assert list(result.get_response().raw_output_contents) == [b""]
        assert shm.get_contents_as_numpy(out, np.float32, [4]).tolist() == [7, 7, 7, 7]
        wanted.set_shared_memory("out", 8)
        client.async_stream_infer("parts", [item], outputs=[wanted], enable_empty_final_response=True)
        for _ in range(2):
            result, error = answers.get(timeout=30)
            assert str(error) == TOO_SMALL
        result, error = answers.get(timeout=30)
        assert error is None
        assert result.get_response().parameters["triton_final_response"].bool_param
        assert shm.get_contents_as_numpy(out, np.float32, [4]).tolist() == [7, 7, 7, 7]
        client.stop_stream()


def test_a_cached_response_is_written_too(served: Served) -> None:
    values = np.arange(4, dtype=np.float32)
    with served.client("http") as client, region(client, "in", 16) as given, region(client, "out", 16) as out:
        shm.set_shared_memory_region(given, [values])
        item, wanted = tensors("http", 16, [4])
        for _ in range(2):
            shm.set_shared_memory_region(out, [np.zeros(4, np.float32)])
            client.infer("cached", [item], outputs=[wanted])
            assert np.array_equal(shm.get_contents_as_numpy(out, np.float32, [4]), values)
        assert client.get_inference_statistics("cached")["model_stats"][0]["inference_stats"]["cache_hit"]["count"] > 0


def test_the_aio_clients_use_regions(served: Served) -> None:
    async def ask(module: Any, protocol: str, url: str) -> None:
        async with module.InferenceServerClient(url) as client:
            handles = [shm.create_shared_memory_region(name, new_key(name), 16) for name in ("in", "out")]
            try:
                for name in ("in", "out"):
                    await client.register_system_shared_memory(name, KEYS[name], 16)
                shm.set_shared_memory_region(handles[0], [np.arange(4, dtype=np.float32)])
                item, wanted = tensors(protocol, 16, [4])
                await client.infer("numbers", [item], outputs=[wanted])
                assert shm.get_contents_as_numpy(handles[1], np.float32, [4]).tolist() == [0, 1, 2, 3]
                await client.unregister_system_shared_memory()
                status = await client.get_system_shared_memory_status()
                assert not (status if protocol == "http" else status.regions)
            finally:
                for handle in handles:
                    shm.destroy_shared_memory_region(handle)

    asyncio.run(ask(tritonclient.http.aio, "http", served.server.http))
    asyncio.run(ask(tritonclient.grpc.aio, "grpc", served.server.grpc))


@pytest.mark.parametrize("protocol", MODULES)
def test_a_request_keeps_regions_that_are_unregistered_meanwhile(served: Served, protocol: str) -> None:
    """Also when the segment has no name any more, and the region's name is another's (CVE-2024-0116: one that was released
    in use was read out of bounds)."""
    name = f"kept-{protocol}-{served.processes}"
    with served.client(protocol) as client, region(client, "in", 4) as given, ThreadPoolExecutor(1) as threads:
        out = shm.create_shared_memory_region("out", new_key("out"), 4)
        client.register_system_shared_memory("out", KEYS["out"], 4)
        shm.set_shared_memory_region(given, [np.array([77], np.int32)])
        item, wanted = tensors(protocol, 4, [1, 1], "INT32")
        other = served.client(protocol)
        answer = threads.submit(other.infer, "gated", [item], outputs=[wanted], request_id=name)
        wait_until(lambda: [name] in served.gated.batches())
        client.unregister_system_shared_memory("out")
        with region(client, "out", 4) as another:
            served.gated.open_gate(name)
            answer.result(30)
            assert shm.get_contents_as_numpy(another, np.int32, [1]).tolist() == [0]
        assert shm.get_contents_as_numpy(out, np.int32, [1]).tolist() == [77]
        shm.destroy_shared_memory_region(out)
        other.close()
    wait_until(lambda: not any(served.open_segments()))


@pytest.mark.parametrize("protocol", MODULES)
def test_segments_that_shrink_end_no_server(served: Served, protocol: str) -> None:
    """A client that truncates its segments while the server reads and writes them gets errors, and nobody else feels it."""
    size = 4 * LARGE
    pids, over = served.pids(), threading.Event()

    def shake(name: str) -> None:
        while not over.is_set():
            os.truncate(f"/dev/shm{KEYS[name]}", 4096)
            os.truncate(f"/dev/shm{KEYS[name]}", size)

    with (
        served.client(protocol) as client,
        region(client, "in", size),
        region(client, "out", size),
        ThreadPoolExecutor(2) as threads,
    ):
        item, wanted = tensors(protocol, size, [LARGE])
        shaking = [threads.submit(shake, name) for name in ("in", "out")]
        outcomes = set()
        try:
            for _ in range(40):
                try:
                    client.infer("numbers", [item], outputs=[wanted])
                    outcomes.add("")
                except InferenceServerException as error:
                    outcomes.add(error.message())
        finally:
            over.set()
        for each in shaking:
            each.result(30)
        assert outcomes <= {"", *(SHORTER.format(name=name, key=KEYS[name]) for name in ("in", "out"))}
        client.infer("numbers", [item], outputs=[wanted])
    assert sorted(served.pids()) == sorted(pids)


@pytest.mark.parametrize("protocol", MODULES)
def test_errors_of_copies_keep_no_region(served: Served, protocol: str) -> None:
    """An error of a worker's copy, or of an answer's, refers to no frame that has the region: nobody waits for the garbage
    collector."""
    size = 4 * LARGE
    with served.client(protocol) as client:
        for short in ("in", "out") * 4:
            with region(client, "in", size), region(client, "out", size):
                item, wanted = tensors(protocol, size, [LARGE])
                os.truncate(f"/dev/shm{KEYS[short]}", 4096)
                with pytest.raises(InferenceServerException, match=f"region '{short}' is shorter now"):
                    client.infer("copied", [item], outputs=[wanted])
    wait_until(lambda: not any(served.open_segments()))


SHORTER = "shared memory region '{name}' is shorter now than when it was registered: its segment '{key}' was truncated"


def test_nothing_stays_open(served: Served) -> None:
    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(InferenceServerException):
            call()

    with served.client("http") as client:
        for _ in range(20):
            with region(client, "in", 16) as given, region(client, "out", 16):
                shm.set_shared_memory_region(given, [np.arange(4, dtype=np.float32)])
                item, wanted = tensors("http", 16, [4])
                client.infer("numbers", [item], outputs=[wanted])
                wanted.set_shared_memory("out", 8)
                refused(lambda item=item, wanted=wanted: client.infer("numbers", [item], outputs=[wanted]))  # type: ignore[misc]
                refused(lambda: client.register_system_shared_memory("in", KEYS["in"], 16))
                refused(lambda: client.register_system_shared_memory("more", KEYS["in"], 17))
                assert served.open_segments() == [2] * (1 + served.processes)
        assert served.open_segments() == [0] * (1 + served.processes)


def test_every_connection_knows_a_region_at_once(served: Served) -> None:
    """Whichever process registered it, and whichever serves the connection."""
    for number in range(8):
        with served.client("http") as client, region(client, "in", 16) as given, region(client, "out", 16) as out:
            values = np.full(4, number, np.float32)
            shm.set_shared_memory_region(given, [values])
            for protocol in ("http", "grpc") * 2:
                shm.set_shared_memory_region(out, [np.zeros(4, np.float32)])
                with served.client(protocol) as other:
                    item, wanted = tensors(protocol, 16, [4])
                    other.infer("numbers", [item], outputs=[wanted])
                assert np.array_equal(shm.get_contents_as_numpy(out, np.float32, [4]), values)


def test_a_new_frontend_process_knows_the_regions(served: Served) -> None:
    """Also one whose segment has no name any more."""
    if not served.processes:
        pytest.skip("of frontend processes")
    with served.client("grpc") as client, region(client, "in", 16) as given, region(client, "out", 16) as out:
        shm.set_shared_memory_region(given, [np.arange(4, dtype=np.float32)])
        paths = [f"/dev/shm{KEYS[name]}" for name in ("in", "out")]
        for path in paths:
            os.rename(path, f"{path}_moved")
        try:
            for pid in (before := served.pids())[1:]:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: len(served.pids()) == len(before) and not set(served.pids()[1:]) & set(before))
            wait_until(lambda: served.open_segments() == [2] * (1 + served.processes))
            with served.client("http") as other:
                item, wanted = tensors("http", 16, [4])
                other.infer("numbers", [item], outputs=[wanted])
            assert shm.get_contents_as_numpy(out, np.float32, [4]).tolist() == [0, 1, 2, 3]
        finally:
            for path in paths:
                os.rename(f"{path}_moved", path)
        with served.client("http") as last:
            last.unregister_system_shared_memory()
