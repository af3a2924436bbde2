"""Mode explicit: load, unload, overrides, ensembles; texts as Triton's, with the reason behind them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.control.world import CONFIG, World
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.ids import ModelId
from tpy.messages import LoadRequest
from tpy_control.options import Readiness

CONFIG_JSON = (
    '{"backend": "identity", "max_batch_size": 7,'
    ' "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],'
    ' "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}]}'
)
POLL = "failed to load '{0}', failed to poll from model repository: "


def load(name: str, **more: object) -> LoadRequest:
    return LoadRequest(model_name=name, **more)  # type: ignore[arg-type]


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


async def test_a_configuration_override_stays_until_somebody_touches_the_directory(
    autojump_clock: MockClock, world: World
) -> None:
    location = world.put("m", 1)
    async with world.running() as control:
        await control.load(load("m", config_json=CONFIG_JSON))
        assert batch_size(world) == 7
        await control.load(load("m"))
        assert batch_size(world) == 7
        world.source.write(location, "1/model.bin", "weights")
        await control.load(load("m"))
        assert batch_size(world) == 0
        await control.load(load("m", config_json=CONFIG_JSON))
        await control.unload("m")
        await control.load(load("m"))
        assert batch_size(world) == 0


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{nonsense}", "Invalid config override: not JSON"),
        ('{"nosuch": 3}', "Cannot find field"),
        ("", "Invalid config override"),
        ('{"backend": "identity", "name": "other"}', "unexpected directory name 'm' for model 'other'"),
    ],
)
async def test_bad_configuration_overrides(autojump_clock: MockClock, world: World, config: str, said: str) -> None:
    world.put("m", 1)
    async with world.running(load_models=("m",)) as control:
        with pytest.raises(InvalidArgument) as caught:
            await control.load(load("m", config_json=config))
        assert str(caught.value).startswith(POLL.format("m"))
        assert said in str(caught.value)
        assert world.index()[0][:3] == ("m", 1, "READY")
        await control.load(load("m"))
        assert world.index() == [("m", 1, "READY", "")]


ENSEMBLE = """
platform: "ensemble"
input [{{ name: "IN" data_type: TYPE_FP32 dims: [4] }}]
output [{{ name: "OUT" data_type: TYPE_FP32 dims: [4] }}]
ensemble_scheduling {{ step [{{
  model_name: "{0}" model_version: -1
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }}
}}] }}
"""


async def test_an_ensemble_brings_its_components_and_takes_them_along(autojump_clock: MockClock, world: World) -> None:
    world.put("leaf", 1)
    world.put("inner", 1, config=ENSEMBLE.format("leaf"))
    world.put("outer", 1, config=ENSEMBLE.format("inner"))
    world.put("second", 1, config=ENSEMBLE.format("leaf"))

    def loaded() -> list[str]:
        return [row[0] for row in world.index() if row[2] == "READY"]

    async with world.running() as control:
        await control.load(load("outer"))
        assert loaded() == ["inner", "leaf", "outer"]
        await control.unload("outer")
        await wait_all_tasks_blocked()
        assert loaded() == ["inner", "leaf"]
        await control.load(load("outer"))
        await control.load(load("second"))
        await control.unload("outer", unload_dependents=True)
        await wait_all_tasks_blocked()
        assert loaded() == ["leaf", "second"], "what another ensemble needs stays"
        await control.load(load("leaf"))
        await control.unload("second", unload_dependents=True)
        await wait_all_tasks_blocked()
        assert loaded() == ["leaf"], "what was loaded by name stays"


async def test_components_in_a_circle_and_missing_ones_end(autojump_clock: MockClock, world: World) -> None:
    world.put("one", 1, config=ENSEMBLE.format("two"))
    world.put("two", 1, config=ENSEMBLE.format("one"))
    world.put("lonely", 1, config=ENSEMBLE.format("nobody"))
    async with world.running() as control:
        await control.load(load("one"))
        await control.load(load("lonely"))
        await control.unload("one", unload_dependents=True)
        await wait_all_tasks_blocked()
        assert [row[0] for row in world.index() if row[2] == "READY"] == ["lonely"]


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


async def test_under_namespacing_a_load_means_every_model_of_the_name(autojump_clock: MockClock, world: World) -> None:
    for repository in ("repo", "other"):
        world.put("leaf", 1, repository=repository)
        world.put("twice", 1, config=ENSEMBLE.format("leaf"), repository=repository)
    world.put("once", 1, repository="other")

    def loaded() -> list[tuple[str, str]]:
        return [(entry.namespace, entry.name) for entry in world.control.index(ready_only=True)]

    async with world.running(namespacing=True) as control:
        await control.load(load("once"))
        assert loaded() == [("other", "once")]
        await control.load(load("twice"))
        assert sorted(loaded()) == [("other", "leaf"), ("other", "once"), ("other", "twice"), ("repo", "leaf"), ("repo", "twice")]
        assert not await control.model_ready("twice"), "no request says which one it means"
        await control.unload("twice")
        await wait_all_tasks_blocked()
        assert sorted(loaded()) == [("other", "leaf"), ("other", "once"), ("repo", "leaf")]
        world.put("twice", 1, config="nonsense: 3", repository="other")
        with pytest.raises(Internal, match=r"other/twice/config\.pbtxt:1:1"):
            await control.load(load("twice"))


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
        for shared in ("config.pbtxt", "labels.txt"):
            before = world.generations("m")
            world.source.write(location, shared, config)
            await control.load(load("m"))
            assert min(world.generations("m").values()) > max(before.values()), shared
        before = world.generations("m")
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


def scratch_files(directory: Path) -> list[str]:
    # os.walk, because folders may be removed while this looks.
    files = (Path(folder, name) for folder, _, names in os.walk(directory) for name in names)
    return sorted(str(file.relative_to(directory)).split("/", 1)[1] for file in files)


async def test_files_make_a_model_of_their_own(world: World, tmp_path: Path) -> None:
    world.put("m", 1)
    async with world.running(scratch_directory=tmp_path) as control:
        await control.load(load("m"))
        files = {"3/model.bin": b"three", "3/deep/er/data": b"x", "labels.txt": b"cat"}
        await control.load(load("m", config_json=CONFIG_JSON, files=files))
        assert [row for row in world.index() if row[2] == "READY"] == [("m", 3, "READY", "")]
        assert scratch_files(tmp_path) == ["1/m/3/deep/er/data", "1/m/3/model.bin", "1/m/labels.txt"]
        desired = world.store.snapshot().desired[ModelId("m")]
        assert desired.directory.name == "m"
        assert (desired.directory / "3" / "model.bin").read_bytes() == b"three"
        await control.load(load("m"))
        assert world.generations("m") == {1: 3}, "a plain load goes back to the repository"
        while scratch_files(tmp_path):
            await wait_all_tasks_blocked(0.001)
        await control.load(load("virtual", config_json=CONFIG_JSON, files={"1/model.bin": b"v"}))
        assert ("virtual", 1, "READY", "") in world.index()
        with pytest.raises(Internal, match="model not found in any model repository: no directory 'virtual'"):
            await control.load(load("virtual"))
        await control.unload("virtual")
        while scratch_files(tmp_path):
            await wait_all_tasks_blocked(0.001)
        assert [row[0] for row in world.index()] == ["m"]
        await control.load(load("last", config_json=CONFIG_JSON, files={"1/model.bin": b"v"}))
    assert not os.listdir(tmp_path), "the end removes what is left"


@pytest.mark.parametrize("path", ["/1/x", "./1/x", "1/.//x"])
async def test_files_in_other_spellings(world: World, tmp_path: Path, path: str) -> None:
    async with world.running(scratch_directory=tmp_path) as control:
        await control.load(load("m", config_json=CONFIG_JSON, files={path: b"x"}))
        assert scratch_files(tmp_path) == ["1/m/1/x"]


@pytest.mark.parametrize("path", ["../x", "1/../../x", "1/..", "", "/", "./", "1/.", "1/", "1/x\0", "..", "1/" * 80 + "x"])
async def test_files_cannot_leave_the_model(world: World, tmp_path: Path, path: str) -> None:
    async with world.running(scratch_directory=tmp_path / "scratch") as control:
        with pytest.raises(InvalidArgument) as caught:
            await control.load(load("m", config_json=CONFIG_JSON, files={path: b"x"}))
        assert str(caught.value).startswith(POLL.format("m") + f"file override '{path}'")
    assert not os.listdir(tmp_path)


async def test_files_that_cannot_be_used(world: World, tmp_path: Path) -> None:
    async with world.running(scratch_directory=tmp_path) as control:
        with pytest.raises(InvalidArgument, match="expected the parameter 'config' beside them"):
            await control.load(load("m", files={"1/model.bin": b"x"}))
        with pytest.raises(InvalidArgument, match="needs a folder '1', which is a file in the same override"):
            await control.load(load("m", config_json=CONFIG_JSON, files={"1": b"", "1/model.bin": b"x"}))
        with pytest.raises(InvalidArgument, match="at least one version must be available"):
            await control.load(load("m", config_json=CONFIG_JSON, files={"labels.txt": b"x"}))
        with pytest.raises(Internal, match=r"failed to open binary file for write .*: File name too long"):
            await control.load(load("m", config_json=CONFIG_JSON, files={"1/" + "x" * 300: b"x"}))
        assert scratch_files(tmp_path) == []
        assert world.index() == []


@pytest.mark.parametrize(
    ("mode", "load_models"), [("none", ("m",)), ("poll", ("m",)), ("explicit", ("*", "m")), ("explicit", ("m", "*"))]
)
async def test_options_that_contradict(world: World, mode: str, load_models: tuple[str, ...]) -> None:
    with pytest.RaisesGroup(InvalidArgument):
        async with world.running(mode, load_models=load_models):
            pass


async def test_a_repository_that_is_not_there_is_told_at_once(autojump_clock: MockClock, world: World) -> None:
    world.source.broken_repositories.add("repo")
    with pytest.RaisesGroup(pytest.RaisesExc(Unavailable, match="failed to stat file repo")):
        async with world.running("poll"):
            pass
