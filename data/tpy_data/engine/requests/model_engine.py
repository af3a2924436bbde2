"""ModelEngine: the request path of a model version, as those see it who send it requests."""

from __future__ import annotations

from typing import Protocol

from tpy.messages import EngineActivity, InferenceRequest
from tpy.services import ResponseSink
from tpy_data.engine.requests.drain import Drain
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.schedulers.core import CoreSnapshot


class ModelEngine(Protocol):
    """The request path of one version, from submission to answer. All of it on the Trio thread."""

    @property
    def statistics(self) -> VersionStatistics: ...

    @property
    def drain(self) -> Drain: ...

    async def run(self) -> None:
        """Keep deadlines. A task of the version's; runs until cancelled."""
        ...

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`."""
        ...

    def snapshot(self) -> CoreSnapshot:
        """The numbers of requests that wait and run now."""
        ...

    def explain(self) -> EngineActivity:
        """The state of its requests now, and the reason why they wait."""
        ...

    def refuse_waiting(self) -> None:
        """Refuse what is queued: no instance can be had."""
        ...

    def stop(self, *, executing: bool = False) -> None:
        """Refuse what is queued and what still comes; with `executing` everything that is not answered, because nobody waits for
        it any more."""
        ...
