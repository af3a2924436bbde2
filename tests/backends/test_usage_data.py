"""No backend turns to the network, or writes outside its folders, while it loads and runs a model: a tracer of system calls
watches a process that does no more than that.

A socket that is only bound to the loopback interface, as urllib3 does to learn of IPv6, reaches nobody."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.one_model import MAKERS

ROOT = Path(__file__).resolve().parents[2]

MODULES = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "pytorch": ("torch",),
    "openvino": ("openvino",),
    "tensorflow": ("tensorflow",),
    "litert": ("ai_edge_litert", "tensorflow"),
    "sklearn": ("sklearn", "skops"),
}
"""Needed to make the model and to run it."""

CACHES = {"tensorflow": (".keras", ".config/matplotlib", ".cache/matplotlib")}
"""Folders in the user's home for settings and fonts of what TensorFlow imports."""

CI = ("CI", "TF_BUILD", "JENKINS_URL")
"""Variables by which frameworks know a CI system, where some of them send nothing."""

REACHES = "connect,sendto,sendmsg,sendmmsg"
WRITES = "open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,mknod,mknodat"

_REACHES = re.compile(r"\b(?:connect|send\w+)\(.*\bsa_family=AF_INET6?\b")
_CREATES = re.compile(r"\b(?:creat|mkdir|mkdirat|rename\w*|link|linkat|symlink\w*|mknod\w*)\(.* = 0$|\bcreat\(.* = \d+")
_OPENS_TO_WRITE = re.compile(r"\bopen(?:at|at2)?\(.*\bO_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b.* = \d+")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _why_no_tracer() -> str:
    if shutil.which("strace") is None:
        return "needs strace"
    tried = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return f"strace may not trace here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture(scope="module", autouse=True)
def tracer() -> None:
    reason = _why_no_tracer()
    if reason:
        pytest.skip(reason)


def _environment(home: Path, scratch: Path) -> dict[str, str]:
    """As for a service: a home and a folder for temporary files. Python itself writes no compiled modules."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ORT_", "TF_", *CI))}
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH")) if path)
    return {**kept, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(home), "TMPDIR": str(scratch)}


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, cwd=environment["TMPDIR"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _outside(calls: list[str], folders: tuple[Path, ...]) -> list[str]:
    """The calls that wrote something outside of those folders, and of devices and the process's own settings."""
    allowed = tuple(f"{folder}/" for folder in (*folders, "/dev", "/proc"))
    found = []
    for call in calls:
        if _CREATES.search(call) or _OPENS_TO_WRITE.search(call):
            paths = [os.path.join(folders[0], path) for path in _PATH.findall(call)]
            if not all(f"{path}/".startswith(allowed) for path in paths):
                found.append(call)
    return found


def traced(command: list[str], root: Path, scratch: Path, home: Path, *caches: str) -> tuple[list[str], list[str]]:
    """The calls of a command and its children that turned to an Internet address, and those that wrote outside of the folder for
    temporary files and of these folders in the home."""
    log = root / "calls"
    for cache in caches:
        (home / cache).parent.mkdir(parents=True, exist_ok=True)
    tracer = ["strace", "-f", "-qq", "-s", "4096", "-e", "signal=none", "-e", f"trace={REACHES},{WRITES}", "-o", str(log), "--"]
    _run([*tracer, *command], _environment(home, scratch))
    calls = log.read_text(errors="replace").splitlines()
    assert any("openat(" in call for call in calls)
    return [call for call in calls if _REACHES.search(call)], _outside(calls, (scratch, *[home / cache for cache in caches]))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder for temporary files, and a home."""
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    scratch.mkdir()
    home.mkdir()
    return scratch, home


def test_the_tracer_sees_addresses_and_writes(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    scratch, home = folders
    code = (
        "import pathlib, socket; pair = socket.socketpair(); pair[0].send(b'x');"
        "datagrams = socket.socket(type=socket.SOCK_DGRAM);"
        "datagrams.sendto(b'x', ('127.0.0.1', 9)); datagrams.connect(('127.0.0.1', 9)); socket.socket().bind(('127.0.0.1', 0));"
        "pathlib.Path('inside').write_text('x'); (pathlib.Path.home() / 'cache').mkdir();"
        "(pathlib.Path.home() / 'cache' / 'file').write_text('x')"
    )
    reached, writes = traced([sys.executable, "-c", code], tmp_path, scratch, home)
    assert len(reached) == 2
    assert [os.path.basename(_PATH.findall(call)[0]) for call in writes] == ["cache", "file"]


@pytest.mark.parametrize("backend", MAKERS)
def test_a_backend_stays_where_it_is(backend: str, tmp_path: Path, folders: tuple[Path, Path]) -> None:
    missing = [module for module in MODULES[backend] if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: make setup-torch test-backends")
    scratch, home = folders
    model = tmp_path / "repository"
    module = [sys.executable, "-W", "ignore", "-m", "tests.backends.one_model"]
    making = tmp_path / "making"
    making.mkdir()
    _run([*module, "make", backend, str(model)], _environment(making, making))
    caches = CACHES.get(backend, ())
    reached, writes = traced([*module, "run", backend, str(model)], tmp_path, scratch, home, *caches)
    assert (reached, writes) == ([], [])
    assert caches or not list(home.iterdir())
