"""From one version of the server to the next and back, on the same files.

Under load: two servers behind HAProxy, each with its own files, are replaced one after the other, from an earlier
version to this one, and back: no request fails, and both go on with what the other has written. Then a version whose files have
other formats: what this one does not read it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder, parameter
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until
from tests.rollout.balancers import HAPROXY, NGINX, Place, balancers, free_ports
from tests.rollout.kubelet import Pod
from tests.rollout.test_rollout import Load, over_grpc, over_http

ROOT = Path(__file__).parents[2]
FIRST = "6bb9d1c4"
"""The earlier version as long as none was released: a commit with all files, and the flags of tests, of today."""

ROLLOUT = """version_policy: { latest { num_versions: 2 } }
parameters { key: "rollout" value { string_value: '{"steps": [{"percent": 50, "seconds": 3600}]}' } }"""
NUMBERS = {
    "tpy/__init__.py": ('__version__ = "', '__version__ = "99.'),
    "tpy/recording/core/file_format.py": ("VERSION: Final = 1\n", "VERSION: Final = 2\n"),
    "tpy_data/engine/budget/core/sizes.py": ("FORMAT: Final = 1\n", "FORMAT: Final = 2\n"),
    "tpy_data/engine/rollouts/kept.py": ("\nFORMAT: Final = 1\n", "\nFORMAT: Final = 3\n"),
}
"""In the files of a version whose formats are new: what stands there now, and then."""


def git(*arguments: str) -> str | None:
    """None where there is no repository, or not that commit."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def earlier() -> str | None:
    """The newest version that was released before this commit, or the first; None where there is no history."""
    tags = git("tag", "--list", "v*", "--no-contains", "HEAD", "--sort=-version:refname")
    commit = (tags or FIRST).splitlines()[0]
    return commit if git("cat-file", "-e", f"{commit}^{{commit}}") is not None else None


class Version:
    """An installed wheel, beside the packages of this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """Has Python take it, and not the source."""
        return {"PYTHONPATH": str(self.folder)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **self.environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )


def installed(source: Path, folder: Path) -> Version:
    """Build the wheel of a source, and install it without what it needs."""
    build = ["hatchling", "build", "-t", "wheel", "-d", str(folder / "wheel")]
    subprocess.run([sys.executable, "-m", *build], cwd=source, check=True, capture_output=True)
    [wheel] = (folder / "wheel").glob("*.whl")
    pip = [
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder / "installed"),
    ]
    subprocess.run([sys.executable, "-m", *pip, str(wheel)], check=True, capture_output=True)
    version = Version(folder / "installed")
    found = version.run("-c", "import tpy, tpy_control, tpy_data; print(tpy.__file__, tpy_control.__file__, tpy_data.__file__)")
    assert [Path(path).parents[1] for path in found.stdout.split()] == [version.folder] * 3, found
    return version


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return installed(ROOT, tmp_path_factory.mktemp("present"))


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Version:
    folder = tmp_path_factory.mktemp("before")
    commit = earlier()
    if commit is None:
        pytest.skip(f"needs the history of the repository: git has neither a released version nor {FIRST}")
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder / "source", filter="data")
    return installed(folder / "source", folder)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory, present: Version) -> Version:
    """The present version with other numbers in its files."""
    folder = tmp_path_factory.mktemp("after") / "installed"
    shutil.copytree(present.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in NUMBERS.items():
        source = (folder / name).read_text()
        assert source.count(old) == 1, name
        (folder / name).write_text(source.replace(old, new))
    return Version(folder)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """`identity` is asked all the time; `m` gets a second version, which is rolled back; `late` is loaded on demand."""
    ModelFolder(tmp_path / "models", "identity").identity()
    ModelFolder(tmp_path / "models", "m").identity(ROLLOUT)
    ModelFolder(tmp_path / "models", "late").config(AFFINE_CONFIG + parameter("load", "on_demand")).affine(1, 2.0)
    return tmp_path / "models"


class Files:
    """The files that a server writes, and the flags for them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.rollouts = folder / "rollouts.json"
        self.sizes = folder / "sizes.json"
        self.recordings = folder / "recordings"
        self.recordings.mkdir()
        self.flags = (
            *("--model-control-mode=explicit", "--load-model=*", "--model-memory-budget=1GiB"),
            *(f"--rollout-file={self.rollouts}", f"--model-sizes-file={self.sizes}", f"--recording-directory={self.recordings}"),
        )

    def newest_recording(self) -> Path:
        return max(self.recordings.iterdir(), key=lambda file: file.stat().st_mtime_ns)


def ask(http: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://{http}/v2/{path}", data, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def infer(http: str, model: str) -> Any:
    """The version that answers."""
    name, datatype, count = ("INPUT", "FP32", 3) if model == "late" else ("INPUT0", "INT32", 1)
    given = {"name": name, "shape": [1, count], "datatype": datatype, "data": [1] * count}
    return ask(http, f"models/{model}/infer", {"inputs": [given]})["model_version"]


def answered(http: str) -> int:
    """The requests that `identity` has answered."""
    return int(ask(http, "models/identity/stats")["model_stats"][0]["inference_stats"]["success"]["count"])


def begin(http: str, models: Path) -> None:
    """Have it write all its files: a rollout that is taken back, the size of a model."""
    (models / "m" / "2").mkdir(exist_ok=True)
    ask(http, "repository/models/m/load", {})
    assert ask(http, "repository/models/m/rollout", {"action": "roll_back"})["state"] == "rolled back"
    infer(http, "late")


def record(http: str, files: Files) -> Path:
    """A recording of two requests."""
    ask(http, "recording", {"action": "start", "models": ["m"]})
    for _ in range(2):
        infer(http, "m")
    ask(http, "recording", {"action": "stop"})
    return files.newest_recording()


def kept(files: Files) -> tuple[dict[str, Any], bool]:
    """The lines of rollouts without what a later version adds to them, and whether the size of `late` is known."""
    lines, sizes = (json.loads(file.read_text()) for file in (files.rollouts, files.sizes))
    decided = {name: (line["new"], line["state"]) for name, line in lines.items()}
    return decided, "late:1" in sizes["models"]


def is_kept(files: Files) -> bool:
    return files.rollouts.exists() and files.sizes.exists() and kept(files) == ({"m": (2, "rolled back")}, True)


@pytest.mark.time_limit(600)
@pytest.mark.skipif(HAPROXY is None or NGINX is None, reason="needs haproxy and nginx (Debian's packages)")
def test_servers_are_upgraded_and_taken_back_under_load(tmp_path: Path, models: Path, before: Version, present: Version) -> None:
    ports = free_ports(10)
    places = [Place(*ports[at : at + 3]) for at in (4, 7)]
    files = [Files(tmp_path / f"server{number}") for number in range(2)]
    pods: list[Pod] = []

    def start(number: int, version: Version) -> Pod:
        pod = Pod(places[number], models, files[number].flags, version.environment)
        starter.submit(pod.start).result()
        return pod

    # gRPC's clients do not outlive a fork, which is how a process is started from the main thread (ServerProcess.start).
    with ThreadPoolExecutor(1) as starter, ExitStack() as stack:
        stack.callback(lambda: [pod.terminate() for pod in pods])
        for number in range(2):
            pods.append(start(number, before))
        for number in range(2):
            begin(f"127.0.0.1:{places[number].http}", models)
            wait_until(lambda number=number: is_kept(files[number]))
        recordings = [record(f"127.0.0.1:{places[0].http}", files[0])]
        # Not nginx: it notices only by failed requests that a server is gone or back, and here one of two is always about to go.
        doors = stack.enter_context(balancers(tmp_path / "balancers", places))["haproxy"]
        clients = {"http": over_http(doors, stack), "grpc": over_grpc(doors, stack)}
        for client in clients.values():
            wait_until(lambda client=client: _succeeds(client))
        load = stack.enter_context(Load(clients))
        for version in (present, before):
            for number in range(2):
                pods[number].terminate()
                assert pods[number].failures == []
                pods[number] = start(number, version)
                http = f"127.0.0.1:{places[number].http}"
                assert infer(http, "m") == "1", "version 2 was rolled back"
                assert infer(http, "late") == "1"
                assert "sizes-file" not in pods[number].log
                assert is_kept(files[number])
                wait_until(lambda http=http: load.wrong or answered(http) > 20)
            http = f"127.0.0.1:{places[0].http}"
            recordings.append(record(http, files[0]))
            for recording in recordings:  # those that it made, and those of the other version
                replayed = version.run("-m", "tpy", "replay", str(recording), "--url", http)
                assert replayed.returncode == 0, replayed
        assert load.wrong == {}


def _succeeds(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except Exception:
        return False
    return True


@pytest.mark.time_limit(600)
def test_files_of_another_format_are_named(tmp_path: Path, models: Path, present: Version, after: Version) -> None:
    files = Files(tmp_path / "server")

    def serving(version: Version, expect_exit: int = 0) -> ServerProcess:
        return ServerProcess(*files.flags, repositories=[models], environment=version.environment, expect_exit=expect_exit)

    with serving(present) as server:
        begin(server.http, models)
        wait_until(lambda: is_kept(files))
        recording = record(server.http, files)
    with serving(after) as server:
        assert f"--model-sizes-file {files.sizes} has format 1, expected 2: sizes are measured anew" in server.log
        assert infer(server.http, "m") == "1", "a newer version reads the rollouts of an older one"
        refused = after.run("-m", "tpy", "replay", str(recording), "--url", server.http)
        assert refused.returncode != 0
        assert "the recording has format version 1, this tpy reads version 2" in refused.stderr, refused
        infer(server.http, "late")
        wait_until(lambda: json.loads(files.sizes.read_text())["format"] == 2)
        wait_until(lambda: json.loads(files.rollouts.read_text())["m"]["format"] == 3)
        newer = record(server.http, files)
    with serving(present, expect_exit=1) as server:
        server.wait_end()
    assert (
        f"--rollout-file {files.rollouts} cannot be read: model 'm' has format 3, expected at most 2: a newer tpy" in server.log
    )
    files.rollouts.unlink()
    with serving(present) as server:
        assert f"--model-sizes-file {files.sizes} has format 2, expected 1: sizes are measured anew" in server.log
        assert infer(server.http, "m") == "2", "without the file the newest version answers"
        refused = present.run("-m", "tpy", "replay", str(newer), "--url", server.http)
        assert "the recording has format version 2, this tpy reads version 1" in refused.stderr, refused
