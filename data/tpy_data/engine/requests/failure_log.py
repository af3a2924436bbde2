"""Logs exceptions of backends in `execute`: model, instance, request ids and traceback, so many in a while of each instance."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from tpy.echo import echo, echo_list
from tpy.limits import FAILURE_REPORTS_INSTANCES_MAX, FAILURE_REPORTS_MAX, FAILURE_REPORTS_S
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.exception_text import exception_text

_log = logging.getLogger(__name__)
_TEXT = "%(instance)s: execute failed (model '%(model)s'%(requests)s): %(error)s\n%(left_out)s%(traceback)s"


class FailureLog:
    """Of all instances that execute in threads of the server. Any thread. A model that always fails must not fill the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[float, int]] = {}
        """By instance: the beginning of the while, and the failures in it."""

    def report(self, instance_name: str, tickets: Sequence[RequestTicket], error: BaseException) -> None:
        """Log that these requests failed with `error`, unless there were too many of the kind lately."""
        left_out = self._admit(instance_name)
        if left_out is None:
            return
        ids = echo_list((f"'{echo(ticket.id)}'" for ticket in tickets if ticket.id), ", ")
        context = {
            "instance": instance_name,
            "model": tickets[0].owner.name if tickets else "",
            "requests": f", request id {ids}" if ids else "",
            "error": exception_text(error),
            "left_out": f"({left_out} failures before this one are not in the log)\n" if left_out else "",
            "traceback": _traceback_of(error),
        }
        _log.error(_TEXT, context)

    def _admit(self, instance_name: str) -> int | None:
        """The number of failures left out before this one; None if this one is, too."""
        with self._lock:
            now_s, left_out = self._clock(), 0
            since_s, count = self._counts.get(instance_name, (now_s, 0))
            if now_s - since_s >= FAILURE_REPORTS_S:
                since_s, left_out, count = now_s, max(0, count - FAILURE_REPORTS_MAX), 0
            if instance_name not in self._counts and len(self._counts) >= FAILURE_REPORTS_INSTANCES_MAX:
                self._counts.clear()
            self._counts[instance_name] = (since_s, count + 1)
            return None if count >= FAILURE_REPORTS_MAX else left_out


def _traceback_of(error: BaseException) -> str:
    """As Python shows it, without our own call of the backend."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    try:
        return "".join(traceback.TracebackException(type(error), error, trace).format()).rstrip()
    except Exception:
        return "<its traceback cannot be read>"


FAILURES = FailureLog()
