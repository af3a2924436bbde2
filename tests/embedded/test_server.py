"""tpy.Server: start and stop, models by name, functions as models, ports."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

import tpy
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.waiting import wait_until
from tpy.embedded.engine_thread import EngineThread
from tpy.errors import InvalidArgument, NotFound, TpyError, Unavailable
from tpy.messages import ModelState
from tpy_data.backends.function import FUNCTIONS

X = [("X", np.float32, [-1])]
Y = [("Y", np.float32, [-1])]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    ModelFolder(models, "affine").affine(1, 2.0, 1.0).config(AFFINE_CONFIG)
    ModelFolder(models, "echo").identity()
    return models


@pytest.fixture
def server() -> Iterator[tpy.Server]:
    with tpy.Server() as started:
        yield started


def test_models_of_a_repository_answer_without_ports(repository: Path) -> None:
    with tpy.Server(repository) as server:
        assert server.addresses == {}
        assert server.ready()
        assert [(entry.name, entry.state) for entry in server.index()] == [
            ("affine", ModelState.READY),
            ("echo", ModelState.READY),
        ]
        model = server.model("affine")
        array = np.array([[1, 2, 3]], np.float32)
        response = model.infer({"INPUT": array}, id="seven", outputs=["OUTPUT"])
        np.testing.assert_array_equal(response["OUTPUT"], [[3, 5, 7]])
        assert (response.id, response.model_name, response.model_version, list(response)) == ("seven", "affine", 1, ["OUTPUT"])
        assert repr(response) == "<Response of affine version 1: OUTPUT: float32[1, 3]>"
        np.testing.assert_array_equal(model.infer({"INPUT": [[0, 0, 1]]})["OUTPUT"], [[1, 1, 3]])  # fitted to FP32
        assert model.description().max_batch_size == 8
        assert model.config().backend == "onnxruntime"
        assert server.model("echo", version=1).infer({"INPUT0": [[5]]})["OUTPUT0"] == [[5]]
        [statistics] = server.statistics("affine")
        assert (statistics.inference_count, statistics.name) == (2, "affine")
        assert 'nv_inference_count{model="affine",version="1"} 2' in server.metrics()


def test_models_come_and_go_on_call(repository: Path) -> None:
    with tpy.Server(repository, load_model=["echo"]) as server:
        assert not server.model("affine").ready()
        server.load("affine")
        assert server.model("affine").ready()
        server.unload("echo")
        with pytest.raises(NotFound, match="Request for unknown model: 'echo' has no available versions"):
            server.model("echo").infer({"INPUT0": [[5]]})
        with pytest.raises(TpyError, match="failed to load 'nobody'"):
            server.load("nobody")
        ModelFolder(repository, "echo").identity(batch=0)
        server.load("echo", config={"backend": "identity", "max_batch_size": 0, **_echo_tensors()})
        assert server.model("echo").infer({"INPUT0": [5]})["OUTPUT0"] == [5]


def _echo_tensors() -> dict[str, object]:
    tensor = {"data_type": "TYPE_INT32", "dims": [1]}
    return {"input": [{"name": "INPUT0", **tensor}], "output": [{"name": "OUTPUT0", **tensor}]}


def test_a_function_is_a_model(server: tpy.Server) -> None:
    server.add_model(
        "greet",
        lambda NAME, TIMES: {"GREETING": [b"hello " + name for name in NAME for _ in range(int(TIMES[0]))], "SUM": [TIMES.sum()]},
        inputs=[("NAME", str, [-1]), ("TIMES", "INT64", [1])],
        outputs=[("GREETING", bytes, [-1]), ("SUM", np.int32, [1])],
    )
    greet = server.model("greet")
    for names in (["you", "me"], np.array(["you", "me"]), np.array([b"you", b"me"], dtype=object)):
        response = greet.infer({"NAME": names, "TIMES": [2]})
        assert response["GREETING"].tolist() == [b"hello you", b"hello you", b"hello me", b"hello me"]
        assert (response["SUM"].dtype, int(response["SUM"][0])) == (np.int32, 2)
    assert greet.infer({"NAME": [], "TIMES": [1]}, outputs=["SUM"]).keys() == {"SUM"}


def test_requests_of_many_threads_are_computed_together() -> None:
    sizes = []
    gate = threading.Event()

    def double(X: np.ndarray) -> np.ndarray:
        gate.wait(60)
        sizes.append(len(X))
        return X * 2

    server = tpy.Server()
    server.add_model("double", double, inputs=X, outputs=Y, max_batch_size=8)
    with server, ThreadPoolExecutor(16) as threads:
        model = server.model("double")
        answers = [threads.submit(model.infer, {"X": [[number, 1]]}) for number in range(16)]
        wait_until(lambda: pending(server, "double") >= 8)  # the first batch has eight at most
        gate.set()
        assert [answer.result(60)["Y"].tolist() for answer in answers] == [[[2 * number, 2]] for number in range(16)]
    assert sum(sizes) == 16
    assert max(sizes) > 1


def pending(server: tpy.Server, model: str) -> int:
    """Requests that wait."""
    start = f'nv_inference_pending_request_count{{model="{model}",version="1"}} '
    return next(int(float(line.removeprefix(start))) for line in server.metrics().splitlines() if line.startswith(start))


def test_a_function_is_replaced_by_another(server: tpy.Server) -> None:
    server.add_model("f", lambda X: X + 1, inputs=X, outputs=Y)
    server.add_model("f", lambda X: X + 2, inputs=X, outputs=Y)
    assert server.model("f").infer({"X": [1]})["Y"] == [3]


def test_a_function_keeps_the_state_of_sequences(server: tpy.Server) -> None:
    sums = dict[int, float]()

    def add(X: np.ndarray, START: np.ndarray, ID: np.ndarray) -> np.ndarray:
        for row, (start, number) in enumerate(zip(START.ravel(), ID.ravel(), strict=True)):
            sums[number] = X[row, 0] + (0 if start else sums[number])
        return np.array([[sums[number]] for number in ID.ravel()], np.float32)

    server.add_model(
        "sum",
        add,
        inputs=X,
        outputs=Y,
        max_batch_size=4,
        config={
            "sequence_batching": {
                "control_input": [
                    {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]},
                    {"name": "ID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}]},
                ],
                "oldest": {"max_candidate_sequences": 4},
            }
        },
    )
    model = server.model("sum")
    for sequence in (7, 8):
        model.infer({"X": [[sequence]]}, sequence_id=sequence, sequence_start=True)
    assert model.infer({"X": [[1]]}, sequence_id=7, sequence_end=True)["Y"] == [[8]]
    assert model.infer({"X": [[1]]}, sequence_id=8, sequence_end=True)["Y"] == [[9]]


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ({"Z": [1]}, "returned 'Z'; its outputs are 'Y'"),
        (np.array(["a"]), "returned output 'Y' as BYTES, expected FP32"),
        (np.array([1j]), "returned output 'Y' as INVALID, expected FP32"),
        (None, "returned output 'Y' as None, expected FP32"),
        ([object()], "returned output 'Y' as object, expected FP32"),
    ],
)
def test_what_a_function_returns_is_checked(server: tpy.Server, returned: object, problem: str) -> None:
    server.add_model("f", lambda X: returned, inputs=X, outputs=Y)
    with pytest.raises(TpyError, match=problem):
        server.model("f").infer({"X": [1]})


@pytest.mark.parametrize("returned", [[300], [1.5], [-1], [float("nan")], np.array([300], np.uint16)])
def test_numbers_that_the_type_does_not_have_are_not_bent(server: tpy.Server, returned: object) -> None:
    server.add_model("f", lambda X: returned, inputs=X, outputs=[("Y", np.uint8, [-1])])
    with pytest.raises(TpyError, match="returned output 'Y' as values that the type does not have, expected UINT8"):
        server.model("f").infer({"X": [1]})


def test_strings_of_a_function_stay_what_they_are(server: tpy.Server) -> None:
    server.add_model("f", lambda X: [b"a\0\0", "\xe9"], inputs=X, outputs=[("Y", bytes, [-1])])
    assert server.model("f").infer({"X": [1]})["Y"].tolist() == [b"a\0\0", "\xe9".encode()]
    server.add_model("f", lambda X: [b"a", None], inputs=X, outputs=[("Y", bytes, [-1])])
    with pytest.raises(TpyError, match="as NoneType, expected BYTES"):
        server.model("f").infer({"X": [1]})


async def _task(X: np.ndarray) -> np.ndarray:
    return X


@pytest.mark.parametrize("function", [5, _task, lambda X: (yield X)])
def test_what_is_no_function_is_refused(server: tpy.Server, function: Any) -> None:
    with pytest.raises(InvalidArgument, match="expected a function that returns its outputs"):
        server.add_model("f", function, inputs=X, outputs=Y)


def test_a_function_sends_one_response(server: tpy.Server) -> None:
    decoupled = {"model_transaction_policy": {"decoupled": True}}
    with pytest.raises(InvalidArgument, match=r"backend 'function' does not support: 'model_transaction_policy\.decoupled'"):
        server.add_model("f", lambda X: X, inputs=X, outputs=Y, config=decoupled)


def test_functions_that_were_replaced_are_forgotten(server: tpy.Server) -> None:
    known = len(FUNCTIONS)
    for _ in range(3):
        server.add_model("f", lambda X: X, inputs=X, outputs=Y)
    assert len(FUNCTIONS) == known + 1


def test_a_start_may_be_tried_again_and_nothing_is_added_after_the_end() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = tpy.Server(http_address="127.0.0.1", http_port=taken.getsockname()[1])
        server.add_model("f", lambda X: X, inputs=X, outputs=Y)
        with pytest.raises(Unavailable, match="already in use"):
            server.start()
    with server:
        assert server.model("f").infer({"X": [3]})["Y"] == [3]
    with pytest.raises(Unavailable, match="the server has stopped"):
        server.add_model("g", lambda X: X, inputs=X, outputs=Y)


def test_a_start_whose_task_is_cancelled_leaves_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """On asyncio the task ends before the thread that starts the server."""
    starting, gate, stopped = threading.Event(), threading.Event(), threading.Event()

    class Gated(EngineThread):
        def __init__(self, *arguments: Any, **rest: Any) -> None:
            starting.set()
            gate.wait(60)
            super().__init__(*arguments, **rest)

        def stop(self) -> None:
            super().stop()
            stopped.set()

    async def main() -> None:
        task = asyncio.ensure_future(tpy.Server().__aenter__())
        await asyncio.to_thread(starting.wait, 60)
        task.cancel()
        await asyncio.wait([task])
        gate.set()
        assert task.cancelled()

    monkeypatch.setattr("tpy.embedded.server.EngineThread", Gated)
    asyncio.run(main())
    assert stopped.wait(60)


def test_a_failing_function_fails_its_request_only(server: tpy.Server) -> None:
    server.add_model("invert", lambda X: [1 / x for x in X.tolist()], inputs=X, outputs=Y)
    with pytest.raises(TpyError, match="division by zero"):
        server.model("invert").infer({"X": [0]})
    assert server.model("invert").infer({"X": [2]})["Y"] == [0.5]


@pytest.mark.parametrize(
    ("specs", "problem"),
    [
        ([("X", complex, [1])], "'X': expected a type of NumPy, str, bytes, or one of BOOL"),
        ([("X", "FP33", [1])], "'X': expected a type of NumPy"),
        ([("X", np.float32)], r"an input is \(name, data type, dims\)"),
        ([("X", np.float32, ["a"])], r"an input is \(name, data type, dims\)"),
        ([("X", np.float32, [-2])], "dims"),
    ],
)
def test_a_wrong_specification_is_refused(server: tpy.Server, specs: list[tuple], problem: str) -> None:
    with pytest.raises(TpyError, match=problem):
        server.add_model("f", lambda X: X, inputs=specs, outputs=Y)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden"])
def test_a_name_that_is_no_folder_is_refused(server: tpy.Server, name: str) -> None:
    with pytest.raises(InvalidArgument, match="a model's name is that of a folder"):
        server.add_model(name, lambda X: X, inputs=X, outputs=Y)


def test_clients_ask_functions_over_ports() -> None:
    server = tpy.Server(http_address="127.0.0.1", http_port=0, allow_metrics=False)
    server.add_model("double", lambda X: X * 2, inputs=X, outputs=Y)
    with server:
        assert set(server.addresses) == {"HTTP"}
        client = tritonclient.http.InferenceServerClient(server.addresses["HTTP"])
        tensor = tritonclient.http.InferInput("X", [2], "FP32").set_data_from_numpy(np.array([1, 2], np.float32))
        assert client.infer("double", [tensor]).as_numpy("Y").tolist() == [2, 4]
        client.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"http_prt": 1}, "not a flag of tpy serve: 'http_prt'"),
        ({"http_port": "many"}, 'Bad option: "--http-port"'),
        ({"model_control_mode": "poll", "repository_poll_secs": 0}, "--repository-poll-secs"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        tpy.Server(**options).start()


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    ModelFolder(tmp_path, "broken").config('backend: "onnxruntime"').file("1/model.onnx", b"nonsense")
    with pytest.raises(Unavailable, match=r"the server did not start: model broken version 1: .*model\.onnx"):
        tpy.Server(tmp_path).start()
    with pytest.raises(TpyError, match="nowhere"):
        tpy.Server(tmp_path / "nowhere").start()
    with tpy.Server(tmp_path, exit_on_error=False) as server:
        assert not server.ready()


def test_a_server_that_does_not_run_says_so(repository: Path) -> None:
    server = tpy.Server(repository)
    with pytest.raises(Unavailable, match="was not started"):
        server.model("echo")
    server.start()
    model = server.model("echo")
    with pytest.raises(Unavailable, match="was started already"):
        server.start()
    server.stop()
    server.stop()
    for ask in (lambda: model.infer({"INPUT0": np.zeros((1, 1), np.int32)}), model.ready, server.index, server.metrics):
        with pytest.raises(Unavailable, match="the server has stopped"):
            ask()


def test_a_stop_answers_what_is_in_flight() -> None:
    entered, gate = threading.Event(), threading.Event()

    def slow(X: np.ndarray) -> np.ndarray:
        entered.set()
        gate.wait(60)
        return X

    server = tpy.Server()
    server.add_model("slow", slow, inputs=X, outputs=Y)
    with ThreadPoolExecutor(2) as threads:
        with server:
            answer = threads.submit(server.model("slow").infer, {"X": [1]})
            entered.wait(60)
            threads.submit(gate.set)
        assert answer.result(60)["Y"] == [1]


def test_a_stop_that_cannot_wait_fails_what_is_left() -> None:
    entered, gate = threading.Event(), threading.Event()

    def stuck(X: np.ndarray) -> np.ndarray:
        entered.set()
        gate.wait(60)
        return X

    server = tpy.Server(exit_timeout_secs=1).start()
    server.add_model("stuck", stuck, inputs=X, outputs=Y)
    with ThreadPoolExecutor(1) as threads:
        # With a time limit: otherwise the calling thread itself would be stuck in the function.
        answer = threads.submit(server.model("stuck").infer, {"X": [1]}, timeout_s=60)
        entered.wait(60)
        with pytest.raises(Unavailable, match="exit timeout expired"):
            server.stop()
        with pytest.raises(Unavailable):
            answer.result(60)
        gate.set()


def _ask_in_child(server: tpy.Server, said: multiprocessing.SimpleQueue) -> None:
    try:
        server.model("f").infer({"X": np.zeros(1, np.float32)})
    except TpyError as error:
        said.put(str(error))
    server.stop()  # without effect: it is not this process's


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_no_server(server: tpy.Server) -> None:
    server.add_model("f", lambda X: X, inputs=X, outputs=Y)
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    child = context.Process(target=_ask_in_child, args=(server, said))
    child.start()
    assert "the server belongs to the parent process" in said.get()
    child.join(60)
    assert child.exitcode == 0
    assert server.model("f").infer({"X": [3]})["Y"] == [3]


def test_a_program_may_end_without_a_stop() -> None:
    program = (
        "import tpy\n"
        "server = tpy.Server()\n"
        "server.add_model('f', lambda X: X, inputs=[('X', 'FP32', [1])], outputs=[('Y', 'FP32', [1])])\n"
        "server.start()\n"
        "print(server.model('f').infer({'X': [3]})['Y'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[3.]\n", "")


def test_a_server_that_is_dropped_serves_until_the_program_ends() -> None:
    program = (
        "import gc, os, tempfile, tpy\n"
        "server = tpy.Server(http_address='127.0.0.1', http_port=0, allow_metrics=False)\n"
        "server.add_model('f', lambda X: X, inputs=[('X', 'FP32', [1])], outputs=[('Y', 'FP32', [1])])\n"
        "server.start()\n"
        "model, url = server.model('f'), server.addresses['HTTP']\n"
        "del server\n"
        "gc.collect()\n"
        "import urllib.request\n"
        "urllib.request.urlopen(f'http://{url}/v2/repository/models/f/load', data=b'{}').read()\n"
        "print(model.infer({'X': [3]})['Y'], len(os.listdir(tempfile.gettempdir())))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "TMPDIR": folder},
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "[3.] 1\n", "")
        assert not os.listdir(folder)


def test_workers_of_models_live_until_a_program_has_ended(tmp_path: Path) -> None:
    """Its other threads go on when its main thread has ended."""
    folder = tmp_path / "models" / "late" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(
        'backend: "python" input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
    )
    (folder / "model.py").write_text(
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', each.inputs()[0].as_numpy())]) for each in requests]\n"
    )
    program = (
        "import sys, threading, tpy\n"
        "server = tpy.Server(sys.argv[1]).start()\n"
        "def ask():\n"
        "    threading.main_thread().join()\n"
        "    print(server.model('late').infer({'X': [3]})['Y'])\n"
        "threading.Thread(target=ask).start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "models"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[3.]\n", "")
