"""The end of `tpy serve`: in order, at once when told twice, and never with processes left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient as GrpcClient
from tritonclient.http import InferenceServerClient as HttpClient
from tritonclient.http import InferenceServerException, InferInput

from tests.pace import with_patience
from tpy._proto import message_class

from .gated import GatedModel, asking
from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess, is_alive
from .test_workers import worker_of
from .waiting import wait_until

WITHOUT_DELAY_S = 25.0
"""Less than the exit timeout of 30 s that would otherwise pass, far more than a busy machine needs."""


STOPPING = r"^\[503\] .*Server is stopping, scheduler for model has stopped accepting new inference requests"


@contextmanager
def idle_connection(server: ServerProcess) -> Iterator[socket.socket]:
    """A keep-alive connection that has had an answer."""
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        yield connection


def infer_request(model: str, number: int, request_id: str) -> bytes:
    """An inference request as it is sent."""
    tensor = f'{{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [{number}]}}'
    body = f'{{"id": "{request_id}", "inputs": [{tensor}]}}'
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize("processes", [0, 1])
def test_requests_on_open_connections_are_answered(repository: Path, processes: int) -> None:
    """As Triton does, until the connection is closed or the exit time-out is over. The last answer says that it is the last."""
    gated, other = GatedModel(repository), GatedModel(repository, "other")
    with ServerProcess(f"--frontend-processes={processes}", repositories=[repository]) as server:
        with idle_connection(server) as connection:
            connection.settimeout(30)
            connection.sendall(infer_request(gated.name, 1, "a"))
            gated.wait_executing("a")
            server.process.send_signal(signal.SIGTERM)
            server.wait_log("stopping ")
            connection.sendall(infer_request(other.name, 2, "b"))
            other.wait_executing("b")
            gated.open_gate("a")
            other.open_gate("b")
            answers = b""
            while data := connection.recv(65_536):
                answers += data
        first, last = answers.split(b"HTTP/1.1 ")[1:]
        assert first.startswith(b"200 ")
        assert b"Connection: close" not in first
        assert last.startswith(b"200 ")
        assert b"\r\nConnection: close\r\n" in last
        assert server.wait_end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_are_answered(repository: Path, number: signal.Signals) -> None:
    """The one that executes and those that wait; then exit code 0 and no worker left."""
    gated = GatedModel(repository, batching="")
    with ServerProcess(repositories=[repository]) as server, asking(server, gated.name) as asker:
        workers = server.children()
        assert len(workers) == 1
        executing = asker.ask("a", 1)
        gated.wait_executing("a")
        waiting = [asker.ask("b", 2), asker.ask("c", 3)]
        asker.wait_queued(2)
        server.process.send_signal(number)
        server.wait_log(rf"stopping \({number.name}\)")
        server.wait_log(r"Timeout \d+: Found 1 model versions that have in-flight inferences")  # Triton's lines, until the end
        server.wait_log(r"Timeout \d+: Found [1-9]\d* HTTP service connections")
        host, port = server.http.split(":")

        def refused() -> bool:
            try:
                with socket.create_connection((host, int(port)), timeout=5) as late:
                    late.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
                    return not late.recv(1000).startswith(b"HTTP/1.1 200 ")
            except OSError:
                return True

        wait_until(refused)
        gated.open_gate("a", "b", "c")
        assert [request.result() for request in (executing, *waiting)] == [1, 2, 3]
        assert server.wait_end() == 0
        assert not [pid for pid in workers if is_alive(pid)]
        live = r'"Timeout \d+: Found %d live models and 0 in-flight non-inference requests"\n'
        last = "All models are stopped, unloading models", live % 1, "successfully unloaded 'gated' version 1", live % 0
        assert re.search(".*".join(last), server.log, re.DOTALL), server.log


def test_idle_connections_do_not_hold_the_exit(repository: Path) -> None:
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    with ServerProcess(repositories=[repository]) as server, idle_connection(server), idle_connection(server) as second:
        started_s = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - started_s < with_patience(WITHOUT_DELAY_S)
        assert "Exit timeout" not in server.log
        assert second.recv(1000) == b""


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
def test_the_second_signal_ends_at_once(repository: Path, numbers: tuple[signal.Signals, signal.Signals]) -> None:
    gated = GatedModel(repository)
    with ServerProcess(repositories=[repository], expect_exit=130) as server, asking(server, gated.name) as asker:
        workers = server.children()
        lost = asker.ask("a", 1)
        gated.wait_executing("a")
        server.process.send_signal(numbers[0])
        server.wait_log("stopping ")
        assert server.process.poll() is None
        server.process.send_signal(numbers[1])
        assert server.wait_end(WITHOUT_DELAY_S) == 130
        assert lost.exception() is not None
        wait_until(lambda: not [pid for pid in workers if is_alive(pid)])


@pytest.mark.parametrize("processes", [0, 1])
def test_the_exit_delay(repository: Path, processes: int) -> None:
    """The server is not ready and serves, new connections too, until the delay is over or another signal comes."""
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    flags = ("--exit-delay-secs=1000", f"--frontend-processes={processes}")
    with ServerProcess(*flags, repositories=[repository], expect_exit=143) as server:
        http, rpc = HttpClient(server.http), GrpcClient(server.grpc)
        with idle_connection(server) as connection, http, rpc:
            assert http.is_server_ready()
            assert rpc.is_server_ready()
            server.process.send_signal(signal.SIGTERM)
            server.wait_log(r"not ready any more \(SIGTERM\)")
            for client in (http, rpc):
                wait_until(lambda client=client: not client.is_server_ready())
                assert client.is_server_live()
                assert client.is_model_ready("m")
            with HttpClient(server.http) as newcomer:
                tensor = InferInput("INPUT", [1, 3], "FP32").set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
                assert newcomer.infer("m", [tensor]).as_numpy("OUTPUT").tolist() == [[2, 4, 6]]
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = connection.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"Connection: close" not in answer
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end(WITHOUT_DELAY_S) == 143


def test_the_order_after_the_exit_delay(repository: Path) -> None:
    with ServerProcess("--exit-delay-secs=1", repositories=[repository]) as server:
        assert server.stop() == 0
        assert server.log.index("not ready any more") < server.log.index("stopping (SIGTERM)")


def test_the_exit_timeout(repository: Path) -> None:
    """A model that does not return is left behind: exit code 1, told in the log."""
    gated = GatedModel(repository)
    with (
        ServerProcess("--exit-timeout-secs=1", repositories=[repository], expect_exit=1) as server,
        asking(server, gated.name) as asker,
    ):
        workers = server.children()
        lost = asker.ask("a", 1)
        gated.wait_executing("a")
        started_s = time.monotonic()
        assert server.stop() == 1
        assert 1 <= time.monotonic() - started_s < with_patience(WITHOUT_DELAY_S)
        assert "Exit timeout expired. Exiting immediately." in server.log
        with pytest.raises(InferenceServerException, match=STOPPING):
            lost.result()
        wait_until(lambda: not [pid for pid in workers if is_alive(pid)])


@pytest.mark.parametrize("batching", ["", "dynamic_batching { }"], ids=["default", "dynamic"])
@pytest.mark.parametrize("processes", [0, 1])
def test_a_worker_that_was_stopped(repository: Path, batching: str, processes: int) -> None:
    """The requests that it has, and those that wait behind them, get 503 and UNAVAILABLE; then the server ends."""
    gated = GatedModel(repository, batching=batching)
    message = message_class("inference.ModelInferRequest")(model_name=gated.name, id="a", raw_input_contents=[bytes(4)])
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
    with (
        ServerProcess(
            "--exit-timeout-secs=1", f"--frontend-processes={processes}", repositories=[repository], expect_exit=1
        ) as server,
        asking(server, gated.name) as asker,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        executing = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(
            message.SerializeToString(), timeout=60
        )
        gated.wait_executing("a")
        worker = worker_of(server, "gated_0")
        os.kill(worker, signal.SIGSTOP)
        waiting = [asker.ask("b", 2), asker.ask("c", 3)]
        asker.wait_queued(2)
        assert server.stop() == 1
        for each in waiting:
            with pytest.raises(InferenceServerException, match=STOPPING):
                each.result()
        error = executing.exception()
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "Server is stopping" in error.details()
        wait_until(lambda: not is_alive(worker))


def test_a_signal_during_the_start(repository: Path) -> None:
    """Before the models are loaded: no traceback, exit code 0."""
    ModelFolder(repository, "slow").config(
        'backend: "identity"\ninput { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        'parameters { key: "creation_delay_sec" value { string_value: "2" } }\n'
    )
    (repository / "slow" / "1").mkdir()
    server = ServerProcess(repositories=[repository])
    server.start()
    server.wait_log("loading: slow:1")
    assert server.stop(signal.SIGTERM) == 0
    assert "Traceback" not in server.log
    assert "Started HTTPService" not in server.log


def test_a_test_run_that_is_killed_leaves_no_server(repository: Path) -> None:
    """The server's process goes with the process that started it: a run that times out leaves nothing behind."""
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    source = (
        "import sys; from pathlib import Path; from tests.e2e.server import ServerProcess\n"
        "with ServerProcess(repositories=[Path(sys.argv[1])]) as server: print(server.process.pid, flush=True); input()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", source, str(repository)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    with run:
        assert run.stdout is not None
        server = int(run.stdout.readline())
        assert is_alive(server)
        run.kill()
        wait_until(lambda: not is_alive(server))


def test_a_killed_server_leaves_no_workers(repository: Path) -> None:
    gated = GatedModel(repository, batching="instance_group [ { count: 2 } ]")
    with ServerProcess(repositories=[repository], expect_exit=-signal.SIGKILL) as server, asking(server, gated.name) as asker:
        workers = server.children()
        assert len(workers) == 2
        lost = asker.ask("a", 1)  # one worker is in the middle of it, the other waits for work
        gated.wait_executing("a")
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        assert lost.exception() is not None
        wait_until(lambda: not [pid for pid in workers if is_alive(pid)])
