"""Quick batches are executed on the loop: when, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from tests.engine.direct_channel import Direct
from tpy.limits import (
    HAND_OVER_KEPT,
    HAND_OVER_NS_MAX,
    HAND_OVER_NS_MIN,
    HAND_OVERS_MEASURED,
    LOOP_EXECUTION_INPUT_BYTES_MAX,
    LOOP_EXECUTION_PAUSE,
    LOOP_EXECUTION_STREAK_MAX,
    LOOP_EXECUTION_STREAK_MIN,
    LOOP_TURN_NS_MAX,
    QUICK_BATCHES_NS_MAX,
)
from tpy.messages import DataType, Tensor
from tpy_data.engine.channels.channel import ThreadChannel
from tpy_data.engine.channels.loop_rule import LoopRule
from tpy_data.engine.requests.batch import Batch

STREAK = LOOP_EXECUTION_STREAK_MIN
LATE_MAX = STREAK // 2


class FakeTurns:
    """The end of a turn comes when the test says so."""

    def __init__(self) -> None:
        self.is_long = False
        self.has_more = False
        self.calls: list[Callable[[], object]] = []

    def after_turn(self, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def end(self) -> None:
        for _ in range(len(self.calls)):
            self.calls.pop(0)()


class OnLoop(Direct):
    """With a rule, one request at a time. `threads` has an L for each that was executed on the loop, else a T."""

    def __init__(self) -> None:
        self.turns = FakeTurns()
        self.rule = LoopRule(self.turns)  # type: ignore[arg-type]
        super().__init__(self.rule)
        self.threads = ""
        self.there_ns = [0]

    def ask(self, *arrays: np.ndarray, datatype: DataType = DataType.FP32) -> None:
        """One request, up to its report."""
        self.give("a", {name: Tensor(name, datatype, array) for name, array in zip(("A", "B"), arrays, strict=False)})
        self.turns.end()
        self.threads += "T" if self.worker.jobs else "L"
        self.work()

    def work(self) -> None:
        """Do the work of the thread, up to its report."""
        if self.worker.jobs:
            self.clock.ns += self.there_ns.pop(0) if len(self.there_ns) > 1 else self.there_ns[0]
        while self.worker.jobs:
            self.worker.step()
        self.report()

    def ask_often(self, count: int) -> None:
        for _ in range(count):
            self.ask()


def test_quick_requests_are_executed_on_the_loop() -> None:
    direct = OnLoop()
    direct.ask_often(4 * STREAK)
    assert direct.threads == "T" * STREAK + "L" * 3 * STREAK
    assert direct.reported == [["a"]] * len(direct.threads)


def test_requests_of_one_turn_are_executed_and_reported_together() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.reported.clear()
    direct.give("b")
    direct.give("cd")
    assert direct.executed[-1] == "a"
    assert len(direct.turns.calls) == 1
    direct.turns.end()
    assert direct.reported == [["b", "c", "d"]]


def test_what_there_is_no_time_for_in_this_turn_is_executed_in_the_next_ones() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.reported.clear()
    direct.give("bcd")
    executed = len(direct.executed)
    direct.on_execute = lambda: setattr(direct.turns, "is_long", len(direct.executed) > executed + 1)
    direct.turns.end()
    assert direct.reported == [["b", "c"]]
    direct.give("e")
    direct.turns.end()
    assert direct.reported == [["b", "c"], ["d"]], "one at least"
    direct.turns.end()
    assert direct.reported == [["b", "c"], ["d"], ["e"]]


def test_what_the_loop_has_not_begun_can_be_taken_back() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.give("bc")
    assert [batch.tickets[0].id for batch in direct.channel.revoke()] == ["b", "c"]
    direct.turns.end()
    assert direct.executed[-1] == "a"
    direct.ask()
    assert direct.threads[-1] == "L"


def test_while_the_thread_has_some_nothing_is_executed_beside_it() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.give("b")
    direct.give("c", {"A": Tensor("A", DataType.FP32, np.zeros(1, np.float32))})  # unknown: both are left to the thread
    direct.give("d")
    direct.turns.end()
    assert direct.executed[-1] == "a"
    direct.work()
    assert direct.executed[-3:] == ["b", "c", "d"]
    direct.ask()
    assert direct.threads[-1] == "L"


def test_a_batch_has_no_more_rows_than_those_that_were_quick() -> None:
    direct = OnLoop()

    def give(count: int) -> str:
        direct.channel.give([Batch("m_0", [direct.ticket("x") for _ in range(count)])])
        direct.turns.end()
        where = "T" if direct.worker.jobs else "L"
        direct.work()
        return where

    assert [give(2) for _ in range(STREAK)] == ["T"] * STREAK
    assert [give(count) for count in (1, 2, 3, 3, 4)] == ["L", "L", "T", "L", "T"]


@pytest.mark.parametrize(("took_ns", "others", "count"), [
    (HAND_OVER_NS_MIN, True, None),
    (HAND_OVER_NS_MIN + 1, False, None),
    (HAND_OVER_NS_MIN + 1, True, LATE_MAX + 1),
    (QUICK_BATCHES_NS_MAX, True, 2),
    (QUICK_BATCHES_NS_MAX + 1, False, 2),
    (LOOP_TURN_NS_MAX, True, 2),
])  # fmt: skip
def test_when_others_wait_for_long_the_next_are_left_to_the_thread(took_ns: int, others: bool, count: int | None) -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.took_ns, direct.turns.has_more = [took_ns], others
    direct.threads = ""
    direct.ask_often(count or 3 * LATE_MAX)
    assert "T" not in direct.threads
    direct.took_ns, direct.threads = [1], ""
    direct.ask_often(LOOP_EXECUTION_PAUSE + STREAK)
    assert direct.threads == ("L" if count is None else "T") * (LOOP_EXECUTION_PAUSE + STREAK)
    direct.ask()
    assert direct.threads[-1] == "L"


def test_a_few_that_take_long_change_nothing() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.turns.has_more = True
    direct.took_ns = 20 * [LOOP_TURN_NS_MAX, *[1] * LATE_MAX] + [1]
    direct.threads = ""
    direct.ask_often(100)
    assert direct.threads == "L" * 100


def test_half_of_the_time_is_too_much() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.took_ns = 100 * [LOOP_TURN_NS_MAX, 1]
    direct.threads = ""
    direct.ask_often(4)
    assert direct.threads == "LLLT"


def test_those_behind_it_wait_for_one() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.took_ns = [HAND_OVER_NS_MIN + 1]
    for _ in range(LATE_MAX + 1):
        direct.give("bcde")  # three of four have others behind them
        direct.turns.end()
        direct.work()
    direct.threads = ""
    direct.ask()
    assert direct.threads == "T"


def test_two_quick_ones_in_the_thread_outweigh_a_slow_one() -> None:
    """It may have waited for the interpreter: under load many do."""
    direct = OnLoop()
    direct.ask_often(STREAK - 1)
    direct.took_ns = [QUICK_BATCHES_NS_MAX + 1, 1]
    direct.ask_often(5)
    assert direct.threads == "T" * (STREAK + 3) + "L"
    slow = OnLoop()
    slow.took_ns = 200 * [QUICK_BATCHES_NS_MAX + 1, 1]
    slow.ask_often(400)
    assert "L" not in slow.threads


def test_what_waited_in_the_thread_says_nothing() -> None:
    """One in the beginning says something: CPU time is measured after a slow one."""
    slow_ns = 4 * QUICK_BATCHES_NS_MAX

    def where(waits_ns: int, took_ns: list[int], count: int = 4 * STREAK) -> str:
        direct = OnLoop()
        direct.took_ns, direct.waits_ns = took_ns, waits_ns
        direct.ask_often(count)
        return direct.threads

    pattern = 200 * [slow_ns, 1, slow_ns]
    waited = where(slow_ns - QUICK_BATCHES_NS_MAX, pattern)
    assert waited.index("L") == 3 * STREAK + 5, "16 quick ones, after a slow one that took two of them"
    assert "L" not in where(slow_ns - QUICK_BATCHES_NS_MAX - 1, pattern, 600), "it has computed as long"
    assert "L" not in where(slow_ns, [slow_ns]), "nor is it taken for quick"
    held_ns = LOOP_TURN_NS_MAX + 1
    assert "L" not in where(held_ns, 200 * [held_ns, 1, held_ns], 600), "it would hold the loop up, whatever it does"
    late = [1] * (STREAK - 1) + [slow_ns, 1, 1, 1]
    assert where(slow_ns, late, STREAK + 4) == "T" * (STREAK + 3) + "L", "its CPU time was not measured"


def test_the_cpu_time_is_that_of_the_thread() -> None:
    """Of a real one, that has computed or waited."""
    direct = Direct(LoopRule(FakeTurns()))  # type: ignore[arg-type]
    direct.channel = ThreadChannel(direct, direct.worker, direct.clock, on_loop=LoopRule(FakeTurns()))  # type: ignore[arg-type]
    direct.channel.open(direct.take_report)
    direct.took_ns = [QUICK_BATCHES_NS_MAX + 1]
    batches = [Batch("m_0", (direct.ticket("x"),)) for _ in range(3)]
    works: list[Callable[[], object]] = [lambda: None, lambda: sum(range(200_000)), lambda: threading.Event().wait(0.02)]
    for batch, work in zip(batches, works, strict=True):
        direct.on_execute = work
        direct.channel.give([batch])
        thread = threading.Thread(target=direct.worker.step)
        thread.start()
        sum(range(400_000))  # of this thread, which is not counted
        thread.join()
        direct.report()
    unmeasured, computed, waited = [batch.cpu_ns for batch in batches]
    assert unmeasured is None
    assert computed is not None
    assert waited is not None
    assert 0 < waited < computed / 2


@pytest.mark.parametrize(
    ("there_ns", "longest_ns"),
    [
        ([0], HAND_OVER_NS_MIN),
        ([HAND_OVER_NS_MIN // 2], HAND_OVER_NS_MIN),
        ([HAND_OVER_NS_MIN], 2 * HAND_OVER_NS_MIN),
        ([HAND_OVER_NS_MIN + 20_000, HAND_OVER_NS_MIN - 20_000], 2 * HAND_OVER_NS_MIN),
        ([HAND_OVER_NS_MAX], HAND_OVER_NS_MAX),
        ([HAND_OVER_NS_MAX, 0], HAND_OVER_NS_MAX // 2),
    ],
)
def test_the_loop_executes_for_as_long_as_handing_over_takes(there_ns: list[int], longest_ns: int) -> None:
    direct = OnLoop()
    direct.there_ns = there_ns * HAND_OVERS_MEASURED
    direct.ask_often(max(STREAK, HAND_OVERS_MEASURED))
    direct.turns.has_more = True
    for took_ns, thread in ((longest_ns, "L"), (longest_ns + 1, "T")):
        direct.took_ns = [took_ns]
        direct.ask_often(2 * LATE_MAX)
        assert direct.threads[-1] == thread
    direct.took_ns, direct.there_ns = [1], [HAND_OVER_NS_MIN] * 2 * LOOP_EXECUTION_PAUSE
    direct.ask_often(LOOP_EXECUTION_PAUSE + STREAK)
    direct.took_ns, direct.threads = [2 * HAND_OVER_NS_MIN], ""
    direct.ask_often(2 * LATE_MAX)
    assert direct.threads == "L" * 2 * LATE_MAX, "it is measured again"


def test_how_late_an_execution_is_is_told_by_what_handing_over_takes() -> None:
    """Half of them: one that takes twice as long weighs as much as two that nobody waits for."""
    for took_ns, late in ((4 * HAND_OVER_NS_MIN - 1, "L"), (4 * HAND_OVER_NS_MIN, "T")):
        direct = OnLoop()
        direct.there_ns = [HAND_OVER_NS_MIN] * STREAK
        direct.ask_often(STREAK)
        direct.turns.has_more, direct.took_ns = True, 100 * [took_ns, 1]
        direct.ask_often(100)
        assert direct.threads[STREAK + 50] == late


def test_what_handing_over_took_once_is_forgotten() -> None:
    direct = OnLoop()
    direct.there_ns = [HAND_OVER_NS_MAX] * STREAK
    direct.ask_often(STREAK)
    direct.turns.has_more, direct.took_ns = True, [HAND_OVER_NS_MAX]
    direct.ask_often(HAND_OVER_KEPT + LATE_MAX)
    assert direct.threads[STREAK:].index("T") == HAND_OVER_KEPT + 3, "each is three times as late then"


@pytest.mark.parametrize("ended", ["restarted", "held up"])
def test_another_instance_is_handed_batches_anew(ended: str) -> None:
    direct = OnLoop()
    direct.there_ns = [HAND_OVER_NS_MAX] * STREAK
    direct.ask_often(STREAK)
    direct.there_ns = [0]
    if ended == "restarted":
        direct.rule.restarted()
        direct.ask_often(STREAK)
    else:
        direct.took_ns = [LOOP_TURN_NS_MAX + 1, 1]
        direct.ask_often(1 + 8 * STREAK)
    direct.turns.has_more, direct.took_ns, direct.threads = True, [HAND_OVER_NS_MIN + 1], ""
    direct.ask_often(LATE_MAX + 2)
    assert direct.threads == "L" * (LATE_MAX + 1) + "T"


class Noting(LoopRule):
    """Keeps what it is told of hand-overs."""

    def __init__(self) -> None:
        super().__init__(FakeTurns())  # type: ignore[arg-type]
        self.there_ns: list[int] = []

    def handed_over(self, there_ns: int) -> None:
        self.there_ns.append(there_ns)


def test_only_what_the_thread_begins_with_says_how_long_handing_over_takes() -> None:
    rule = Noting()
    direct = Direct(rule)
    direct.took_ns = [1_000]
    direct.give("ab")
    direct.clock.ns += 7
    direct.give("c")
    direct.worker.step()
    direct.report()
    assert rule.there_ns == [], "nothing is reported yet"
    direct.give("d")
    direct.worker.step(3)
    direct.report()
    direct.report()
    assert rule.there_ns == [7]
    direct.give("e")
    direct.channel.revoke()
    direct.clock.ns += 100_000
    direct.worker.step()
    direct.give("f")
    direct.clock.ns += 9
    direct.worker.step()
    direct.report()
    assert rule.there_ns == [7, 9]


def test_a_rule_that_was_left_for_long_recovers_although_some_are_slow_in_the_thread() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.took_ns = [LOOP_TURN_NS_MAX + 1]
    direct.ask_often(1)
    direct.took_ns = 100 * [QUICK_BATCHES_NS_MAX + 1, 1, 1, 1, 1, 1]
    direct.threads = ""
    while not direct.threads.endswith("L"):
        direct.ask()
    assert len(direct.threads) < 3 * 8 * STREAK


def test_the_rest_of_a_turn_is_left_to_the_thread_when_nothing_more_is_allowed() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.took_ns = [LOOP_TURN_NS_MAX + 1, 1]
    direct.give("bcd")
    direct.turns.end()
    assert direct.executed[-1] == "b"
    direct.work()
    assert direct.executed[-3:] == ["b", "c", "d"]


def test_after_one_that_held_the_loop_up_more_must_have_been() -> None:
    direct = OnLoop()
    streak = STREAK
    for _ in range(6):
        direct.took_ns = [1]
        direct.ask_often(streak)
        direct.threads = ""
        direct.took_ns = [LOOP_TURN_NS_MAX + 1, 1]
        direct.ask_often(2)
        assert direct.threads == "LT"
        streak = min(8 * streak, LOOP_EXECUTION_STREAK_MAX)
        direct.threads = ""
        direct.ask_often(streak - 1)
        assert "L" not in direct.threads
    assert streak == LOOP_EXECUTION_STREAK_MAX


def test_what_held_the_loop_up_is_forgotten_when_nothing_has_for_long() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.took_ns = [LOOP_TURN_NS_MAX + 1, 1]
    direct.ask_often(1 + 8 * STREAK + 8 * 8 * STREAK)
    assert direct.threads[-1] == "L"
    direct.took_ns = [LOOP_TURN_NS_MAX + 1, 1]
    direct.ask_often(1)
    direct.threads = ""
    direct.ask_often(8 * STREAK + 1)
    assert direct.threads == "T" * 8 * STREAK + "L", "as many as after the first one"


def test_larger_inputs_than_were_quick_go_to_the_thread() -> None:
    direct = OnLoop()
    small, larger = np.zeros(4, np.float32), np.zeros(5, np.float32)
    for _ in range(STREAK):
        direct.ask(small)
    direct.threads = ""
    for array in (small, larger, larger, small):
        direct.ask(array)
    assert direct.threads == "LTLL"
    huge = np.zeros(LOOP_EXECUTION_INPUT_BYTES_MAX + 1, np.uint8)
    direct.threads = ""
    for _ in range(3):
        direct.ask(huge, datatype=DataType.UINT8)
    assert direct.threads == "TTT"


def test_the_size_of_texts_is_that_of_their_bytes() -> None:
    direct = OnLoop()
    short, long = np.array([b"ab"], object), np.array([b"ab" * 100], object)
    for _ in range(STREAK):
        direct.ask(short, datatype=DataType.BYTES)
    direct.threads = ""
    for array in (short, long, long):
        direct.ask(array, datatype=DataType.BYTES)
    assert direct.threads == "LTL"


def test_no_dimension_of_an_input_is_larger_than_what_was_quick() -> None:
    direct = OnLoop()
    tall, flat, both = np.zeros((40, 1), np.float32), np.zeros((1, 40), np.float32), np.zeros((4, 10), np.float32)
    for _ in range(STREAK // 2):
        direct.ask(tall, flat)
        direct.ask(tall, np.zeros((1, 4), np.float32))
    direct.threads = ""
    direct.ask(tall, flat)
    direct.ask(both, flat)
    direct.ask(both, flat)
    direct.ask(tall[:, 0], flat)
    direct.ask(tall)
    assert direct.threads == "LTLTT"


def test_errors_are_not_taken_for_quick_executions() -> None:
    direct = OnLoop()
    direct.refuses = True
    direct.ask_often(2 * STREAK)
    direct.refuses = False
    direct.ask_often(STREAK + 1)
    assert direct.threads == "T" * 3 * STREAK + "L"


def test_nothing_is_executed_on_the_loop_once_the_channel_is_closed_and_no_request_that_nobody_waits_for() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    batch = Batch("m_0", (direct.ticket("gone"),))
    direct.channel.give([batch])
    batch.tickets[0].abandoned = True
    direct.turns.end()
    assert (batch.is_executed, direct.executed[-1], direct.reported[-1]) == (False, "a", ["gone"])
    direct.give("b")
    direct.channel.close()
    direct.turns.end()
    assert len(direct.worker.jobs) == 1
    direct.give("c")
    direct.work()
    assert direct.executed[-2:] == ["b", "c"]


@pytest.mark.parametrize("unbegun", [False, True])
def test_an_instance_that_dies_on_the_loop_has_failed(unbegun: bool) -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.reported.clear()
    direct.fails_at, direct.fails_unbegun = "a", unbegun
    direct.give("ac")
    direct.turns.end()
    assert direct.failures == ["it died"]
    assert direct.reported == [[] if unbegun else ["a"]]
    assert [batch.tickets[0].id for batch in direct.channel.revoke()] == (["a", "c"] if unbegun else ["c"])
    direct.give("b")
    direct.turns.end()
    assert direct.executed[-1] == "a", "nothing more is executed"
