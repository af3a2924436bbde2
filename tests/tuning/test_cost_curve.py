"""The cost curve: rising means, what is between and beyond them, and what is forgotten."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tpy.limits.tuning import CURVE_AGE_BATCHES, CURVE_CELLS_MAX, CURVE_MEMORY
from tpy.messages import CurvePoint
from tpy_data.schedulers.core.cost_curve import CostCurve, rising

weighted = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 5)), min_size=1, max_size=8)


def curve_of(times_ns: dict[int, int], batch_size_max: int = 8, batches: int = 8) -> CostCurve:
    curve = CostCurve(batch_size_max)
    for rows, took_ns in times_ns.items():
        for _ in range(batches):
            curve.add(rows, took_ns)
    curve.fit()
    return curve


def mean(values: list[tuple[int, int]]) -> float:
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)


@settings(max_examples=50)
@given(weighted)
def test_the_rising_sequence_is_the_one_of_the_definition(values: list[tuple[int, int]]) -> None:
    """The largest of the means that begin at or before an element, each the smallest that its end can give."""
    places = range(len(values))
    for place, found in enumerate(rising(values)):
        expected = max(min(mean(values[low : high + 1]) for high in places[place:]) for low in places[: place + 1])
        assert found == int(expected + 1e-9)


@settings(max_examples=50)
@given(st.dictionaries(st.integers(1, 8), st.integers(1, 10**9), min_size=1))
def test_a_larger_batch_never_takes_less(times_ns: dict[int, int]) -> None:
    curve = curve_of(times_ns)
    taken = [curve.time_ns(rows) for rows in range(30)]
    assert taken == sorted(taken)
    assert taken[0] == 0 < taken[1]


def test_between_two_sizes_it_is_interpolated_and_beyond_them_it_is_rather_too_much() -> None:
    curve = curve_of({2: 100, 4: 200})
    assert [curve.time_ns(rows) for rows in range(1, 9)] == [100, 100, 150, 200, 250, 300, 350, 400]


def test_rows_that_one_batch_cannot_hold_need_several() -> None:
    curve = curve_of({1: 100, 8: 450})
    assert curve.time_ns(19) == 2 * 450 + curve.time_ns(3)


def test_nothing_is_known_at_first() -> None:
    curve = CostCurve(8)
    assert curve.is_empty
    assert (curve.known(), curve.time_ns(3), curve.cell_ns(3), curve.points()) == ([], 0, 0, ())


def test_a_size_is_known_after_some_batches() -> None:
    assert curve_of({4: 100}, batches=3).known() == []
    assert curve_of({4: 100}, batches=4).known() == [4]


def test_a_mean_follows_a_model_that_becomes_slower_and_one_batch_that_is_far_out_counts_little() -> None:
    curve = curve_of({4: 10**6}, batches=CURVE_MEMORY)
    curve.add(4, 10**9)
    curve.fit()
    assert curve.time_ns(4) < 1.1 * 10**6
    for _ in range(4 * CURVE_MEMORY):
        curve.add(4, 3 * 10**6)
    curve.fit()
    assert 2.9 * 10**6 < curve.time_ns(4) <= 3 * 10**6


def test_large_batches_share_cells_of_equal_width() -> None:
    curve = curve_of({1: 100, 1000: 5000}, batch_size_max=1000)
    assert curve.width == 16
    assert curve.cell_of(1000) <= CURVE_CELLS_MAX
    assert [curve.cell_of(rows) for rows in (1, 16, 17, 5000)] == [1, 1, 2, curve.cell_of(1000)]
    assert [point.rows for point in curve.points()] == [16, 1000]


def test_a_size_that_does_not_occur_is_forgotten() -> None:
    curve = curve_of({4: 100, 2: 70})
    for _ in range(6 * CURVE_AGE_BATCHES):
        curve.add(2, 70)
    assert curve.known() == [2]


def test_a_curve_goes_on_with_the_points_of_an_earlier_one() -> None:
    curve = curve_of({2: 100, 4: 200, 8: 200})
    again = CostCurve(8, curve.points())
    assert [again.time_ns(rows) for rows in range(9)] == [curve.time_ns(rows) for rows in range(9)]
    assert again.known() == [2, 4, 8]
    for _ in range(16):  # what is new soon counts more than what was
        again.add(4, 400)
    again.fit()
    assert again.time_ns(4) > 320


def test_points_that_cannot_be_are_passed_over() -> None:
    points = (CurvePoint(0, 5, 0, 4), CurvePoint(9, 5, 0, 4), CurvePoint(4, 0, 0, 4), CurvePoint(4, 5, 0, 0))
    assert CostCurve(8, points).is_empty
