"""A worker process: started, watched, ended. Leaves no zombie, no child of it, no descriptor."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from tpy.backend import HostPolicy, bound
from tpy.backend.host_policy import ANYWHERE
from tpy.errors import Internal
from tpy.units import KIB
from tpy_data.backends.python.environment.interpreters import Interpreter
from tpy_data.backends.python.environment.output import LogLine, OutputForwarder
from tpy_data.backends.python.environment.threads import ReaderThread
from tpy_data.backends.python.environment.tokens import Tokens

_WORKER = Path(__file__).parents[1] / "worker" / "__main__.py"

LIVENESS_CHECK_S = 1
"""Between two checks that a silent worker lives. A death is normally seen at once, as the end of its socket; not when a
process that the model forked still holds that socket."""

TERMINATE_GRACE_S = 2
"""Between SIGTERM and SIGKILL."""


class Spawner:
    """The thread that starts workers. The kernel ends a worker when the *thread* that started it ends, so this one lives as
    long as the backend does. `reader` reads what they send where the loop does not."""

    def __init__(self) -> None:
        self.reader = ReaderThread()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="python-spawner")

    def start(self, command: list[str], files: tuple[int, ...], host: HostPolicy) -> subprocess.Popen[bytes]:
        """Start a process in a process group of its own, bound as `host` says. Raises OSError; Internal when it cannot be."""
        return self._executor.submit(_start, command, files, host).result()

    def close(self) -> None:
        """No more workers."""
        self._executor.shutdown(wait=True)
        self.reader.close()


def _start(command: list[str], files: tuple[int, ...], host: HostPolicy) -> subprocess.Popen[bytes]:
    with bound(host):  # a process is bound as the thread that starts it
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=files,
            # Ctrl-C in the terminal goes to the server, which ends its workers in order.
            process_group=0,
        )


class EndWatch:
    """Its descriptor is readable from the moment that a worker is gone, or has closed its end of the socket, whoever uses that
    socket for what. `close` it."""

    def __init__(self, exit_descriptor: int, sock: socket.socket) -> None:
        """`exit_descriptor` is a pidfd."""
        self._exit = os.dup(exit_descriptor)  # this one shows the end when the other one is closed, too
        self._poll = select.epoll()
        self._poll.register(self._exit, select.EPOLLIN)
        self._poll.register(sock, select.EPOLLRDHUP)

    def fileno(self) -> int:
        """-1 when it is closed."""
        return -1 if self._poll.closed else self._poll.fileno()

    def close(self) -> None:
        """Idempotent."""
        if not self._poll.closed:
            self._poll.close()
            os.close(self._exit)


class WorkerProcess:
    """One worker. `socket` is the server's end of the connection, for the caller to use and to close; then call `end`. `tokens`
    are there until then."""

    def __init__(
        self, name: str, interpreter: Interpreter, spawner: Spawner, log: LogLine, *, host: HostPolicy = ANYWHERE
    ) -> None:
        """Raises Internal when the interpreter cannot be started."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        tokens = Tokens()
        # -B: bytecode in a watched repository would look like a change of the model.
        files = (theirs.fileno(), tokens.worker_end)
        command = [interpreter.executable, "-B", str(_WORKER), *map(str, files), str(os.getpid()), name]
        try:
            process = spawner.start(command, files, host)
        except OSError as error:
            ours.close()
            tokens.close()
            raise Internal(f"cannot start {interpreter.executable} for '{name}': {error}") from error
        finally:
            theirs.close()
        self.name = name
        self.socket = ours
        self.tokens = tokens
        self._process = process
        self.spawner = spawner  # kept: were it collected, its thread would end, and with that this process
        self._exit = os.pidfd_open(process.pid)
        self._output = OutputForwarder(stdout=_detach(process.stdout), stderr=_detach(process.stderr), name=name, log=log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_error_line(self) -> str:
        """The newest line on its stderr; complete after `end`."""
        return self._output.last_error_line

    def watch(self) -> EndWatch:
        """A new watch for its end."""
        return EndWatch(self._exit, self.socket)

    def wait_exited(self, timeout_s: float) -> bool:
        """Returns True if the process is gone, after at most `timeout_s` seconds."""
        poller = select.poll()
        poller.register(self._exit, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def seen_end(self, timeout_s: float) -> str:
        """The end of the process, in words; "" while it lives, after at most `timeout_s` seconds. `end` is still to be called."""
        if not self.wait_exited(timeout_s):
            return ""
        found = os.waitid(os.P_PIDFD, self._exit, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None:
            return ""
        return in_words(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    def end(self, grace_s: float) -> str:
        """Wait `grace_s` seconds for it to exit, then make it; and whatever it has started in its group. Returns how it ended,
        in words. Call once."""
        if not self.wait_exited(grace_s):
            os.kill(self.pid, signal.SIGTERM)
            self.wait_exited(TERMINATE_GRACE_S)
        # It was not reaped yet, so its number is still the group's, and the group cannot be somebody else's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait()
        os.close(self._exit)
        self.tokens.close()
        self._output.close()
        return in_words(status)


def in_words(status: int) -> str:
    """The end of a process, by its exit status, or its signal as a negative number."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        return f"was ended by signal {-status}"
    return f"was ended by {name}" + (" (as the kernel does when memory runs out)" if name == "SIGKILL" else "")


def _detach(stream: IO[bytes] | None) -> int:
    """The descriptor of a pipe, as ours to close."""
    if stream is None:
        raise Internal("a worker was started without its pipes")
    descriptor = os.dup(stream.fileno())
    os.set_inheritable(descriptor, False)
    stream.close()
    return descriptor


def memory_bytes(pid: int) -> int:
    """Memory of a process that no other shares. 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return KIB * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:", "Swap:")))
