"""The times of a batch, whatever its backend said."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

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
