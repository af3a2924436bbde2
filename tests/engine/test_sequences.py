"""Sequences in the engine: admission, controls, empty places, instances. All in virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.submitting import submit_to
from tpy.backend import AnswerLater, ExecutionBatch, ExecutionResult, InstanceFailure, ResponseSender
from tpy.config import RequestTimeout
from tpy.config.model_config import ControlKind, Warmup, WarmupInput
from tpy.errors import TpyError, Unavailable
from tpy.messages import DataType, InferenceRequest, ModelState, Tensor
from tpy_data.engine.admission.sequence_controls import SequenceControls

from .fakes import RecordingSink, Rig, config, instances, request, rig, tensor, values
from .sequences import (
    STATE,
    TEXT_INPUT,
    Seen,
    control,
    direct,
    echo,
    echo_of,
    of,
    oldest,
    seen,
    sequence_backend,
    sequence_config,
)


def refusal(r: Rig, sent: InferenceRequest) -> str:
    with pytest.raises(TpyError) as caught:
        r.submit(sent)
    return caught.value.message


async def test_requests_that_are_in_no_sequence_are_refused_in_tritons_words(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend()) as r:
        await r.serve(sequence_config())
        no_id = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
        assert refusal(r, request(1, 2)) == no_id
        one_row = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
        assert refusal(r, request(2, 2)) == one_row
        assert "must be <= 8" in refusal(r, request(9, 2))
        begin = "inference request for sequence {} to model 'm' must specify the START flag on the first request of the sequence"
        assert refusal(r, of(5)) == begin.format(5)
        assert refusal(r, of("five")) == begin.format("five")
        assert (
            refusal(r, of("five", start=True))
            == "sequence batching control 'ID' data-type is 'BYTES', but model 'm' expects 'UINT64'"
        )
        own_control = InferenceRequest(model_name="m", inputs=(tensor(1, 2), tensor(1, 1, name="START", datatype=DataType.INT32)))
        assert "expected 1 inputs but got 2 inputs" in refusal(r, own_control)
        (statistics,) = r.plane.statistics("m")
        assert statistics.failures.refused_admission == 7
        assert not r.backend.batches


async def test_control_tensors_mark_the_position_of_a_request(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend()) as r:
        await r.serve(sequence_config())
        for sent in (of(7, 1, start=True), of(7, 2), of(7, 3, end=True), of(8, 4, start=True, end=True)):
            assert values(await r.submit(sent).wait()) == [sent.inputs[0].array[0, 0]] * 2
        assert [seen(batch) for batch in r.backend.batches] == [
            [Seen(1, -1.0, True, 7, 7, 1)],
            [Seen(0, -1.0, True, 7, 7, 2)],
            [Seen(0, 2.5, True, 7, 7, 3)],
            [Seen(1, 2.5, True, 8, 8, 4)],
        ]
        assert "START flag" in refusal(r, of(7))


@pytest.mark.parametrize(
    ("datatype", "correlation_id", "expected"),
    [
        (DataType.UINT64, 2**64 - 1, 2**64 - 1),
        (DataType.INT64, 2**64 - 1, -1),
        (DataType.UINT32, 2**33 + 5, 5),
        (DataType.INT32, 2**31, -(2**31)),
        (DataType.BYTES, "täxt", "täxt".encode()),
        (DataType.BYTES, 77, b"77"),
    ],
)
@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_ids_take_the_type_of_their_control(
    datatype: DataType, correlation_id: int | str, expected: Any, max_batch_size: int
) -> None:
    batching = direct()
    only = control("ID", ControlKind.CONTROL_SEQUENCE_CORRID, data_type=datatype)
    controls = SequenceControls(
        config(max_batch_size=max_batch_size, sequence_batching=type(batching)(direct=batching.direct, control_input=(only,)))
    )
    position = of(correlation_id).sequence
    assert position is not None
    made = controls.of(position)["ID"]
    assert (made.datatype, made.array.dtype) == (datatype, datatype.numpy)
    assert made.array.shape == ((1, 1) if max_batch_size else (1,))
    assert made.array.item() == expected
    assert controls.idle["ID"].array.item() == (b"" if datatype is DataType.BYTES else 0)


async def test_empty_places_are_not_ready_and_count_as_rows(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend()) as r:
        model = sequence_config(input=(*config().input, TEXT_INPUT))
        await r.serve(model)

        def sent(correlation_id: int, value: float, length: int, **flags: bool) -> InferenceRequest:
            text = Tensor("TEXT", DataType.BYTES, np.full((1, length), b"abc", dtype=object))
            made = of(correlation_id, value, **flags)
            return InferenceRequest(model_name="m", inputs=(*made.inputs, text), sequence=made.sequence)

        await r.submit(sent(1, 1, 3, start=True)).wait()
        await r.submit(sent(2, 2, 3, start=True)).wait()
        await r.submit(sent(3, 3, 3, start=True)).wait()
        assert values(await r.submit(sent(3, 5, 4)).wait()) == [5, 5]
        last = r.backend.batches[-1]
        empty = Seen(0, -1.0, False, 0, 0, 0)
        assert seen(last) == [empty, empty, Seen(0, -1.0, True, 3, 3, 5)]
        assert last.requests[0].inputs["TEXT"].array.tolist() == [[b""] * 4]
        assert [each.sequence is None for each in last.requests] == [True, True, False]
        assert (last.requests[0].id, last.requests[0].is_cancelled()) == ("", False)
        (statistics,) = r.plane.statistics("m")
        assert (statistics.inference_count, statistics.execution_count) == (4, 4)
        assert {row.batch_size: row.compute_infer.count for row in statistics.batches} == {1: 1, 2: 1, 3: 2}


async def test_late_answers_for_empty_places_go_nowhere(autojump_clock: MockClock) -> None:
    senders: list[ResponseSender] = []

    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        return [AnswerLater(begin=senders.append) for _ in batch.requests]

    async with rig(backend=sequence_backend(execute)) as r:
        await r.serve(sequence_config())
        sinks = [r.submit(of(number, number, start=True)) for number in (1, 2)]
        await wait_all_tasks_blocked()
        assert len(senders) == 3, "one of them for the empty place before the second sequence"
        for number, sender in enumerate(senders):
            sender.send(echo_of(number), final=True, wait=False)
        assert [values(await sink.wait()) for sink in sinks] == [[0], [2]]


async def test_oldest_batches_sequences_and_leaves_no_place_empty(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(), latency_ms=10) as r:
        await r.serve(sequence_config(oldest()))
        sinks = [r.submit(of(number, number, start=True)) for number in (1, 2, 3)]
        sinks.append(r.submit(of(1, 10, end=True)))
        for sink in sinks:
            await sink.wait()
        assert [[each.value for each in seen(batch)] for batch in r.backend.batches] == [[1], [2, 3, 10]]
        assert not any(not each.ready for batch in r.backend.batches for each in seen(batch))


async def test_a_sequence_that_was_idle_for_too_long_must_begin_anew(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend()) as r:
        await r.serve(sequence_config(direct(idle_ms=1000)))
        await r.submit(of(1, start=True)).wait()
        await trio.sleep(0.9)
        await r.submit(of(1)).wait()
        await trio.sleep(1.1)
        assert "must specify the START flag" in refusal(r, of(1))
        await r.submit(of(1, start=True, end=True)).wait()


async def test_who_waits_for_a_slot_gets_it_in_order(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(), request_timeout=RequestTimeout.QUEUE) as r:
        await r.serve(sequence_config(max_batch_size=1))
        await r.submit(of(1, start=True)).wait()
        second, third = r.submit(of(2, 2, start=True, end=True)), r.submit(of(3, 3, start=True, end=True))
        timed = r.submit(of(4, 4, start=True, timeout_us=1000))
        after = r.submit(of(4, 5, end=True))
        await wait_all_tasks_blocked()
        assert (second.responses, third.responses) == ([], [])
        await trio.sleep(0.01)
        for sink in (timed, after):
            assert sink.error == "Unavailable: timeout of the corresponding sequence has been expired"
        await r.submit(of(1, end=True)).wait()
        assert (values(await second.wait()), values(await third.wait())) == ([2, 2], [3, 3])
        assert r.plane.statistics("m")[0].failures.rejected == 2


async def test_an_enforced_timeout_ends_a_request_of_a_sequence_wherever_it_is(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(), latency_ms=10) as r:
        await r.serve(sequence_config())
        sink = r.submit(of(1, start=True, timeout_us=5_000))
        await sink.wait()
        assert (sink.at_ms, sink.error) == (5, "Unavailable: Request timeout expired")


async def test_cancelling_a_request_that_waits_cancels_what_is_behind_it(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(), latency_ms=10) as r:
        await r.serve(sequence_config())
        first = r.submit(of(1, 1, start=True))
        gone = RecordingSink()
        handle = submit_to(r.plane.inference, of(1, 2), gone)
        behind = r.submit(of(1, 3, end=True))
        other = r.submit(of(2, 4, start=True, end=True))
        handle.cancel()
        assert behind.error.startswith("Cancelled: the sequence was cancelled")
        assert (values(await first.wait()), values(await other.wait())) == ([1, 1], [4, 4])
        assert not gone.responses
        assert "START flag" in refusal(r, of(1))
        failures = r.plane.statistics("m")[0].failures
        assert (failures.canceled, failures.backend) == (2, 0)


async def test_cancelling_a_request_that_runs_leaves_the_sequence(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(), latency_ms=10) as r:
        await r.serve(sequence_config())
        gone = RecordingSink()
        handle = submit_to(r.plane.inference, of(1, 1, start=True), gone)
        await wait_all_tasks_blocked(0.001)
        handle.cancel()
        assert values(await r.submit(of(1, 2, end=True)).wait()) == [2, 2]
        assert not gone.responses


async def test_a_failed_instance_takes_its_sequences_with_it(autojump_clock: MockClock) -> None:
    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        if any(each.value == 13 for each in seen(batch)):
            raise InstanceFailure("it died")
        return echo(batch)

    async with rig(backend=sequence_backend(execute), latency_ms=10) as r:
        await r.serve(sequence_config(oldest()))
        await r.submit(of(1, start=True)).wait()
        running, waiting = r.submit(of(1, 13)), r.submit(of(1, 2))
        assert (await running.wait()).error is not None
        assert waiting.error.startswith("Unavailable: the sequence was lost")
        await trio.sleep(2)
        with pytest.raises(Unavailable, match="was lost: the model instance that held it failed"):
            r.submit(of(1))
        assert values(await r.submit(of(1, 3, start=True, end=True)).wait()) == [3, 3]


async def test_a_sequence_keeps_its_instance_until_it_ends_when_there_are_to_be_fewer(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend()) as r:
        r.want(sequence_config(max_batch_size=1, instance_group=instances(2)), {1: 1})
        await r.wait_state(1, 1, ModelState.READY)
        await r.submit(of(1, start=True)).wait()
        await r.submit(of(2, start=True)).wait()
        assert len(r.backend.instances) == 2
        r.want(sequence_config(max_batch_size=1, instance_group=instances(1)), {1: 1})
        await wait_all_tasks_blocked()
        assert len(r.backend.instances) == 2, "both hold a sequence"
        waiting = r.submit(of(3, 3, start=True, end=True))
        await r.submit(of(1)).wait()
        await r.submit(of(2)).wait()
        await r.submit(of(1, end=True)).wait()
        await r.submit(of(2, end=True)).wait()
        assert values(await waiting.wait()) == [3, 3]
        await wait_all_tasks_blocked()
        assert len(r.backend.instances) == 1


async def test_warmup_begins_a_sequence_unless_its_sample_overrides_it(autojump_clock: MockClock) -> None:
    zero = WarmupInput(data_type=DataType.FP32, dims=(2,), zero_data=True)
    end = WarmupInput(data_type=DataType.FP32, dims=(1,), random_data=True)
    samples = (
        Warmup(name="plain", batch_size=2, inputs={"IN": zero}),
        Warmup(name="own", batch_size=1, inputs={"IN": zero, "END": end}),
    )
    async with rig(backend=sequence_backend()) as r:
        await r.serve(sequence_config(direct(state=(STATE,)), model_warmup=samples))
        plain, own = r.backend.batches
        assert seen(plain) == [Seen(1, -1.0, True, 0, 0, 0)] * 2
        assert 0 <= seen(own)[0].end < 1
        states = [each.state for batch in r.backend.batches for each in batch.requests]
        assert len({id(state) for state in states}) == 3
        assert all(state is not None and np.array_equal(state.values["SUM"], np.zeros((1, 2))) for state in states)  # type: ignore[arg-type]  # an array here
