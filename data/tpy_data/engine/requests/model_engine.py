"""ModelEngine: what a model version is to those who send it requests, whatever is behind it."""

from __future__ import annotations

from typing import Protocol

from tpy.messages import InferenceRequest, ResponseStatistics
from tpy.services import RequestHandle, ResponseSink
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.schedulers.core import CoreSnapshot


class ModelEngine(Protocol):
    """The request path of one version, from submission to answer. All of it on the Trio thread."""

    statistics: VersionStatistics

    enforces_timeouts: bool
    """Whether the timeout of a request is its deadline."""

    async def run(self) -> None:
        """Keep deadlines. A task of the version's; runs until cancelled."""
        ...

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> RequestHandle:
        """As `ResolvedModel.submit`."""
        ...

    def snapshot(self) -> CoreSnapshot:
        """How many requests wait and run now."""
        ...

    def responses(self) -> tuple[ResponseStatistics, ...]:
        """Statistics per response index, of a decoupled model."""
        ...

    def refuse_waiting(self) -> None:
        """Refuse what is queued: no instance can be had."""
        ...

    def stop(self) -> None:
        """Refuse what is queued and what still comes."""
        ...

    def abandon(self) -> None:
        """Refuse everything, also what executes: nobody waits for that any more."""
        ...

    async def wait_drained(self) -> None:
        """Until nothing waits and nothing runs, and nobody holds it. The owner must have seen to it that no new requests come
        from anywhere else."""
        ...

    def hold(self) -> None:
        """Whoever calls this may submit requests until `release`, also when the version is switched out and drains: a request is
        run by the copy that it was decoded for, an ensemble finishes with the members that it began with."""
        ...

    def release(self) -> None:
        """One `hold` is over."""
        ...
