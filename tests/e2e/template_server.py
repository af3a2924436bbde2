"""Forks the templates of Python workers, of the servers that `fork_server` forks and of tests: one process has imported what they
need, and not each template.

Run as a program, with the descriptor of a listening socket, this module is that process. A template from here has another parent
than one that its server has started: it ends with its server because the server's end of their socket closes then.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ORDER_BYTES_MAX = 1 << 20
_PR_SET_PDEATHSIG = 1
_TEMPLATE, _HOSTING = "--template", "--hosting"
_ROOM = "-" * 250


class TemplateServer:
    """The process that forks templates. It ends with the thread that makes this object; what is forked there may use it, too."""

    def __init__(self, worker: Path, *, hosting: bool) -> None:
        """`worker` is the program of templates; with `hosting` of those whose workers run backends of the server."""
        self._worker = worker
        self._hosting = hosting
        self._path = os.environ.get("PYTHONPATH")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("")  # the kernel chooses an abstract name
            listener.listen(64)
            self._address = listener.getsockname()
            command = [
                sys.executable,
                "-B",
                __file__,
                _TEMPLATE,
                str(listener.fileno()),
                str(worker),
                str(os.getpid()),
                _ROOM,
                *[_HOSTING] * hosting,
            ]
            self._process = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)

    def start(self, command: list[str], files: tuple[int, ...]) -> subprocess.Popen[bytes] | None:
        """A template, as this command starts it that inherits these descriptors. None if the command starts something else, or
        something that imports from other folders."""
        is_template = command[:4] == [sys.executable, "-B", str(self._worker), _TEMPLATE]
        if not is_template or (_HOSTING in command) != self._hosting or os.environ.get("PYTHONPATH") != self._path:
            return None
        order = {"server": command[5], "more": command[7:], "environment": dict(os.environ), "cwd": os.getcwd()}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ORDER_BYTES_MAX)
            asking.connect(self._address)
            socket.send_fds(asking, [json.dumps(order).encode()], files)
            answer = asking.recv(64)
        if not answer:
            raise RuntimeError("the process that forks templates has ended")
        return _Template(int(answer), command)

    def end(self) -> None:
        """Templates end with their servers, not here."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def shared_templates(*, hosting: bool) -> Iterator[None]:
    """Have templates forked and not started in the block: those of Python models or, with `hosting`, of backends in processes."""
    from tpy_data.backends.python.environment import process

    templates, start = TemplateServer(process.WORKER, hosting=hosting), process.start_process
    process.start_process = lambda command, files, *how: templates.start(command, files) or start(command, files, *how)
    try:
        yield
    finally:
        process.start_process = start
        templates.end()


class _Template(subprocess.Popen[bytes]):
    """The child of another process, which waits for it. Its server does nothing but kill it."""

    def __init__(self, pid: int, command: list[str]) -> None:
        self.args = command
        self.pid = pid
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._ended = os.pidfd_open(pid)

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        select.select([self._ended], [], [], timeout)
        os.close(self._ended)
        self.returncode = -signal.SIGKILL
        return self.returncode

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._ended)


def templates_of(server: int) -> list[int]:
    """The templates from here of a server, by its process id."""
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if words[2:4] == [__file__.encode(), _TEMPLATE.encode()] and words[5] == str(server).encode():
                found.append(int(name))
    return found


def _forks(listener: socket.socket) -> tuple[dict[str, Any], int]:
    """Fork for each order. Returns it in the forked process, with the descriptor that came with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # templates end without being waited for
    while True:
        asking, _ = listener.accept()
        with asking:
            data, files, _, _ = socket.recv_fds(asking, _ORDER_BYTES_MAX, 1)
            if not files:
                continue  # who asked was killed
            [control] = files
            pid = os.fork()
            if not pid:
                break
            with contextlib.suppress(OSError):
                asking.send(str(pid).encode())
        os.close(control)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    return json.loads(data), control


def _main(listener: socket.socket, worker: str, parent: int, *, hosting: bool) -> None:
    """Import what a template imports. In each forked process, be one: run its program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above
    path = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    sys.path[:] = [*path, str(Path(worker).parent / "importable")]
    package = importlib.import_module("tpy_worker_package")
    package.load()
    importlib.import_module(f"{package.NAME}.main")
    if hosting:
        importlib.import_module(f"{package.NAME}.hosting.runner")
    template = importlib.import_module(f"{package.NAME}.template")
    sys.path[:] = path
    us = str(os.getpid())
    order, control = _forks(listener)
    os.setpgid(0, 0)
    with open(os.devnull, "r+b", buffering=0) as null:
        for number in range(3):
            os.dup2(null.fileno(), number)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    template.set_command_line([_TEMPLATE, str(control), order["server"], _ROOM])
    sys.argv[1:] = [_TEMPLATE, str(control), us, _ROOM, *order["more"]]
    runpy.run_path(worker, run_name="__main__")


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[2])), sys.argv[3], int(sys.argv[4]), hosting=_HOSTING in sys.argv)
