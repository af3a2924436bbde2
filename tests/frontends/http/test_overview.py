"""The overview: once as JSON, as events that tell what changed, looks that are shared and rare, streams that end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tpy import limits
from tpy.clock import SystemClock
from tpy.errors import Unavailable
from tpy.frontends.http.generate import StreamReply
from tpy.frontends.http.message import HttpRequest, fields_of
from tpy.frontends.http.overview import OverviewApi
from tpy.frontends.http.serving import create_endpoint
from tpy.messages import GpuUse, IndexEntry, ModelCounters, ModelState

from .fakes import FakeServices
from .harness import get, options, running

EVENTS = "Accept: text/event-stream"


def request() -> HttpRequest:
    headers = [(b"Accept", b"text/event-stream")]
    return HttpRequest(
        method=b"GET",
        target=b"/v2/overview",
        path="/v2/overview",
        version="1.1",
        headers=headers,
        fields=fields_of(headers),
        keep_alive=True,
    )


class Viewed:
    """An API whose looks are counted, and whose index can be changed."""

    def __init__(self) -> None:
        self.services = FakeServices()
        self.stopping = trio.Event()
        self.entries = [IndexEntry(name="x", version=1, state=ModelState.READY)]
        self.looks = 0
        self.look_s = self.spent_s = 0.0
        self.keeps_index = False
        self.counters: list[ModelCounters] | None = None
        self.services.repository.index = self._index  # type: ignore[method-assign]
        fake = self.services.diagnostics.counters
        self.services.diagnostics.counters = self._counters  # type: ignore[method-assign]
        self._fake_counters = fake
        self.api = OverviewApi(
            create_endpoint(options(), self.services, SystemClock()), self.stopping, spent_s=lambda: self.spent_s
        )

    async def _index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        self.looks += 1
        self.spent_s += self.look_s
        return self.entries if self.keeps_index else list(self.entries)

    async def _counters(self) -> Sequence[ModelCounters]:
        return await self._fake_counters() if self.counters is None else self.counters

    async def read(self) -> AsyncIterator[bytes]:
        reply = await self.api.get(request())
        assert isinstance(reply, StreamReply)
        return reply.body


def event(data: bytes) -> tuple[str, Any]:
    name, line = data.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(line.removeprefix("data: "))


async def test_once() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        answer = await client.ask(get("/v2/overview"))
        document: Any = answer.document
        assert answer.headers["cache-control"] == "no-store"
        assert document["live"] is True
        assert [row["name"] for row in document["models"]] == ["broken", "m", "never"]
        assert document["models"][0]["reason"] == "Internal: no"
        assert {"requests", "queue_ns", "memory_bytes"} <= set(document["models"][1])


async def test_the_machine_and_its_load_between_two_looks(autojump_clock: trio.testing.MockClock) -> None:
    body = await Viewed().read()
    (_, first), (_, second) = event(await anext(body)), event(await anext(body))
    assert 0 < first["machine"]["memory_used_bytes"] < first["machine"]["memory_total_bytes"]
    assert "cpu" not in first["machine"]
    assert 0 <= second["machine"]["cpu"] <= 1
    assert "gpus" not in second["machine"]


class TwoGpus:
    """MetricsService of a machine with GPUs."""

    async def page(self, *, openmetrics: bool = False) -> bytes:
        return b""

    async def gpus(self) -> list[GpuUse]:
        return [
            GpuUse(id=0, uuid="GPU-a", utilization=0.5, memory_used_bytes=1, memory_total_bytes=2),
            GpuUse(id=1, uuid="GPU-b"),
        ]


async def test_the_gpus_of_the_machine() -> None:
    services = FakeServices()
    services.metrics = TwoGpus()
    async with running(services) as server:
        document: Any = (await (await server.connect()).ask(get("/v2/overview"))).document
    unknown = dict.fromkeys(("utilization", "memory_used_bytes", "memory_total_bytes"))
    assert document["machine"]["gpus"] == [
        {"id": 0, "uuid": "GPU-a", "utilization": 0.5, "memory_used_bytes": 1, "memory_total_bytes": 2},
        {"id": 1, "uuid": "GPU-b", **unknown},
    ]


async def test_a_stream_begins_on_a_connection() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        await client.send(get("/v2/overview", EVENTS))
        head = await client._until(b"\r\n\r\n")
        assert b"text/event-stream" in head
        assert b"event: overview" in await client._until(b"\n\n")


async def test_events_tell_what_changed(autojump_clock: trio.testing.MockClock) -> None:
    viewed = Viewed()
    body = await viewed.read()
    name, document = event(await anext(body))
    assert (name, [row["name"] for row in document["models"]]) == ("overview", ["x", "m"])  # m has counters
    name, document = event(await anext(body))
    assert (name, document["models"], document["gone"]) == ("changes", [], [])
    viewed.entries = [IndexEntry(name="n", version=2, state=ModelState.LOADING)]
    name, document = event(await anext(body))
    assert [row["name"] for row in document["models"]] == ["n"]
    assert document["gone"] == [["x", "1", ""]]


async def test_only_versions_that_did_something_are_sent(autojump_clock: trio.testing.MockClock) -> None:
    viewed = Viewed()
    viewed.keeps_index = True
    idle, busy = (ModelCounters(name=name, version=1) for name in ("idle", "x"))
    viewed.counters = [idle, busy]
    body = await viewed.read()
    await anext(body)
    viewed.counters = [idle, msgspec.structs.replace(busy, requests=3)]
    _, document = event(await anext(body))
    assert [(row["name"], row["state"], row["requests"]) for row in document["models"]] == [("x", "READY", 3)]
    viewed.counters = [busy]
    _, document = event(await anext(body))
    assert [(row["name"], row["requests"]) for row in document["models"]] == [("x", 0)]
    assert document["gone"] == [["idle", "1", ""]]
    other: Any = await viewed.read()
    name, document = event(await anext(other))
    assert (name, [(row["name"], row["requests"]) for row in document["models"]]) == ("overview", [("x", 0)])


async def test_readers_share_looks(autojump_clock: trio.testing.MockClock) -> None:
    viewed = Viewed()
    bodies = [await viewed.read() for _ in range(10)]
    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(anext, body)
    assert viewed.looks == 3
    assert trio.current_time() == pytest.approx(2 * limits.OVERVIEW_INTERVAL_S, abs=0.01)


async def test_nothing_looks_when_nobody_reads(autojump_clock: trio.testing.MockClock) -> None:
    viewed = Viewed()
    body: Any = await viewed.read()
    await anext(body)
    body.close()
    await trio.sleep(100)
    assert viewed.looks == 1


async def test_looks_that_take_long_are_rare(autojump_clock: trio.testing.MockClock) -> None:
    viewed = Viewed()
    viewed.look_s = 0.05
    body = await viewed.read()
    for _ in range(3):
        await anext(body)
    assert trio.current_time() == pytest.approx(limits.OVERVIEW_INTERVAL_S + 0.05 / limits.OVERVIEW_SHARE_MAX, abs=0.01)


async def test_too_many_readers(autojump_clock: trio.testing.MockClock) -> None:
    viewed = Viewed()
    bodies: list[Any] = [await viewed.read() for _ in range(limits.OVERVIEW_VIEWERS_MAX)]
    with pytest.raises(Unavailable, match="readers already"):
        await viewed.read()
    bodies[0].close()
    bodies[0].close()
    await viewed.read()
    with pytest.raises(Unavailable):
        await viewed.read()


async def test_a_stream_ends_in_time_and_at_the_stop(autojump_clock: trio.testing.MockClock) -> None:
    viewed = Viewed()
    body = await viewed.read()
    count = len([data async for data in body])
    assert count == pytest.approx(limits.OVERVIEW_STREAM_S_MAX / limits.OVERVIEW_INTERVAL_S, abs=2)
    body = await viewed.read()
    await anext(body)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_expect_end, body)
        await trio.testing.wait_all_tasks_blocked()
        before = trio.current_time()
        viewed.stopping.set()
    assert trio.current_time() == before


async def _expect_end(body: AsyncIterator[bytes]) -> None:
    with pytest.raises(StopAsyncIteration):
        await anext(body)


async def test_an_open_stream_does_not_hold_the_stop() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        await client.send(get("/v2/overview", EVENTS))
        await client._until(b"event: overview")
        with trio.fail_after(60):
            server.stop.set()
            while await client.stream.receive_some():
                pass
