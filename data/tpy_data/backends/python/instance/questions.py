"""Questions: what a worker asks and notifies of beside batches and responses, and what it is asked."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from functools import partial

from tpy.backend import ModelMetrics, WaitingBatch
from tpy.errors import TpyError
from tpy.process_output import LogLine
from tpy_data.backends.python.protocol.call_server import CallServer
from tpy_data.backends.python.protocol.connection import WorkerConnection
from tpy_data.backends.python.protocol.messages import (
    CancelledQuery,
    ChangeNotification,
    CloseFamilyNotification,
    FamilyQuery,
    LoadQuery,
    LogNotification,
    MetricQuery,
    ModelReadyQuery,
    ObservedNotification,
    ReadyNotification,
    UnloadQuery,
    ValueQuery,
    decode_notification,
    decode_query,
    encode,
)
from tpy_data.backends.python.protocol.metric_table import MetricTable
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ProtocolViolation, ReceivedFrame

_LEVELS = frozenset({"verbose", "info", "warning", "error"})

_GONE = "the worker process is gone"


class Questions:
    """One per connection. `is_cancelled` and `waiting` are the instance's, once there is one."""

    def __init__(self, connection: WorkerConnection, registry: ModelMetrics, log: LogLine) -> None:
        self.calls: CallServer | None = None
        self.is_cancelled: Callable[[int, int], bool] = _no_batch
        """Looks whether a request, by its index, of a batch that is executed is cancelled."""
        self.find_waiting: Callable[[int], WaitingBatch | None] = _nothing_waits
        self._connection = connection
        self._metrics = MetricTable(connection.name, registry)
        self._log = log
        self._numbers = itertools.count(1)
        self._asked: dict[int, queue.SimpleQueue[tuple[bool, str]]] = {}
        self._undo_settling = registry.before_reading(connection.read)
        connection.handlers[FrameKind.QUERY] = self._take_query
        connection.handlers[FrameKind.NOTIFICATION] = self._take_notification

    def waiting(self, number: int) -> WaitingBatch | None:
        """The batch of this number, for a call that it waits for."""
        return self.find_waiting(number)

    def check_ready(self, timeout_s: float) -> bool:
        """Returns the answer of the model's is_ready; False, with a log line, when that is an error or takes longer than
        `timeout_s`."""
        waiting: queue.SimpleQueue[tuple[bool, str]] = queue.SimpleQueue()
        number = next(self._numbers)
        self._asked[number] = waiting
        try:
            self._connection.send(FrameKind.READY_CHECK, number, b"{}")
            ready, error = (False, _GONE) if self._connection.is_lost() else waiting.get(timeout=timeout_s)
        except queue.Empty:
            ready, error = False, f"Timed out waiting for user-defined is_ready() response: {timeout_s:g} s"
        finally:
            self._asked.pop(number, None)
        if error:
            self._log("warning", f"is_ready: {error}")
        return ready

    def close(self) -> None:
        """The worker is gone: its metrics are let go, nobody waits."""
        self._undo_settling()
        self._metrics.close()
        for waiting in list(self._asked.values()):
            waiting.put((False, _GONE))

    def _take_query(self, message: ReceivedFrame, on_loop: bool) -> bool:
        if on_loop and (message.segment is not None or message.data):
            return False  # files of a model, which are copied
        query = decode_query(message.header)
        reply = partial(self._reply, message.stream)
        match query:
            case CancelledQuery():
                reply(self.is_cancelled(query.batch, query.index), "")
            case LoadQuery() | UnloadQuery() | ModelReadyQuery():
                assert self.calls is not None
                self.calls.query_repository(query, message, reply)
            case _:
                try:
                    reply(self._query_metrics(query), "")
                except TpyError as refused:
                    reply(None, refused.message)
        return True

    def _query_metrics(self, query: FamilyQuery | MetricQuery | ValueQuery) -> int | str:
        match query:
            case FamilyQuery():
                return self._metrics.family(query.name, query.description, query.kind)
            case MetricQuery():
                return self._metrics.metric(query.family, query.labels, query.buckets)
            case ValueQuery():
                return repr(self._metrics.value(query.metric))

    def _reply(self, stream: int, result: object, error: str) -> None:
        self._connection.send(FrameKind.REPLY, stream, encode((result, error)))

    def _take_notification(self, message: ReceivedFrame, on_loop: bool) -> bool:
        notification = decode_notification(message.header)
        match notification:
            case LogNotification():
                self._log(notification.level if notification.level in _LEVELS else "info", notification.message)
            case ChangeNotification():
                self._metrics.change(notification.metric, notification.operation, float(notification.value))
            case ObservedNotification():
                for value in notification.values:
                    self._metrics.change(notification.metric, "observe", value)
            case CloseFamilyNotification():
                self._metrics.close_family(notification.family)
            case ReadyNotification():
                waiting = self._asked.get(message.stream)
                if waiting is not None:
                    waiting.put((notification.ready, notification.error))
        return True


def _no_batch(batch: int, index: int) -> bool:
    raise ProtocolViolation(f"asked for batch {batch}, which is not executed")


def _nothing_waits(number: int) -> WaitingBatch | None:
    return None
