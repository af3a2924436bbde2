"""A `tpy serve` subprocess on free ports, for tests."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from .fork_server import VARIABLES, fork_server
from .template_server import templates_of
from .waiting import wait_until

_START_S_MAX = 120.0
_STOP_S_MAX = 60.0
_PRESET = (
    "--http-address=127.0.0.1",
    "--http-port=0",
    "--grpc-address=127.0.0.1",
    "--grpc-port=0",
    "--metrics-port=0",
    "--mlflow-port=0",
    "--openai-port=0",
    "--sagemaker-port=0",
    "--tensorflow-serving-port=0",
    "--tensorflow-serving-grpc-port=0",
    "--torchserve-port=0",
    "--vertex-ai-port=0",
)

_SERVE = ("-m", "tpy", "serve")

_MODEL_FAILURE = re.compile(
    r"""(?:(?:\]|"message":) "|^\d\d:\d\d:\d\d ERROR   )"""
    r"""[^"\s]+: (?:(?:import of the model|auto_complete_config|initialize|execute|predict|finalize|load|close) failed"""
    r"""|the handler .*) """
    r"""\(model '"""
)
"""Begins the message about an exception in model code, which has its traceback; `default` and `ISO8601`, `json`, or `plain`."""

_STARTED = re.compile(r'\bStarted ([\w ]*Service) at ([^\s"]+)(?=.*\n)')

_PLAIN_CONTINUED = "\n        | "

TIMER = "anon_inode:[timerfd]"
"""A scheduler opens one at its first deadline that is near, and keeps it as long as its model is served."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In a child before it executes its program: it is killed when the thread ends that started it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


running_servers: weakref.WeakSet[ServerProcess] = weakref.WeakSet()
"""Servers that were started: what a test that hangs waits for, perhaps."""


class ServerProcess:
    """Starts the server and waits until it says where it serves, or has ended. Use it as a context manager; leaving it stops the
    server with SIGTERM and checks that it ended in order: with exit code `expect_exit` and without a traceback of its own.
    `launcher` is a command that executes the command that it is given, in place of itself; `program` what Python is to run. With
    `fresh` neither it nor a template of its workers is forked from something that tests share."""

    def __init__(
        self,
        *flags: str,
        repositories: Sequence[Path] = (),
        expect_exit: int = 0,
        environment: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        program: Sequence[str] = _SERVE,
        fresh: bool = False,
    ) -> None:
        self._program = program
        self._launcher = launcher
        self._fresh = fresh
        self._flags = [*(f"--model-repository={path}" for path in repositories), *flags]
        self._expect_exit = expect_exit
        self._environment = {**os.environ, **VARIABLES, **(environment or {})}
        self._log = _LogFile()
        self._addresses: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        if self._fresh or self._launcher or self._program != _SERVE or not self._fork():
            self.start()
        try:
            wait_until(self._has_started_or_ended, within_s=_START_S_MAX)
        except TimeoutError:
            self._kill()
            raise TimeoutError(f"tpy serve did not start:\n{self.log}") from None
        if self.address("Metrics Service") is None and self._expect_exit == 0:
            code = self.process.wait(_STOP_S_MAX)
            raise RuntimeError(f"tpy serve ended with {code}:\n{self.log}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        code = self.stop()
        if kind is None:
            assert code == self._expect_exit, f"exit code {code}:\n{self.log}"
            assert not tracebacks(self.log), self.log

    def start(self) -> None:
        """Start a fresh process; do not wait."""
        with warnings.catch_warnings():
            # Python warns of forks beside threads from 3.12 on; the child does one system call, whose function is loaded.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = subprocess.Popen(
                [*self._launcher, sys.executable, *self._program, *_PRESET, *self._flags],
                stderr=self._log.descriptor,
                stdout=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_end_with_parent if threading.current_thread() is threading.main_thread() else None,
            )
        running_servers.add(self)

    def _fork(self) -> bool:
        with open(os.devnull, "r+b", buffering=0) as null:
            descriptors = null.fileno(), null.fileno(), self._log.descriptor
            self._process = fork_server.start(["serve", *_PRESET, *self._flags], self._environment, *descriptors)
        if self._process is not None:
            running_servers.add(self)
        return self._process is not None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None
        return self._process

    @property
    def http(self) -> str:
        """host:port of the HTTP API."""
        return self._served("HTTPService")

    @property
    def grpc(self) -> str:
        """host:port of the gRPC API."""
        return self._served("GRPCInferenceService")

    @property
    def metrics(self) -> str:
        """host:port of the metrics."""
        return self._served("Metrics Service")

    def address(self, service: str) -> str | None:
        """host:port of a service by its name in the log; None when it is not served."""
        if service not in self._addresses:
            self._addresses = dict(_STARTED.findall(self.log))
        return self._addresses.get(service)

    @property
    def log(self) -> str:
        """All that the server has written so far: what it logs before it answers is there when the answer is."""
        return self._log.read()

    def cpu_s(self) -> float:
        """The CPU time of its own process so far: what a bound on work is for, however busy the machine is."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_log(self, pattern: str, *, within_s: float = 30.0) -> re.Match[str]:
        """Wait until the log has a match."""
        compiled = re.compile(pattern)
        return wait_until(lambda: compiled.search(self.log), within_s=within_s)

    def children(self) -> list[int]:
        """The process ids of its running child processes: the workers of python models."""
        return child_processes(self.process.pid)

    def open_files(self) -> Counter[str]:
        """The kinds of its descriptors: "socket", "anon_inode:[eventpoll]", paths; all but those of `timers`."""
        return Counter({target: count for target, count in self._descriptors().items() if target != TIMER})

    def timers(self) -> int:
        """The number of its schedulers that hold a timer."""
        return self._descriptors()[TIMER]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code. The log is complete afterwards."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait_end()

    def wait_end(self, within_s: float = _STOP_S_MAX) -> int:
        """Wait until the process has ended; the exit code. The log is complete afterwards."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._kill()
            raise
        return code

    def _descriptors(self) -> Counter[str]:
        found = Counter[str]()
        folder = f"/proc/{self.process.pid}/fd"
        for name in os.listdir(folder):
            try:
                target = os.readlink(f"{folder}/{name}")
            except OSError:
                continue  # closed meanwhile
            found[target.partition(":[")[0] if target.startswith(("socket:", "pipe:")) else target] += 1
        return found

    def _kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _has_started_or_ended(self) -> bool:
        return self.process.poll() is not None or self.address("Metrics Service") is not None

    def _served(self, service: str) -> str:
        address = self.address(service)
        assert address is not None, f"{service} is not served:\n{self.log}"
        return address


class _LogFile:
    """The output of a process and its children as a file, not a pipe: nothing waits for a reader, and what has been written
    can be read."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self.descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, fcntl.fcntl(self.descriptor, fcntl.F_GETFL) | os.O_APPEND)
        self._text = ""
        self._seen_bytes = 0
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._lock = threading.Lock()

    def read(self) -> str:
        with self._lock:
            while data := os.pread(self.descriptor, 1 << 20, self._seen_bytes):
                self._seen_bytes += len(data)
                self._text += self._decode(data)
            return self._text


def tells_model_failure(line: str) -> bool:
    """Returns True if this line of a log reports an exception in model code."""
    return _MODEL_FAILURE.search(line) is not None


def tracebacks(log: str) -> list[str]:
    """The lines of a log with a traceback of the server itself: none of model code."""
    return [
        line
        for line in log.replace(_PLAIN_CONTINUED, "\\n").splitlines()
        if "Traceback" in line and not tells_model_failure(line)
    ]


def child_processes(pid: int) -> list[int]:
    """The children of a process, of all its threads; none if it has ended. In place of a template those that it has forked."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found.extend(child_processes(child) if is_template(child) else [child])
    return found + [worker for template in templates_of(pid) for worker in child_processes(template)]


def command_of(pid: int) -> list[bytes]:
    """The words of a process's command; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def is_template(pid: int) -> bool:
    """Returns True if the workers of Python models are forked from this process."""
    return b"--template" in command_of(pid)


def is_alive(pid: int) -> bool:
    """Returns True if a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def run_tpy(*arguments: str, timeout_s: float = _START_S_MAX, environment: Mapping[str, str] | None = None) -> RunOutcome:
    """Run `tpy` with these arguments to its end."""
    given = {**os.environ, **VARIABLES, **(environment or {})}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as null:
        process = fork_server.start(arguments, given, null.fileno(), out.fileno(), err.fileno())
        if process is None:
            command = [sys.executable, "-m", "tpy", *arguments]
            process = subprocess.Popen(command, env=given, stdin=null, stdout=out, stderr=err)
        try:
            code = process.wait(timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return RunOutcome(code, *(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)))


class RunOutcome:
    """Exit code and output of a command that has ended."""

    __slots__ = ("code", "err", "out")

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err
