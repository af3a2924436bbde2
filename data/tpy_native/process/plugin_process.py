"""PluginProcess: the process of a plug-in, as the server sees it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
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
from tpy.limits import NATIVE_PLUGIN_SLOW_S, NATIVE_PLUGIN_START_S_MAX
from tpy.process_output import forwarded, log_of_plugin
from tpy_native.building import library_folder
from tpy_native.process.metrics import MetricReceiver
from tpy_native.surroundings import error_of

_log = logging.getLogger(__name__)

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
        the process cannot be started, dies twice, or does not open it in time; and as `library_folder`."""
        library_folder()  # built here if need be: no part of the limit of the start
        self._name = name
        self._reply_bytes_max = reply_bytes_max
        try:
            failure = self._open(module, settings, metrics)
        except PluginGone as gone:
            _log.warning("%s; it is started once more", gone)
            try:
                failure = self._open(module, settings, metrics)
            except PluginGone as again:
                raise Internal(str(again)) from None
        if failure:
            self.kill()
            raise error_of(failure[0], failure[1:].decode(errors="replace"))

    def _open(self, module: str, settings: Mapping[str, str], metrics: ModelMetrics) -> bytes:
        """Start the process. Returns the error of the plug-in, empty when it is open. Raises Internal as __init__,
        PluginGone when the process dies."""
        self._socket, theirs = socket.socketpair()
        changes, their_changes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._metrics = MetricReceiver(changes, self._name, metrics)
        command = [sys.executable, "-m", module, str(theirs.fileno()), str(their_changes.fileno())]
        try:
            with theirs, their_changes, forwarded(self._name, log_of_plugin(self._name, _log)) as (self._output, stdout, stderr):
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(theirs.fileno(), their_changes.fileno()),
                    process_group=0,  # Ctrl-C in the terminal goes to the server, which ends it in order
                )
        except (OSError, RuntimeError) as error:
            self._socket.close()
            self._metrics.close()
            raise Internal(f"the process of {self._name} cannot be started: {error}") from error
        deadline_s = time.monotonic() + NATIVE_PLUGIN_START_S_MAX
        try:
            self._send(msgspec.json.encode(settings), deadline_s)
            self._wait_open(deadline_s)
            return self._receive_answer(deadline_s)
        except OSError as error:
            gone = self._gone(error)
            self.kill()
            raise gone from None
        except BaseException:
            self.kill()
            raise

    def _wait_open(self, deadline_s: float) -> None:
        """Until the process has answered, or is gone. Raises Internal when it takes longer than it may."""
        limit_s = left_s = NATIVE_PLUGIN_START_S_MAX
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not poll.poll(1000 * min(NATIVE_PLUGIN_SLOW_S, left_s)):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise Internal(
                    f"{self._name} did not start within {limit_s:g} s: its library is still being loaded or initialised; see "
                    "what it waits for, and load it again"
                )
            _log.warning("%s is still starting after %.0f s; the limit is %g s", self._name, limit_s - left_s, limit_s)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def exchange(self, request: bytes | memoryview, deadline_s: float) -> bytes:
        """Have it answer; a view is one of bytes. `deadline_s` is of time.monotonic. Raises PluginGone."""
        try:
            self._send(request, deadline_s)
            return self._receive_answer(deadline_s)
        except OSError as error:
            raise self._gone(error) from None

    def close(self) -> None:
        """Let the plug-in end, for a moment."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._wait_ended()
        self.kill()

    def kill(self) -> None:
        """End it at once, with what it has started. Idempotent."""
        self._reap()
        self._output.close()
        self._socket.close()
        self._metrics.close()

    def _wait_ended(self) -> bool:
        """Returns True if the process ends within a moment. It is not reaped."""
        if self._process.returncode is not None:
            return True
        end = os.pidfd_open(self._process.pid)
        try:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            return bool(poll.poll(1000 * _END_S_MAX))
        finally:
            os.close(end)

    def _reap(self) -> int:
        """End the process and what it has started. Returns its exit code."""
        if self._process.returncode is None:  # not reaped: its number is still the group's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        return self._process.wait()

    def _send(self, request: bytes | memoryview, deadline_s: float) -> None:
        self._await(deadline_s)
        if len(request) < _TOGETHER_BYTES_MAX:
            self._socket.sendall(LENGTH.pack(len(request)) + request)
        else:
            self._socket.sendall(LENGTH.pack(len(request)))
            self._socket.sendall(request)

    def _receive_answer(self, deadline_s: float) -> bytes:
        (size,) = LENGTH.unpack(self._receive(LENGTH.size, deadline_s))
        if size > self._reply_bytes_max:
            raise PluginGone(f"the process of {self._name} gave an answer of {size} bytes")
        return self._receive(size, deadline_s)

    def _gone(self, error: OSError) -> PluginGone:
        return PluginGone(f"{self._name} did not answer in time" if isinstance(error, TimeoutError) else self._end())

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
        if not self._wait_ended():
            return f"the process of {self._name} closed its connection"
        code = self._reap()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process of {self._name} {how}"
