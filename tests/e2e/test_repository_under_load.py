"""Changes of a repository while requests run: every answer is whole, and of a version that was served."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput, InferRequestedOutput

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess
from .waiting import wait_until

POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")


@contextmanager
def asking(ask: Callable[[InferenceServerClient], object], server: ServerProcess, *, threads: int = 2) -> Iterator[Asked]:
    """Ask again and again, from threads with connections of their own, until the block is left."""
    asked = Asked()

    def run() -> None:
        with InferenceServerClient(server.http) as client:
            while not asked.stopped.is_set():
                try:
                    asked.answers.append(ask(client))
                except InferenceServerException as error:
                    asked.errors.append(error.message())

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield asked
    finally:
        asked.stopped.set()
        for thread in running:
            thread.join()


class Asked:
    """One request and its response."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.errors: list[str] = []
        self.stopped = threading.Event()

    def wait_more(self, count: int = 20) -> None:
        """Wait for more answers."""
        wanted = len(self.answers) + count
        wait_until(lambda: len(self.answers) >= wanted)


def scaled(client: InferenceServerClient) -> float:
    tensor = InferInput("INPUT", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    answer = client.infer("m", [tensor]).as_numpy("OUTPUT")
    assert answer is not None
    return float(answer[0, 0])


def test_a_second_repository_with_the_same_name_comes_and_goes(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    ModelFolder(left, "m").config(AFFINE_CONFIG).affine(1, 2)
    right.mkdir()
    with ServerProcess(*POLL, repositories=[left, right]) as server, InferenceServerClient(server.http) as client:

        def told() -> bool:
            row = next(row for row in client.get_model_repository_index() if row["name"] == "m")
            return "two or more repositories" in row.get("reason", "")

        with asking(scaled, server) as asked:
            for _ in range(3):
                ModelFolder(tmp_path / "made", "m").config(AFFINE_CONFIG).affine(1, 3)
                (tmp_path / "made" / "m").rename(right / "m")
                wait_until(told)
                asked.wait_more()
                (right / "m").rename(tmp_path / "made" / "m")
                wait_until(lambda: not told())
                asked.wait_more()
        assert asked.errors == []
        assert set(asked.answers) == {2.0}, "the one that was there first"
        assert client.is_server_ready()


KINDS = {"TYPE_INT32": ("INT32", "whole"), "TYPE_FP32": ("FP32", "broken")}


def test_types_and_labels_swap(repository: Path) -> None:
    """An answer has the type and the labels of one version; a request that does not fit the version is refused."""
    folder = ModelFolder(repository, "m")
    for _, word in KINDS.values():
        folder.file(f"{word}.txt", f"{word}0\n{word}1\n{word}2\n")
    (folder.path / "1").mkdir()

    def config(kind: str) -> str:
        word = KINDS[kind][1]
        return (
            'backend: "identity" max_batch_size: 4 '
            f'input [ {{ name: "INPUT0" data_type: {kind} dims: [ 3 ] }} ] '
            f'output [ {{ name: "OUTPUT0" data_type: {kind} dims: [ 3 ] label_filename: "{word}.txt" }} ]'
        )

    def classify(client: InferenceServerClient) -> tuple[str, str]:
        kind = kinds[next(turns) % 2]
        datatype, word = KINDS[kind]
        tensor = InferInput("INPUT0", [1, 3], datatype)
        tensor.set_data_from_numpy(np.array([[1, 3, 2]], np.int32 if datatype == "INT32" else np.float32))
        answer = client.infer("m", [tensor], outputs=[InferRequestedOutput("OUTPUT0", class_count=1)]).as_numpy("OUTPUT0")
        assert answer is not None
        return word, answer.reshape(-1)[0].decode().rpartition(":")[2]

    kinds, turns = list(KINDS), itertools.count()
    folder.config(config(kinds[0]))
    flags = ("--model-control-mode=explicit", "--load-model=m")
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        with asking(classify, server) as asked:
            for turn in range(1, 9):
                folder.config(config(kinds[turn % 2]))
                client.load_model("m")
                asked.wait_more(4)
        assert set(asked.answers) == {("whole", "whole1"), ("broken", "broken1")}
        assert not [error for error in asked.errors if "data-type" not in error]


CLOCK = """
import json, os, time
_real, _real_ns = time.time, time.time_ns

def _offset():
    try:
        with open(os.environ["TEST_CLOCK"]) as file:
            return json.load(file)
    except OSError:
        return 0

time.time = lambda: _real() + _offset()
time.time_ns = lambda: _real_ns() + _offset() * 10**9
"""


def test_the_wall_clock_jumps(tmp_path: Path, repository: Path) -> None:
    """As after a suspend, or when the time is set: forward by a day, and back before the start."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(CLOCK)
    offset = tmp_path / "offset"
    model = ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    environment = {"PYTHONPATH": str(tmp_path / "clock"), "TEST_CLOCK": str(offset)}
    with (
        ServerProcess(*POLL, repositories=[repository], environment=environment) as server,
        InferenceServerClient(server.http) as client,
        asking(scaled, server) as asked,
    ):
        for scale, seconds in ((3, 86_400), (4, -86_400), (5, 0)):
            offset.with_suffix(".new").write_text(json.dumps(seconds))
            offset.with_suffix(".new").rename(offset)
            asked.wait_more()
            model.affine(1, scale)
            wait_until(lambda: asked.answers[-1] == scale)  # noqa: B023 - called in this turn only
            assert client.is_server_ready()
            last_ms = client.get_inference_statistics("m")["model_stats"][0]["last_inference"]
            assert last_ms > 0
    assert asked.errors == []
    assert set(asked.answers) == {2.0, 3.0, 4.0, 5.0}
