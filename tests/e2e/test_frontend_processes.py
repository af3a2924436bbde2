"""`tpy serve --frontend-processes 2`, with the stock clients: everything is served; a process that dies takes only its own with
it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import re
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from .gated import GatedModel, metrics
from .repositories import ModelFolder
from .server import ServerProcess, command_of, is_alive
from .waiting import wait_until

COUNT = 2

WORDS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(request.inputs()[0].as_numpy()[0])
            for number in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def build(repository: Path) -> GatedModel:
    """Identity models of floats and of bytes, a decoupled one, and one that waits."""
    for name, kind in (("floats", "TYPE_FP32"), ("texts", "TYPE_STRING")):
        ModelFolder(repository, name).identity().config(
            'backend: "identity"\nmax_batch_size: 8\n'
            f'input [ {{ name: "INPUT0" data_type: {kind} dims: [ -1 ] }} ]\n'
            f'output [ {{ name: "OUTPUT0" data_type: {kind} dims: [ -1 ] }} ]\n'
        )
    ModelFolder(repository, "numbers").config(
        'backend: "python"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
        'input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        'output [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
    ).python(WORDS)
    return GatedModel(repository)


class Rig:
    """A server and what tests ask of it."""

    def __init__(self, server: ServerProcess, gated: GatedModel) -> None:
        self.server = server
        self.gated = gated

    def frontends(self) -> list[int]:
        """The process ids of the frontend processes."""
        return sorted(pid for pid in self.server.children() if b"tpy.frontend_process" in command_of(pid))

    def pending(self) -> float:
        """Requests that wait for the gated model, or run."""
        found = metrics(self.server)
        return sum(value for name, value in found.items() if "nv_inference_pending_request_count" in name and "gated" in name)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("frontends")
    repository = folder / "models"
    gated = build(repository)
    with ServerProcess(
        f"--frontend-processes={COUNT}",
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--trace-config=triton,file={folder / 'trace.json'}",
        repositories=[repository],
    ) as server:
        yield Rig(server, gated)


@pytest.fixture(params=["http", "grpc"])
def client(rig: Rig, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    module, address = (tritonclient.http, rig.server.http) if request.param == "http" else (tritonclient.grpc, rig.server.grpc)
    with module.InferenceServerClient(address) as connected:
        yield module, connected


def _infer(client: tuple[Any, Any], model: str, array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    module, connected = client
    tensor = module.InferInput("INPUT0", list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    found: np.ndarray[Any, Any] = connected.infer(model, [tensor]).as_numpy("OUTPUT0")
    return found


@pytest.mark.parametrize("count", [1, 1000, 3_000_000])
def test_tensors_come_back(client: tuple[Any, Any], count: int) -> None:
    array = np.arange(count, dtype=np.float32).reshape(1, count)
    for _ in range(3):
        assert np.array_equal(_infer(client, "floats", array, "FP32"), array)


def test_bytes_come_back(client: tuple[Any, Any]) -> None:
    array = np.array([[b"", b"a" * 100_000, "ä".encode(), b"\x00"]], object)
    assert _infer(client, "texts", array, "BYTES").tolist() == array.tolist()


def test_streams(rig: Rig) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(rig.server.grpc) as connected:
        connected.start_stream(lambda result, error: answers.put((result, error)))
        tensor = tritonclient.grpc.InferInput("COUNT", [1], "INT32")
        tensor.set_data_from_numpy(np.array([500], np.int32))
        connected.async_stream_infer("numbers", [tensor])
        numbers = []
        for _ in range(500):
            result, error = answers.get(timeout=30)
            assert error is None
            numbers.append(int(result.as_numpy("N")[0]))
        connected.stop_stream()
    assert numbers == list(range(500))


def test_generate_stream(rig: Rig) -> None:
    connection = http.client.HTTPConnection(rig.server.http)
    connection.request("POST", "/v2/models/numbers/generate_stream", json.dumps({"COUNT": [300]}))
    response = connection.getresponse()
    events = [json.loads(line[6:]) for line in response.read().decode().split("\n\n") if line]
    connection.close()
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [event["N"] for event in events] == list(range(300))


def test_what_is_loaded_by_one_process_is_served_by_all(rig: Rig) -> None:
    for _ in range(4):
        with tritonclient.http.InferenceServerClient(rig.server.http) as one:
            one.unload_model("floats")
        with tritonclient.grpc.InferenceServerClient(rig.server.grpc) as other:
            assert not other.is_model_ready("floats")
            with pytest.raises(InferenceServerException, match="Request for unknown model: 'floats' has no available versions"):
                _infer((tritonclient.grpc, other), "floats", np.zeros((1, 1), np.float32), "FP32")
            other.load_model("floats")
            assert other.get_model_metadata("floats").versions == ["1"]
        with tritonclient.http.InferenceServerClient(rig.server.http) as one:
            assert one.is_model_ready("floats")
            assert one.get_model_metadata("floats")["versions"] == ["1"]


def _ask(rig: Rig, method: str, path: str, document: object = None) -> Any:
    connection = http.client.HTTPConnection(rig.server.http, timeout=30)
    try:
        connection.request(method, path, None if document is None else json.dumps(document))
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body)
    finally:
        connection.close()


def test_checks_traces_and_the_log_are_answered_by_all(rig: Rig) -> None:
    found = _ask(rig, "POST", "/v2/repository/models/floats/check", {"parameters": {"config": '{"max_batch_sizes": 8}'}})
    assert "max_batch_sizes" in json.dumps(found["problems"])
    lines = _ask(rig, "GET", "/v2/logging/tail?after=0")["lines"]
    assert any("floats" in line["text"] for line in lines)
    assert _ask(rig, "GET", f"/v2/logging/tail?after={lines[-1]['number']}")["lines"] != lines
    _ask(rig, "POST", "/v2/models/texts/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    with tritonclient.http.InferenceServerClient(rig.server.http) as connected:
        _infer((tritonclient.http, connected), "texts", np.array([[b"a"]], object), "BYTES")
    _ask(rig, "POST", "/v2/models/texts/trace/setting", {"trace_level": None, "trace_rate": None})
    wait_until(lambda: _ask(rig, "GET", "/v2/trace/recent")["traces"])
    ((part, *_), *_) = [trace["parts"] for trace in _ask(rig, "GET", "/v2/trace/recent")["traces"]]
    assert (part["model_name"], part["protocol"], part["status"]) == ("texts", "http", "OK")


def test_the_load_of_the_server_goes_with_an_answer(rig: Rig) -> None:
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1]}]})
    connection = http.client.HTTPConnection(rig.server.http)
    with contextlib.closing(connection):
        connection.request("POST", "/v2/models/floats/infer", body, {"endpoint-load-metrics-format": "text"})
        said = connection.getresponse().headers["endpoint-load-metrics"]
    message = service_pb2.ModelInferRequest(model_name="floats", raw_input_contents=[bytes(4)])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    with grpc.insecure_channel(rig.server.grpc) as channel:
        asked = (("endpoint-load-metrics-format", "json"),)
        _, call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.with_call(message, metadata=asked)
    [(name, told)] = call.trailing_metadata()
    report = json.loads(told.removeprefix("JSON "))
    assert name == "endpoint-load-metrics"
    assert said.startswith("TEXT application_utilization=")
    assert {"application_utilization", "cpu_utilization", "mem_utilization"} <= report.keys()
    assert report["named_metrics"].keys() == {"tpy_load", "tpy_server_load"}


def test_the_table_of_options_names_the_processes(rig: Rig) -> None:
    assert re.search(rf"\| frontend_processes +\| {COUNT} +\|", rig.server.log)


def test_a_process_that_dies_takes_only_its_own_connections(rig: Rig) -> None:
    """One connection to each process; one process is killed while both have requests in flight."""
    shared_before = set(os.listdir("/dev/shm"))
    victims = rig.frontends()
    assert len(victims) == COUNT
    stop = threading.Event()
    array = np.arange(100_000, dtype=np.float32).reshape(1, -1)
    good, bad = [0] * 8, [0] * 8

    def ask(number: int) -> None:
        while not stop.is_set():
            try:
                with tritonclient.http.InferenceServerClient(rig.server.http) as connected:
                    while not stop.is_set():
                        assert np.array_equal(_infer((tritonclient.http, connected), "floats", array, "FP32"), array)
                        good[number] += 1
            except (OSError, http.client.HTTPException):
                bad[number] += 1

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, number) for number in range(8)]
        wait_until(lambda: min(good) > 5)
        os.kill(victims[0], signal.SIGKILL)
        wait_until(lambda: len(rig.frontends()) == COUNT and victims[0] not in rig.frontends())
        before = list(good)
        wait_until(lambda: all(now > then + 5 for now, then in zip(good, before, strict=True)))
        stop.set()
        for done in asking:
            done.result(30)
    assert sum(bad) <= 8, "each connection was reset at most once"
    assert victims[1] in rig.frontends()
    rig.server.wait_log(r"frontend process \d is replaced in .* s: was ended by SIGKILL")
    assert set(os.listdir("/dev/shm")) <= shared_before


def gated_request(name: str) -> str:
    """A request to the gated model, whose `id` is this name."""
    body = json.dumps({"id": name, "inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]})
    return f"POST /v2/models/gated/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def test_requests_of_a_process_that_dies_are_cancelled(rig: Rig) -> None:
    victims = rig.frontends()
    host, _, port = rig.server.http.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(gated_request("watching-1").encode())
        rig.gated.wait_executing("watching-1")
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "watching-1" in rig.gated.told())
        assert connection.recv(1) == b""
    wait_until(lambda: len(rig.frontends()) == COUNT and not set(victims) & set(rig.frontends()))
    with tritonclient.http.InferenceServerClient(rig.server.http) as connected:
        assert _infer((tritonclient.http, connected), "floats", np.ones((1, 1), np.float32), "FP32").tolist() == [[1.0]]


def test_lines_that_a_process_loses_are_on_the_page_of_the_server(tmp_path: Path) -> None:
    """Its log may not grow any more; the server's may."""
    gated = build(tmp_path / "models")
    log, series = tmp_path / "log", 'tpy_log_lines_dropped_total{log="server"}'
    flags = ("--frontend-processes=1", f"--log-file={log}", "--log-verbose=1", "--model-control-mode=explicit")
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:
        (process,) = Rig(server, gated).frontends()
        resource.prlimit(process, resource.RLIMIT_FSIZE, (0, 0))

        host, _, port = server.grpc.rpartition(":")

        def lost() -> float:
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(b"no HTTP/2, which is in the verbose log" * 9)
                with contextlib.suppress(ConnectionResetError):
                    while connection.recv(4096):
                        pass
            return metrics(server)[series]

        wait_until(lambda: lost() > 0)


def _is_replaced(rig: Rig, victim: int) -> bool:
    frontends = rig.frontends()
    return len(frontends) == COUNT and victim not in frontends


def test_processes_that_die_leave_nothing_in_the_server(rig: Rig) -> None:
    """Neither descriptors nor mapped memory: of each process the server held a connection, two memories, two arenas."""

    def held() -> tuple[int, int]:
        process = Path(f"/proc/{rig.server.process.pid}")
        return rig.server.open_files().total(), (process / "maps").read_text().count("tpy-tensors")

    before = held()
    for _ in range(3):
        victim = rig.frontends()[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(partial(_is_replaced, rig, victim))
    wait_until(lambda: held() == before)


def test_a_stop_does_not_wait_for_a_process_that_has_not_begun(tmp_path: Path) -> None:
    build(tmp_path / "models")
    with ServerProcess(
        "--frontend-processes=1", "--model-control-mode=explicit", "--load-model=floats", repositories=[tmp_path / "models"]
    ) as server:
        [frontend] = [pid for pid in server.children() if b"tpy.frontend_process" in command_of(pid)]
        os.kill(frontend, signal.SIGKILL)
        server.wait_log(r"frontend process \d is replaced in")
        wait_until(lambda: any(b"tpy.frontend_process" in command_of(pid) for pid in server.children() if pid != frontend))
        assert server.stop() == 0


def test_processes_go_on_without_what_they_were_forked_from(tmp_path: Path) -> None:
    """And the next one comes from another one."""
    build(tmp_path / "models")
    with ServerProcess(
        "--frontend-processes=1", "--model-control-mode=explicit", "--load-model=floats", repositories=[tmp_path / "models"]
    ) as server:
        [frontend] = [pid for pid in server.children() if b"tpy.frontend_process" in command_of(pid)]
        template = int(Path(f"/proc/{frontend}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(template, signal.SIGKILL)
        wait_until(lambda: not is_alive(template))
        with tritonclient.http.InferenceServerClient(server.http) as connected:
            assert _infer((tritonclient.http, connected), "floats", np.ones((1, 1), np.float32), "FP32").tolist() == [[1.0]]
        os.kill(frontend, signal.SIGKILL)
        wait_until(lambda: any(b"tpy.frontend_process" in command_of(pid) for pid in server.children()))
        with tritonclient.http.InferenceServerClient(server.http) as connected:
            assert _infer((tritonclient.http, connected), "floats", np.ones((1, 1), np.float32), "FP32").tolist() == [[1.0]]


def test_a_stop_does_not_wait_for_what_processes_are_forked_from(tmp_path: Path) -> None:
    """It hangs, and the next process is to be forked from it."""
    build(tmp_path / "models")
    with ServerProcess(
        "--frontend-processes=2", "--model-control-mode=explicit", "--load-model=floats", repositories=[tmp_path / "models"]
    ) as server:
        frontends = [pid for pid in server.children() if b"tpy.frontend_process" in command_of(pid)]
        template = int(Path(f"/proc/{frontends[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(template, signal.SIGSTOP)
        os.kill(frontends[0], signal.SIGKILL)
        assert server.stop() == 0
        wait_until(lambda: not is_alive(template))
        assert not is_alive(frontends[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_lets_requests_in_flight_finish(tmp_path: Path, number: int) -> None:
    gated = build(tmp_path / "models")
    with (
        ServerProcess(f"--frontend-processes={COUNT}", repositories=[tmp_path / "models"]) as server,
        ThreadPoolExecutor() as pool,
    ):
        frontends = [pid for pid in server.children() if b"tpy.frontend_process" in command_of(pid)]

        def ask() -> list[list[int]]:
            with tritonclient.http.InferenceServerClient(server.http) as connected:
                tensor = tritonclient.http.InferInput("INPUT0", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.array([[7]], np.int32))
                answer = connected.infer("gated", [tensor], request_id="last").as_numpy("OUTPUT0")
                assert answer is not None
                found: list[list[int]] = answer.tolist()
                return found

        asked = pool.submit(ask)
        gated.wait_executing("last")
        server.process.send_signal(number)
        server.wait_log("stopping")
        gated.open_gate("last")
        assert asked.result(30) == [[7]]
        assert server.wait_end() == 0
        assert not any(map(is_alive, frontends))
        assert "replaced" not in server.log


def test_one_core_is_enough(tmp_path: Path) -> None:
    """Server, frontend process and worker share it; every answer is right, and the end is in order."""
    build(tmp_path / "models")
    pinned = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.execvp(sys.argv[1], sys.argv[1:])"
    with (
        ServerProcess(
            "--frontend-processes=1", repositories=[tmp_path / "models"], launcher=(sys.executable, "-c", pinned)
        ) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        assert all(len(os.sched_getaffinity(pid)) == 1 for pid in (server.process.pid, *server.children()))

        def ask(number: int) -> list[float]:
            with tritonclient.http.InferenceServerClient(server.http) as client:
                sent = np.full((1, 2), number, np.float32)
                answers = [_infer((tritonclient.http, client), "floats", sent, "FP32") for _ in range(20)]
                return [float(answer.ravel()[0]) for answer in answers]

        assert list(pool.map(ask, range(16))) == [[number] * 20 for number in range(16)]


def test_a_stopped_process_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """It has a request in flight at the shutdown, and is stopped then."""
    gated = build(tmp_path / "models")
    with ServerProcess(
        "--frontend-processes=1", "--exit-timeout-secs=1", repositories=[tmp_path / "models"], expect_exit=1
    ) as server:
        [frontend] = [pid for pid in server.children() if b"tpy.frontend_process" in command_of(pid)]
        host, _, port = server.http.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(gated_request("never").encode())
            gated.wait_executing("never")
            server.process.send_signal(signal.SIGTERM)
            server.wait_log('"stopping')
            os.kill(frontend, signal.SIGSTOP)
            server.wait_end()
        assert not is_alive(frontend)


def test_the_death_of_the_server_ends_its_frontends(tmp_path: Path) -> None:
    build(tmp_path / "models")
    with ServerProcess("--frontend-processes=2", repositories=[tmp_path / "models"], expect_exit=-signal.SIGKILL) as server:
        frontends = [pid for pid in server.children() if b"tpy.frontend_process" in command_of(pid)]
        server.process.kill()
        wait_until(lambda: not any(map(is_alive, frontends)))


def test_what_cannot_be_served_is_an_error_at_the_start(tmp_path: Path) -> None:
    build(tmp_path / "models")
    missing = ("--grpc-use-ssl=true", "--grpc-server-cert=/nowhere.pem", "--grpc-server-key=/nowhere.key")
    with ServerProcess("--frontend-processes=2", *missing, repositories=[tmp_path / "models"], expect_exit=1) as server:
        server.process.wait(60)
    assert "/nowhere" in server.log
    with ServerProcess("--frontend-processes=65", repositories=[tmp_path / "models"], expect_exit=1) as server:
        server.process.wait(60)
    assert "--frontend-processes" in server.log


def test_a_stop_does_not_wait_for_processes_that_start(tmp_path: Path) -> None:
    build(tmp_path / "models")
    server = ServerProcess(
        "--frontend-processes=2", "--model-control-mode=explicit", "--load-model=floats", repositories=[tmp_path / "models"]
    )
    server.start()
    server.wait_log("loading: floats:1")
    assert server.stop() == 0
    assert "Traceback" not in server.log
