"""Answers the server's question whether the model is ready: each time in a thread of its own, so that neither batches nor the
side line wait for the model's is_ready."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Protocol

from .failures import ModelFailure, TritonModelException
from .messages import speakable
from .runner import ModelRunner
from .side_line import Message, SideLine


class LoopOwner(Protocol):
    """Whoever runs the coroutines of an async `execute`."""

    def run_beside(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, on the loop of the model's others where there is one. Not called by that loop's thread."""
        ...


class ReadinessAnswers:
    """`loop_owner` is that of a decoupled model. A question that comes while the model still thinks about another one gets the
    answer to that one, also when whoever asked it has given up."""

    def __init__(self, side: SideLine, runner: ModelRunner, loop_owner: LoopOwner | None) -> None:
        self._side = side
        self._runner = runner
        self._run = run_alone if loop_owner is None else loop_owner.run_beside
        self._lock = threading.Lock()
        self._waiting: list[int] = []
        """The questions that the answer to come is for; none while nobody asks the model."""

    def handle(self, message: Message) -> None:
        """In the side line's thread."""
        with self._lock:
            self._waiting.append(message["call"])
            if len(self._waiting) == 1:
                threading.Thread(target=self._answer, name="tpy-is-ready", daemon=True).start()
            elif len(self._waiting) > QUESTIONS_WAITING_MAX:
                del self._waiting[1]  # of somebody who has given up long since

    def _answer(self) -> None:
        ready, error = False, "is_ready() ended its thread"
        try:
            ready, error = self._runner.is_ready(self._run), ""
        except ModelFailure as failure:
            error = speakable(str(failure))[:ERROR_TEXT_MAX]
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            with contextlib.suppress(TritonModelException):  # the server is gone
                for call in waiting:
                    self._side.tell({"type": "ready", "call": call, "ready": ready, "error": error})


QUESTIONS_WAITING_MAX = 64
"""The server asks once at a time and gives up after seconds: more only wait for a model that hangs."""

ERROR_TEXT_MAX = 8 * 1024
"""Characters of what went wrong, for the log."""


def run_alone(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """On a loop of its own."""
    import asyncio

    return asyncio.run(coroutine)
