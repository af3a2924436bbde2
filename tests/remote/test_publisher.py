"""A change by one frontend process is known to all of them before it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import trio
import trio.testing

from tests.frontends.http.fakes import FakeServices, describe
from tpy.limits.remote import REMOTE_SEEN_S_MAX
from tpy.messages import IndexEntry, ModelState
from tpy.remote.core import messages as m
from tpy.remote.core.framing import FrameSplitter, ProtocolError
from tpy.remote.core.replica import ReplicaUpdate
from tpy.remote.publisher import Publisher, Subscription


class Frontend:
    """A frontend process that reads when the test says so."""

    def __init__(self, subscription: Subscription, frames: list[bytes], began: list[bool]) -> None:
        self.subscription = subscription
        self.began = began
        self._frames = frames
        self._first = subscription.first

    def read(self) -> list[ReplicaUpdate]:
        """Take what has arrived and say so."""
        [*frames], self._frames[:] = self._frames, []
        reader = m.Reader(m.FROM_ENGINE)
        found = [reader.read(kind, payload) for frame in frames for kind, payload in FrameSplitter().feed(frame)]
        updates = [each for each in found if isinstance(each, ReplicaUpdate)]
        for update in updates or [self._first]:
            self.subscription.take_seen(update.server.revision)
        return updates


@contextmanager
def frontend(publisher: Publisher) -> Iterator[Frontend]:
    frames: list[bytes] = []
    began: list[bool] = []
    with publisher.subscribed(frames.append, lambda: began.append(True)) as subscription:
        yield Frontend(subscription, frames, began)


class Engine:
    """Services with one more model from time to time."""

    def __init__(self) -> None:
        self.fakes = FakeServices()
        self.rows: list[IndexEntry] = []
        self.fakes.repository.index = self._index  # type: ignore[method-assign]  # a repository that changes

    def add(self, name: str) -> None:
        self.fakes.inference.models[name] = describe(name)
        self.rows.append(IndexEntry(name=name, version=1, state=ModelState.READY))

    async def _index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        return list(self.rows)


async def test_a_change_is_complete_when_all_that_serve_have_seen_it() -> None:
    engine = Engine()
    publisher = Publisher(engine.fakes)
    await publisher.refresh()
    with ExitStack() as stack, trio.fail_after(10):
        one, other, starting = (stack.enter_context(frontend(publisher)) for _ in range(3))
        for each in (one, other):
            each.read()
        assert (one.began, other.began, starting.began) == ([True], [True], [])
        told = trio.Event()
        async with trio.open_nursery() as nursery:

            async def tell() -> None:
                await publisher.publish()
                told.set()

            engine.add("a")
            nursery.start_soon(tell)
            await trio.testing.wait_all_tasks_blocked()
            assert [list(update.models) for update in one.read()] == [["a"]]
            await trio.testing.wait_all_tasks_blocked()
            assert not told.is_set()
            other.read()
            await told.wait()


async def test_a_process_that_ends_is_not_waited_for() -> None:
    engine = Engine()
    publisher = Publisher(engine.fakes)
    await publisher.refresh()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            with frontend(publisher) as one:
                one.read()
                engine.add("a")
                nursery.start_soon(publisher.publish)
                await trio.testing.wait_all_tasks_blocked()


async def test_a_process_that_takes_no_notice_is_waited_for_once(autojump_clock: trio.testing.MockClock) -> None:
    engine = Engine()
    publisher = Publisher(engine.fakes)
    await publisher.refresh()
    with frontend(publisher) as stuck:
        stuck.read()
        for name, waited_s in (("a", REMOTE_SEEN_S_MAX), ("b", 0)):
            engine.add(name)
            began = trio.current_time()
            await publisher.publish()
            assert trio.current_time() - began == waited_s
        stuck.read()
        assert not stuck.subscription.late


async def test_nobody_has_seen_what_there_is_not() -> None:
    engine = Engine()
    publisher = Publisher(engine.fakes)
    await publisher.refresh()
    with frontend(publisher) as one:
        for revision in (2, -1):
            with pytest.raises(ProtocolError, match=f"has seen revision {revision} after -1, the newest is 1"):
                one.subscription.take_seen(revision)
        assert not one.began
