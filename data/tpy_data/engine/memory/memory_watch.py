"""MemoryWatch: the driver of memory trends. It reads the memory of the server and of the processes of its instances once a
minute, warns when one leaks, and gives memory back when there is nothing to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import trio

from tpy.backend import GivesMemoryBack, HasHostMemory
from tpy.clock import Clock
from tpy.limits import LEAK_WARNING_S, MEMORY_LOOK_S
from tpy.messages import MemoryGrowth
from tpy.units import NS_PER_S
from tpy_data.engine.explanation.core.advice import grown
from tpy_data.engine.loading.memory_meter import give_back, host_bytes
from tpy_data.engine.memory.core.memory_trend import MemoryTrend
from tpy_data.engine.serving.serving_table import Served, ServedProcess
from tpy_data.executors.executor import Executor, call

_log = logging.getLogger(__name__)

_NAMES_MAX = 4
"""Models that a warning about the server names."""


class _Look(NamedTuple):
    """A process that is read: its memory is that of `read`, and `requests` were served by then."""

    trend: MemoryTrend
    read: Callable[[], int]
    requests: int


class MemoryWatch:
    """That of a server with what `served` gives. `cached_bytes` is the memory of its response cache. On the Trio thread;
    processes are read in another one, which is left behind when the server ends while the kernel keeps it."""

    def __init__(
        self,
        served: Callable[[], Iterable[Served]],
        clock: Clock,
        executor: Executor,
        cached_bytes: Callable[[], int],
        read_own: Callable[[], int] = host_bytes,
    ) -> None:
        self.server = MemoryTrend()
        """That of the server's own process, in step with the requests of all models. It begins anew when others are loaded."""
        self._served = served
        self._clock = clock
        self._executor = executor
        self._cached_bytes = cached_bytes
        self._read_own = read_own
        self._total = 0
        self._has_given_back = True
        self._loaded: frozenset[Hashable] = frozenset()
        self._warned_ns: dict[str, int] = {}

    async def run(self) -> None:
        """Look once a minute, until cancelled. A look that fails is told in the log, and no reason to end the server."""
        while True:
            try:
                await self.look()
            except Exception:
                _log.exception("looking at the memory of models failed")
            await trio.sleep(MEMORY_LOOK_S)

    async def look(self) -> None:
        """Read all processes once, and warn of leaks. The second time without a request in between, give memory back first;
        after that do nothing until there are requests again."""
        now_ns = self._clock.now_ns()
        self._warned_ns = {name: at_ns for name, at_ns in self._warned_ns.items() if now_ns - at_ns < LEAK_WARNING_S * NS_PER_S}
        served = list(self._served())
        requests = {each: _requests(each) for each in served}
        total = sum(requests.values())
        if total != self._total or any(_has_requests(each) for each in served):
            self._total, self._has_given_back, gives_back = total, False, False
        elif self._has_given_back:
            return  # nothing has happened
        else:
            self._has_given_back = gives_back = True
        self._begin_anew(served)
        cached_bytes = self._cached_bytes()
        looks = [_Look(self.server, lambda: self._read_own() - cached_bytes, total)]
        processes: list[tuple[Served, ServedProcess, MemoryTrend, bool]] = []
        for each in served:
            for member in each.processes():
                if (process := member.process) is not None:
                    trend = member.trend = member.trend or MemoryTrend()
                    processes.append((each, member, trend, _leaks(trend)))
                    looks.append(_Look(trend, partial(_read, process), requests[each]))
        worker = self._executor.open_worker("memory")
        try:
            if gives_back:
                await call(worker, partial(_give_back, [member.process for _, member, _, _ in processes]))
            await call(worker, partial(_add, looks, now_ns))
        finally:
            worker.close()
        for each, member, trend, leaked in processes:
            if member.trend is trend:  # else it has ended meanwhile
                self._judge_process(each, member, trend, leaked, now_ns)
        self._judge_server(served, requests, now_ns)

    def _begin_anew(self, served: Sequence[Served]) -> None:
        """Start a new trend of the server when other models are loaded: what they take or give back is not the requests'."""
        # The engine by its number, or what was unloaded would be kept here.
        loaded = frozenset((each.id, each.version, id(each.executing_engine)) for each in served)
        if loaded != self._loaded:
            self._loaded, self.server = loaded, MemoryTrend()

    def _judge_process(self, served: Served, member: ServedProcess, trend: MemoryTrend, leaked: bool, now_ns: int) -> None:
        if _leaks(trend) is not leaked:
            member.leak_changed()
        if (growth := self._to_warn_of(f"{served.id}:{served.version}:{member.name}", trend, now_ns)) is not None:
            _log.warning(
                "instance '%(instance)s' of '%(model)s' leaks memory: its process %(grown)s. Look for what the model keeps; "
                "loading it again gives the memory back",
                {"instance": member.name, "model": str(served.id), "grown": grown(growth)},
            )

    def _judge_server(self, served: Sequence[Served], requests: dict[Served, int], now_ns: int) -> None:
        if (growth := self._to_warn_of("", self.server, now_ns)) is None:
            return
        inside = sorted((each for each in served if not each.processes()), key=lambda each: -requests[each])
        names = [f"'{each.id}'" for each in inside[:_NAMES_MAX]]
        more = [f"{len(inside) - _NAMES_MAX} more"] if len(inside) > _NAMES_MAX else []
        _log.warning(
            "the server's process leaks memory: it %(grown)s. Models that run in it: %(models)s",
            {"grown": grown(growth), "models": ", ".join([*names, *more]) or "none"},
        )

    def _to_warn_of(self, name: str, trend: MemoryTrend, now_ns: int) -> MemoryGrowth | None:
        """The growth of a process that leaks, unless it was told within the last hour."""
        growth = trend.growth
        if growth is None or not growth.leaks or name in self._warned_ns:
            return None
        self._warned_ns[name] = now_ns
        return growth


def _requests(served: Served) -> int:
    counters = served.counters()
    return counters.requests + counters.failures


def _has_requests(served: Served) -> bool:
    counts = served.executing_engine.snapshot()
    return bool(counts.queued or counts.executing)


def _leaks(trend: MemoryTrend) -> bool:
    return trend.growth is not None and trend.growth.leaks


def _read(process: HasHostMemory) -> int:
    """0 when it has ended, and when a backend cannot say."""
    try:
        return process.host_memory_bytes()
    except Exception:
        _log.exception("reading the memory of an instance failed")
        return 0


def _give_back(processes: Sequence[object]) -> None:
    """In a thread."""
    for process in processes:
        if isinstance(process, GivesMemoryBack):
            process.give_memory_back()
    give_back()


def _add(looks: Sequence[_Look], now_ns: int) -> None:
    """In a thread."""
    for look in looks:
        if (size_bytes := look.read()) > 0:
            look.trend.add(now_ns, size_bytes, look.requests)
