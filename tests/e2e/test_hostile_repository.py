"""Repositories made by mistake: folders without end, pipes and devices in place of files, files that may not be read. Each is
told by name, and none holds up the server or another model."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from tests.backends import onnx_models
from tests.control.folders import nested
from tests.pace import with_patience

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess
from .waiting import wait_until

PROMPT_S = 20.0
"""Far more than a second of looking, far less than for ever."""
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
LABELLED = AFFINE_CONFIG.replace("dims: [ 3 ] } ]\n", 'dims: [ 3 ] label_filename: "labels.txt" } ]\n').replace(
    'dims: [ 3 ] label_filename: "labels.txt" } ]\noutput', "dims: [ 3 ] } ]\noutput"
)
WARMED = AFFINE_CONFIG + (
    'model_warmup [ { name: "w" batch_size: 1 '
    'inputs { key: "INPUT" value { data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "data" } } } ]'
)


def scaled(client: InferenceServerClient, model: str) -> float:
    tensor = InferInput("INPUT", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    answer = client.infer(model, [tensor]).as_numpy("OUTPUT")
    assert answer is not None
    return float(answer[0, 0])


def reason(client: InferenceServerClient, model: str) -> str:
    return next((row.get("reason", "") for row in client.get_model_repository_index() if row["name"] == model), "")


def link(model: ModelFolder, path: str, target: str) -> None:
    (model.path / path).parent.mkdir(parents=True, exist_ok=True)
    (model.path / path).symlink_to(target)


def pipe(model: ModelFolder, path: str) -> None:
    (model.path / path).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(model.path / path)


def test_folders_without_end_hold_up_nobody_who_is_served(repository: Path) -> None:
    """They used to end a serving server (RecursionError), or to walk for ever, past every signal."""
    ModelFolder(repository, "good").config(AFFINE_CONFIG).affine(1, 2)
    with ServerProcess(*POLL, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        kernel = ModelFolder(repository, "kernel").config(AFFINE_CONFIG).affine(1, 2)
        link(kernel, "1/p", "/proc/self")
        chain = ModelFolder(repository, "chain").config(AFFINE_CONFIG).affine(1, 3)
        for number in range(26):
            for name in ("a", "b"):
                link(chain, f"1/{number}/{name}", f"../{number + 1}")
        (chain.path / "1" / "26").mkdir()
        deep = ModelFolder(repository, "deep").config(AFFINE_CONFIG).affine(1, 2)
        with nested(deep.path / "1", 1500):
            wait_until(lambda: "leads out of the repository, into the proc file system" in reason(client, "kernel"))
            wait_until(lambda: "folders deep" in reason(client, "deep"))
            wait_until(lambda: client.is_model_ready("chain"))
            ModelFolder(repository, "later").config(AFFINE_CONFIG).affine(1, 4)
            wait_until(lambda: client.is_model_ready("later"), within_s=PROMPT_S)
            assert [scaled(client, model) for model in ("good", "chain", "later")] == [2, 3, 4]
            assert client.is_server_ready()
            assert "is not followed: it leads to a folder that is part of the model already" in server.log
            began_s = time.monotonic()
            assert server.stop(signal.SIGINT) == 0
            assert time.monotonic() - began_s < with_patience(PROMPT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_among_them_is_ended_by_a_signal(repository: Path, number: signal.Signals) -> None:
    for name in ("a", "b"):
        model = ModelFolder(repository, name).config(AFFINE_CONFIG).affine(1, 2)
        link(model, "1/p", "/proc/self/root")
    server = ServerProcess(*POLL, repositories=[repository])
    server.start()
    server.wait_log("Poll failed for model directory 'a'|stopping")
    began_s = time.monotonic()
    assert server.stop(number) == 0
    assert time.monotonic() - began_s < with_patience(PROMPT_S)


ENDLESS: dict[str, tuple[Callable[[ModelFolder], object], str]] = {
    "labels that are a pipe": (lambda m: pipe(m.config(LABELLED), "labels.txt"), "labels.txt is not a regular file"),
    "labels that never end": (lambda m: link(m.config(LABELLED), "labels.txt", "/dev/zero"), "labels.txt is not a regular file"),
    "labels of the kernel": (lambda m: link(m.config(LABELLED), "labels.txt", "/proc/kmsg"), "into the proc file system"),
    "a warm-up that is a pipe": (lambda m: pipe(m.config(WARMED), "warmup/data"), "data is not a regular file"),
    "a warm-up that never ends": (lambda m: link(m.config(WARMED), "warmup/data", "/dev/zero"), "data is not a regular file"),
    "a configuration that is a pipe": (lambda m: pipe(m, "config.pbtxt"), "config.pbtxt is not a regular file"),
}


def test_pipes_and_devices_block_no_load(repository: Path) -> None:
    """Four of them used to hold all load threads."""
    ModelFolder(repository, "good").config(AFFINE_CONFIG).affine(1, 2)
    flags = ("--model-control-mode=explicit",)
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        resident_kb = resident(server)
        for turn in range(2):
            for kind, (write, said) in ENDLESS.items():
                model = ModelFolder(repository, f"{kind} {turn}".replace(" ", "_"))
                model.affine(1, 2)
                write(model)
                with pytest.raises(InferenceServerException) as caught:
                    client.load_model(model.name)
                assert said in caught.value.message(), kind
        model = ModelFolder(repository, "onnx").config(AFFINE_CONFIG)
        pipe(model, "1/model.onnx")
        with pytest.raises(InferenceServerException, match=r"model\.onnx' is not a file"):
            client.load_model("onnx")
        client.load_model("good")
        assert scaled(client, "good") == 2
        assert resident(server) - resident_kb < 300_000


def resident(server: ServerProcess) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def test_files_that_may_not_be_read(repository: Path) -> None:
    """A file that the model needs is named in the error; others do not matter."""
    models = {
        name: ModelFolder(repository, name).config(LABELLED).affine(1, 2).file("labels.txt", "a\nb\nc\n")
        for name in ("config.pbtxt", "1", "labels.txt", "1/model.onnx", "notes.txt")
        for name in [name.replace("/", ".")]
    }
    models["notes.txt"].file("notes.txt", "mine")
    for name, model in models.items():
        path = model.path / ("1/model.onnx" if name == "1.model.onnx" else name)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        path.chmod(0o700 if path.is_dir() and os.geteuid() == 0 else 0)
    # A superuser may read everything; without these two capabilities he is like anybody else.
    bounds = "-dac_override,-dac_read_search"
    launcher = ("setpriv", f"--bounding-set={bounds}", f"--inh-caps={bounds}") if os.geteuid() == 0 else ()
    try:
        with (
            ServerProcess(*POLL, repositories=[repository], launcher=launcher) as server,
            InferenceServerClient(server.http) as client,
        ):
            assert client.is_model_ready("notes.txt")
            for name in models.keys() - {"notes.txt"}:
                said = reason(client, name)
                assert "Permission denied" in said or name == "1.model.onnx", said
                assert str(models[name].path / name.replace("1.m", "1/m")) in said, said
            path = models["config.pbtxt"].path / "config.pbtxt"
            path.unlink()
            models["config.pbtxt"].config(LABELLED)
            wait_until(lambda: client.is_model_ready("config.pbtxt"))
    finally:
        for model in models.values():
            (model.path / "1").chmod(0o755)


def test_a_missing_repository(repository: Path) -> None:
    """With --exit-on-error=false the process stays, neither live nor ready, as Triton's; otherwise it ends."""
    gone = repository / "gone"
    with ServerProcess("--exit-on-error=false", repositories=[repository, gone]) as server:
        assert f"failed to stat file {gone}" in server.log
        with InferenceServerClient(server.http) as client:
            assert not client.is_server_live()
            assert not client.is_server_ready()
            assert client.get_server_metadata()["name"] == "triton"
            for ask in (
                client.get_model_repository_index,
                lambda: client.get_model_metadata("m"),
                lambda: client.get_inference_statistics("m"),
                lambda: client.load_model("m"),
                lambda: scaled(client, "m"),
            ):
                with pytest.raises(InferenceServerException, match="Server not ready") as caught:
                    ask()
                assert caught.value.status() == "503"
    with ServerProcess(repositories=[gone], expect_exit=1) as server:
        assert server.wait_end() == 1
    assert f"failed to stat file {gone}" in server.log


def test_a_large_file_that_goes_back_in_time_is_a_change(repository: Path) -> None:
    """Clocks jump: a new time counts, not a later one. (Small files are compared by content.)"""
    model = ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    padding = model.file("1/padding", b"x" * (17 << 20)).path / "1" / "padding"
    with ServerProcess(*POLL, repositories=[repository]) as server, InferenceServerClient(server.http) as client:

        def loads() -> int:
            return server.log.count("successfully loaded 'm'")

        for scale, seconds in ((3, 1), (4, 4_000_000_000), (5, 1_000_000)):
            before = loads()
            os.utime(padding, (seconds, seconds))
            wait_until(partial(lambda before: loads() > before, before))
            model.file("1/model.onnx", onnx_models.affine(scale, 0))
            os.utime(model.path / "1" / "model.onnx", (seconds, seconds))
            wait_until(partial(lambda scale: scaled(client, "m") == scale, scale))
