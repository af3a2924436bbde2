"""Forks `tpy`, and scripts, from a process that has imported what they import: a server starts with a sixth of the CPU time of a
fresh process.

Run as a program, this module is that process. It runs no code of ours that starts threads or a loop. The process with the tests,
which starts it at the first use, becomes the parent of what it forks: it can wait for it, and all of it ends with that process.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpy.plugins import installed, package_of
from tpy.usage_data import send_none

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FIXED = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "MALLOC_")
"""Begin the names of variables that a process reads before it runs code of ours."""

_CHANGEABLE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
"""Those of them that can still be changed; of servers also folders in the path, as long as nothing in them has the name of what
is imported."""

VARIABLES = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""Of all servers and commands of tests."""

_IMPORTED = {
    "servers": (
        "anyio._backends._trio",
        "anyio.from_thread",
        "encodings.idna",
        "tpy.cli.serve",
        "tpy.cli.serve_options",
        "tpy.cli.serve_target",
        "tpy.frontends.grpc.frontend",
        "tpy.frontends.grpc.own_services",
        "tpy.frontends.http.app",
        "tpy.frontends.http.frontend",
        "tpy.frontends.http.starting",
        "tpy.frontends.management",
        "tpy.frontends.metrics_http",
        "tpy_platforms.openai.frontend",
        "tpy_platforms.sagemaker.frontend",
        "tpy_platforms.tensorflow_serving.grpc",
        "tpy_platforms.tensorflow_serving.rest",
        "tpy_platforms.torchserve.frontend",
        "tpy_platforms.vertex_ai.frontend",
        "tpy_backends.onnxruntime.backend",
        "tpy_data.engine.runtimes.ensemble_runtime",
    ),
    "pages": (
        "numpy",
        "onnx",
        "tpy_tools.commands.check_report",
        "tpy_tools.commands.infer_request",
        "tpy.cli.main",
        "tritonclient.grpc",
        "tritonclient.http",
    ),
}
"""The modules that a server imports until it serves, or for its first requests, and those of what pages of the documentation have
run; and with them all others."""

_REQUEST_BYTES_MAX = 1 << 20
_ROOT = Path(__file__).parents[2]
_libc = ctypes.CDLL(None)


class ForkServer:
    """The process that forks, started at the first use. Its methods may be called in any thread."""

    def __init__(self, imported: str, variables: Mapping[str, str]) -> None:
        """`imported` names what it imports; `variables` are those of what it forks, besides this process's."""
        self._imported = imported
        self._variables = variables
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None
        self._owner = 0
        self._fixed: dict[str, str] = {}
        self._path: str | None = None

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        program: Sequence[str] = ("-m", "tpy"),
    ) -> subprocess.Popen[bytes] | None:
        """Start `python PROGRAM ARGUMENT...` in a session of its own; None if only a fresh process can have this environment. As
        for Python, the program is `-m MODULE`, `-c CODE` or a file."""
        with self._lock:
            if self._owner != os.getpid():  # at first, and in a process that was forked from one with tests
                self._open({**os.environ, **self._variables})
            keeps_path = self._imported != "servers"
            if _fixed(environment) != self._fixed or (keeps_path and self._path != environment.get("PYTHONPATH")):
                return None
            order = {"program": list(program), "arguments": list(arguments), "environment": dict(environment), "cwd": os.getcwd()}
            pid = self._fork(order, stdin, stdout, stderr)
        return _Adopted(pid, arguments) if pid else None

    def _open(self, environment: Mapping[str, str]) -> None:
        self._pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in self._pipe, theirs:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES_MAX)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.fork_server", str(theirs.fileno()), self._imported],
                env=environment,
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )
        self._owner = os.getpid()
        self._fixed = _fixed(environment)
        self._path = environment.get("PYTHONPATH")

    def _fork(self, order: object, *descriptors: int) -> int:
        assert self._pipe is not None
        # What loses its parent falls to this process, as long as this is set, and no longer: workers of other servers may end.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._pipe, [json.dumps(order).encode()], descriptors)
            answer = self._pipe.recv(64)
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
        if not answer:
            raise RuntimeError("the process that forks servers has ended")
        return int(answer)


class _Adopted(subprocess.Popen[bytes]):
    """A child process that was started by another one."""

    def __init__(self, pid: int, arguments: Sequence[str]) -> None:
        self.args = ["tpy", *arguments]
        self.pid = pid
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_FIXED) and name not in _CHANGEABLE}


fork_server = ForkServer("servers", VARIABLES)
"""That of this pytest process."""

page_fork_server = ForkServer("pages", {})
"""The same, for commands and scripts of pages."""


def _forks(pipe: socket.socket) -> list[str]:
    """Fork for each request. Returns its program in the forked process, ready to run it; ends with the pytest process, whose end
    of the pipe closes then. (The kernel's signal would come when the thread ends that began this.)"""
    parent = os.getppid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(pipe, _REQUEST_BYTES_MAX, 3)
        if not data:
            os._exit(0)
        order = json.loads(data)
        if _hides(order["environment"], order["cwd"]):
            pipe.send(b"0")
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        reader, writer = os.pipe()
        middle = os.fork()
        if middle:
            os.waitpid(middle, 0)
            for descriptor in (*descriptors, writer):
                os.close(descriptor)
            pipe.send(os.read(reader, 64))
            os.close(reader)
            continue
        end_of_middle = os.pidfd_open(os.getpid())
        pid = os.fork()
        if pid:
            os.write(writer, str(pid).encode())
            os._exit(0)
        select.select([end_of_middle], [], [])  # from now on the process of the tests is the parent
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        for descriptor in (*descriptors, reader, writer, end_of_middle):
            os.close(descriptor)
        pipe.close()
        return _become(**order)


def _path(environment: Mapping[str, str], cwd: str) -> list[str]:
    """Without the folder of the tests, which has nothing that a server imports."""
    found = [os.path.normpath(os.path.join(cwd, entry)) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return [entry for entry in found if entry != str(_ROOT)]


def _hides(environment: Mapping[str, str], cwd: str) -> bool:
    """Returns True if the path of a process has something in front that is imported here already, or that Python runs at its
    start, or a plugin that may be known here; or has no more something that was imported from there, perhaps."""
    wanted, here = _path(environment, cwd), _path(os.environ, str(_ROOT))
    if wanted[len(wanted) - len(here) :] != here:
        return True
    imported = {name.partition(".")[0] for name in sys.modules} | {"sitecustomize", "usercustomize"}
    new = [file for entry in wanted if entry not in here for file in Path(entry).glob("*")]
    plugins = (file / "entry_points.txt" for file in new)
    offered = "".join(file.read_text(encoding="utf-8") for file in plugins if file.exists()).replace("[tpy.backends]", "")
    return "[tpy." in offered or any(file.name.partition(".")[0] in imported for file in new)


def _become(program: list[str], arguments: list[str], environment: dict[str, str], cwd: str) -> list[str]:
    os.setsid()
    wanted, here = _path(environment, cwd), _path(os.environ, str(_ROOT))
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    os.chdir(cwd)
    sys.path[:1] = [cwd, *wanted[: len(wanted) - len(here)]]
    sys.argv[1:] = arguments
    return program


def _run(program: list[str]) -> None:
    """As `python PROGRAM` does."""
    gc.enable()
    match program:
        case ["-m", module]:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code]:
            sys.argv[0] = "-c"
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), main.__dict__)
        case [file]:
            sys.argv[0] = file
            sys.path[0] = str(Path(file).resolve().parent)
            runpy.run_path(file, run_name="__main__")


class _Leaving:
    """The end of a forked process whose program ended in order. The modules that it got from the fork are not taken apart: that
    copies all their memory, 40 % of the CPU time of a server that serves nothing."""

    def __init__(self) -> None:
        self._status: int | None = None
        atexit.register(self._leave)  # before all others: what is registered later is called earlier

    def run(self, program: list[str]) -> None:
        try:
            _run(program)
        except SystemExit as end:
            if end.code is not None and not isinstance(end.code, int):
                raise
            self._status = end.code or 0
        else:
            self._status = 0

    def _leave(self) -> None:
        if self._status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._status)


if __name__ == "__main__":
    _leaving = _Leaving()
    gc.disable()  # as tpy does while it imports
    send_none()  # as it does before
    for _name in _IMPORTED[sys.argv.pop()]:
        importlib.import_module(_name)
    for _entry in installed("tpy.backends"):
        package_of(_entry)
    from .template_server import shared_templates

    _sharing = shared_templates(hosting=False)
    _sharing.__enter__()  # until the end of this process
    gc.freeze()  # a process that looks through its objects does not write to the memory of these
    _leaving.run(_forks(socket.socket(fileno=int(sys.argv[1]))))
