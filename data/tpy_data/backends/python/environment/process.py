"""A worker process: started, watched, ended. Leaves no zombie, no child of it, no descriptor. And tokens: what a worker takes
one of before each further batch of a run, and the server takes back."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

import outcome

from tpy.backend import HostPolicy, bound
from tpy.backend.host_policy import ANYWHERE
from tpy.errors import Internal
from tpy.process_output import LogLine, OutputForwarder
from tpy.scratch import ScratchDirectory
from tpy.templates import NoAnswer, NoTemplate, Templates
from tpy.units import KIB
from tpy_data.backends.python.environment.interpreters import Interpreter
from tpy_data.backends.python.environment.threads import JobThread, ReaderThread

WORKER = Path(__file__).parents[1] / "worker" / "__main__.py"

HOSTING = "--hosting"
"""Tells a template that its workers run backends of this server."""

_AT_ONCE = int(socket.MSG_DONTWAIT)


class Tokens:
    """One byte each, taken by the first reader: the worker, which has the reading end too (`worker_end`), or the server.

    Any thread. Nothing blocks, whatever the worker does to its end: it can neither add tokens, nor make a read of ours wait.
    """

    def __init__(self) -> None:
        """Raises OSError."""
        self._giving, self._taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lock = threading.Lock()

    @property
    def worker_end(self) -> int:
        """For the worker to inherit."""
        return self._taking.fileno()

    def give(self, count: int) -> bool:
        """Put `count` tokens there. False when that is not possible."""
        with self._lock, contextlib.suppress(OSError):
            return self._giving.send(bytes(count), _AT_ONCE) > 0
        return False

    def take(self, most: int) -> int:
        """Take back what is there, `most` at most; none after `close`."""
        with self._lock, contextlib.suppress(OSError):
            return len(self._taking.recv(most, _AT_ONCE))
        return 0

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._giving.close()
            self._taking.close()


LIVENESS_CHECK_S = 1
"""Between two checks that a silent worker lives. A death is normally seen at once, as the end of its socket; not when a
process that the model forked still holds that socket."""

TERMINATE_GRACE_S = 2
"""Between SIGTERM and SIGKILL."""


class SandboxOrder(NamedTuple):
    """The start of a worker in a sandbox: the order of `worker.sandbox.enter` in JSON, and all of its environment."""

    text: str
    environment: Mapping[str, str]


Sandboxes = Callable[[Path], SandboxOrder]
"""Makes the order for a worker with this folder for temporary files."""


class Child(Protocol):
    """A worker's process."""

    pid: int

    def wait(self) -> int | None:
        """Its exit status, or minus the signal that ended it, when it has ended; None if it has ended with its template."""
        ...


class Spawner:
    """Starts workers: forked from the template of their interpreter, or by itself where a host policy binds them or there is no
    template. The kernel ends a process when the *thread* that started it ends, so that thread lives as long as the backend does,
    also in a program whose main thread has ended (one of an executor does not). `reader` reads what workers send where the loop
    does not. With `hosts_backends`, what a worker needs that runs a backend of this server is imported by its template, too."""

    def __init__(self, *, hosts_backends: bool = False) -> None:
        self.reader = ReaderThread()
        self._thread = JobThread("python-spawner")
        imported = (HOSTING,) if hosts_backends else ()
        self._templates = Templates(
            partial(self._start, (subprocess.DEVNULL, subprocess.DEVNULL), ANYWHERE),
            lambda executable, arguments: _command(executable, [*arguments, *imported]),
        )

    def fork(self, executable: str, name: str, files: tuple[int, int], output: tuple[int, int]) -> Child | None:
        """As `start`, of a worker that nothing binds, from a template; None without a template. Raises NoAnswer when the
        descriptors are not to be used any more."""
        try:
            return self._templates.fork(executable, name, (*files, *output))
        except NoAnswer:
            raise
        except NoTemplate:
            return None

    def start(
        self,
        executable: str,
        name: str,
        files: tuple[int, int],
        output: tuple[int, int],
        host: HostPolicy,
        sandbox: SandboxOrder | None = None,
    ) -> Child:
        """Start a worker in its own process group, bound as `host` says, with the descriptors `files` of its connection and
        of its tokens, and `output`. Raises OSError; Internal when it cannot be bound."""
        command = _command(executable, [*map(str, files), str(os.getpid()), name])
        if sandbox is None:
            return self._start(output, host, command, files)
        return self._start(output, host, [*command, sandbox.text], files, sandbox.environment)

    def close(self) -> None:
        """No more workers."""
        self._templates.close()
        self._thread.close()
        self.reader.close()

    def _start(
        self,
        output: tuple[int, int],
        host: HostPolicy,
        command: list[str],
        files: tuple[int, ...],
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        started: SimpleQueue[outcome.Outcome[subprocess.Popen[bytes]]] = SimpleQueue()
        if not self._thread.run(lambda: started.put(outcome.capture(start_process, command, files, output, host, environment))):
            raise OSError("the backend is closed")
        return started.get().unwrap()


def _command(executable: str, arguments: Sequence[str]) -> list[str]:
    # -B: bytecode in a watched repository would look like a change of the model.
    return [executable, "-B", str(WORKER), *arguments]


def start_process(
    command: list[str],
    files: tuple[int, ...],
    output: tuple[int, int],
    host: HostPolicy,
    environment: Mapping[str, str] | None,
) -> subprocess.Popen[bytes]:
    """A process in its own group that inherits `files`. Raises OSError; Internal when it cannot be bound as `host` says."""
    with bound(host):  # a process is bound as the thread that starts it
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output[0],
            stderr=output[1],
            pass_fds=files,
            env=environment,
            # Ctrl-C in the terminal goes to the server, which ends its workers in order.
            process_group=0,
        )


class EndWatch:
    """Its descriptor is readable from the moment that a worker is gone, or has closed its end of the socket, even if another
    process still has that socket. `close` it."""

    def __init__(self, exit_descriptor: int, sock: socket.socket) -> None:
        """`exit_descriptor` is a pidfd."""
        self._poll = select.epoll()
        self._exit = os.dup(exit_descriptor)  # this one shows the end when the other one is closed, too
        self._poll.register(self._exit, select.EPOLLIN)
        self._poll.register(sock, select.EPOLLRDHUP)

    def fileno(self) -> int:
        """-1 when it is closed."""
        return -1 if self._poll.closed else self._poll.fileno()

    def has_ended(self) -> bool:
        """True when the worker is gone, or has closed its end of the socket."""
        return not self._poll.closed and bool(self._poll.poll(0))

    def close(self) -> None:
        """Idempotent."""
        if not self._poll.closed:
            self._poll.close()
            os.close(self._exit)


class WorkerProcess:
    """One worker. `socket` is the server's end of the connection, for the caller to use and to close; then call `end`. `tokens`
    are there until then."""

    def __init__(
        self,
        name: str,
        interpreter: Interpreter,
        spawner: Spawner,
        log: LogLine,
        *,
        host: HostPolicy = ANYWHERE,
        sandbox: Sandboxes | None = None,
    ) -> None:
        """`sandbox` makes the order for one whose own folder it is given; that is then not forked from a template, which has the
        server's environment in its memory. Raises Internal when the interpreter cannot be started, or no more files can be
        opened."""
        self.name = name
        self._folder = None if sandbox is None else _own_folder(name)
        self._sandbox = None if sandbox is None or self._folder is None else sandbox(self._folder.path)
        self.spawner = spawner  # kept: were it collected, its thread would end, and with that this process
        try:
            try:
                self._start(interpreter, log, host, forked=not host and self._sandbox is None)
            except NoAnswer:  # a template that is starved, or hangs: a slow start is not a failure
                self._start(interpreter, log, host, forked=False)
        except BaseException:
            self._remove_folder()
            raise

    def _start(self, interpreter: Interpreter, log: LogLine, host: HostPolicy, *, forked: bool) -> None:
        name, spawner = self.name, self.spawner
        with contextlib.ExitStack() as inherited, contextlib.ExitStack() as undo:
            try:
                self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                undo.callback(self.socket.close)
                inherited.callback(theirs.close)
                self.tokens = undo.enter_context(contextlib.closing(Tokens()))
                (stdout, out), (stderr, err) = _pipe(undo, inherited), _pipe(undo, inherited)
                files = (theirs.fileno(), self.tokens.worker_end)
                started = spawner.fork(interpreter.executable, name, files, (out, err)) if forked else None
                self._process = started or spawner.start(interpreter.executable, name, files, (out, err), host, self._sandbox)
                undo.callback(_kill, self._process)
                self._exit = os.pidfd_open(self._process.pid)
                undo.callback(os.close, self._exit)
                self._output = OutputForwarder(stdout=stdout, stderr=stderr, name=name, log=log)
            except OSError as error:
                raise Internal(f"cannot start {interpreter.executable} for '{name}': {error}") from error
            undo.pop_all()

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

    def wait_exited(self, timeout_s: float | None) -> bool:
        """Returns True if the process is gone, after at most `timeout_s` seconds; None: however long it takes."""
        poller = select.poll()
        poller.register(self._exit, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))

    def seen_end(self, timeout_s: float) -> str:
        """The end of the process, in words; "" while it lives, after at most `timeout_s` seconds. `end` is still to be called."""
        if not self.wait_exited(timeout_s):
            return ""
        try:  # a template has most workers for children, and not we
            status = int(Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace").split()[-1])
        except (OSError, ValueError):
            return ""
        return in_words(os.waitstatus_to_exitcode(status))

    def end(self, grace_s: float) -> str:
        """Wait `grace_s` seconds for it to exit, then make it; and whatever it has started in its group. Returns how it ended,
        in words. Call once."""
        if not self.wait_exited(grace_s):
            os.kill(self.pid, signal.SIGTERM)
            self.wait_exited(TERMINATE_GRACE_S)
        # It was not reaped yet, so its number is still the group's, and the group cannot be somebody else's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait_exited(None)
        status = self._process.wait()
        os.close(self._exit)
        self.tokens.close()
        self._output.close()
        self._remove_folder()
        return in_words(-signal.SIGKILL if status is None else status)

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.remove()


def _own_folder(name: str) -> ScratchDirectory:
    """A folder for the temporary files of a worker in a sandbox. Raises Internal."""
    try:
        return ScratchDirectory("tpy-sandbox-")
    except OSError as error:
        raise Internal(f"cannot make a folder for '{name}': {error}") from error


def _pipe(undo: contextlib.ExitStack, inherited: contextlib.ExitStack) -> tuple[int, int]:
    """The ends for reading, which is ours, and for writing."""
    ours, theirs = os.pipe()
    undo.callback(os.close, ours)
    inherited.callback(os.close, theirs)
    return ours, theirs


def _kill(process: Child) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


_REMARKS = {
    "SIGKILL": " (as the kernel does when memory runs out)",
    "SIGALRM": " (as when a step of an engine takes longer than step_timeout_seconds and lets no other thread run)",
}


def in_words(status: int) -> str:
    """The end of a process, by its exit status, or its signal as a negative number."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        return f"was ended by signal {-status}"
    return f"was ended by {name}{_REMARKS.get(name, '')}"


def memory_bytes(pid: int) -> int:
    """Memory of a process that no other shares. 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return KIB * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:", "Swap:")))
