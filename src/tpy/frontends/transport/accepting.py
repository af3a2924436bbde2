"""ConnectionListener: the accept loop of every port."""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from tpy.limits import ACCEPT_PAUSE_S, ACCEPT_WARNING_PAUSE_S

_log = logging.getLogger(__name__)

_Connection = TypeVar("_Connection", bound=trio.abc.AsyncResource)


class ConnectionListener(trio.abc.Listener[_Connection], Generic[_Connection]):
    """Accepts connections, up to `at_once` of them in one turn of the loop, each as what `connected` makes of its socket. `port`
    names the port in the log. Owns the listening socket."""

    def __init__(
        self, listening: socket.socket, connected: Callable[[socket.socket], _Connection], *, port: str, at_once: int
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._connected = connected
        self._port = port
        self._at_once = at_once
        self._accepted: deque[socket.socket] = deque()
        self._warned_s = -math.inf

    async def accept(self) -> _Connection:
        """The next connection. While the system has no file descriptor or memory for one, new connections wait in the backlog.

        Does not wait for connections accepted with the last one: with one in each turn, the last of a hundred that come
        together would wait for a hundred turns of a busy server."""
        while True:
            while self._accepted:
                raw = self._accepted.popleft()
                try:
                    return self._connected(raw)
                except OSError:  # gone already
                    raw.close()
            await trio.lowlevel.wait_readable(self._listening)
            error = self._accept_waiting()
            if error is not None and not self._accepted:
                self._warn(error)
                await trio.sleep(ACCEPT_PAUSE_S)

    def _accept_waiting(self) -> OSError | None:
        """Accept the connections that have arrived, a bounded number. Returns the error if the system has no room for more."""
        for _ in range(self._at_once):
            try:
                raw, _ = self._listening.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _GONE_BEFORE_ACCEPT:
                    continue
                if error.errno in _EXHAUSTED:
                    return error
                raise
            self._accepted.append(raw)
        return None

    def _warn(self, error: OSError) -> None:
        now_s = trio.current_time()
        if now_s - self._warned_s >= ACCEPT_WARNING_PAUSE_S:
            self._warned_s = now_s
            context = {"reason": error.strerror, "expected": "fewer connections, or a higher limit of open files (ulimit -n)"}
            _log.warning(f"new {self._port} connections wait: the system has no room for them", extra={"context": context})

    async def aclose(self) -> None:
        trio.lowlevel.notify_closing(self._listening)
        self._listening.close()
        while self._accepted:
            self._accepted.popleft().close()
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
