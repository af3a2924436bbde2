"""Modes none and poll, driven in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.control.world import CONFIG, World
from tpy.errors import Unavailable
from tpy.messages import LoadRequest
from tpy.reloading import reload
from tpy.units import NS_PER_S
from tpy_control.core.scan import ModelLocation
from tpy_control.options import Readiness
from tpy_control.sources.memory import MemorySource

NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"
SETTLE_S = 1.0


class UnwatchedSource(MemorySource):
    """Changes are found by looking only."""

    async def watch(self, changed: Callable[[], None]) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("readiness", Readiness)
async def test_none_loads_everything_and_one_broken_model_stops_no_other(
    autojump_clock: MockClock, world: World, readiness: Readiness
) -> None:
    world.put("good", 1, 2)
    world.put("broken", 1, config="nonsense: 3")
    world.source.write(world.source.location("empty"), "notes/")
    async with world.running("none", readiness=readiness) as control:
        report = await control.wait_startup_settled()
        assert [(e.name, e.version, e.state.value) for e in report.entries if e.state] == [
            ("broken", None, "UNAVAILABLE"),
            ("empty", None, "UNAVAILABLE"),
            ("good", 2, "READY"),
        ]
        assert [e.name for e in report.failed] == ["broken", "empty"]
        reasons = {e.name: e.reason for e in report.failed}
        assert "repo/broken/config.pbtxt:1:1" in reasons["broken"]
        assert "nonsense" in reasons["broken"]
        assert reasons["empty"].startswith("Internal: repo/empty: backend: Invalid model name: Could not determine backend")
        assert control.server_live()
        assert control.server_ready() == (readiness is Readiness.SERVING), "Triton does not know what it cannot read"


@pytest.mark.parametrize("kind", ["no versions", "load"])
async def test_a_model_of_the_start_that_does_not_load_counts_until_it_is_mended(
    autojump_clock: MockClock, world: World, kind: str
) -> None:
    """As in Triton. It was never ready, so nothing is taken out of a load balancer."""
    location = world.put("bad", *(() if kind == "no versions" else (1,)))
    world.put("good", 1)
    world.data.failing["bad", 1] = "Internal: boom"
    async with world.running("poll") as control:
        assert not control.server_ready()
        world.data.failing.clear()
        world.source.write(location, "1/model.bin", "mended")
        await trio.sleep(SETTLE_S * 2)
        assert control.server_ready()


@pytest.mark.parametrize("kind", ["configuration of a served model", "file of a served model", "new model", "duplicate"])
async def test_a_typo_takes_no_serving_host_out_of_its_load_balancer(autojump_clock: MockClock, world: World, kind: str) -> None:
    location = world.put("m", 1)
    world.put("good", 1)
    for readiness in Readiness:
        async with World.like(world).running("poll", readiness=readiness) as control:
            assert control.server_ready()
            served = kind in ("configuration of a served model", "file of a served model")
            if kind == "configuration of a served model":
                world.source.write(location, "config.pbtxt", CONFIG + "max_batch_siz: 3")
            elif kind == "duplicate":
                world.put("m", 1, repository="other")
            elif kind == "file of a served model":
                world.data.failing["m", 1] = "Internal: SyntaxError"
                world.source.write(location, "1/model.bin", "typo")
            else:
                world.data.failing["new", 1] = "Internal: SyntaxError"
                world.put("new", 1)
            await trio.sleep(SETTLE_S * 2)
            assert control.server_ready() == (readiness is Readiness.SERVING or served or kind == "duplicate")
        world.put("m", 1)
        world.source.remove(world.source.location("m", "other"))
        world.source.remove(world.source.location("new"))
        world.data.failing.clear()


async def test_a_missing_repository_leaves_a_server_that_is_neither_live_nor_ready(
    autojump_clock: MockClock, world: World
) -> None:
    """--exit-on-error=false, as in Triton, whose texts these are."""
    world.put("m", 1)
    world.source.broken_repositories.add("repo")
    async with world.running("explicit", require_repositories=False) as control:
        assert not control.server_live()
        assert not control.server_ready()
        with pytest.raises(Unavailable, match=r"^Server not ready$"):
            control.index()
        for call in (control.load(LoadRequest(model_name="m")), control.unload("m"), control.model_ready("m")):
            with pytest.raises(Unavailable, match=r"^Server not ready$"):
                await call
        control.stop()


async def test_readiness_that_is_not_strict_needs_no_model(autojump_clock: MockClock, world: World) -> None:
    world.put("broken", 1, config="nonsense: 3")
    async with world.running("none", strict_readiness=False) as control:
        assert control.server_ready()
        control.stop()
        assert not control.server_ready()
        assert control.server_live()


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_loads_are_refused_outside_explicit(autojump_clock: MockClock, world: World, mode: str) -> None:
    world.put("m", 1)
    async with world.running(mode) as control:
        with pytest.raises(Unavailable, match=NOT_EXPLICIT):
            await control.load(LoadRequest(model_name="m"))
        with pytest.raises(Unavailable, match=NOT_EXPLICIT):
            await control.unload("m")


async def test_none_does_not_follow_changes(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    async with world.running("none"):
        before = world.generations("m")
        world.put("m", 2)
        world.put("later", 1)
        await trio.sleep(100)
        assert world.generations("m") == before
        assert world.index() == [("m", 1, "READY", "")]


async def test_poll_finds_changes_within_the_period_without_events(autojump_clock: MockClock, world: World) -> None:
    source = UnwatchedSource(("repo", "other"))
    world.source = source
    world.put("m", 1)
    async with world.running("poll", source=source):
        world.put("m", 2)
        await trio.sleep(14.9)
        assert world.generations("m") == {1: 1}
        await trio.sleep(0.2 + SETTLE_S)
        assert world.generations("m") == {2: 2}


@pytest.mark.parametrize(
    ("mode", "seen", "listed"), [("poll", {2: 2}, ["m", "new"]), ("explicit", {1: 1}, ["m", "new"]), ("none", {1: 1}, ["m"])]
)
async def test_a_reload_looks_at_the_repositories_at_once(
    autojump_clock: MockClock, world: World, mode: str, seen: dict[int, int], listed: list[str]
) -> None:
    """As SIGHUP asks for it, in the modes that follow the disk at all."""
    source = UnwatchedSource(("repo", "other"))
    world.source = source
    world.put("m", 1)
    chosen = {"load_models": ("m",)} if mode == "explicit" else {}
    async with world.running(mode, source=source, poll_interval_ns=3600 * NS_PER_S, **chosen) as control:
        world.put("m", 2)
        world.put("new", 1)
        await trio.sleep(3)
        assert world.generations("m") == {1: 1}
        reload("SIGHUP")
        await trio.sleep(2 * SETTLE_S)
        assert world.generations("m") == seen
        assert sorted({entry.name for entry in control.index()}) == listed


async def test_an_event_is_seen_sooner_than_the_period(autojump_clock: MockClock, world: World) -> None:
    async with world.running("poll"):
        world.put("m", 1)
        await trio.sleep(SETTLE_S + 0.01)
        assert world.index() == [("m", 1, "READY", "")]


async def test_a_half_copied_model_waits_and_others_do_not(autojump_clock: MockClock, world: World) -> None:
    async with world.running("poll"):
        for part in range(40):
            world.put("copied", 1, content="x" * part)
            if part == 20:
                world.put("other", 1)
            await trio.sleep(SETTLE_S / 2)
        assert world.generations("copied") == {}
        assert world.index()[1] == ("other", 1, "READY", "")
        await trio.sleep(SETTLE_S)
        assert world.index()[0] == ("copied", 1, "READY", "")
        assert world.data.loads == [("other", 1), ("copied", 1)], "loaded once, when whole"


async def test_versions_come_and_go_and_the_others_stay_loaded(autojump_clock: MockClock, world: World) -> None:
    config = "version_policy { all {} }" + CONFIG
    location = world.put("m", 1, 2, config=config)
    async with world.running("poll"):
        assert world.generations("m") == {1: 1, 2: 2}
        world.put("m", 3, config="")
        await trio.sleep(2)
        assert world.generations("m") == {1: 1, 2: 2, 3: 3}
        world.source.remove(location, "2")
        await trio.sleep(2)
        assert world.generations("m") == {1: 1, 3: 3}
        world.put("m", 2, config="")
        await trio.sleep(2)
        assert world.generations("m") == {1: 1, 2: 4, 3: 3}
        world.source.write(location, "3/model.bin", "new weights")
        await trio.sleep(2)
        assert world.generations("m") == {1: 1, 2: 4, 3: 5}
        assert sorted(world.data.loads) == [("m", 1), ("m", 2), ("m", 2), ("m", 3), ("m", 3)]


async def test_writing_the_same_content_again_reloads_nothing(autojump_clock: MockClock, world: World) -> None:
    location = world.put("m", 1)
    async with world.running("poll"):
        before = world.store.snapshot()
        world.source.write(location, "1/model.bin", "weights")
        world.source.write(location, "config.pbtxt", CONFIG + "# a comment\n")
        await trio.sleep(20)
        assert world.store.snapshot() is before


async def test_only_instance_groups_changed_keeps_the_weights(autojump_clock: MockClock, world: World) -> None:
    location = world.put("m", 1)
    async with world.running("poll") as control:
        world.source.write(location, "config.pbtxt", CONFIG + "instance_group [{ count: 3 kind: KIND_CPU }]")
        await trio.sleep(2)
        assert (world.generations("m"), world.revision("m")) == ({1: 1}, 2)
        world.source.write(location, "config.pbtxt", CONFIG + "max_batch_size: 4")
        await trio.sleep(2)
        assert (world.generations("m"), world.revision("m")) == ({1: 2}, 3)
        assert control.server_ready()


@pytest.mark.parametrize("path", ["labels.txt", "warmup/one", "notes/readme"])
async def test_a_shared_file_reloads_all_versions(autojump_clock: MockClock, world: World, path: str) -> None:
    location = world.put("m", 1)
    async with world.running("poll"):
        world.source.write(location, path, "cat\ndog\n")
        await trio.sleep(2)
        assert world.generations("m") == {1: 2}


@pytest.mark.parametrize("path", [".config.pbtxt.swp", "1/__pycache__/model.pyc", "1/.x", "labels.txt~", "configs/other.pbtxt"])
async def test_passing_files_reload_nothing(autojump_clock: MockClock, world: World, path: str) -> None:
    location = world.put("m", 1)
    async with world.running("poll"):
        world.source.write(location, path, "anything")
        await trio.sleep(2)
        assert world.generations("m") == {1: 1}


async def test_a_failed_update_leaves_the_old_version_with_the_reason_in_the_index(
    autojump_clock: MockClock, world: World
) -> None:
    location = world.put("m", 1)
    async with world.running("poll") as control:
        world.data.failing["m", 1] = "Internal: boom"
        world.source.write(location, "1/model.bin", "bad")
        await trio.sleep(2)
        assert world.index() == [("m", 1, "READY", "Internal: boom")]
        assert control.server_ready()
        await trio.sleep(60)
        assert len(world.data.loads) == 2, "not tried again before something changes"
        world.source.write(location, "config.pbtxt", "nonsense: 3")
        await trio.sleep(2)
        ((_, _, state, reason),) = world.index()
        assert state == "READY"
        assert "nonsense" in reason
        del world.data.failing["m", 1]
        world.put("m", 1, content="good")
        await trio.sleep(2)
        assert world.index() == [("m", 1, "READY", "")]


async def test_one_unreadable_model_freezes_no_other(autojump_clock: MockClock, world: World) -> None:
    location = world.put("m", 1)
    async with world.running("poll"):
        world.source.unreadable[location] = "cannot read repo/m: Permission denied"
        world.put("other", 1)
        await trio.sleep(17)
        assert world.index() == [
            ("m", 1, "READY", "Internal: cannot read repo/m: Permission denied"),
            ("other", 1, "READY", ""),
        ]
        world.source.unreadable.clear()
        await trio.sleep(17)
        assert world.index()[0] == ("m", 1, "READY", "")


async def test_an_unreadable_repository_leaves_its_models_serving(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    async with world.running("poll"):
        world.source.broken_repositories.add("repo")
        world.put("later", 1)
        await trio.sleep(100)
        assert world.index() == [("m", 1, "READY", "")]
        world.source.broken_repositories.clear()
        await trio.sleep(17)
        assert [row[0] for row in world.index()] == ["later", "m"]


async def test_changes_of_an_unreadable_repository_wait_for_the_next_poll(
    autojump_clock: MockClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    list_models = world.source.list_models

    async def counted() -> Sequence[ModelLocation]:
        looks.append(trio.current_time())
        assert len(looks) < 100, "it looks without a pause"
        return await list_models()

    monkeypatch.setattr(world.source, "list_models", counted)
    world.put("m", 1)
    async with world.running("poll"):
        world.put("m", 2)  # seen, but not yet for long enough
        await wait_all_tasks_blocked()
        world.source.broken_repositories.add("repo")
        looks.clear()
        await trio.sleep(100)
        assert len(looks) <= 100 / 15 + 2
        world.source.broken_repositories.clear()
        await trio.sleep(32)
        assert [row[:3] for row in world.index()] == [("m", 2, "READY")]


async def test_a_removed_model_is_unloaded_and_leaves_the_index(autojump_clock: MockClock, world: World) -> None:
    location = world.put("m", 1)
    world.put("stays", 1)
    world.data.unload_seconds["m"] = 5
    async with world.running("poll") as control:
        world.source.remove(location)
        await trio.sleep(2)
        assert world.index()[0] == ("m", 1, "UNLOADING", "")
        assert not control.server_ready(), "strict, while a version is being unloaded"
        await trio.sleep(6)
        assert world.index() == [("stays", 1, "READY", "")]
        assert control.server_ready()
        assert not await control.model_ready("m")


async def test_a_model_in_two_repositories(autojump_clock: MockClock, world: World) -> None:
    world.put("twice", 1)
    world.put("twice", 1, repository="other")
    location = world.put("once", 1)
    duplicate = "model appears in two or more repositories"
    async with world.running("poll"):
        assert world.index() == [("once", 1, "READY", ""), ("twice", None, "UNAVAILABLE", duplicate)]
        copy = world.put("once", 1, repository="other")
        await trio.sleep(2)
        assert world.index()[0] == ("once", 1, "READY", duplicate), "what is served goes on"
        world.source.remove(copy)
        await trio.sleep(2)
        assert world.index()[0] == ("once", 1, "READY", "")
        assert world.generations("once") == {1: 1}
        world.source.remove(location)
        await trio.sleep(2)
        assert [row[0] for row in world.index()] == ["twice"]


async def test_namespacing_separates_models_of_one_name(autojump_clock: MockClock, world: World) -> None:
    world.put("twice", 1)
    world.put("twice", 2, repository="other")
    world.put("once", 1)
    async with world.running("none", namespacing=True) as control:
        entries = [(e.name, e.namespace, e.version) for e in control.index()]
        assert entries == [("once", "repo", 1), ("twice", "other", 2), ("twice", "repo", 1)]
        assert await control.model_ready("once")
        assert not await control.model_ready("twice"), "ambiguous"
        assert not await control.model_ready("no")


async def test_a_model_config_name_prefers_its_file(autojump_clock: MockClock, world: World) -> None:
    location = world.put("m", 1)
    world.source.write(location, "configs/big.pbtxt", CONFIG + "max_batch_size: 8")
    world.put("plain", 1)
    async with world.running("none", model_config_name="big"):
        configs = {model.name: desired.config for model, desired in world.store.snapshot().desired.items()}
        assert (configs["m"].max_batch_size, configs["plain"].max_batch_size) == (8, 0)


async def test_without_auto_complete_a_configuration_is_needed_and_must_be_whole(autojump_clock: MockClock, world: World) -> None:
    world.put("none.identity", 1, config="")
    world.put("half", 1, config='backend: "identity" input [{ name: "IN" dims: [4] }]')
    async with world.running("none", auto_complete=False):
        rows = world.index()
        assert rows[0][:3] == ("half", 1, "UNAVAILABLE")
        assert "model input 'IN' must specify 'data_type'" in rows[0][3]
        assert rows[1][:3] == ("none.identity", None, "UNAVAILABLE")
        assert "automatic completion is disabled" in rows[1][3]


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ('{ name: "checksum" parameters { key: "MD5:1/model.bin" value: "00ff" } }', "expected 00ff"),
        ('{ name: "checksum" parameters { key: "MD5:1/no.bin" value: "00ff" } }', "there is no file '1/no.bin'"),
        ('{ name: "checksum" parameters { key: "SHA:1/model.bin" value: "00ff" } }', "no parameter 'SHA:1/model.bin'"),
        ('{ name: "decrypt" }', "unable to find repository agent 'decrypt'"),
    ],
)
async def test_agents_that_refuse(autojump_clock: MockClock, world: World, agents: str, said: str) -> None:
    world.put("m", 1, config=CONFIG + f"model_repository_agents {{ agents [{agents}] }}")
    async with world.running("none"):
        ((_, _, state, reason),) = world.index()
        assert state == "UNAVAILABLE"
        assert said in reason


async def test_the_checksum_agent_accepts(autojump_clock: MockClock, world: World) -> None:
    location = ModelLocation("repo", "m")
    world.put("m", 1)
    actual = await world.source.md5(location, "1/model.bin")
    assert actual is not None
    parameters = f'parameters {{ key: "MD5:1/model.bin" value: "{actual.upper()}" }}'
    world.put("m", 1, config=CONFIG + f'model_repository_agents {{ agents [{{ name: "checksum" {parameters} }}] }}')
    async with world.running("none"):
        assert world.index() == [("m", 1, "READY", "")]
