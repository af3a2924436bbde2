"""Answers the server's question whether the model is ready: each time in a new thread, so that neither batches nor the
connection wait for the model's is_ready."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from ..model.messages import sendable
from ..model.runner import Runner
from ..pb_utils.failures import ModelFailure, TritonModelException
from ..wire.core.frames import FrameKind, ReceivedFrame
from .connection import ServerConnection

QUESTIONS_WAITING_MAX = 64
"""The server asks once at a time and gives up after seconds: more only wait for a model that hangs."""

ERROR_TEXT_MAX = 8 * 1024
"""Characters of what went wrong, for the log."""


class ReadinessAnswers:
    """`run_coroutine` runs that of an async is_ready, in the thread that it is called in. A question that comes while the model
    still thinks about another one gets the answer to that one, also when that caller has given up."""

    def __init__(
        self, connection: ServerConnection, runner: Runner[Any, Any], run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._connection = connection
        self._runner = runner
        self._run_coroutine = run_coroutine
        self._lock = threading.Lock()
        self._waiting: list[int] = []
        """The questions that the answer to come is for; none while nobody asks the model."""
        connection.handlers[FrameKind.READY_CHECK] = self._take_question
        connection.start_reader()

    def _take_question(self, message: ReceivedFrame) -> None:
        with self._lock:
            self._waiting.append(message.stream)
            if len(self._waiting) == 1:
                threading.Thread(target=self._answer, name="tpy-is-ready", daemon=True).start()
            elif len(self._waiting) > QUESTIONS_WAITING_MAX:
                del self._waiting[1]  # of somebody who has given up long since

    def _answer(self) -> None:
        ready, error = False, "is_ready() ended its thread"
        try:
            ready, error = self._runner.is_ready(self._run_coroutine), ""
        except ModelFailure as failure:
            error = sendable(str(failure))[:ERROR_TEXT_MAX]
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            with contextlib.suppress(TritonModelException):  # the server is gone
                for number in waiting:
                    self._connection.notify({"type": "ready", "ready": ready, "error": error}, number)
