"""Configurations and files that a load call brings along."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.control.folders import scratch_files
from tests.control.world import CONFIG_JSON, POLL, World, load
from tpy.errors import Internal, InvalidArgument
from tpy.ids import ModelId


def batch_size(world: World, name: str = "m") -> int:
    return world.store.snapshot().desired[ModelId(name)].config.max_batch_size


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
        with pytest.raises(InvalidArgument, match="expected the parameter 'config', too"):
            await control.load(load("m", files={"1/model.bin": b"x"}))
        with pytest.raises(InvalidArgument, match="needs a folder '1', which is a file in the same override"):
            await control.load(load("m", config_json=CONFIG_JSON, files={"1": b"", "1/model.bin": b"x"}))
        with pytest.raises(InvalidArgument, match="at least one version must be available"):
            await control.load(load("m", config_json=CONFIG_JSON, files={"labels.txt": b"x"}))
        with pytest.raises(Internal, match=r"failed to open binary file for write .*: File name too long"):
            await control.load(load("m", config_json=CONFIG_JSON, files={"1/" + "x" * 300: b"x"}))
        assert scratch_files(tmp_path) == []
        assert world.index() == []
