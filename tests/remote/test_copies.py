"""A copy of a model that frontend processes know is held until none of them can send it a request any more."""

from __future__ import annotations

import numpy as np
import trio
import trio.testing

from tests.frontends.http.fakes import FakeServices, describe
from tests.remote.sides import Sides, Sink, both_sides, request
from tpy.errors import Unavailable
from tpy.limits.remote import REMOTE_SEEN_S_MAX
from tpy.messages import IndexEntry, ModelState
from tpy.services import ResolvedModel


def update(sides: Sides) -> ResolvedModel:
    """Another copy answers for the model from now on. Returns the one before, as the frontend process knows it."""
    before = sides.services.inference.resolve("m")
    sides.fakes.inference.models["m"] = describe("m")
    return before


def ask(model: ResolvedModel) -> Sink:
    sink = Sink()
    model.submit(request(np.zeros((1, 1), np.float32)), sink)
    return sink


async def test_a_copy_is_let_go_when_its_successor_has_been_seen() -> None:
    async with both_sides() as sides:
        holds = sides.fakes.inference.holds
        before = update(sides)
        assert holds[before.copy] == 1
        await sides.publisher.publish()
        await trio.testing.wait_all_tasks_blocked()
        after = sides.services.inference.resolve("m")
        assert before.copy != after.copy
        assert (holds[before.copy], holds[after.copy]) == (0, 1)
    assert not any(holds.values())


async def test_what_is_sent_before_the_successor_is_seen_goes_to_the_copy() -> None:
    async with both_sides() as sides:
        before = update(sides)
        await sides.publisher.refresh()  # on its way to the frontend process, whose request is on its way to the engine
        sink = ask(before)
        await trio.testing.wait_all_tasks_blocked()
        assert sink.got[0].error is None
        assert [submitted.model.copy for submitted in sides.fakes.inference.submitted] == [before.copy]
        assert sides.fakes.inference.holds[before.copy] == 0


async def test_a_copy_that_a_frontend_process_holds_takes_its_requests_until_it_lets_go() -> None:
    async with both_sides() as sides:
        holds = sides.fakes.inference.holds
        before = update(sides)
        before.hold()
        before.hold()
        await sides.publisher.publish()
        await trio.testing.wait_all_tasks_blocked()
        assert holds[before.copy] == 2
        sink = ask(before)
        before.release()
        await trio.testing.wait_all_tasks_blocked()
        assert (holds[before.copy], sink.got[0].error) == (1, None)
        before.release()
        await trio.testing.wait_all_tasks_blocked()
        assert holds[before.copy] == 0
        sink = ask(before)  # a bug of ours, or a process that was not waited for
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(sink.got[0].error, Unavailable)
        assert sink.got[0].refused


async def test_the_end_of_a_frontend_process_ends_what_it_holds() -> None:
    async with both_sides() as sides:
        before = update(sides)
        before.hold()
        await sides.publisher.publish()
    assert not any(sides.fakes.inference.holds.values())


async def test_a_copy_that_comes_back_stays_held() -> None:
    """Its last instance failed, and was started again before the frontend process had said a word."""
    async with both_sides() as sides:
        inference, rows = sides.fakes.inference, sides.fakes.repository.rows
        copy = sides.services.inference.resolve("m").copy
        known = inference.models.pop("m")
        sides.fakes.repository.rows = [IndexEntry(name="m", version=1, state=ModelState.UNAVAILABLE)]
        await sides.publisher.refresh()
        inference.models["m"], sides.fakes.repository.rows = known, rows
        await sides.publisher.refresh()
        await trio.testing.wait_all_tasks_blocked()
        assert sides.services.inference.resolve("m").copy == copy
        assert inference.holds[copy] == 1


async def test_a_process_that_takes_no_notice_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    fakes = FakeServices()
    async with both_sides(fakes) as sides:
        before = update(sides)
        with sides.publisher.subscribed(lambda update: None, lambda: None) as silent:
            silent.take_seen(sides.publisher.revision)  # it serves, and says nothing more
            began = trio.current_time()
            await sides.publisher.publish()
            await trio.testing.wait_all_tasks_blocked()
            assert trio.current_time() - began == REMOTE_SEEN_S_MAX
            assert fakes.inference.holds[before.copy] == 0
