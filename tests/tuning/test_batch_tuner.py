"""The tuner: replays against one that looks at each request, splits against all there are, and what it decides by examples."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpy.messages import CurvePoint
from tpy_data.schedulers.core.arrivals import Arrivals
from tpy_data.schedulers.core.batch_tuner import BatchTuner, TunerTerms
from tpy_data.schedulers.core.cost_curve import CostCurve
from tpy_data.schedulers.core.replay import alone, beside, lost_beside_ns, lost_ns
from tpy_data.schedulers.core.splitting import quickest, splits

ROWS_MAX = 16
PARTS = (32, 8, 4, 2, 1)


def tuner_of(times_ns: dict[int, int], *, target_ns: int = 0) -> BatchTuner:
    """One that knows these times, of a version with one instance."""
    points = [CurvePoint(rows, ns, 0, 32) for rows, ns in times_ns.items()]
    tuner = BatchTuner(CostCurve(ROWS_MAX, points), target_ns, TunerTerms(split_ns_min=0))
    tuner.may_wait = True
    return tuner


class Played:
    """A tuner with its clock, for which one batch after the other is played."""

    def __init__(self, tuner: BatchTuner) -> None:
        self.tuner = tuner
        self.now_ns = 0

    def batch(self, rows: int, arrivals_ns: Iterable[int] = ()) -> tuple[int, int]:
        """A batch for which `rows` are there, while others arrive in so many nanoseconds. Returns its wait, and its rows."""
        tuner, began_ns, there = self.tuner, self.now_ns, rows
        arrivals = sorted(arrivals_ns)
        tuner.arrived(rows, began_ns)
        waits = tuner.holds(there, began_ns, self.now_ns)
        while waits:
            due_ns = tuner.due_ns() or 0
            if arrivals and began_ns + arrivals[0] <= due_ns:
                self.now_ns = began_ns + arrivals.pop(0)
                tuner.arrived(1, self.now_ns)
                there += 1
            else:
                self.now_ns = due_ns
            waits = there < ROWS_MAX and tuner.holds(there, began_ns, self.now_ns)
        waited_ns = self.now_ns - began_ns
        sent = tuner.size(there, began_ns, self.now_ns)
        tuner.began(sent, self.now_ns)
        took_ns = tuner.curve.time_ns(sent)
        ended_ns = self.now_ns + took_ns
        for offset_ns in arrivals:
            if began_ns + offset_ns <= ended_ns:
                tuner.arrived(1, began_ns + offset_ns)
        self.now_ns = ended_ns
        tuner.ended(sent, took_ns, ended_ns)
        tuner.learn()
        self.now_ns += 1000
        return waited_ns, sent


def naive_lost_ns(curve: CostCurve, rows: int, offsets_ns: list[int], wait_ns: int, goal: int, behind: int) -> int:
    """The time that all requests together are there longer, looking at each: without the wait, and with it."""
    alone_ns = curve.time_ns(rows)
    company = [offset_ns for offset_ns in offsets_ns if offset_ns <= alone_ns]
    without = [alone_ns] * rows + [alone_ns + curve.time_ns(len(company))] * len(company)
    begins_ns = next((offset_ns for count, offset_ns in enumerate(company, 1) if rows + count >= goal), wait_ns)
    begins_ns = min(begins_ns, wait_ns) if goal > rows else 0
    there = sum(offset_ns <= begins_ns for offset_ns in company) if goal > rows else 0
    joined = min(there, curve.batch_size_max - rows)
    first_ns = begins_ns + curve.time_ns(rows + joined)
    if goal > rows and first_ns > 2 * curve.time_ns(math.ceil((rows + joined) / 2)):
        return sum(without)
    second_ns = first_ns + curve.time_ns(len(company) - joined)
    with_it = [first_ns] * (rows + joined) + [second_ns] * (len(company) - joined)
    later = behind * (second_ns - alone_ns - curve.time_ns(len(company)))
    return sum(with_it) - sum(without) + later if goal > rows else 0


@settings(max_examples=50)
@given(
    st.integers(1, ROWS_MAX - 1),
    st.lists(st.integers(0, 2000), max_size=20).map(sorted),
    st.dictionaries(st.integers(1, ROWS_MAX), st.integers(100, 2000), min_size=1),
    st.sampled_from(PARTS),
    st.integers(0, ROWS_MAX),
    st.integers(0, 9),
)
def test_a_replay_says_what_each_request_would_have_lost(
    rows: int, offsets_ns: list[int], times_ns: dict[int, int], part: int, goal: int, behind: int
) -> None:
    curve, arrivals = tuner_of(times_ns).curve, Arrivals()
    for offset_ns in offsets_ns:
        arrivals.add(1, offset_ns)
    without = alone(curve, rows, arrivals)
    wait_ns = without.alone_ns // part
    lost = lost_ns(curve, rows, arrivals, without, wait_ns, goal, behind)
    assert lost == naive_lost_ns(curve, rows, offsets_ns, wait_ns, goal, behind)


def naive_lost_beside_ns(curve: CostCurve, rows: int, offsets_ns: list[int], wait_ns: int, goal: int, next_ns: int) -> int:
    """The same beside an instance that is free after `next_ns`, and without those who come later."""
    company = [offset_ns for offset_ns in offsets_ns if offset_ns <= next_ns]

    def there_ns(begins_ns: int, joined: int) -> int:
        first_ns, second_ns = begins_ns + curve.time_ns(rows + joined), next_ns + curve.time_ns(len(company) - joined)
        return first_ns * (rows + joined) + second_ns * (len(company) - joined)

    if goal <= rows:
        return 0
    begins_ns = min([next_ns, wait_ns, *company[goal - rows - 1 : goal - rows]])
    joined = min(sum(offset_ns <= begins_ns for offset_ns in company), curve.batch_size_max - rows)
    return there_ns(begins_ns, joined) - there_ns(0, 0)


@settings(max_examples=50)
@given(
    st.integers(1, ROWS_MAX - 1),
    st.lists(st.integers(0, 2000), max_size=20).map(sorted),
    st.dictionaries(st.integers(1, ROWS_MAX), st.integers(100, 2000), min_size=1),
    st.integers(1, 2000),
    st.integers(0, ROWS_MAX),
    st.integers(1, 2000),
)
def test_a_replay_beside_busy_instances_ends_when_one_of_them_is_free(
    rows: int, offsets_ns: list[int], times_ns: dict[int, int], wait_ns: int, goal: int, next_ns: int
) -> None:
    curve, arrivals = tuner_of(times_ns).curve, Arrivals()
    for offset_ns in offsets_ns:
        arrivals.add(1, offset_ns)
    without = beside(curve, rows, arrivals, next_ns)
    lost = lost_beside_ns(curve, rows, arrivals, without, wait_ns, goal, next_ns)
    assert lost == naive_lost_beside_ns(curve, rows, offsets_ns, wait_ns, goal, next_ns)


@settings(max_examples=50)
@given(
    st.dictionaries(st.integers(1, 12), st.integers(100, 2000), min_size=1, max_size=5),
    st.integers(0, 5),
    st.sets(st.integers(1, 11), max_size=4).map(sorted),
)
def test_the_first_part_is_that_of_the_best_way_to_split(times_ns: dict[int, int], price: int, parts: list[int]) -> None:
    curve = tuner_of(times_ns).curve

    @functools.cache
    def best(cell: int) -> int:
        """The least time, trying every part, again and again."""
        ways = [(cell + price) * curve.cell_ns(part) + best(cell - part) for part in parts if part < cell]
        return min([(cell + price) * curve.cell_ns(cell), *ways])

    for cell, part in enumerate(splits(curve, parts, 12, price, 0, 0)):
        assert cell == part or part in parts
        if cell:
            assert (cell + price) * curve.cell_ns(part) + (best(cell - part) if part < cell else 0) == best(cell)


def test_only_sizes_that_are_quicker_by_row_than_their_neighbours_are_worth_splitting_into() -> None:
    assert quickest(tuner_of({rows: 100 + 10 * rows for rows in range(1, 17)}).curve) == []
    assert quickest(tuner_of({rows: -(-rows // 4) * 100 for rows in range(1, 17)}).curve) == [4, 8, 12]
    assert quickest(tuner_of({rows: 100 + rows * rows * 10 for rows in range(1, 17)}).curve) == [3]


def played(times_ns: dict[int, int], **kinds: int) -> Played:
    return Played(tuner_of(times_ns, **kinds))


CONSTANT = {1: 1000, ROWS_MAX: 1000}


def test_a_batch_waits_for_company_that_always_comes_and_no_longer_than_for_that() -> None:
    model = played(CONSTANT)
    waits = [model.batch(1, [5, 6, 7]) for _ in range(20)]
    assert waits[:4] == [(0, 1)] * 4, "until it has seen enough"
    assert set(waits[10:]) == {(7, 4)}


def test_it_stops_waiting_when_nobody_comes_any_more() -> None:
    model = played(CONSTANT)
    for _ in range(30):
        model.batch(1, [5, 6, 7])
    waits = [model.batch(1)[0] for _ in range(40)]
    assert 0 < max(waits) <= 1000 // 32
    assert set(waits[20:]) == {0}


def test_a_client_that_waits_for_its_answer_is_never_waited_for() -> None:
    model = played(CONSTANT)
    assert {model.batch(1) for _ in range(50)} == {(0, 1)}


def test_what_a_larger_batch_costs_more_than_a_second_one_is_not_waited_for() -> None:
    model = played({rows: rows * 1000 for rows in (1, 2, 4, 16)})
    assert {model.batch(1, [10])[0] for _ in range(50)} == {0}


def test_waits_are_forgotten_with_the_instance() -> None:
    model = played(CONSTANT)
    for _ in range(20):
        model.batch(1, [5])
    assert model.tuner.explain(model.now_ns).waits
    model.tuner.forget_waits()
    assert not model.tuner.explain(model.now_ns).waits
    assert model.batch(1, [5]) == (0, 1)


def test_while_instances_come_and_go_nothing_waits() -> None:
    model = played(CONSTANT)
    model.tuner.may_wait = False
    assert {model.batch(1, [5]) for _ in range(50)} == {(0, 1)}


def test_with_another_idle_instance_nothing_waits() -> None:
    model = played(CONSTANT)
    model.tuner.instances, model.tuner.others_idle = 2, True
    assert {model.batch(1, [5, 6, 7]) for _ in range(50)} == {(0, 1)}


@pytest.mark.parametrize(("others", "waits"), [(12, True), (1, False)])
def test_the_last_idle_instance_waits_for_much_company_only(others: int, waits: bool) -> None:
    model = played({rows: 1000 + 10 * rows for rows in (1, ROWS_MAX)})
    model.tuner.instances = 2
    found = {model.batch(4, range(30, 30 + others))[0] for _ in range(50)}
    assert (found != {0}) == waits


def test_a_wait_does_not_make_a_request_late() -> None:
    times_ns = {1: 1000, ROWS_MAX: 1000}
    with_target = played(times_ns, target_ns=1050)
    assert {with_target.batch(1, [60])[0] for _ in range(50)} == {0} | {50}
    without = played(times_ns)
    assert without.batch(1, [60]) == (0, 1)
    assert max(without.batch(1, [60])[0] for _ in range(30)) == 60


def test_with_a_target_a_batch_is_small_enough_for_its_oldest_request() -> None:
    model = tuner_of({rows: 100 + 100 * rows for rows in range(1, 17)}, target_ns=1000)
    assert [model.size(16, 0, now_ns) for now_ns in (0, 500, 790, 950, 1001)] == [9, 4, 1, 16, 16]


def test_with_more_load_than_smaller_batches_can_do_the_target_is_given_up() -> None:
    model = tuner_of({rows: 100 + 100 * rows for rows in range(1, 17)}, target_ns=1000)
    for now_ns in range(0, 30_000, 100):
        model.arrived(1, now_ns)
    assert model.size(16, 29_500, 30_000) == 16


def test_what_most_wait_for_is_tried_with_half_and_split_if_that_is_better() -> None:
    model = played({16: 25_600}).tuner
    curve = {rows: rows * rows * 100 for rows in range(1, 17)}
    sent = []
    for number in range(40):
        sent.append(model.size(16, number * 10**6, number * 10**6))
        model.began(sent[-1], number * 10**6)
        model.ended(sent[-1], curve[sent[-1]], number * 10**6 + 1)
        model.learn()
    assert sorted(set(sent), reverse=True) == [8, 4, 2]
    assert sent[-1] == 2
    assert model.explain(0).sizes


def test_a_quick_batch_is_neither_split_nor_tried_with_half() -> None:
    """Its time says more about what else happens than about its size."""
    times_ns = {1: 100_000, 2: 500_000, 8: 600_000, 16: 900_000}
    points = [CurvePoint(rows, ns, 0, 32) for rows, ns in times_ns.items()]
    assert [BatchTuner(CostCurve(ROWS_MAX, points)).size(rows, 0, 0) for rows in (2, 8, 16)] == [2, 8, 16]
    slower = [CurvePoint(rows, 20 * ns, 0, 32) for rows, ns in times_ns.items()]
    assert [BatchTuner(CostCurve(ROWS_MAX, slower)).size(rows, 0, 0) for rows in (2, 8, 16)] == [1, 1, 1]


def test_half_that_is_no_better_is_tried_a_few_times_only() -> None:
    model = played({16: 2000}).tuner
    sent = []
    for number in range(200):
        sent.append(model.size(16, number * 10**6, number * 10**6))
        model.began(sent[-1], number * 10**6)
        model.ended(sent[-1], 1000 + 60 * sent[-1], number * 10**6 + 1)
        model.learn()
    assert sent.count(8) == 4
    assert sent.count(16) == 196


def test_batches_whose_time_nobody_says_teach_nothing() -> None:
    model = played(CONSTANT).tuner
    before = model.curve.points()
    model.ended(4, 0, 5)
    model.learn()
    assert model.curve.points() == before


@given(st.integers(1, 12), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_a_trial_ends_when_requests_have_several_rows_each(rows: int, per_row_us: int) -> None:
    """No whole number of requests may make exactly the size that is tried."""
    tuner = BatchTuner(CostCurve(64))
    tuner.may_wait = True
    sizes = []
    for _ in range(120):
        largest = 64 // rows
        size = tuner.size(largest * rows, 0, 0)
        sent = max(1, min(largest, size // rows)) * rows
        tuner.arrived(largest * rows, 0)
        tuner.began(sent, 0)
        tuner.ended(sent, 10_000_000 + 1000 * per_row_us * sent, 0)
        tuner.learn()
        sizes.append(sent)
    assert set(sizes[-20:]) == {64 // rows * rows}, "a batch of all takes less time by row than any part"


def test_it_rests_as_long_as_no_wait_has_paid_for_a_single_row_in_either_way() -> None:
    """One that came to an idle instance, and one that had waited, have waits each."""
    tuner = tuner_of({1: 100_000, 2: 100_000})
    now_ns = 0
    rested: list[bool] = []

    def play(*, fresh: bool, company: bool) -> None:
        nonlocal now_ns
        now_ns += 200_000
        tuner.arrived(1, now_ns)
        began_ns = now_ns
        while tuner.holds(1, began_ns if fresh else began_ns - 1, now_ns):
            now_ns = tuner.due_ns() or now_ns
        rested.append(tuner.rests_until_ns > now_ns)
        tuner.began(1, now_ns)
        if company:
            tuner.arrived(1, began_ns + 5_000)
        now_ns += 100_000
        tuner.ended(1, 100_000, now_ns)
        tuner.learn()

    for _ in range(60):
        play(fresh=True, company=False)
    assert any(rested), "nothing is to be decided"
    for _ in range(40):
        play(fresh=False, company=True)
    assert [wait.fresh for wait in tuner.explain(now_ns).waits] == [False], "it pays to wait"
    rested.clear()
    for _ in range(5):
        play(fresh=True, company=False)
    assert not any(rested)
