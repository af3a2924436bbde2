"""Starts a worker and has it load its model."""

from __future__ import annotations

import msgspec

from tpy.errors import Internal, TpyError
from tpy.process_output import LogLine
from tpy_data.backends.python.environment.process import Spawner, WorkerProcess
from tpy_data.backends.python.instance.questions import Questions
from tpy_data.backends.python.instance.start import WorkerStart
from tpy_data.backends.python.protocol.call_server import CallServer
from tpy_data.backends.python.protocol.connection import WorkerConnection
from tpy_data.backends.python.protocol.messages import decode_failed, decode_ready
from tpy_data.backends.python.protocol.translation import error_of
from tpy_data.backends.python.settings import PythonSettings
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ReceivedFrame
from tpy_data.backends.python.worker.wire.core.session import SessionState

SLOW_START_S = 30
"""A model that still initialises is mentioned in the log this often."""


class _Start:
    """The progress of loading."""

    def __init__(self, connection: WorkerConnection, mode: str) -> None:
        self.is_up = False
        self.loaded: msgspec.Raw | None = None
        self.failure: TpyError | None = None
        self._mode = mode
        connection.handlers[FrameKind.HELLO] = self._take_hello
        connection.handlers[FrameKind.READY] = self._take_ready
        connection.handlers[FrameKind.FAILED] = self._take_failed

    def _take_hello(self, message: ReceivedFrame, on_loop: bool) -> bool:
        self.is_up = True
        return True

    def _take_ready(self, message: ReceivedFrame, on_loop: bool) -> bool:
        loaded = msgspec.Raw(bytes(message.header))
        if self._mode == "instance":
            decode_ready(loaded)  # raises if it is not such a message
        self.loaded = loaded
        return True

    def _take_failed(self, message: ReceivedFrame, on_loop: bool) -> bool:
        self.failure = error_of(*decode_failed(message.header))
        return True

    @property
    def is_over(self) -> bool:
        """True when the model is loaded, or failed to load."""
        return self.loaded is not None or self.failure is not None


class StartedWorker:
    """A worker that has loaded its model: the connection, who answers what it asks, and what it sent with READY (JSON)."""

    def __init__(self, start: WorkerStart, settings: PythonSettings, spawner: Spawner, log: LogLine) -> None:
        """Raises Internal with the reason when the model does not load: the model's own failure with its text, a worker that
        died, or one that took longer than the settings allow."""
        sandbox = None if start.sandbox is None else start.sandbox.order
        process = WorkerProcess(start.name, start.interpreter, spawner, log, host=start.host, sandbox=sandbox)
        self.connection = connection = WorkerConnection(process, start.devices)
        self.questions = Questions(connection, start.metrics, log)
        self.calls = CallServer(connection, start.server, self.questions.waiting)
        self.questions.calls = self.calls
        connection.on_loss.extend((self.calls.cancel_all, self.questions.close))
        connection.handlers[FrameKind.FINALIZED] = _ignore
        progress = _Start(connection, start.mode)
        try:
            connection.send(FrameKind.LOAD, 0, start.order())
            if not connection.drive(lambda: progress.is_up, settings.start_timeout_s):
                raise _not_ready(start.name, "its interpreter did not start", settings.start_timeout_s)
            _wait_loaded(connection, progress, start, settings.initialize_timeout_s, log)
            if progress.failure is not None:
                raise progress.failure
            if progress.loaded is None:
                raise connection.give_up_starting(was_up=progress.is_up)
        except BaseException:
            if connection.fileno() >= 0:
                connection.give_up()
            raise
        self.loaded = progress.loaded

    def stop(self, finalize_timeout_s: float) -> None:
        """End a worker that has nothing to do."""
        connection = self.connection
        connection.send(FrameKind.FINALIZE, 0, b"{}")
        if connection.drive(lambda: connection.state is SessionState.ENDED, finalize_timeout_s) and not connection.is_lost():
            connection.finish()
        else:
            connection.give_up()


def _wait_loaded(connection: WorkerConnection, progress: _Start, start: WorkerStart, limit_s: float, log: LogLine) -> None:
    """Until the model is loaded, or failed to load, or the worker is lost. Raises Internal when it takes longer."""
    waited_s = 0.0
    while not connection.drive(lambda: progress.is_over, step_s := min(SLOW_START_S, limit_s - waited_s)):
        waited_s += step_s
        if waited_s >= limit_s:
            step = "auto_complete_config" if start.mode == "auto_complete" else "initialize"
            raise _not_ready(start.name, f"{step} did not return", limit_s)
        log("warning", f"still loading '{start.name}' after {waited_s:g} s; the limit is {limit_s:g} s")


def _not_ready(name: str, what: str, limit_s: float) -> Internal:
    return Internal(f"Stub process '{name}' is not ready: {what} within {limit_s:g} s")


def _ignore(message: ReceivedFrame, on_loop: bool) -> bool:
    return True
