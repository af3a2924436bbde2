"""Configurations are checked without loading anything, in every mode."""

from __future__ import annotations

import json

import pytest
from trio.testing import MockClock

from tests.control.world import CONFIG, World
from tpy.errors import InvalidArgument

ENSEMBLE = """
platform: "ensemble"
input [ { name: "A" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [ { model_name: "nowhere" model_version: -1
  input_map { key: "x" value: "A" } output_map { key: "y" value: "B" } } ] }
"""


async def test_a_sound_configuration(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1, 2)
    async with world.running() as control:
        found = await control.check_config("m")
        assert (found.problems, found.file, found.text) == ((), "config.pbtxt", CONFIG)
        assert (found.versions, found.selected) == ((1, 2), (2,))
        config = json.loads(found.config_json)
        config["version_policy"] = {"specific": {"versions": [1]}}
        other = await control.check_config("m", json.dumps(config))
        assert (other.problems, other.selected, other.file) == ((), (1,), "")
        assert world.index() == [("m", None, None, "")], "nothing was loaded"


async def test_problems_have_lines_and_fields(autojump_clock: MockClock, world: World) -> None:
    world.put("m", 1)
    world.put("e", 1, config=ENSEMBLE)
    async with world.running() as control:
        text = '{"backend": "identity",\n "max_batch_size": -1,\n "version_policy": {"specific": {"versions": [7]}}}'
        found = await control.check_config("m", text)
        by_field = {problem.field: problem for problem in found.problems}
        assert (by_field["max_batch_size"].line, by_field["max_batch_size"].column) == (2, 2)
        assert "at least one version must be available" in by_field["version_policy"].message
        assert found.selected == ()
        (syntax,) = (await control.check_config("m", '{"backend": "identity"\n "max_batch_size": 1}')).problems
        assert (syntax.line, syntax.severity) == (2, "error")
        assert any(problem.line == 2 for problem in (await control.check_config("m", 'backend: "identity"\nno_such: 1')).problems)
        assert any("depends on 'nowhere'" in problem.message for problem in (await control.check_config("e")).problems)


async def test_models_that_cannot_be_told(autojump_clock: MockClock, world: World) -> None:
    world.put("twice", 1)
    world.put("twice", 1, repository="other")
    async with world.running() as control:
        for name in ("nowhere", "twice"):
            with pytest.raises(InvalidArgument, match=f"a model '{name}'; expected one"):
                await control.check_config(name)
        with pytest.raises(InvalidArgument, match="path traversal"):
            await control.check_config("../m")
