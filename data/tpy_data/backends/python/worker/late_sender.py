"""LateSender: answers that come after their batch, over the side line."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .core.batch import Layout
from .failures import ErrorCode, TritonModelException
from .messages import answer_of
from .response import InferenceResponse
from .side_line import HEADER_BYTES_MAX, Message, SideLine, written_file
from .single_answer import SingleAnswer


class LateSender:
    """Gives numbers to requests that stay open, sends their answers, and hears for which of them nobody waits any more."""

    def __init__(self, side: SideLine) -> None:
        self._side = side
        self._numbers = itertools.count()
        self._open: dict[int, Callable[[], bool]] = {}
        """How each learns that it was cancelled; only the worker's kind of it, which can be told."""
        self._lock = threading.Lock()
        self._listens = False

    def answer_or_number(self, way: SingleAnswer, wanted: Sequence[str] | None, layout: Layout) -> Any:
        """The answer of a request whose batch is over, as `answer_of`, or the number under which it will come."""
        number = next(self._numbers)
        sent = way.go_late(partial(self._deliver, number, wanted))
        if sent is not None:
            return answer_of(sent, wanted, layout)
        with self._lock:
            self._open[number] = way.is_cancelled
            if not self._listens:
                self._listens = True
                self._side.listen("ended", self._ended)
        return number

    def _ended(self, message: Message) -> None:
        cancellation = self._open.pop(message["number"], None)
        if cancellation is not None:
            cancellation.known = True  # type: ignore[attr-defined]  # main's

    def _deliver(self, number: int, wanted: Sequence[str] | None, response: InferenceResponse) -> None:
        """Any thread, also in the middle of garbage collection. Nothing is raised when the server is gone."""
        self._open.pop(number, None)
        layout = Layout()
        answer: Any = answer_of(response, wanted, layout)
        if len(json.dumps(answer)) > HEADER_BYTES_MAX:
            answer, layout = _failed("the texts, parameters and names of a response are too long to be sent"), Layout()
        file = -1
        try:
            if layout.placed:
                file = written_file([(item.offset, item.data) for item in layout.placed], layout.segment_bytes)
        except OSError as error:
            answer, layout = _failed(f"no shared memory for {layout.segment_bytes} bytes of outputs: {error}"), Layout()
        size = layout.segment_bytes if file >= 0 else 0
        data = b"".join(layout.data)
        layout.placed.clear()
        try:
            self._side.tell({"type": "late", "number": number, "answer": answer, "size": size}, data, file)
        except TritonModelException:
            pass
        finally:
            if file >= 0:
                os.close(file)


def _failed(text: str) -> list[Any]:
    return [int(ErrorCode.INTERNAL), text, "", []]
