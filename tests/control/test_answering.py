"""The version that answers while a newer one is rolled out is desired beside those of the version policy."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.control.world import CONFIG, World, load
from tpy.ids import ModelId, Version

M = ModelId("m")
TWO = CONFIG + "version_policy { latest { num_versions: 2 } }"


def answer(world: World, version: int | None) -> None:
    world.data.answer(M, None if version is None else Version(version))


async def test_a_newer_version_does_not_take_the_place_of_the_one_that_answers(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, 2, config=TWO)
    async with world.running("explicit") as control:
        await control.load(load("m"))
        before = world.generations("m")
        answer(world, 1)
        world.put("m", 3, config=TWO)
        await control.load(load("m"))
        assert world.generations("m").keys() == {1, 2, 3}
        assert world.generations("m")[1] == before[1], "it stays loaded"
        answer(world, 3)
        await wait_all_tasks_blocked()
        assert world.generations("m").keys() == {2, 3}


async def test_one_that_answered_before_the_first_look_is_kept(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, 2)
    answer(world, 1)
    async with world.running("none"):
        assert world.generations("m").keys() == {1, 2}
        answer(world, None)
        await wait_all_tasks_blocked()
        assert world.generations("m").keys() == {2}


@pytest.mark.parametrize("policy", ["specific { versions: [ 2 ] }", "latest { num_versions: 1 }"])
async def test_policies_that_name_versions_and_removed_folders_are_obeyed(
    autojump_clock: MockClock, world: World, policy: str
) -> None:
    location = world.put("m", 1, 2, config=f"{CONFIG} version_policy {{ {policy} }}")
    async with world.running("explicit") as control:
        answer(world, 1)
        if "latest" in policy:
            world.source.remove(location, "1/model.bin")
            world.source.remove(location, "1/")
        await control.load(load("m"))
        assert world.generations("m").keys() == {2}


async def test_what_is_unloaded_stays_unloaded(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, 2)
    async with world.running("explicit") as control:
        await control.load(load("m"))
        await control.unload("m", unload_dependents=False)
        answer(world, 1)
        answer(world, 2)
        await wait_all_tasks_blocked()
        assert world.generations("m") == {}


async def test_newer_files_that_are_refused_stay_refused(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, 2)
    answer(world, 1)
    async with world.running("poll") as control:
        await trio.sleep(1)
        world.put("m", 3, config="nonsense: 3")
        await trio.sleep(60)
        assert world.generations("m").keys() == {1, 2}
        assert {"nonsense" in entry.reason for entry in control.index()} == {True}
        answer(world, 2)
        await wait_all_tasks_blocked()
        assert world.generations("m").keys() == {2}
        assert [(entry.version, "nonsense" in entry.reason) for entry in control.index()] == [(2, True)]
