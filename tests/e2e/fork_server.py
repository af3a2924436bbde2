"""Forks `tpy` from a process that has imported it: a server starts with a sixth of the CPU time of a fresh process.

Run as a program, this module is that process. It runs no code of ours that starts threads or a loop. The process with the tests,
which starts it at the first use, becomes the parent of what it forks: it can wait for it, and all of it ends with that process.
"""

from __future__ import annotations

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
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpy.plugins import installed, package_of

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FIXED = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "MALLOC_")
"""Begin the names of variables that a process reads before it runs code of ours."""

_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""The one of them that can still be changed."""

_IMPORTED = (
    "anyio._backends._trio",
    "anyio.from_thread",
    "encodings.idna",
    "tpy.cli.serve",
    "tpy.cli.serve_options",
    "tpy.cli.serve_target",
    "tpy.frontends.grpc.frontend",
    "tpy.frontends.http.frontend",
    "tpy.frontends.http.starting",
    "tpy.frontends.management",
    "tpy.frontends.metrics_http",
    "tpy.frontends.openai.frontend",
    "tpy.frontends.sagemaker.frontend",
    "tpy.frontends.vertex_ai.frontend",
    "tpy_data.backends.onnxruntime",
)
"""The modules that a server imports until it serves, and with them all others."""

_REQUEST_BYTES_MAX = 1 << 20
_ROOT = Path(__file__).parents[2]
_libc = ctypes.CDLL(None)


class ForkServer:
    """The process that forks, started at the first use. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None
        self._owner = 0
        self._fixed: dict[str, str] = {}

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdin: int, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes] | None:
        """Start `tpy ARGUMENT...` in a session of its own; None if only a fresh process can have this environment."""
        with self._lock:
            if self._owner != os.getpid():  # at first, and in a process that was forked from one with tests
                self._open(environment)
            if _fixed(environment) != self._fixed:
                return None
            order = {"arguments": list(arguments), "environment": dict(environment), "cwd": os.getcwd()}
            pid = self._fork(order, stdin, stdout, stderr)
        return _Adopted(pid, arguments)

    def _open(self, environment: Mapping[str, str]) -> None:
        self._pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in self._pipe, theirs:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES_MAX)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.fork_server", str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )
        self._owner = os.getpid()
        self._fixed = _fixed(environment)

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
    return {name: value for name, value in environment.items() if name.startswith(_FIXED) and name != _BYTECODE}


fork_server = ForkServer()
"""That of this pytest process."""


def _forks(pipe: socket.socket) -> None:
    """Fork for each request. Returns in the forked process, ready to run its command; ends with the pytest process."""
    parent = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        data, descriptors, _, _ = socket.recv_fds(pipe, _REQUEST_BYTES_MAX, 3)
        if not data:
            os._exit(0)
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
        _become(**json.loads(data))
        return


def _become(arguments: list[str], environment: dict[str, str], cwd: str) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get(_BYTECODE))
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.argv[1:] = arguments


if __name__ == "__main__":
    gc.disable()  # as tpy does while it imports
    for _name in _IMPORTED:
        importlib.import_module(_name)
    for _entry in installed("tpy.backends"):
        package_of(_entry)
    _forks(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("tpy", run_name="__main__", alter_sys=True)
