"""Implicit state, and requests that are executed several times. All in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from tests.submitting import submit_to
from tpy.backend import ExecutionBatch, ExecutionResult
from tpy.config.model_config import InitialState, SequenceBatching, SequenceState, TransactionPolicy
from tpy.errors import InvalidArgument
from tpy.messages import DataType, ModelState, Tensor
from tpy_data.engine.loading.model_files import InitialStates

from .fakes import RecordingSink, replace, request, rig, values
from .sequences import STATE, Seen, direct, of, oldest, seen, sequence_backend, sequence_config, summing

STATEFUL = [direct(state=(STATE,)), oldest(state=(STATE,))]


@pytest.mark.parametrize("batching", STATEFUL)
async def test_each_sequence_carries_its_own_state(autojump_clock: MockClock, batching: SequenceBatching) -> None:
    async with rig(backend=sequence_backend(summing), latency_ms=1) as r:
        await r.serve(sequence_config(batching))
        sums: dict[int, float] = {}
        for step, number in enumerate((1, 2, 1, 3, 2, 2, 1)):
            sums[number] = sums.get(number, 0) + step
            sink = r.submit(of(number, step, start=number not in sums or sums[number] == step))
            assert values(await sink.wait()) == [sums[number]] * 2
        together = [r.submit(of(number, 100, end=True)) for number in (1, 2, 3)]
        assert [values(await sink.wait())[0] - sums[number] for number, sink in zip((1, 2, 3), together, strict=True)] == [
            100
        ] * 3
        assert values(await r.submit(of(1, 4, start=True)).wait()) == [4, 4], "the end is the end"


async def test_a_start_in_the_middle_begins_with_the_initial_state(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await r.serve(sequence_config(direct(state=(STATE,))))
        for value, start, expected in ((1, True, 1), (2, False, 3), (5, True, 5), (1, False, 6)):
            assert values(await r.submit(of(1, value, start=start)).wait()) == [expected] * 2


async def test_a_failed_execution_leaves_the_state_as_it_was(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await r.serve(sequence_config(direct(state=(STATE,))))
        await r.submit(of(1, 1, start=True)).wait()
        assert "unlucky" in str((await r.submit(of(1, 13)).wait()).error)
        assert values(await r.submit(of(1, 1, end=True)).wait()) == [2, 2]


async def test_states_begin_with_the_content_of_their_files(autojump_clock: MockClock, tmp_path: Path) -> None:
    folder = tmp_path / "initial_state"
    folder.mkdir()
    (folder / "numbers").write_bytes(np.array([7, 8], np.float32).tobytes() + b"more")
    (folder / "words").write_bytes(b"\x01\0\0\0a\x02\0\0\0bc")
    numbers = replace(STATE, initial_state=(InitialState(name="n", data_type=DataType.FP32, dims=(2,), data_file="numbers"),))
    words = SequenceState(
        input_name="W",
        output_name="W_NEXT",
        data_type=DataType.BYTES,
        dims=(-1,),
        initial_state=(InitialState(name="w", data_type=DataType.BYTES, dims=(2,), data_file="words"),),
    )
    unset = SequenceState(input_name="U", output_name="U_NEXT", data_type=DataType.INT8, dims=(-1, 2))
    model = sequence_config(direct(state=(numbers, words, unset)))
    begun = InitialStates(model, tmp_path).begin().values
    assert {name: value.tolist() for name, value in begun.items() if isinstance(value, np.ndarray)} == {
        "SUM": [[7, 8]],
        "W": [[b"a", b"bc"]],
        "U": [[[0, 0]]],
    }
    async with rig(backend=sequence_backend(summing)) as r:
        await r.serve(model, directory=tmp_path)
        assert values(await r.submit(of(1, 1, start=True, end=True)).wait()) == [8, 9]
        assert values(await r.submit(of(1, 1, start=True, end=True)).wait()) == [8, 9], "the initial state is not written to"


@pytest.mark.parametrize(
    ("datatype", "content", "told"),
    [
        (DataType.FP32, b"1234567", "to have 8 bytes, but the data provided from file only has 7 bytes"),
        (DataType.BYTES, b"\x01\0\0\0a\x09\0\0\0b", "to have 2 string elements, but the data provided from file only has 1"),
        (DataType.FP32, None, "failed to open text file for read"),
    ],
)
async def test_a_bad_file_keeps_the_model_from_loading(
    autojump_clock: MockClock, tmp_path: Path, datatype: DataType, content: bytes | None, told: str
) -> None:
    folder = tmp_path / "initial_state"
    folder.mkdir()
    if content is not None:
        (folder / "file").write_bytes(content)
    state = SequenceState(
        input_name="S",
        output_name="S_NEXT",
        data_type=datatype,
        dims=(2,),
        initial_state=(InitialState(name="s", data_type=datatype, dims=(2,), data_file="file"),),
    )
    async with rig(backend=sequence_backend()) as r:
        r.want(sequence_config(direct(state=(state,))), directory=tmp_path)
        await r.wait_state(1, 1, ModelState.UNAVAILABLE)
        assert told in r.states()[1, 1][1]


class Iterating:
    """Gives each request back until it was executed as often as its input says, and then answers how often that was."""

    def __init__(self, *, decoupled: bool = False) -> None:
        self.executions: dict[str, int] = {}
        self.decoupled = decoupled
        self.looks: list[Seen] = []

    def __call__(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        self.looks += [each for each in seen(batch) if each.ready]
        return [self.execute(each) for each in batch.requests]

    def execute(self, each: Any) -> ExecutionResult:
        done = self.executions[each.id] = self.executions.get(each.id, 0) + 1
        last = done >= each.inputs["IN"].array[0, 0]
        result = ExecutionResult([Tensor("OUT", DataType.FP32, np.full((1, 1), done, np.float32))])
        if self.decoupled:
            each.sender.send(result, final=last)
        return result if last else ExecutionResult(reschedule=True)


@pytest.mark.parametrize("strategy", [direct, oldest])
async def test_an_iterative_request_is_executed_until_the_model_keeps_it(autojump_clock: MockClock, strategy: Any) -> None:
    model = Iterating()
    backend = sequence_backend(model)
    async with rig(backend=backend, latency_ms=1) as r:
        await r.serve(sequence_config(strategy(iterative_sequence=True)))
        sinks = [r.submit(request(1, 2, value=times, id=str(times))) for times in (1, 3, 2)]
        assert [values(await sink.wait()) for sink in sinks] == [[1], [3], [2]]
        looks = model.looks
        assert [sum(look.value == times for look in looks) for times in (1, 3, 2)] == [1, 3, 2]
        assert [look.start for look in looks if look.value == 3] == [1, 0, 0]
        assert {look.end for look in looks} == {-1.0}
        assert len({look.id for look in looks}) == 3
        (statistics,) = r.plane.statistics("m")
        assert statistics.inference_count == 3
        assert statistics.execution_count == len(backend.batches)
        assert statistics.inference.compute_infer.count == 3
        with pytest.raises(InvalidArgument, match="START flag"):
            r.submit(of(5))


async def test_an_iterative_decoupled_request_answers_in_between(autojump_clock: MockClock) -> None:
    backend = sequence_backend(Iterating(decoupled=True))
    async with rig(backend=backend, latency_ms=1) as r:
        await r.serve(
            sequence_config(direct(iterative_sequence=True), model_transaction_policy=TransactionPolicy(decoupled=True))
        )
        sinks = [r.submit(request(1, 2, value=3, id=name)) for name in ("a", "b")]
        await trio.sleep(1)
        for sink in sinks:
            assert [(response.outputs[0].array.item(), response.final) for response in sink.responses] == [
                (1, False),
                (2, False),
                (3, True),
            ]
        (statistics,) = r.plane.statistics("m")
        assert (statistics.inference_count, statistics.inference.success.count) == (2, 2)


async def test_a_cancelled_iterative_request_is_not_executed_again(autojump_clock: MockClock) -> None:
    backend = sequence_backend(Iterating())
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(sequence_config(oldest(iterative_sequence=True), max_batch_size=1))
        sink = RecordingSink()
        handle = submit_to(r.plane.inference, request(1, 2, value=1000, id="long"), sink)
        other = r.submit(request(1, 2, value=3, id="short"))
        assert values(await other.wait()) == [3]
        handle.cancel()
        executed = len(backend.batches)
        await trio.sleep(1)
        assert len(backend.batches) <= executed + 1
        assert not sink.responses
        assert r.plane.statistics("m")[0].failures.canceled == 1
