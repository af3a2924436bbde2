"""Observers of requests: one seam for all that watches requests go by (traces, access log, recordings, the verbose log).

A request is observed when it has a record. Whoever takes requests from callers asks `RequestObservers.open` for one: None costs
nothing further, and is the answer while nobody observes. The engine fills in what happens; the frontend says when the answer has
left. Observers are told at each of these moments, and keep what they need in `record.attachments`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from tpy.messages import InferenceRequest, InferenceResponse, RequestRecord

_log = logging.getLogger(__name__)


class RequestObserver:
    """Told of every request that has a record, on the Trio thread; must not wait. An exception is logged and costs only what the
    observer would have done."""

    @property
    def active(self) -> bool:
        """True while it wants to be told of requests: as long as all say no, requests have no records. Asked for each request:
        an attribute of the class and its instances is cheaper than a property."""
        return True

    def sample(self, protocol: str, model: str, headers: Mapping[str, str]) -> object | None:
        """A request to this model has arrived, "" for one that cannot be read. Returns what is kept for the observer in
        `record.attachments`; None if it is not to be told of the request. Asked only while it is active, and not for what
        belongs to another request: who is told of that is told of its steps and calls."""
        return True

    def admitted(self, record: RequestRecord, request: InferenceRequest) -> None:
        """The request is given to its model. What was refused before that is told by `finished` only."""

    def responded(self, record: RequestRecord, response: InferenceResponse) -> None:
        """The model has sent a response; there may be many."""

    def ended(self, record: RequestRecord) -> None:
        """The model's part is over: answered, refused, failed or cancelled. The times of its execution are known."""

    def finished(self, record: RequestRecord) -> None:
        """The answer has left, or there will be no answer: nothing more happens to the request."""


class RequestObservers:
    """The observers of a process. Used on its Trio thread, but for `open`, which any thread may call."""

    def __init__(self) -> None:
        self._observers: tuple[RequestObserver, ...] = ()

    @property
    def active(self) -> tuple[RequestObserver, ...]:
        """The observers that want to be told of requests, () while none does."""
        active: tuple[RequestObserver, ...] = ()
        for observer in self._observers:  # asked for every request: a generator costs more than the answer
            if observer.active:
                active = (*active, observer)
        return active

    def add(self, observer: RequestObserver) -> None:
        """Tell this one, too, from now on."""
        self._observers = (*self._observers, observer)

    def discard(self, observer: RequestObserver) -> None:
        """Tell this one nothing more. No-op for one that was not told."""
        self._observers = tuple(each for each in self._observers if each is not observer)

    def open(
        self,
        protocol: str,
        *,
        model: str = "",
        peer: str = "",
        headers: Mapping[str, str] | None = None,
        begun_ns: int = 0,
        received_ns: int = 0,
        request_bytes: int = 0,
        active: tuple[RequestObserver, ...] | None = None,
    ) -> RequestRecord | None:
        """A record for a request that has arrived, None when nobody wants to be told of it. Arguments as in RequestRecord;
        `active` from callers that read it before they made the others."""
        given = headers or {}
        wanted: dict[RequestObserver, object] | None = None
        for observer in self.active if active is None else active:
            if (kept := observer.sample(protocol, model, given)) is not None:
                wanted = wanted or {}
                wanted[observer] = kept
        if wanted is None:
            return None
        record = RequestRecord(
            _Interested(tuple(wanted)),
            protocol,
            model=model,
            peer=peer,
            headers=given,
            begun_ns=begun_ns,
            received_ns=received_ns,
            request_bytes=request_bytes,
        )
        record.attachments.update(wanted)
        return record


class _Interested:
    """The observers of one request and all that belongs to it (RecordTaker)."""

    __slots__ = ("_observers",)

    def __init__(self, observers: tuple[RequestObserver, ...]) -> None:
        self._observers = observers

    def admitted(self, record: RequestRecord, request: InferenceRequest, /) -> None:
        """See RequestObserver."""
        self._notify(lambda observer: observer.admitted(record, request))

    def responded(self, record: RequestRecord, response: InferenceResponse, /) -> None:
        """See RequestObserver."""
        self._notify(lambda observer: observer.responded(record, response))

    def ended(self, record: RequestRecord, /) -> None:
        """See RequestObserver."""
        self._notify(lambda observer: observer.ended(record))

    def finished(self, record: RequestRecord, /) -> None:
        """See RequestObserver."""
        self._notify(lambda observer: observer.finished(record))

    def _notify(self, tell: Callable[[RequestObserver], None]) -> None:
        for observer in self._observers:
            try:
                tell(observer)
            except Exception:
                _log.exception("an observer of requests failed: %s", type(observer).__name__)
