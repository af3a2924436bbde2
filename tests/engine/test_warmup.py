"""Warm-up: every instance executes its samples before its version is READY."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.engine.fakes import ScriptedBackend, config, instances, rig
from tpy.backend import ExecutionBatch, ExecutionResult
from tpy.config.model_config import Warmup, WarmupInput
from tpy.errors import Internal
from tpy.messages import DataType, ModelState
from tpy.testing.loop_guard import LoopGuard


def warmup(entry: WarmupInput, **fields: object) -> tuple[Warmup, ...]:
    return (Warmup(name="w", inputs={"IN": entry}, **fields),)  # type: ignore[arg-type]  # mixed values


F2 = {"data_type": DataType.FP32, "dims": (2,)}


async def test_every_instance_is_warmed_up_before_ready(autojump_clock: MockClock, loop_guard: LoopGuard, tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "data").write_bytes(struct.pack("<2f", 5, 6) + b"more than needed")
    samples = (
        *warmup(WarmupInput(zero_data=True, **F2), batch_size=3, count=2),  # type: ignore[arg-type]  # mixed values
        *warmup(WarmupInput(random_data=True, **F2), batch_size=1),  # type: ignore[arg-type]  # mixed values
        *warmup(WarmupInput(input_data_file="data", **F2), batch_size=1),  # type: ignore[arg-type]  # mixed values
        *warmup(WarmupInput(zero_data=True, **F2), batch_size=0),  # type: ignore[arg-type]  # mixed values
    )
    async with rig() as r:
        await r.serve(config(model_warmup=samples, instance_group=instances(2)), directory=tmp_path)
        assert len(r.backend.batches) == 2 * 4
        one = [[asked.inputs["IN"].array.tolist() for asked in batch.requests] for batch in r.backend.batches[:4]]
        assert one[0] == one[1] == [[[0, 0]]] * 3
        assert all(0 <= value < 1 for value in one[2][0][0])
        assert one[3] == [[[5, 6]]]
        assert r.plane.statistics("m")[0].execution_count == 0


@pytest.mark.parametrize(
    ("entry", "size", "reason"),
    [
        (
            WarmupInput(data_type=DataType.FP32, dims=(-1,), zero_data=True),
            1,
            "Invalid argument: warmup setting expects all variable-size dimensions are specified for input 'IN'",
        ),
        (
            WarmupInput(data_type=DataType.FP32, dims=(3,), zero_data=True),
            1,
            "Invalid argument: [request id: <id_unknown>] unexpected shape for input 'IN' for model 'm'. Expected [-1,2], got",
        ),
        (
            WarmupInput(data_type=DataType.INT32, dims=(2,), zero_data=True),
            1,
            "Invalid argument: [request id: <id_unknown>] inference input 'IN' data-type is 'INT32', but model 'm' expects",
        ),
        (
            WarmupInput(data_type=DataType.FP32, dims=(2,)),
            1,
            "warmup setting expects input 'IN' to have input_data_type set",
        ),
        (
            WarmupInput(data_type=DataType.FP32, dims=(2,), zero_data=True),
            9,
            "Invalid argument: failed to run warmup sample 'w': batch size 9 for 'm', max allowed is 8; ",
        ),
        (
            WarmupInput(data_type=DataType.FP32, dims=(2,), input_data_file="short"),
            1,
            "Invalid argument: [request id: <id_unknown>] warmup setting expects 8 bytes, but the data provided from short only",
        ),
        (
            WarmupInput(data_type=DataType.FP32, dims=(2,), input_data_file="none"),
            1,
            "Internal: failed to open text file for read ",
        ),
        (
            WarmupInput(data_type=DataType.FP32, dims=(2,), input_data_file="../config.pbtxt"),
            1,
            "Invalid argument: file '../config.pbtxt' in the model configuration must stay inside the model's directory",
        ),
    ],
)
async def test_a_warmup_that_is_wrong_fails_the_load(
    autojump_clock: MockClock, loop_guard: LoopGuard, entry: WarmupInput, size: int, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"1234")
    async with rig() as r:
        r.want(config(model_warmup=warmup(entry, batch_size=size)), directory=tmp_path)
        await r.wait_state(1, 1, ModelState.UNAVAILABLE)
        assert reason in r.states()[1, 1][1]
        assert (r.backend.instances, r.backend.loaded) == ([], [])


async def test_a_warmup_that_raises_fails_the_load_with_tritons_text(
    autojump_clock: MockClock, loop_guard: LoopGuard, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tpy_data")

    def nope(batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        raise Internal("nope")

    async with rig(backend=ScriptedBackend(nope)) as r:
        r.want(config(model_warmup=warmup(WarmupInput(zero_data=True, **F2), batch_size=2)))  # type: ignore[arg-type]  # mixed values
        await r.wait_state(1, 1, ModelState.UNAVAILABLE)
        assert r.states()[1, 1][1] == "Invalid argument: failed to run warmup sample 'w': nope; nope; "
        assert "instance m_0 is running warmup sample 'w' for iteration 1" in caplog.text
        assert (r.backend.instances, r.backend.loaded) == ([], [])
