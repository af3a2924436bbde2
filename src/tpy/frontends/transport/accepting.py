"""ConnectionListener: the accept loop of every port."""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from tpy.limits import ACCEPT_PAUSE_S, ACCEPT_WARNING_PAUSE_S

_log = logging.getLogger(__name__)

_Connection = TypeVar("_Connection", bound=trio.abc.AsyncResource)


class ConnectionListener(trio.abc.Listener[_Connection], Generic[_Connection]):
    """Accepts connections, each as what `connected` makes of its socket. `port` names the port in the log. Owns the listening
    socket."""

    def __init__(self, listening: socket.socket, connected: Callable[[socket.socket], _Connection], *, port: str) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._connected = connected
        self._port = port
        self._warned_s = -math.inf

    async def accept(self) -> _Connection:
        """The next connection. While the system has no file descriptor or memory for one, new connections wait in the backlog."""
        while True:
            await trio.lowlevel.wait_readable(self._listening)
            try:
                raw, _ = self._listening.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _GONE_BEFORE_ACCEPT:
                    continue
                if error.errno not in _EXHAUSTED:
                    raise
                self._warn(error)
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            try:
                return self._connected(raw)
            except OSError:  # gone already
                raw.close()

    def _warn(self, error: OSError) -> None:
        now_s = trio.current_time()
        if now_s - self._warned_s >= ACCEPT_WARNING_PAUSE_S:
            self._warned_s = now_s
            context = {"reason": error.strerror, "expected": "fewer connections, or a higher limit of open files (ulimit -n)"}
            _log.warning(f"new {self._port} connections wait: the system has no room for them", extra={"context": context})

    async def aclose(self) -> None:
        trio.lowlevel.notify_closing(self._listening)
        self._listening.close()
        await trio.lowlevel.checkpoint()


_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors of accept(2) that pass when something else is closed."""

_GONE_BEFORE_ACCEPT = {
    errno.ECONNABORTED,
    errno.EPERM,
    errno.EPROTO,
    errno.ENETDOWN,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.EOPNOTSUPP,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
"""Errors of one connection, which accept(2) reports as its own: the list is in its manual page."""
