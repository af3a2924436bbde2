"""ThreadChannel: an instance in a thread of the server's executes what it is given one batch after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import pytest
import trio.testing
from trio.testing import MockClock

from tests.engine.direct_channel import Direct
from tests.engine.fakes import RecordingSink, ScriptedBackend, config, identity, request, rig, values
from tests.submitting import submit_to
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy.limits import QUICK_BATCHES_NS_MAX
from tpy.testing.loop_guard import LoopGuard
from tpy_data.engine.channels import channel
from tpy_data.engine.channels.channel import ThreadChannel
from tpy_data.engine.requests.batch import Batch
from tpy_data.executors.executor import ThreadExecutor
from tpy_data.schedulers.core import credit


async def test_quick_requests_are_given_together_and_executed_alone(
    autojump_clock: MockClock, loop_guard: LoopGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    give = ThreadChannel.give

    def noted(self: ThreadChannel, batches: Sequence[Batch]) -> None:
        given.append(len(batches))
        give(self, batches)

    monkeypatch.setattr(ThreadChannel, "give", noted)
    async with rig() as r:
        await r.serve(config())
        sinks = [r.submit(request(1 + number % 3, 2, value=number)) for number in range(40)]
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2 * (1 + number % 3)
        (statistics,) = r.plane.statistics("m")
        assert statistics.execution_count == 40
        assert {size.batch_size: size.compute_infer.count for size in statistics.batches} == {1: 14, 2: 13, 3: 13}
    assert [len(batch.requests) for batch in r.backend.batches] == [1] * 40
    assert [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches] == list(range(40))
    assert given == [1, 2, 4, 8, 16, 9]


async def test_slow_requests_wait_where_they_can_be_seen_and_cancelled(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config())
        sinks = [r.submit() for _ in range(5)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            (statistics,) = r.plane.statistics("m")
            assert statistics.pending_requests == max(0, 3 - number)
            assert sink.at_ms == 10 * (number + 1)


async def test_the_failure_of_an_instance_costs_only_the_request_that_it_executed(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    def die_at_20(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] == 20:
            raise InstanceFailure("it died")
        return identity(batch)

    async with rig(backend=ScriptedBackend(die_at_20)) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(40)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            if number == 20:
                assert sink.error == "Internal: it died"
            else:
                assert values(sink.response) == [number] * 2
                assert sink.at_ms == (0 if number < 20 else 1000), "the rest waits for the new instance"
        (statistics,) = r.plane.statistics("m")
        assert (statistics.execution_count, statistics.failures.backend) == (40, 1)
    executed = [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches]
    assert executed == list(range(40)), "each once, in order"


async def test_an_error_of_one_request_is_not_that_of_its_neighbours(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    def fail_odd(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] % 2:
            raise ValueError("odd")
        return identity(batch)

    async with rig(backend=ScriptedBackend(fail_odd)) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(20)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            assert (sink.response.error is None) == (number % 2 == 0)


async def test_nobody_waits_for_a_slow_request_behind_which_he_was_given() -> None:
    go, at_work = threading.Event(), threading.Event()

    def slow_at_20(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] == 20:
            at_work.set()
            assert go.wait(30)
        return identity(batch)

    with trio.fail_after(30):
        async with rig(backend=ScriptedBackend(slow_at_20), executor=ThreadExecutor()) as r:
            await r.serve(config())
            sinks = [RecordingSink() for _ in range(40)]
            handles = [submit_to(r.plane.inference, request(value=number), sink) for number, sink in enumerate(sinks)]
            for number in range(20):
                assert values(await sinks[number].wait()) == [number] * 2
            await trio.to_thread.run_sync(at_work.wait)
            while r.plane.statistics("m")[0].pending_requests < 19:
                await trio.lowlevel.checkpoint()
            handles[30].cancel()
            go.set()
            for number in range(20, 40):
                if number != 30:
                    assert values(await sinks[number].wait()) == [number] * 2
            (statistics,) = r.plane.statistics("m")
            assert statistics.execution_count == statistics.inference.success.count == 39
            assert statistics.failures.canceled == 1
    executed = [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches]
    assert executed == [number for number in range(40) if number != 30]


async def test_a_version_drains_what_it_has_begun_and_not(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig() as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(30)]
        r.want(config(), ())
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2


@pytest.mark.parametrize("gone", [(1,), (0, 1, 2), (2, 3)])
async def test_a_request_that_nobody_waits_for_is_passed_over(
    autojump_clock: MockClock, loop_guard: LoopGuard, gone: tuple[int, ...]
) -> None:
    async with rig() as r:
        await r.serve(config())
        sinks = [RecordingSink() for _ in range(7)]
        handles = [submit_to(r.plane.inference, request(value=number), sink) for number, sink in enumerate(sinks)]

        class Canceller(RecordingSink):
            def deliver(self, response: object) -> None:
                super().deliver(response)  # type: ignore[arg-type]  # as it came
                for number in gone:
                    handles[3 + number].cancel()

        # Answered together with the second and third; the other four are on their way then.
        handles[2].sink = Canceller()  # type: ignore[attr-defined]  # a ticket
        for number, sink in enumerate(sinks):
            if number != 2 and number - 3 not in gone:
                assert values(await sink.wait()) == [number] * 2
        (statistics,) = r.plane.statistics("m")
        assert statistics.failures.canceled == len(gone)
        assert statistics.execution_count == 7 - len(gone)


async def test_a_slow_instance_goes_on_with_what_it_holds_and_each_answer_leaves_at_once(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(9)]
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2
            assert sink.at_ms == 10 * (number + 1)


def test_quick_batches_are_reported_together_and_once() -> None:
    direct = Direct()
    direct.give("abcd")
    direct.worker.step(4)
    assert len(direct.worker.reports) == 1
    direct.report()
    assert direct.reported == [["a", "b", "c", "d"]]


def test_what_is_over_for_long_enough_is_reported_before_the_rest() -> None:
    direct = Direct()
    direct.took_ns = [QUICK_BATCHES_NS_MAX // 2]
    direct.give("abcdef")
    direct.worker.step(3)
    assert len(direct.worker.reports) == 1
    direct.worker.step()
    direct.report()
    assert direct.reported == [["a", "b", "c", "d"]], "also what was over since"


def test_a_slow_batch_is_reported_at_once_and_so_is_the_one_behind_it() -> None:
    direct = Direct()
    direct.took_ns = [1, QUICK_BATCHES_NS_MAX + 1, 1, 1, 1]
    direct.give("abcde")
    for _ in range(5):
        direct.worker.step()
        direct.report()
    assert direct.reported == [["a", "b"], ["c"], ["d", "e"]]


def test_one_that_is_passed_over_behind_a_slow_batch_says_nothing_of_the_next() -> None:
    direct = Direct()
    direct.took_ns = [QUICK_BATCHES_NS_MAX + 1, 1, 1, 1]
    tickets = direct.give("abcde")
    tickets["b"].abandoned = True
    for _ in range(3):
        direct.worker.step()
        direct.report()
    assert direct.reported == [["a"], ["b"], ["c"]]


def test_what_is_revoked_is_not_executed_and_what_is_over_is_told_first() -> None:
    direct = Direct()
    direct.give("abcd")
    direct.worker.step(2)
    assert len(direct.channel.revoke()) == 2
    assert direct.reported == [["a", "b"]]
    direct.worker.step()
    direct.report()
    assert direct.executed == ["a", "b"]
    assert direct.reported == [["a", "b"]]
    direct.give("e")
    direct.worker.step()
    direct.report()
    assert direct.reported[1:] == [["e"]]


def test_what_is_over_when_the_rest_is_revoked_by_another_thread_is_told_all_the_same() -> None:
    """The thread saw that more waits, so it did not report; then that was revoked."""
    direct = Direct()
    direct.give("ab")
    direct.worker.step()
    assert not direct.worker.reports
    direct.channel.waiting.clear()  # as between the two looks of the thread
    direct.worker.step()
    direct.report()
    assert direct.reported == [["a"]]


def test_what_is_over_while_the_rest_is_revoked_is_told_before_the_thread_goes_to_sleep() -> None:
    """The same, but it was revoked before the thread looked whether to go on."""
    direct = Direct()
    direct.give("abc")
    direct.worker.step()
    (job,) = direct.worker.jobs

    def report(batches: Sequence[Batch], failure: str | None) -> None:
        if not direct.reported:
            job.begin()
            assert not job.run(), "c is behind it"
        direct.take_report(batches, failure)

    direct.channel.open(report)
    assert [batch.tickets[0].id for batch in direct.channel.revoke()] == ["c"]
    assert job.has_more
    direct.worker.step()
    assert not direct.worker.jobs
    direct.report()
    assert direct.reported == [["a"], ["b"]]


def test_what_is_given_while_the_thread_ends_its_job_is_executed_once() -> None:
    """Between its last look at what waits and the word that it has none, the loop gives more: no job of its own is put."""
    direct = Direct()
    direct.give("a")

    class Waiting(deque[Batch]):
        looks = 0

        def __len__(self) -> int:
            self.looks += 1
            if self.looks == 2:  # in `has_more`: the first look was that of `execute`
                direct.give("b")
                return 0
            return super().__len__()

    direct.channel.waiting = Waiting(direct.channel.waiting)
    direct.worker.step(2)
    direct.report()
    assert direct.executed == ["a", "b"]
    assert [name for report in direct.reported for name in report] == ["a", "b"]
    assert not direct.worker.jobs


def test_a_request_that_has_ended_is_passed_over() -> None:
    direct = Direct()
    tickets = direct.give("abc")
    tickets["b"].abandoned = True
    direct.worker.step(3)
    direct.report()
    assert direct.executed == ["a", "c"]
    assert direct.reported == [["a", "b", "c"]]


def test_an_instance_that_failed_executes_nothing_more() -> None:
    direct = Direct()
    direct.fails_at = "b"
    direct.give("abcd")
    direct.worker.step(2)
    direct.report()
    assert not direct.worker.jobs
    assert direct.executed == ["a", "b"]
    assert (direct.reported, direct.failures) == ([["a", "b"]], ["it died"])
    assert len(direct.channel.revoke()) == 2


async def test_a_slow_instance_that_dies_loses_only_what_it_executed(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    def die_at_2(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] == 2:
            raise InstanceFailure("it died")
        return identity(batch)

    async with rig(backend=ScriptedBackend(die_at_2), latency_ms=10) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(6)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            if number == 2:
                assert sink.error == "Internal: it died"
            else:
                assert values(sink.response) == [number] * 2
    executed = [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches]
    assert executed == list(range(6)), "each once, in order"


async def test_a_prefetched_request_that_nobody_waits_for_or_that_is_late_is_passed_over(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config())
        sinks = [RecordingSink() for _ in range(5)]
        late = {3: {"timeout_us": 15_000}}
        handles = [
            submit_to(r.plane.inference, request(value=number, **late.get(number, {})), sink) for number, sink in enumerate(sinks)
        ]
        await sinks[0].wait()
        handles[2].cancel()
        for number in (1, 3, 4):
            await sinks[number].wait()
        assert sinks[3].error is not None
        assert sinks[3].at_ms == 15
        assert sinks[4].at_ms == 30
    executed = [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches]
    assert executed == [0, 1, 4]


async def test_unloading_waits_for_what_an_instance_holds(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(5)]
        await sinks[0].wait()
        r.want(config(), ())
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2


async def test_the_answer_of_a_quick_request_does_not_wait_for_a_slow_one_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a slow model: nobody asks for what it holds."""
    for module in (credit, channel):
        monkeypatch.setattr(module, "QUICK_BATCHES_NS_MAX", 0)  # every instance is slow
    go, at_work = threading.Event(), threading.Event()

    def work(batch: ExecutionBatch) -> list[ExecutionResult]:
        number = batch.requests[0].inputs["IN"].array[0, 0]
        if number == 2:
            at_work.set()
            assert go.wait(30)
        return identity(batch)

    with trio.fail_after(30):
        async with rig(backend=ScriptedBackend(work), executor=ThreadExecutor()) as r:
            await r.serve(config())
            sinks = [r.submit(request(value=number)) for number in range(4)]
            await trio.to_thread.run_sync(at_work.wait)
            assert values(await sinks[1].wait()) == [1, 1]
            assert not sinks[2].responses
            go.set()
            for number, sink in enumerate(sinks):
                assert values(await sink.wait()) == [number] * 2


class GivenBetween(deque[Batch]):
    """The batches that wait in a channel; `give` is called at the third look at nothing: the last
    of a thread that is about to end its job."""

    def __init__(self, give: Callable[[], object]) -> None:
        super().__init__()
        self._gives = [None, None, give]

    def __len__(self) -> int:
        if not super().__len__() and self._gives and (give := self._gives.pop(0)):
            give()
        return super().__len__()


def test_a_second_job_of_an_instance_that_has_failed_executes_nothing() -> None:
    """The first went on with what was given together with the second."""
    direct = Direct()
    direct.fails_at = "b"
    direct.channel.waiting = GivenBetween(lambda: direct.give("bc"))
    direct.give("a")
    direct.worker.step(2)
    assert len(direct.worker.jobs) == 1, "that of the second"
    direct.worker.step()
    direct.report()
    assert (direct.executed, direct.reported, direct.failures) == (["a", "b"], [["a", "b"]], ["it died"])
    assert [batch.tickets[0].id for batch in direct.channel.revoke()] == ["c"]
