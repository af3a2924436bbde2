"""Templates: processes that have imported what others need, and are forked for each of them: workers of Python models, and
frontend processes.

This is the server's side; a template's own is `tpy_data.backends.python.worker.template`, which runs in any interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

TEMPLATE = "--template"
"""Comes before the arguments of a template: the descriptor of its connection, the server's process id, and room for the arguments
of what is forked, in the command line that it gets from its template."""

ANSWER_S_MAX = 10.0
"""For an answer of a worker's template, the first one after its start included. One that takes longer is not asked any more."""

IDLE_MAX = 4
"""Templates that are kept while nothing that they forked lives: models of that environment may be loaded again."""

_ROOM = "-" * 250

_ANSWER_BYTES_MAX = 4096

Start = Callable[[list[str], tuple[int, ...]], "subprocess.Popen[bytes]"]
"""Starts a command that inherits descriptors, and says nothing. Raises OSError."""

Command = Callable[[str, Sequence[str]], list[str]]
"""The command of a template of this interpreter, with these arguments."""

_Key = tuple[str, str, frozenset[tuple[str, str]]]
"""Executable, current folder, environment."""


class NoTemplate(Exception):
    """There is no template, or no longer: the interpreter does not run, has no numpy, was ended, or hangs."""


class NoAnswer(NoTemplate):
    """The template did not answer in time: it may still give the descriptors that it was sent to a process, which ends when
    nobody is at the other end of them. Start another one with other descriptors."""


class _Unusable(NoTemplate):
    """It was sent nothing: it has ended, or packages of its interpreter were installed or removed after it had started."""


class ForkedProcess:
    """A process that a template has forked."""

    def __init__(self, template: _Template, pid: int) -> None:
        self.pid = pid
        self._template = template

    def wait(self) -> int | None:
        """The exit status of one that has ended, or minus the signal that ended it; None if its template has ended, and nobody
        knows. Call once, and not earlier: its template waits with us."""
        return self._template.reap(self.pid)


class _Template:
    """One process. Any thread."""

    def __init__(self, executable: str, start: Start, command: Command, answer_s_max: float | None) -> None:
        """Raises OSError."""
        self._lock = threading.Lock()
        self._answer_s_max = answer_s_max
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [TEMPLATE, str(theirs.fileno()), str(os.getpid()), _ROOM]
        try:
            self._process = start(command(executable, arguments), (theirs.fileno(),))
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()
        self.forked = 0
        """Processes that were not waited for."""
        self._is_retired = False
        self._is_broken = False

    def fork(self, name: str, files: Sequence[int]) -> ForkedProcess:
        """A process with these descriptors, the last two of them its standard output and error. Raises NoTemplate, and NoAnswer
        when they are not to be used any more."""
        with self._lock:
            answer = self._ask({"name": name, "server": os.getpid()}, files, self._answer_s_max)
            if "stale" in answer:
                raise _Unusable
            if "failed" in answer:
                raise NoTemplate(answer["failed"])
            self.forked += 1
            return ForkedProcess(self, answer["pid"])

    def reap(self, pid: int) -> int | None:
        """As `ForkedProcess.wait`."""
        with self._lock:
            try:
                return os.waitstatus_to_exitcode(self._ask({"reap": pid})["status"])
            except NoTemplate:
                return _adopted_status(pid)
            finally:
                self.forked -= 1
                self._close_if_over()

    def retire(self) -> None:
        """End it when nothing that it forked lives any more."""
        with self._lock:
            self._is_retired = True
            self._close_if_over()

    def close(self) -> None:
        """End it; workers end with it. Idempotent. Who waits for its answer, and has the lock, waits no longer."""
        self._process.kill()
        with self._lock:
            self._close()

    def _ask(self, order: dict[str, Any], files: Sequence[int] = (), answer_s_max: float | None = None) -> dict[str, Any]:
        if self._is_broken:
            raise _Unusable
        try:
            self._control.settimeout(ANSWER_S_MAX if answer_s_max is None else answer_s_max)
            socket.send_fds(self._control, [json.dumps(order).encode()], files)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._is_broken = True
            raise _Unusable from error
        except OSError as error:
            raise NoTemplate(f"cannot pass on its descriptors: {error}") from error
        try:
            answered: dict[str, Any] = json.loads(self._control.recv(_ANSWER_BYTES_MAX))
        except (OSError, ValueError) as error:  # it hangs, or has ended
            self._is_broken = True  # and never asked again: an answer may still come; what it forked goes on
            raise NoAnswer("the process that it is forked from has ended, or does not answer; its messages are above") from error
        return answered

    def _close_if_over(self) -> None:
        if self._is_retired and not self.forked:
            self._close()

    def _close(self) -> None:
        if self._control.fileno() >= 0:
            self._control.close()
            self._process.kill()
            self._process.wait()


class Templates:
    """The templates, by interpreter and what a process gets from the one that starts it: a program that has the server in it may
    change its environment and its folder. Any thread."""

    def __init__(self, start: Start, command: Command, *, answer_s_max: float | None = None) -> None:
        """`answer_s_max` is for the answers to `fork`, in place of ANSWER_S_MAX."""
        self._new = partial(_Template, start=start, command=command, answer_s_max=answer_s_max)
        self._lock = threading.Lock()
        self._templates: dict[_Key, _Template] = {}
        self._retired: list[_Template] = []
        self._is_closed = False

    def fork(self, executable: str, name: str, files: Sequence[int]) -> ForkedProcess:
        """A process of this interpreter; see `_Template.fork`. Raises NoTemplate."""
        key = executable, _folder(), frozenset(os.environ.items())
        template = self._get(key)
        try:
            return template.fork(name, files)
        except NoTemplate as error:
            self._retire(key, template)
            if not isinstance(error, _Unusable):
                raise
        return self._get(key).fork(name, files)

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._is_closed = True
            every = [*self._templates.values(), *self._retired]
            self._templates.clear()
            self._retired.clear()
        for each in every:
            each.close()

    def _get(self, key: _Key) -> _Template:
        with self._lock:
            if self._is_closed:
                raise NoTemplate("the server ends")
            template = self._templates.pop(key, None)
            if template is None:
                try:
                    template = self._new(key[0])
                except OSError as error:
                    raise NoTemplate(str(error)) from error
            self._templates[key] = template  # the last that was used is the last
            idle = [known for known, each in self._templates.items() if not each.forked and each is not template]
            superfluous = [self._templates.pop(known) for known in idle[:-IDLE_MAX]]
        for each in superfluous:
            each.retire()
        return template

    def _retire(self, key: _Key, template: _Template) -> None:
        with self._lock:
            if self._templates.get(key) is template:
                del self._templates[key]
            self._retired = [each for each in (*self._retired, template) if each.forked]
        template.retire()


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _adopted_status(pid: int) -> int | None:
    """Of a process without its template: it is our child then, if we are the first process of a container."""
    with contextlib.suppress(ChildProcessError):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
    return None
