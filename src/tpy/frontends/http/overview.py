"""The overview: every model with its state and counters, once as JSON, or as server-sent events for as long as somebody reads.

All readers at a port share each look at the models. Nothing looks when nobody reads: a look is taken by the reader who is the
first to need one. Rates are what clients make of two looks; the counters only grow while a version is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import orjson
import trio

from tpy import limits
from tpy.errors import Unavailable
from tpy.frontends.http.generate import StreamReply
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import HttpReply, HttpRequest, json_reply
from tpy.messages import IndexEntry, ModelCounters
from tpy.telemetry.host import CPU_UTILIZATION, MEMORY_TOTAL, MEMORY_USED, HostSampler
from tpy.units import NS_PER_MS

Row = dict[str, object]
Key = tuple[str, str, str]
Index = Sequence[IndexEntry]
Counters = Sequence[ModelCounters]

_NOT_STORED: Final = (("Cache-Control", "no-store"),)
_STREAM_HEADERS: Final = (*_NOT_STORED, ("X-Accel-Buffering", "no"))
"""The latter for a proxy that would collect the events."""
_MACHINE_MEMORY: Final = {"memory_used_bytes": MEMORY_USED, "memory_total_bytes": MEMORY_TOTAL}


class OverviewApi:
    """The handler of `/v2/overview`. Streams end when `stopping` is set. `spent_s` tells the CPU time of the loop."""

    def __init__(self, endpoint: InferEndpoint, stopping: trio.Event, *, spent_s: Callable[[], float] = time.thread_time) -> None:
        self._endpoint = endpoint
        self._looks = Looks(endpoint, spent_s)
        self._stopping = stopping

    async def get(self, request: HttpRequest) -> HttpReply | StreamReply:
        """Every model: as events for who accepts them, else once. Raises Unavailable when there are too many readers."""
        self._endpoint.authorize("model-repository", request)
        if request.method == b"HEAD" or b"text/event-stream" not in request.fields.get(b"accept", b""):
            look = await self._looks.next(-1)
            return json_reply(orjson.dumps(look.document(look.rows.values())), headers=_NOT_STORED)
        if self._looks.readers >= limits.OVERVIEW_VIEWERS_MAX:
            raise Unavailable(f"the overview has {limits.OVERVIEW_VIEWERS_MAX} readers already, try again later")
        return StreamReply(headers=_STREAM_HEADERS, body=OverviewBody(self._looks, self._stopping))


class Look:
    """All models at one moment: rows by name, version and namespace. `before`: the look that changes are told from. Only what
    differs from that is made anew: of a thousand models most do nothing."""

    def __init__(self, number: int, server: Row, index: Index, counters: Counters, before: Look | None) -> None:
        self.number = number
        self._server = server
        self._index = index
        self._counters = counters
        self._changes = b""
        self.rows: dict[Key, Row]
        if before is None or before._index is not index or not _same_versions(before._counters, counters):
            earlier = {} if before is None else before.rows
            self.rows = _rows(index, counters)
            self._changed = [row for key, row in self.rows.items() if earlier.get(key) != row]
            self._gone = [list(key) for key in earlier if key not in self.rows]
            return
        changed = [now for then, now in zip(before._counters, counters, strict=True) if then is not now and then != now]
        self.rows = before.rows
        if changed:
            self.rows = dict(before.rows)
            for each in changed:
                _count(self.rows, each)
        self._changed = [self.rows[_key(each)] for each in changed]
        self._gone = []

    def document(self, rows: Iterable[Row]) -> Row:
        """The server and these models."""
        return {"number": self.number, **self._server, "models": list(rows)}

    def changes(self) -> bytes:
        """The event for clients that know the look before. Made once, for all of them."""
        if not self._changes:
            self._changes = _event("changes", {**self.document(self._changed), "gone": self._gone})
        return self._changes

    def everything(self) -> bytes:
        """The event for others."""
        return _event("overview", self.document(self.rows.values()))


class Looks:
    """Looks at all models, at most one in OVERVIEW_INTERVAL_S, and fewer when they take long. `readers` counts the streams."""

    def __init__(self, endpoint: InferEndpoint, spent_s: Callable[[], float]) -> None:
        self.readers = 0
        self._spent_s = spent_s
        self._services = endpoint.services
        self._clock = endpoint.clock
        self._latest: Look | None = None
        self._due_s = 0.0
        self._number = 0
        self._looking = trio.Lock()
        self._host = HostSampler()

    async def next(self, seen: int) -> Look:
        """The newest look, after that with the number `seen`; waits until the next one is due. -1: whatever is new enough."""
        async with self._looking:
            latest = self._latest
            if latest is None or trio.current_time() >= self._due_s or latest.number <= seen:
                await trio.sleep_until(self._due_s if latest is not None and latest.number <= seen else 0)
                self._latest = latest = await self._look(latest)
            return latest

    def forget(self) -> None:
        """The last reader has gone."""
        self._latest = None

    async def _look(self, before: Look | None) -> Look:
        services = self._services
        began_s, spent_s = trio.current_time(), self._spent_s()
        entries = await services.repository.index()
        counters = await services.diagnostics.counters()
        metadata = services.diagnostics.server_metadata()
        self._number += 1
        server: Row = {
            "name": metadata.name,
            "version": metadata.version,
            "live": services.repository.server_live(),
            "ready": services.repository.server_ready(),
            "at_ms": self._clock.now_ns() // NS_PER_MS,
        }
        if machine := self._machine(is_first=before is None):
            gpus = () if services.metrics is None else await services.metrics.gpus()
            server["machine"] = {**machine, "gpus": msgspec.to_builtins(gpus)} if gpus else machine
        look = Look(self._number, server, entries, counters, before)
        # The first one takes several times as long as later ones, and is made once.
        took_s = 0.0 if before is None else self._spent_s() - spent_s
        self._due_s = began_s + max(limits.OVERVIEW_INTERVAL_S, took_s / limits.OVERVIEW_SHARE_MAX)
        return look

    def _machine(self, *, is_first: bool) -> Row:
        """CPU and memory of the machine; empty where they cannot be read. The share of CPU is since the look before."""
        self._host.sample()
        use = {family.name: family.samples[0].value for family in self._host.families}
        found: Row = {name: int(use[family]) for name, family in _MACHINE_MEMORY.items() if family in use}
        if found and not is_first:
            found["cpu"] = round(use[CPU_UTILIZATION], 3)
        return found


class OverviewBody:
    """The events of one reader (StreamBody)."""

    def __init__(self, looks: Looks, stopping: trio.Event) -> None:
        self._looks = looks
        self._stopping = stopping
        self._seen = -1
        self._ends_s = trio.current_time() + limits.OVERVIEW_STREAM_S_MAX
        self._open = True
        looks.readers += 1

    def __aiter__(self) -> OverviewBody:
        return self

    async def __anext__(self) -> bytes:
        found: list[Look] = []
        if self._open and trio.current_time() < self._ends_s:
            async with trio.open_nursery() as nursery:

                async def wait_stopping() -> None:
                    await self._stopping.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(wait_stopping)
                found.append(await self._looks.next(self._seen))
                nursery.cancel_scope.cancel()
        if not found:
            raise StopAsyncIteration
        look = found[0]
        follows, self._seen = look.number == self._seen + 1, look.number
        return look.changes() if follows else look.everything()

    def close(self) -> None:
        """Nobody reads any more."""
        if self._open:
            self._open = False
            self._looks.readers -= 1
            if not self._looks.readers:
                self._looks.forget()


def _event(name: str, document: Row) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(document))


def _same_versions(before: Counters, after: Counters) -> bool:
    """Returns True if both are of the same versions, in the same order."""
    return len(before) == len(after) and all(
        then is now or (then.name, then.version, then.namespace) == (now.name, now.version, now.namespace)
        for then, now in zip(before, after, strict=True)
    )


def _rows(index: Index, counters: Counters) -> dict[Key, Row]:
    rows: dict[Key, Row] = {}
    for entry in index:
        version = "" if entry.version is None else str(entry.version)
        row: Row = {"name": entry.name, "version": version}
        if entry.namespace:
            row["namespace"] = entry.namespace
        if entry.state is not None:
            row["state"] = entry.state.value
        if entry.reason:
            row["reason"] = entry.reason[: limits.PAGE_REASON_CHARACTERS_MAX]
        rows[entry.name, version, entry.namespace] = row
    for counted in counters:
        _count(rows, counted)
    return rows


def _key(counted: ModelCounters) -> Key:
    return counted.name, str(counted.version), counted.namespace


def _count(rows: dict[Key, Row], counted: ModelCounters) -> None:
    """Put a row with these counters in the place of that of the version."""
    key = _key(counted)
    rows[key] = {
        **rows.get(key, {"name": counted.name, "version": key[1]}),
        "requests": counted.requests,
        "failures": counted.failures,
        "inferences": counted.inferences,
        "executions": counted.executions,
        "latency_ns": counted.latency_ns,
        "queue_ns": counted.queue_ns,
        "compute_ns": counted.compute_ns,
        "last_request_ms": counted.last_request_ms,
        "memory_bytes": counted.memory_bytes,
    }
