"""PluginProcess: the process of a plug-in, as the server sees it."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from tpy.backend import ModelMetrics
from tpy.errors import Internal
from tpy.limits import NATIVE_PLUGIN_START_S_MAX
from tpy_data.native.process.metrics import MetricReceiver
from tpy_data.native.surroundings import error_of

LENGTH: Final = struct.Struct("<Q")

_END_S_MAX: Final = 5.0

_TOGETHER_BYTES_MAX: Final = 65536
"""Messages up to this size are copied behind their length: that takes less than a second call of the kernel."""


class PluginGone(Exception):
    """The process has ended, or did not answer in time; the text says how."""


class PluginProcess:
    """Runs `python -m MODULE`, which calls `serving.serve`. Blocking; one caller at a time. After PluginGone, `close` it."""

    def __init__(
        self, module: str, name: str, settings: Mapping[str, str], metrics: ModelMetrics, *, reply_bytes_max: int
    ) -> None:
        """Start it and open the plug-in. `name` is for people. Raises what the plug-in's initialise returns, and Internal when
        the process cannot be started, dies, or does not open it in time."""
        self._name = name
        self._reply_bytes_max = reply_bytes_max
        self._socket, theirs = socket.socketpair()
        changes, their_changes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._metrics = MetricReceiver(changes, name, metrics)
        command = [sys.executable, "-m", module, str(theirs.fileno()), str(their_changes.fileno())]
        try:
            with theirs, their_changes:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), their_changes.fileno()),
                    process_group=0,  # Ctrl-C in the terminal goes to the server, which ends it in order
                )
        except OSError as error:
            self._socket.close()
            self._metrics.close()
            raise Internal(f"the process of {name} cannot be started: {error.strerror}") from error
        try:
            failure = self.exchange(msgspec.json.encode(settings), time.monotonic() + NATIVE_PLUGIN_START_S_MAX)
        except PluginGone as gone:
            self.kill()
            raise Internal(str(gone)) from None
        if failure:
            self.kill()
            raise error_of(failure[0], failure[1:].decode(errors="replace"))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def exchange(self, request: bytes | memoryview, deadline_s: float) -> bytes:
        """Have it answer; a view is one of bytes. `deadline_s` is of time.monotonic. Raises PluginGone."""
        try:
            self._await(deadline_s)
            if len(request) < _TOGETHER_BYTES_MAX:
                self._socket.sendall(LENGTH.pack(len(request)) + request)
            else:
                self._socket.sendall(LENGTH.pack(len(request)))
                self._socket.sendall(request)
            (size,) = LENGTH.unpack(self._receive(LENGTH.size, deadline_s))
            if size > self._reply_bytes_max:
                raise PluginGone(f"the process of {self._name} gave an answer of {size} bytes")
            return self._receive(size, deadline_s)
        except TimeoutError:
            raise PluginGone(f"{self._name} did not answer in time") from None
        except OSError:
            raise PluginGone(self._end()) from None

    def close(self) -> None:
        """Let the plug-in end, for a moment."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S_MAX)
        self.kill()

    def kill(self) -> None:
        """End it at once. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        self._metrics.close()

    def _await(self, deadline_s: float) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)

    def _receive(self, size: int, deadline_s: float) -> bytes:
        first = self._socket.recv(size) if size else b""
        if len(first) == size:
            return first
        received, at = memoryview(bytearray(size)), len(first)
        received[:at] = first
        while at < size:
            self._await(deadline_s)
            count = self._socket.recv_into(received[at:])
            if not count:
                raise ConnectionResetError
            at += count
        return bytes(received)

    def _end(self) -> str:
        try:
            code = self._process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            return f"the process of {self._name} closed its connection"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process of {self._name} {how}"
