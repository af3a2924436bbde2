"""Signals of the server's process. None ends it but in order, except SIGKILL and what a crash raises.

SIGTERM, SIGINT, SIGQUIT   stop in order; the second one ends the process at once
SIGPWR, SIGXCPU            stop in order
SIGHUP                     read certificates and keys again, open the log file again, look at the repositories now in modes that
                           follow them; stop in order when the terminal was closed, unless by nohup
SIGUSR1                    the same as SIGHUP
others, such as SIGUSR2    a line in the log
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from typing import Final

import trio

from tpy.assembly import Stop
from tpy.reloading import reload

_log = logging.getLogger(__name__)

_ENDS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGQUIT})
_STOPS: Final = _ENDS | {signal.SIGPWR, signal.SIGXCPU}
_RELOADS: Final = frozenset({signal.SIGHUP, signal.SIGUSR1})
_NOTED: Final = frozenset(
    {signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGSTKFLT}
    | set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
)
"""They would end a process that does not expect them. Handled and not ignored, because workers would inherit that."""


async def watch_signals(stop: Stop, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Do what signals ask for, until cancelled."""
    had_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # ignored: nohup
    with trio.open_signal_receiver(*_STOPS, *_RELOADS, *_NOTED) as received:
        task_status.started()
        async for number in received:
            name = _name(number)
            if number in _STOPS or (number == signal.SIGHUP and had_terminal and not _has_terminal()):
                if stop.asked.is_set() and number in _ENDS:
                    # Workers see the end of their connection and end themselves; nothing else outlives the process.
                    os._exit(128 + number)
                notify("STOPPING=1")
                stop.ask(name)
            elif number in _RELOADS:
                notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
                reload(name)
                notify("READY=1")
            else:
                _log.warning("ignoring signal %(signal)s", {"signal": name})


def notify(state: str) -> None:
    """Tell a service manager that waits for it (systemd's `Type=notify`), which named a socket in NOTIFY_SOCKET."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), path.replace("@", "\0", 1) if path.startswith("@") else path)
        except OSError as error:
            _log.warning("cannot notify the service manager: %(reason)s", {"reason": str(error)})


def _has_terminal() -> bool:
    """Returns True if the process has a controlling terminal that was not closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
