"""ModelEngine: the request path of a model version, as those see it who send it requests. Drain: whether an engine has
anything left to do, and who may still give it something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from tpy.messages import EngineActivity, InferenceRequest
from tpy.services import ResponseSink
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.schedulers.core import CoreSnapshot


class Drain:
    """Tells when one engine has nothing left to do. `is_idle` says whether nothing waits in it and nothing runs; the engine calls
    `check` when that may have become so."""

    __slots__ = ("_drained", "_holds", "_is_idle")

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._holds = 0
        self._drained: trio.Event | None = None

    def hold(self) -> None:
        """The caller may submit requests until `release`, also when the version is switched out and drains: a request is
        run by the copy that it was decoded for, an ensemble finishes with the members that it began with."""
        self._holds += 1

    def release(self) -> None:
        """One `hold` is over."""
        self._holds -= 1
        self.check()

    def check(self) -> None:
        """Look whether the engine is drained, if somebody waits for that."""
        if self._drained is not None and not self._holds and self._is_idle():
            self._drained.set()

    def is_idle(self) -> bool:
        """True while nothing waits and nothing runs, and nobody holds the engine."""
        return not self._holds and self._is_idle()

    async def wait(self) -> None:
        """Until nothing waits and nothing runs, and nobody holds the engine. The owner must have seen to it that no new requests
        come from anywhere else."""
        if self._drained is None:
            self._drained = trio.Event()
        self.check()
        await self._drained.wait()


class ModelEngine(Protocol):
    """The request path of one version, from submission to answer. All of it on the Trio thread."""

    @property
    def statistics(self) -> VersionStatistics: ...

    @property
    def drain(self) -> Drain: ...

    @property
    def caches(self) -> bool:
        """True of one that keeps answers, and gives them."""
        ...

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
