"""The file of rollouts, as a data plane writes it and goes on with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.jumping import jump_until
from tpy.config.model_config import ModelParameter
from tpy.errors import Unavailable
from tpy.limits import ROLLOUT_FILE_BYTES_MAX, ROLLOUT_LOOK_S
from tpy.messages import ModelState

from .fakes import rig
from .test_rollouts import MODEL, begin, changed, kept, loading_ms, slow_old


async def test_no_file_is_written_that_could_not_be_read_again(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rollouts.json"
    lines = {"other": {"version": 1, "reason": "x" * (ROLLOUT_FILE_BYTES_MAX - 60)}}
    file.write_text(json.dumps(lines))
    before = file.read_bytes()
    async with rig(rollout_file=file) as r:
        await begin(r)
        while "cannot be written" not in caplog.text:
            await trio.lowlevel.checkpoint()
    assert f"--rollout-file {file} cannot be written: it would have 16777" in caplog.text
    assert "bytes, expected at most 16777216" in caplog.text
    assert file.read_bytes() == before


async def test_a_file_that_could_not_be_written_is_written_later(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "folder" / "rollouts.json"
    async with rig(rollout_file=file) as r:
        await begin(r)
        r.plane.rollouts.roll_back("m")
        await jump_until(autojump_clock, ROLLOUT_LOOK_S, lambda: "rollouts.json cannot be written: " in caplog.text)
        looks = iter(range(5))
        await jump_until(autojump_clock, ROLLOUT_LOOK_S, lambda: next(looks) == 4)
        assert caplog.text.count("rollouts.json cannot be written: ") == 1
        file.parent.mkdir()
        await jump_until(autojump_clock, ROLLOUT_LOOK_S, file.exists)
        assert json.loads(file.read_bytes())["m"]["state"] == "rolled back"


async def test_a_version_has_its_alias_while_the_old_one_is_still_loading(autojump_clock: MockClock, tmp_path: Path) -> None:
    names = {"aliases": ModelParameter(string_value='{"stable": 1, "canary": 2}')}
    model = changed(MODEL, parameters={**MODEL.parameters, **names})
    async with rig(backend=slow_old(), load_ms=loading_ms, rollout_file=kept(tmp_path, state="running")) as r:
        r.want(model, {1: 1, 2: 1})
        await r.wait_state(2, 1, ModelState.READY)
        assert r.plane.inference.resolve("m@canary", None).description.version == 2
        with pytest.raises(Unavailable, match="version 1 is not at ready state"):
            r.plane.inference.resolve("m@stable", None)
