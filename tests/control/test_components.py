"""Loads of ensembles with their components, and of one name in several namespaces."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.control.world import World, load
from tpy.errors import Internal
from tpy_control.options import Readiness

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


async def test_an_ensemble_that_is_loaded_at_the_start_brings_its_components(autojump_clock: MockClock, world: World) -> None:
    world.put("leaf", 1)
    world.put("ensemble", 1, config=ENSEMBLE.format("leaf"))
    world.put("other", 1)
    async with world.running(load_models=("ensemble",), readiness=Readiness.ALL_MODELS):
        await wait_all_tasks_blocked()
        assert [row[0] for row in world.index() if row[2] == "READY"] == ["ensemble", "leaf"]


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
