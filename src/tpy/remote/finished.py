"""Observed requests of a frontend process: their observers are in the engine, which is told whose they are and how they ended."""

from __future__ import annotations

from collections.abc import Callable

from tpy.clock import SystemClock
from tpy.errors import ErrorCode
from tpy.messages import RequestRecord
from tpy.observers import RequestObserver, RequestObservers
from tpy.remote.core import messages as m


class FinishedReporter(RequestObserver):
    """The observer in a frontend process, while there are any in the engine: sends what happens there."""

    def __init__(self, send: Callable[[m.Finished], None]) -> None:
        self._send = send
        self._observed: set[int] = set()
        """The requests that have an observer in the engine: nobody else's end is told."""

    def origin_of(self, record: RequestRecord) -> m.Origin:
        """Returns the origin of a request that is about to be submitted."""
        return m.Origin(record.protocol, record.peer, record.headers, record.begun_ns, record.received_ns, record.request_bytes)

    def submitted(self, record: RequestRecord, number: int) -> None:
        """The engine knows the request by this number."""
        record.attachments[self] = number

    def observed(self, number: int) -> None:
        """The engine wants to be told of the end of this request."""
        self._observed.add(number)

    def finished(self, record: RequestRecord) -> None:
        """Tell the engine, if it wants to know: of a request that was cancelled before it was answered it knows already."""
        number = record.attachments[self]
        if number is True:  # as `sample` gave it: refused before it came to the engine
            origin = self.origin_of(record)
            self._send(
                m.Finished(0, record.finished_ns, record.status, record.error, record.response_bytes, record.model, origin)
            )
        elif number in self._observed:
            self._observed.discard(number)
            self._send(m.Finished(number, record.finished_ns, record.status, record.error, record.response_bytes))


class RemoteRecords:
    """The records, in the engine, of the requests of one frontend process that are not over there."""

    def __init__(self, observers: RequestObservers) -> None:
        self._observers = observers
        self._records: dict[int, RequestRecord] = {}

    def has(self, number: int) -> bool:
        """Returns True for a request whose end is waited for."""
        return number in self._records

    def cancel(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        record = self._records.pop(number, None)
        if record is not None:
            record.finish(SystemClock().now_ns(), ErrorCode.CANCELLED.value)

    def open(self, message: m.Submit) -> RequestRecord | None:
        """A record for a request that has come; None when nobody wants to be told of it."""
        if message.origin is None:  # somebody observes from now on, and the process does not know it yet
            return self._observers.open("frontend", model=message.model_name, received_ns=message.received_ns)
        record = self._open(message.origin, message.model_name)
        if record is not None:
            self._records[message.number] = record
        return record

    def finish(self, message: m.Finished) -> None:
        """The request of this message is over. Requests without an observer have no record here."""
        record = self._records.pop(message.number, None) if message.origin is None else self._open(message.origin, message.model)
        if record is not None:
            record.finish(message.finished_ns, message.status, message.error, response_bytes=message.response_bytes)

    def end(self) -> None:
        """The process is gone, and with it the connections of whoever waited."""
        records, self._records = self._records, {}
        now_ns = SystemClock().now_ns()
        for record in records.values():
            record.finish(now_ns, ErrorCode.CANCELLED.value)

    def _open(self, origin: m.Origin, model: str) -> RequestRecord | None:
        return self._observers.open(
            origin.protocol,
            model=model,
            peer=origin.peer,
            headers=origin.headers,
            begun_ns=origin.begun_ns,
            received_ns=origin.received_ns,
            request_bytes=origin.request_bytes,
        )
