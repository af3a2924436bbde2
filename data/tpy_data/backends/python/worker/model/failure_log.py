"""FailureLog: what went wrong in model code, with its traceback, as errors in the server's log."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence

from ..pb_utils import context
from ..pb_utils.failures import ModelFailure, is_the_models, text_of

REPORTS_MAX = 10
"""In WINDOW_S. A model that fails every request must not fill the log; the rest is counted."""

WINDOW_S = 10.0

REQUEST_IDS_MAX = 8
"""Named of one batch."""

ID_CHARACTERS_MAX = 256


class InstanceFailureLog:
    """Of one instance. Any thread."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s = clock()
        self._reports = 0
        self._left_out = 0

    def report(self, what: str, error: BaseException, request_ids: Sequence[str] = ()) -> None:
        """`what` failed with this error, for these requests. Of a ModelFailure, its cause is shown."""
        known = context.current()
        if known is None:
            return
        left_out = self._admit()
        if left_out is None:
            return
        cause = error.__cause__ if isinstance(error, ModelFailure) and error.__cause__ is not None else error
        lines = [f"{what} failed ({self._whose(request_ids)}): {_described(cause)}"]
        if left_out:
            lines.append(f"({left_out} failures before this one are not in the log)")
        if not isinstance(cause, ModelFailure):
            lines.append(_traceback_of(cause))
        known.log("error", "\n".join(lines))

    def _admit(self) -> int | None:
        """The number of tracebacks left out before this one; None if this one is, too."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._since_s >= WINDOW_S:
                self._since_s, self._reports = now_s, 0
            if self._reports >= REPORTS_MAX:
                self._left_out += 1
                return None
            self._reports += 1
            left_out, self._left_out = self._left_out, 0
            return left_out

    def _whose(self, request_ids: Sequence[str]) -> str:
        named = [each[:ID_CHARACTERS_MAX] for each in request_ids if each]
        if not named:
            return f"model '{self._model}'"
        more = f" and {len(named) - REQUEST_IDS_MAX} more" if len(named) > REQUEST_IDS_MAX else ""
        ids = ", ".join(f"'{each}'" for each in named[:REQUEST_IDS_MAX])
        return f"model '{self._model}', request id {ids}{more}"


def _described(error: BaseException) -> str:
    return text_of(error) if isinstance(error, ModelFailure) else f"{type(error).__name__}: {text_of(error)}"


def _traceback_of(error: BaseException) -> str:
    """As Python shows it, from the model's first call on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and not is_the_models(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    try:
        return "".join(traceback.TracebackException(type(error), error, trace).format()).rstrip()
    except Exception:
        return "<its traceback cannot be read>"
