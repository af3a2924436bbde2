"""Metrics of a plug-in in a separate process, on their way to the server.

The process has all of them itself (MetricSender), and sends what has changed when there is room: nobody waits for anybody, and
of several new values of a gauge only the last is sent. The server takes what has come when its metrics are read (MetricReceiver).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tpy.backend import Metric, MetricFamily, ModelMetrics
from tpy.errors import TpyError
from tpy.telemetry.custom_metrics import CustomFamily, CustomMetric, CustomMetrics
from tpy.telemetry.exposition import MetricKind

_log = logging.getLogger(__name__)

_CHANGES_OF_MESSAGE: Final = 50
_WAITING_MAX: Final = 10_000
"""Changes that are kept while the server does not look: what comes on top is lost."""
_MESSAGE_BYTES: Final = 256 * 1024

Change = tuple[str, int, Any]
"""An operation, the number of its family or metric, and the rest."""


class MetricSender:
    """A `ModelMetrics` in the process. Any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._registry = CustomMetrics()
        self._lock = threading.Lock()
        self._last = 0
        self._waiting: list[Change] = []
        self._of_gauge: dict[int, int] = {}
        """By number of a gauge, the place of its new value in the queue."""

    def family(self, name: str, description: str, kind: MetricKind) -> _SentFamily:
        """As `ModelMetrics.family`."""
        family = self._registry.family(name, description, kind)
        return _SentFamily(self, family, self.made("family", [name, description, kind.value]))

    def before_reading(self, settle: object) -> Any:
        """As `ModelMetrics.before_reading`; nobody reads here."""
        return lambda: None

    def made(self, what: str, rest: object) -> int:
        """Send a new family or metric. Returns its number."""
        with self._lock:
            self._last += 1
            number = self._last
        self.change(what, number, rest)
        return number

    def change(self, what: str, number: int, rest: object) -> None:
        """Send a change, or keep it for the next time."""
        with self._lock:
            place = self._of_gauge.get(number) if what == "set" else None
            if place is not None:
                self._waiting[place] = (what, number, rest)
            elif len(self._waiting) < _WAITING_MAX:
                if what == "set":
                    self._of_gauge[number] = len(self._waiting)
                self._waiting.append((what, number, rest))
            with contextlib.suppress(OSError):  # no room, or the server is gone
                while self._waiting:
                    some = self._waiting[:_CHANGES_OF_MESSAGE]
                    self._socket.send(msgspec.json.encode(some), socket.MSG_DONTWAIT)
                    del self._waiting[: len(some)]
                    self._of_gauge = {each[1]: at for at, each in enumerate(self._waiting) if each[0] == "set"}


class _SentFamily:
    """See MetricFamily."""

    def __init__(self, sender: MetricSender, family: CustomFamily, number: int) -> None:
        self._sender = sender
        self._family = family
        self._number = number
        self.kind = family.kind

    def metric(self, labels: Mapping[str, str], buckets: Sequence[float] = ()) -> _SentMetric:
        """As `MetricFamily.metric`."""
        metric = self._family.metric(labels, buckets)
        return _SentMetric(self._sender, metric, self._sender.made("metric", [self._number, labels, buckets]))

    def close(self) -> None:
        """As `MetricFamily.close`."""
        self._family.close()
        self._sender.change("close", self._number, None)


class _SentMetric:
    """See Metric."""

    def __init__(self, sender: MetricSender, metric: CustomMetric, number: int) -> None:
        self._sender = sender
        self._metric = metric
        self._number = number

    def increment(self, value: float) -> None:
        """As `Metric.increment`."""
        self._metric.increment(value)
        self._sender.change("increment", self._number, value)

    def set(self, value: float) -> None:
        """As `Metric.set`."""
        self._metric.set(value)
        self._sender.change("set", self._number, value)

    def observe(self, value: float) -> None:
        """As `Metric.observe`."""
        self._metric.observe(value)
        self._sender.change("observe", self._number, value)

    def observe_all(self, values: Sequence[float]) -> None:
        """As `Metric.observe_all`."""
        for value in values:
            self.observe(value)

    def value(self) -> float:
        """As `Metric.value`."""
        return self._metric.value()


class MetricReceiver:
    """The server's side. What it holds goes with `close`. Any thread."""

    def __init__(self, sock: socket.socket, name: str, metrics: ModelMetrics) -> None:
        self._socket = sock
        self._name = name
        self._registry = metrics
        self._lock = threading.Lock()
        self._families: dict[int, MetricFamily] = {}
        self._metrics: dict[int, Metric] = {}
        self._is_closed = False
        self._told = False
        self._forget = metrics.before_reading(self.settle)

    def settle(self) -> None:
        """Apply what has come."""
        with self._lock, contextlib.suppress(OSError):
            while not self._is_closed and (message := self._socket.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)):
                try:
                    for what, number, rest in msgspec.json.decode(message, type=list[Change]):
                        self._apply(what, number, rest)
                except (TpyError, msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
                    self._tell(error)

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        self._forget()
        with self._lock:
            self._is_closed = True
            self._socket.close()
            for family in self._families.values():
                family.close()
            self._families.clear()
            self._metrics.clear()

    def _apply(self, what: str, number: int, rest: Any) -> None:
        if what == "family":
            name, description, kind = rest
            self._families[number] = self._registry.family(name, description, MetricKind(kind))
        elif what == "metric":
            family, labels, buckets = rest
            if family in self._families:
                self._metrics[number] = self._families[family].metric(labels, buckets)
        elif what == "close":
            closed = self._families.pop(number, None)
            if closed is not None:
                closed.close()
        elif number in self._metrics and what in ("increment", "set", "observe"):
            getattr(self._metrics[number], what)(float(rest))

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            _log.warning("a metric of %s is not shown: %s; further ones are not reported", self._name, error)
