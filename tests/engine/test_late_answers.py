"""Answers of ordinary models that come after their batch: each request ends once, with its answer, its deadline or a stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from tests.submitting import submit_to
from tpy.backend import AnswerLater, ExecutionBatch, ExecutionResult, ResponseSender
from tpy.errors import InvalidArgument
from tpy.units import NS_PER_MS

from .fakes import RecordingSink, Rig, ScriptedBackend, config, dynamic, request, rig, tensor, values


class Later:
    """An execute that keeps every sender, and that knows for which requests nobody waits any more."""

    def __init__(self) -> None:
        self.senders: list[ResponseSender] = []
        self.ended: list[int] = []

    def __call__(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        return [AnswerLater(begin=self._keep) for _ in batch.requests]

    def _keep(self, sender: ResponseSender) -> None:
        number = len(self.senders)
        self.senders.append(sender)
        sender.watch(lambda count: None, lambda: self.ended.append(number))

    def answer(self, number: int, value: float = 1) -> None:
        outputs = [tensor(1, 2, name="OUT", value=value)]
        self.senders[number].send(ExecutionResult(outputs), final=True, wait=False)


async def settled(served: Rig) -> tuple[int, int, int, int]:
    """Succeeded, failed, cancelled, other failures."""
    await trio.testing.wait_all_tasks_blocked()
    (row,) = served.plane.statistics("m")
    return (row.inference.success.count, row.inference.fail.count, row.failures.canceled, row.failures.other)


async def test_requests_overtake_each_other_and_the_instance_goes_on(autojump_clock: object) -> None:
    later = Later()
    async with rig(backend=ScriptedBackend(later)) as served:
        await served.serve(config(dynamic_batching=dynamic()))
        sinks = [served.submit() for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert len(later.senders) == 3
        later.answer(2, 2)
        later.answer(0, 0)
        assert values(await sinks[2].wait()) == [2, 2]
        assert values(await sinks[0].wait()) == [0, 0]
        later.senders[1].send(ExecutionResult(error=InvalidArgument("not this one")), final=True, wait=False)
        await sinks[1].wait()
        assert sinks[1].error == "Invalid argument: not this one"
        assert await settled(served) == (2, 1, 0, 0)
        assert later.ended == []


async def test_a_batch_may_answer_some_at_once(autojump_clock: object) -> None:
    later = Later()

    def execute(batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        at_once = ExecutionResult([tensor(1, 2, name="OUT", value=7)])
        return [at_once, *later(batch)[1:]]

    async with rig(backend=ScriptedBackend(execute)) as served:
        await served.serve(config(dynamic_batching=dynamic(delay_ms=5)))
        sinks = [served.submit() for _ in range(2)]
        assert values(await sinks[0].wait()) == [7, 7]
        later.answer(0, 3)
        assert values(await sinks[1].wait()) == [3, 3]


async def test_cancelling_notifies_the_model_and_drops_its_response(autojump_clock: object) -> None:
    later = Later()
    async with rig(backend=ScriptedBackend(later)) as served:
        await served.serve(config())
        sink = served.submit()
        await trio.testing.wait_all_tasks_blocked()
        handle = submit_to(served.plane.inference, request(), sink)
        await trio.testing.wait_all_tasks_blocked()
        handle.cancel()
        handle.cancel()
        assert later.ended == [1]
        later.answer(1)
        later.answer(0)
        assert values(await sink.wait()) == [1, 1]
        assert (await settled(served))[:3] == (1, 1, 1)
        assert len(sink.responses) == 1


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_an_end_during_execution_notifies_the_model_too(autojump_clock: object, how: str) -> None:
    later = Later()
    async with rig(backend=ScriptedBackend(later), latency_ms=100) as served:
        await served.serve(config())
        deadline_ns = round(trio.current_time() * 1000) * NS_PER_MS + 50 * NS_PER_MS if how == "deadline" else None
        sink = RecordingSink()
        handle = submit_to(served.plane.inference, request(deadline_ns=deadline_ns), sink)
        await trio.sleep(0.06)
        if how == "cancel":
            handle.cancel()
        assert len(sink.responses) == (how == "deadline")
        assert later.senders == []
        await trio.sleep(0.1)
        assert later.ended == [0]
        later.answer(0)
        handle.cancel()
        outcome = (0, 1, 1, 0) if how == "cancel" else (0, 1, 0, 0)
        assert await settled(served) == outcome
        assert len(sink.responses) == (how == "deadline")


async def test_the_deadline_of_the_request_holds(autojump_clock: object) -> None:
    later = Later()
    async with rig(backend=ScriptedBackend(later)) as served:
        await served.serve(config())
        sink = served.submit(request(deadline_ns=round(trio.current_time() * 1000) * NS_PER_MS + 50 * NS_PER_MS))
        await sink.wait()
        assert sink.error == "Unavailable: Request timeout expired"
        assert later.ended == [0]
        later.answer(0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sink.responses) == 1


async def test_unloading_waits_for_late_answers(autojump_clock: object) -> None:
    later = Later()
    backend = ScriptedBackend(later)
    async with rig(backend=backend) as served:
        await served.serve(config())
        sink = served.submit()
        await trio.testing.wait_all_tasks_blocked()
        served.want(config(), ())
        await trio.sleep(1)
        assert backend.instances, "closed with an open request"
        later.answer(0)
        assert values(await sink.wait()) == [1, 1]
        await trio.sleep(1)
        assert backend.instances == []


async def test_a_stop_ends_them(autojump_clock: object) -> None:
    later = Later()
    async with rig(backend=ScriptedBackend(later), exit_timeout_ms=100) as served:
        await served.serve(config())
        sink = served.submit()
        await trio.testing.wait_all_tasks_blocked()
    assert "stopping" in sink.error.lower()
    assert later.ended == [0]
