"""The times of a batch, whatever its backend said."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tpy.backend import ExecutionResult
from tpy.errors import InvalidArgument
from tpy_data.engine.requests.batch import Batch

TIME_NS = st.integers(0, 9)


@given(TIME_NS, TIME_NS, TIME_NS, TIME_NS)
def test_no_phase_is_negative_and_all_are_inside_of_the_execution(
    start_ns: int, input_end_ns: int, output_start_ns: int, end_ns: int
) -> None:
    batch = Batch("m_0", ())
    times = batch.times
    times.start_ns, times.input_end_ns, times.output_start_ns, times.end_ns = start_ns, input_end_ns, output_start_ns, end_ns
    began_ns, *phases_ns = batch.execution()
    assert began_ns == start_ns
    assert min(phases_ns) >= 0
    assert sum(phases_ns) == max(0, end_ns - start_ns)
    said = [start_ns, input_end_ns, output_start_ns, end_ns]
    if sorted(said) == said and output_start_ns:
        assert phases_ns == [after - before for before, after in itertools.pairwise(said)]


def test_a_batch_that_failed_as_a_whole_took_its_time_but_says_nothing_about_costs() -> None:
    fine, wrong = ExecutionResult(), ExecutionResult(error=InvalidArgument("no"))
    costs = {}
    for name, results in {"fine": [fine], "in part": [wrong, fine], "wrong": [wrong, wrong], "nothing": []}.items():
        batch = Batch("m_0", ())
        batch.times.start_ns, batch.times.end_ns = 5, 8
        batch.results = results
        costs[name] = batch.cost_ns
        assert batch.took_ns == 3
    assert costs == {"fine": 3, "in part": 3, "wrong": 0, "nothing": 0}
