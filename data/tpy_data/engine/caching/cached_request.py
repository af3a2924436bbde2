"""CachedRequest: a request to a model whose answers are kept, from its submission to its answer."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Protocol

from tpy.messages import InferenceRequest, InferenceResponse
from tpy.services import ResponseSink
from tpy.units import NS_PER_US
from tpy_data.cache.core.entry import CachedResponse
from tpy_data.engine.requests.handle import EngineHandle, Execution, WaitingRequest
from tpy_data.schedulers.core.contract import Ticket


class CacheStage(enum.Enum):
    """The place of a cached request."""

    ASKING = "asking"
    """Its key is being made, or the cache looks it up."""
    WAITING = "waiting"
    """An equal request is being executed."""
    RUNNING = "running"
    """It is the model's."""
    ENDED = "ended"


class CachedRequestOwner(Protocol):
    """Moves the request from stage to stage."""

    def hashed(self, request: CachedRequest) -> None:
        """Its key was made in a thread."""
        ...

    def looked_up(self, request: CachedRequest, response: CachedResponse | None) -> None:
        """The cache has answered after `submit` had returned."""
        ...

    def delivered(self, request: CachedRequest, response: InferenceResponse) -> None:
        """The model has answered."""
        ...

    def inserted(self, request: CachedRequest) -> None:
        """The answer is kept, or will not be."""
        ...

    def cancel(self, request: CachedRequest) -> None:
        """Nobody waits for the answer any more."""
        ...

    def leader_of(self, request: CachedRequest) -> CachedRequest | None:
        """The equal request whose answer this one waits for; None: it waits for none."""
        ...


class CachedRequest(Ticket):
    """The caller's handle, the model's ResponseSink and the cache's waiter in one; as a Ticket it has a deadline while the model
    does not have it.

    * `leads`: equal requests wait for it.
    * `submitting`: `submit` has not returned, and takes what the cache says from `known` and `kept`.
    * `spent_ns`: on key and lookup. `began_ns`: when the model got it; later, when its answer was inserted.
    """

    __slots__ = (
        "began_ns",
        "handle",
        "kept",
        "key",
        "known",
        "leads",
        "owner",
        "request",
        "sink",
        "spent_ns",
        "stage",
        "submitting",
    )

    def __init__(self, owner: CachedRequestOwner, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> None:
        super().__init__(priority=request.priority, timeout_ns=request.timeout_us * NS_PER_US, deadline_ns=request.deadline_ns)
        self.queued_ns = now_ns
        self.request = request
        self.sink = sink
        self.stage = CacheStage.ASKING
        self.key = b""
        self.leads = False
        self.submitting = True
        self.known = False
        self.kept: CachedResponse | None = None
        self.handle: EngineHandle | None = None
        self.spent_ns = 0
        self.began_ns = 0
        self.owner = owner

    # LookupWaiter, InsertWaiter, ResponseSink

    def found(self, response: CachedResponse | None) -> None:
        """From the cache."""
        if self.submitting:
            self.known = True
            self.kept = response
        else:
            self.owner.looked_up(self, response)

    def inserted(self) -> None:
        """From the cache."""
        self.owner.inserted(self)

    def deliver(self, response: InferenceResponse) -> None:
        """From the model."""
        self.owner.delivered(self, response)
        self.handle = None  # it refers to us, and both would wait for the garbage collector

    # EngineHandle

    def cancel(self) -> None:
        """Forget the request; no answer follows. Safe at any time."""
        self.owner.cancel(self)
        self.handle = None

    def pause(self) -> None:
        """Without effect: it is answered once."""

    def resume(self) -> None:
        """Without effect."""

    def waiting(self) -> Iterator[WaitingRequest]:
        """As `EngineHandle.waiting`: nothing while the cache is asked."""
        leader = self.owner.leader_of(self)
        handle = self.handle if leader is None else leader.handle
        for part in () if handle is None else handle.waiting():
            yield part if leader is None else part._replace(is_leader=True)

    def recall(self) -> None:
        """As `EngineHandle.recall`."""
        leader = self.owner.leader_of(self)
        handle = self.handle if leader is None else leader.handle
        if handle is not None:
            handle.recall()

    def times(self, now_ns: int) -> Execution | None:
        """As `EngineHandle.times`; None when its answer was kept."""
        return None if self.handle is None else self.handle.times(now_ns)
