"""Mode explicit: load and unload; texts as Triton's, followed by the reason."""

from __future__ import annotations

import re

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.control.world import CONFIG, POLL, World, load
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.ids import ModelId
from tpy_control.options import Readiness


def batch_size(world: World, name: str = "m") -> int:
    return world.store.snapshot().desired[ModelId(name)].config.max_batch_size


async def test_nothing_is_loaded_at_the_start_but_all_names_are_listed(autojump_clock: MockClock, world: World) -> None:
    world.put("a", 1)
    world.put("twice", 1)
    world.put("twice", 1, repository="other")
    async with world.running() as control:
        duplicate = "model appears in two or more repositories"
        assert world.index() == [("a", None, None, ""), ("twice", None, "UNAVAILABLE", duplicate)]
        assert control.index(ready_only=True) == []
        assert control.server_ready()
        report = await control.wait_startup_settled()
        assert (report.entries, report.failed) == ((), ()), "nobody asked for them"
        assert not await control.model_ready("a")


async def test_load_model_names_and_star(autojump_clock: MockClock, world: World) -> None:
    for name in ("a", "b", "c"):
        world.put(name, 1)
    async with world.running(load_models=("a", "missing"), readiness=Readiness.ALL_MODELS) as control:
        report = await control.wait_startup_settled()
        assert [entry.name for entry in report.failed] == ["missing"]
        assert [row[:3] for row in world.index()] == [
            ("a", 1, "READY"),
            ("b", None, None),
            ("c", None, None),
            ("missing", None, "UNAVAILABLE"),
        ]
        assert not control.server_ready()
        world.put("missing", 1)
        await control.load(load("missing"))
        assert control.server_ready()


async def test_load_model_star_is_all(autojump_clock: MockClock, world: World) -> None:
    world.put("a", 1)
    world.put("b", 1)
    async with world.running(load_models=("*",)):
        assert [row[2] for row in world.index()] == ["READY", "READY"]


async def test_load_and_unload(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, 2, config=CONFIG + "version_policy { all {} }")
    world.data.load_seconds["m"] = 3
    world.data.unload_seconds["m"] = 4
    async with world.running() as control:
        started = trio.current_time()
        await control.load(load("m"))
        assert trio.current_time() - started == pytest.approx(3), "returns when it serves"
        assert world.index() == [("m", 1, "READY", ""), ("m", 2, "READY", "")]
        assert await control.model_ready("m")
        assert await control.model_ready("m", 2)
        assert not await control.model_ready("m", 3)
        await control.load(load("m"))
        assert len(world.data.loads) == 2, "nothing changed: nothing is loaded again"
        started = trio.current_time()
        await control.unload("m")
        assert trio.current_time() == started, "returns at once"
        await wait_all_tasks_blocked()
        assert world.index() == [("m", 1, "UNLOADING", ""), ("m", 2, "UNLOADING", "")]
        assert not control.server_ready()
        assert not await control.model_ready("m")
        assert not await control.model_ready("m", 1)
        await trio.sleep(5)
        assert world.index() == [("m", 1, "UNAVAILABLE", "unloaded"), ("m", 2, "UNAVAILABLE", "unloaded")]
        assert control.server_ready()
        await control.load(load("m"))
        assert world.generations("m") == {1: 3, 2: 4}


async def test_unloading_what_is_unknown_or_not_loaded_succeeds(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    async with world.running() as control:
        before = world.store.snapshot()
        await control.unload("m")
        await control.unload("unknown")
        assert world.store.snapshot() is before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "Model name cannot be empty. Please enter a valid name to deploy."),
        *((name, "model name must not contain path traversal characters") for name in ("a/b", "..", "../m", ".", "m\0", "/m")),
        ("x" * 256, "invalid model name"),
    ],
)
async def test_names_that_leave_the_repository(autojump_clock: MockClock, world: World, name: str, said: str) -> None:
    async with world.running() as control:
        with pytest.raises(InvalidArgument, match=f"^{re.escape(said)}"):
            await control.load(load(name))
        with pytest.raises(InvalidArgument, match=f"^{re.escape(said)}"):
            await control.unload(name)


@pytest.mark.parametrize("name", ["...", "..my", "a..b", "my..", ".hidden", "a\\b", " ", "%2e"])
async def test_odd_names_are_looked_for_in_the_repository(autojump_clock: MockClock, world: World, name: str) -> None:
    async with world.running() as control:
        with pytest.raises(Internal, match="model not found in any model repository"):
            await control.load(load(name))
        await control.unload(name)


async def test_a_missing_model_is_an_error_and_is_not_remembered(autojump_clock: MockClock, world: World) -> None:
    async with world.running() as control:
        with pytest.raises(Internal) as caught:
            await control.load(load("m"))
        assert str(caught.value) == POLL.format("m") + "model not found in any model repository: no directory 'm' in repo, other"
        assert world.index() == []
        assert control.server_ready()


async def test_a_broken_configuration(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, config="\nnonsense: 3")
    async with world.running() as control:
        with pytest.raises(Internal) as caught:
            await control.load(load("m"))
        assert str(caught.value).startswith(POLL.format("m") + "repo/m/config.pbtxt:2:1")
        ((_, version, state, reason),) = world.index()
        assert (version, state) == (None, "UNAVAILABLE")
        assert reason.startswith("Internal: repo/m/config.pbtxt:2:1")
        await control.unload("m")
        assert world.index() == [("m", None, None, "")]


async def test_a_contradictory_configuration_fails_as_a_load(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, config=CONFIG + "max_batch_size: -1")
    async with world.running(readiness=Readiness.ALL_MODELS) as control:
        with pytest.raises(InvalidArgument) as caught:
            await control.load(load("m"))
        text = str(caught.value)
        assert text.startswith("load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: ")
        assert "'max_batch_size' must be non-negative value for m" in text
        assert text.endswith(";\n")
        assert world.index()[0][1:3] == (1, "UNAVAILABLE")
        assert not control.server_ready()
        await control.unload("m")
        assert control.server_ready()


async def test_no_version_under_the_policy(autojump_clock: MockClock, world: World) -> None:
    location = world.put("m", 1, config=CONFIG + "version_policy { specific { versions: [3] } }")
    async with world.running(readiness=Readiness.ALL_MODELS) as control:
        with pytest.raises(InvalidArgument) as caught:
            await control.load(load("m"))
        inner = "at least one version must be available under the version policy of model 'm'"
        assert str(caught.value) == f"load failed for model 'm': {inner}\n"
        assert world.index() == [("m", None, "UNAVAILABLE", f"Invalid argument: {inner}")]
        assert not control.server_ready()
        world.source.write(location, "3/model.bin", "x")
        await control.load(load("m"))
        assert world.index() == [("m", 3, "READY", "")]


async def test_a_load_that_fails_in_the_data_plane_and_is_asked_for_again(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, 2, config=CONFIG + "version_policy { all {} }")
    world.data.failing["m", 2] = "Internal: boom"
    text = "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: boom;\n"
    async with world.running(readiness=Readiness.ALL_MODELS) as control:
        for _ in range(2):
            with pytest.raises(InvalidArgument) as caught:
                await control.load(load("m"))
            assert str(caught.value) == text
        assert world.generations("m") == {1: 1, 2: 3}, "only what has failed is tried again"
        assert not control.server_ready()
        world.data.failing.clear()
        await control.load(load("m"))
        assert world.generations("m") == {1: 1, 2: 4}
        assert control.server_ready()


async def test_a_failed_update_leaves_the_old_version(autojump_clock: MockClock, world: World) -> None:
    location = world.put("m", 1)
    async with world.running(load_models=("m",)) as control:
        world.data.failing["m", 1] = "Internal: boom"
        world.source.write(location, "1/model.bin", "bad")
        with pytest.raises(InvalidArgument, match="version 1 is at UNAVAILABLE state: Internal: boom"):
            await control.load(load("m"))
        assert world.index() == [("m", 1, "READY", "Internal: boom")]
        assert control.server_ready()
        assert await control.model_ready("m", 1)
        world.source.remove(location)
        with pytest.raises(Internal, match="model not found in any model repository: no directory 'm'"):
            await control.load(load("m"))
        assert world.index()[0][:3] == ("m", 1, "READY")


async def test_instance_groups_that_were_refused_are_tried_again_by_each_load(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    async with world.running() as control:
        await control.load(load("m"))
        world.put("m", config=CONFIG + "instance_group { count: 3 kind: KIND_CPU }")
        world.data.refusing["m"] = "Internal: no room"
        for revision in (2, 3):
            with pytest.raises(InvalidArgument, match="version 1 is at READY state: Internal: no room;"):
                await control.load(load("m"))
            assert world.revision("m") == revision
        world.data.refusing.clear()
        await control.load(load("m"))
        assert world.generations("m") == {1: 1}
        world.put("m", config=CONFIG + "instance_group { count: 2 kind: KIND_CPU }")
        world.data.refusing["m"] = "Internal: no room"
        with pytest.raises(InvalidArgument):
            await control.load(load("m"))
        world.data.refusing.clear()
        world.put("m", config=CONFIG)
        await control.load(load("m"))
        assert world.index() == [("m", 1, "READY", "")]
        revision = world.revision("m")
        await control.load(load("m"))
        assert world.revision("m") == revision


async def test_different_models_load_at_once_and_one_model_takes_turns(autojump_clock: MockClock, world: World) -> None:
    for name in ("a", "b"):
        world.put(name, 1)
        world.data.load_seconds[name] = 10
    ended: list[str] = []

    async def loading(name: str) -> None:
        await world.control.load(load(name))
        ended.append(name)

    async with world.running(), trio.open_nursery() as nursery:
        for name in ("a", "a", "b"):
            nursery.start_soon(loading, name)
        await trio.sleep(1)
        world.put("a", 1, content="new")
        await trio.sleep(10)
        assert sorted(ended) == ["a", "b"]
        assert world.generations("a") == {1: 2}, "the second call found new files when its turn came"
        await trio.sleep(10)
        assert sorted(ended) == ["a", "a", "b"]
        assert world.data.loading_at_once_max == 2


async def test_cancelling_a_load_call_does_not_undo_the_load(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    world.data.load_seconds["m"] = 10
    async with world.running() as control:
        with trio.move_on_after(1):
            await control.load(load("m"))
        await control.load(load("m"))
        assert world.data.loads == [("m", 1)]
        assert world.index() == [("m", 1, "READY", "")]


async def test_an_unload_overtakes_a_load(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    world.data.load_seconds["m"] = 10
    async with world.running() as control, trio.open_nursery() as nursery:

        async def loading() -> None:
            with pytest.raises(Unavailable, match="overtaken by an unload of 'm'"):
                await control.load(load("m"))

        nursery.start_soon(loading)
        await trio.sleep(1)
        await control.unload("m")


async def test_the_listing_follows_the_repository(autojump_clock: MockClock, world: World) -> None:
    async with world.running() as control:
        location = world.put("m", 1)
        await wait_all_tasks_blocked()
        assert world.index() == [("m", None, None, "")]
        await control.load(load("m"))
        world.source.remove(location)
        await wait_all_tasks_blocked()
        assert world.index() == [("m", 1, "READY", "")], "what is loaded stays, whatever the disk says"
        await control.unload("m")
        await wait_all_tasks_blocked()
        assert world.index() == []


async def test_a_touched_file_is_loaded_again_by_a_load_call(autojump_clock: MockClock, world: World) -> None:
    config = CONFIG + "version_policy { all {} }"
    location = world.put("m", 1, 2, config=config)
    async with world.running() as control:
        await control.load(load("m"))
        assert world.generations("m") == {1: 1, 2: 2}
        await control.load(load("m"))
        assert world.generations("m") == {1: 1, 2: 2}, "nobody touched anything"
        world.source.write(location, "2/model.bin", "weights")
        await control.load(load("m"))
        assert world.generations("m") == {1: 1, 2: 3}, "its own version only"
        before = world.generations("m")
        world.source.write(location, "labels.txt", "a")
        await control.load(load("m"))
        assert min(world.generations("m").values()) > max(before.values())
        before = world.generations("m")
        for same in (config, config + "# a comment"):  # as Triton
            world.source.write(location, "config.pbtxt", same)
            world.source.write(location, "configs/other.pbtxt", same)
            await control.load(load("m"))
            assert world.generations("m") == before, "the configuration is what it was"
        world.source.write(location, "config.pbtxt", config + "instance_group [{ count: 3 kind: KIND_CPU }]")
        await control.load(load("m"))
        assert world.generations("m") == before, "instances are added to what is loaded"


@pytest.mark.parametrize("kind", ["missing", "syntax", "contradiction", "no versions", "load"])
async def test_a_failed_load_takes_no_serving_host_out_of_its_load_balancer(
    autojump_clock: MockClock, world: World, kind: str
) -> None:
    world.put("good", 1)
    if kind != "missing":
        config = {"syntax": "nonsense: 3", "contradiction": CONFIG + "max_batch_size: -1"}.get(kind, CONFIG)
        world.put("bad", *(() if kind == "no versions" else (1,)), config=config)
    world.data.failing["bad", 1] = "Internal: boom"
    async with world.running(load_models=("good",)) as control:
        with pytest.raises((Internal, InvalidArgument)):
            await control.load(load("bad"))
        assert control.server_ready()
    if kind != "missing":
        async with World.like(world).running(load_models=("good",), readiness=Readiness.ALL_MODELS) as control:
            with pytest.raises((Internal, InvalidArgument)):
                await control.load(load("bad"))
            assert control.server_ready() == (kind == "syntax"), "explicit: what cannot be read is not known, as in Triton"
