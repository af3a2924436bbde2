"""The start that cannot be, repositories that cannot be read, and load calls during the shutdown."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.control.world import World, load
from tpy.errors import InvalidArgument, Unavailable


async def test_a_repository_that_cannot_be_read_for_a_while_does_not_end_the_listing(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.running():
        world.source.broken_repositories.add("repo")
        world.put("m", 1)
        await trio.sleep(100)
        world.source.broken_repositories.clear()
        await trio.sleep(100)
        assert world.index() == [("m", None, None, "")]


async def test_a_stopping_server_refuses(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    async with world.running() as control:
        control.stop()
        assert not control.server_ready()
        with pytest.raises(Unavailable, match="stopping"):
            await control.load(load("m"))


async def test_stopping_answers_the_loads_that_wait(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    world.data.load_seconds["m"] = 1000
    refused: list[float] = []
    async with world.running() as control, trio.open_nursery() as nursery:

        async def loading() -> None:
            with pytest.raises(Unavailable, match="stopping"):
                await control.load(load("m"))
            refused.append(trio.current_time())

        nursery.start_soon(loading)
        nursery.start_soon(loading)
        await trio.sleep(1)
        stopped = trio.current_time()
        control.stop()
        await wait_all_tasks_blocked()
        assert refused == [stopped, stopped]


@pytest.mark.parametrize("steps", range(1, 9))
async def test_a_load_is_answered_at_the_stop_however_far_it_has_come(
    autojump_clock: MockClock, world: World, steps: int
) -> None:
    world.put("m", 1)
    world.data.load_seconds["m"] = 1000
    async with world.running() as control, trio.open_nursery() as nursery:

        async def loading() -> None:
            with pytest.raises(Unavailable, match="stopping"):
                await control.load(load("m"))

        nursery.start_soon(loading)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        control.stop()
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


@pytest.mark.parametrize(
    ("mode", "load_models"), [("none", ("m",)), ("poll", ("m",)), ("explicit", ("*", "m")), ("explicit", ("m", "*"))]
)
async def test_options_that_contradict(world: World, mode: str, load_models: tuple[str, ...]) -> None:
    with pytest.RaisesGroup(InvalidArgument):
        async with world.running(mode, load_models=load_models):
            pass


async def test_a_missing_repository_is_an_error_at_the_start(autojump_clock: MockClock, world: World) -> None:
    world.source.broken_repositories.add("repo")
    with pytest.RaisesGroup(pytest.RaisesExc(Unavailable, match="failed to stat file repo")):
        async with world.running("poll"):
            pass
