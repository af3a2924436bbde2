"""A server that was forked is what a fresh process is, and ends with the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from tests.backends import onnx_models

from .repositories import IDENTITY_PAIR, ModelFolder
from .server import ServerProcess, is_alive, run_tpy
from .waiting import wait_until

_ROOT = Path(__file__).parents[2]

_KILLED = """
import os, sys
from pathlib import Path
from tests.e2e.server import ServerProcess

with ServerProcess(repositories=[Path(sys.argv[1])]) as server:
    print(server.process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def _is_forked(server: ServerProcess) -> bool:
    return b"fork_server" in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()


def _facts(server: ServerProcess) -> dict[str, object]:
    """The things that a process has from the one that started it."""
    folder = Path(f"/proc/{server.process.pid}")
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines())
    return {
        "parent": int(status["PPid"]),
        "group and session": (os.getpgid(server.process.pid), os.getsid(server.process.pid)) == (server.process.pid,) * 2,
        "folder": os.readlink(folder / "cwd"),
        "limits": (folder / "limits").read_text(),
        "descriptors": Counter({kind: count for kind, count in server.open_files().items() if not kind.endswith(" (deleted)")}),
        "standard input and output": [os.readlink(folder / "fd" / name) for name in "01"],
        **{name: status[name].strip() for name in ("Umask", "SigBlk", "SigIgn", "SigCgt")},
    }


def test_it_is_what_a_fresh_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with (
        ServerProcess("--model-repository=models") as forked,
        ServerProcess("--model-repository=models", launcher=["env"]) as fresh,
    ):
        assert (_is_forked(forked), _is_forked(fresh)) == (True, False)
        with suppress(TimeoutError):  # a server that has just started may not have opened all yet
            wait_until(lambda: _facts(forked) == _facts(fresh))
        assert _facts(forked) == _facts(fresh)


def test_it_has_the_variables_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess(repositories=[tmp_path]):
        pass
    monkeypatch.setenv("TPY_LOG_FORMAT", "json")
    with ServerProcess(repositories=[tmp_path], environment={"TPY_ID": "told"}) as server:
        assert _is_forked(server)
        assert server.log.startswith("{")
        with InferenceServerClient(server.http) as client:
            assert client.get_server_metadata()["name"] == "told"


def test_what_python_reads_at_its_start_needs_a_fresh_process(tmp_path: Path) -> None:
    with ServerProcess(repositories=[tmp_path], environment={"PYTHONHASHSEED": "1"}) as server:
        assert not _is_forked(server)
    assert "python" in run_tpy("--help", environment={"PYTHONVERBOSE": "1"}).err


def test_folders_that_are_imported_from_first(tmp_path: Path) -> None:
    """A fresh process is needed where they have something of the name of what is imported already."""
    (tmp_path / "offers").mkdir()
    offered = tmp_path / "offers" / "mine-1.dist-info"
    offered.mkdir()
    (offered / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n", encoding="utf-8")
    (offered / "entry_points.txt").write_text("[tpy.backends]\nmine = nowhere:create\n", encoding="utf-8")
    (tmp_path / "hides").mkdir()
    (tmp_path / "hides" / "numpy.py").write_text("raise ImportError('not today')\n", encoding="utf-8")
    (tmp_path / "models").mkdir()
    with ServerProcess(repositories=[tmp_path / "models"], environment={"PYTHONPATH": str(tmp_path / "offers")}) as server:
        assert _is_forked(server)
        assert "| mine " in server.log
    with ServerProcess(repositories=[tmp_path / "models"]) as server:
        assert _is_forked(server)
        assert "| mine " not in server.log
    assert "not today" in run_tpy("serve", str(tmp_path / "models"), environment={"PYTHONPATH": str(tmp_path / "hides")}).err


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["serve", "--no-such-flag"], 1)])
def test_a_command_prints_what_a_fresh_process_prints(arguments: list[str], code: int) -> None:
    fresh = subprocess.run([sys.executable, "-m", "tpy", *arguments], capture_output=True, text=True, check=False, timeout=100)
    forked = run_tpy(*arguments)
    assert (forked.code, forked.out, forked.err) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert forked.code == code


def test_a_fresh_process_takes_its_modules_apart_in_order(tmp_path: Path) -> None:
    """A forked one does not: this is the test of what only the end of an interpreter does."""
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "model.onnx").write_bytes(onnx_models.gathering())
    ModelFolder(tmp_path, "python").config(f'backend: "python"\n{IDENTITY_PAIR}').python(
        "class TritonPythonModel:\n    def execute(self, requests): return []\n"
    )
    with ServerProcess("--frontend-processes=1", repositories=[tmp_path], fresh=True) as server:
        assert not _is_forked(server)
        with InferenceServerClient(server.http) as client:
            assert client.is_model_ready("net")
            assert client.is_model_ready("python")


def test_it_ends_with_the_process_of_the_tests(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED, tmp_path], cwd=_ROOT, stdout=subprocess.PIPE, text=True, timeout=100)
    pid = int(ended.stdout)
    wait_until(lambda: not is_alive(pid))
