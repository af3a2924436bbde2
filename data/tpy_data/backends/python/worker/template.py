"""A process that has imported what every worker needs, and is forked for each of them: `serve`. Frontend processes are forked by
it, too.

It never runs a model's code and has no threads, so a worker gets nothing from it but modules. What a fork would otherwise pass on
is set right in the worker: its own descriptors only, its own process group, its own random numbers, its own command line. The
server's side is `tpy.templates`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
from typing import Any

ORDER_BYTES_MAX = 64 * 1024
"""Of one message, which is one datagram."""

_FILES_MAX = 253
"""That come with an order: as many as the kernel passes."""


def serve(control: socket.socket) -> tuple[list[int], int] | None:
    """Do what the server orders until it is gone. Returns None then; in each forked process, the descriptors that came with the
    order and its parent, with which it goes on as one that was started by itself. The last two descriptors of an order, which are
    not among those, are its standard output and error."""
    gc.collect()
    gc.freeze()  # a collection in a worker need not write to what it shares with the others
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started the server may ignore it: then nobody could wait
    try:
        return _serve(control)
    except (BrokenPipeError, ConnectionResetError):  # the server was killed while it asked, or was being answered
        return None


def _serve(control: socket.socket) -> tuple[list[int], int] | None:
    template = os.getpid()
    known = _packages()
    while True:
        text, files, flags, _ = socket.recv_fds(control, ORDER_BYTES_MAX, _FILES_MAX, socket.MSG_CMSG_CLOEXEC)
        if not text:
            return None
        order: dict[str, Any] = json.loads(text)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            _answer(control, {"status": status})
            continue
        if _packages() != known:
            _answer(control, {"stale": True})
        elif flags & socket.MSG_CTRUNC:
            _answer(control, {"failed": "too many open files"})
        else:
            try:
                *given, stdout, stderr = files
                worker = os.fork()
            except (OSError, ValueError) as error:  # no processes, memory or descriptors left
                _answer(control, {"failed": str(error)})
            else:
                if worker == 0:
                    control.close()
                    _become(order, given, (stdout, stderr))
                    return given, template
                with contextlib.suppress(OSError):  # it has ended already
                    os.setpgid(worker, worker)  # before the server knows of it, and may end its group
                _answer(control, {"pid": worker})
        for each in files:
            os.close(each)


def _answer(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())


def _packages() -> list[tuple[str, int, int] | None]:
    """A fingerprint of the folders that packages are imported from: it changes when one is installed or removed."""
    found: list[tuple[str, int, int] | None] = []
    for path in (sys.executable, *sys.path):
        try:
            known = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((path, known.st_ino, known.st_mtime_ns))
    return found


def _become(order: dict[str, Any], files: list[int], output: tuple[int, int]) -> None:
    """Be a worker, just forked. Python itself has taken care of its locks and of `random`; the C library of its threads."""
    for number, each in enumerate(output, start=1):
        os.dup2(each, number)
        os.close(each)
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:  # newer versions import it when it is used
        numpy_random.seed()
    set_command_line([*map(str, files), str(order["server"]), order["name"]])


def set_command_line(arguments: list[str]) -> None:
    """Show these where people look at processes, in place of the template's, as far as there is room."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        kept = words[: words.index(b"--template")]
    except (OSError, ValueError, IndexError):
        return
    text = b"\0".join([*kept, *(each.encode("utf-8", "replace") for each in arguments)])
    room = end - start - 1
    if room > 0:
        ctypes.memmove(start, text[:room].ljust(room + 1, b"\0"), room + 1)
