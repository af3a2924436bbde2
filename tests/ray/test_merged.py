"""The answers of all replicas as one."""

from __future__ import annotations

from tpy.messages import IndexEntry, ModelState, ModelStatistics
from tpy.messages.statistics import BatchStatistics, Duration, FailureCounts, InferenceStatistics, MemoryUsage
from tpy.ray.core.merged import merged_index, merged_statistics


def entry(state: ModelState | None, reason: str = "", version: int | None = 1) -> IndexEntry:
    return IndexEntry(name="m", version=version, state=state, reason=reason)


def test_what_all_replicas_say_is_the_row() -> None:
    assert merged_index({"r1": [entry(ModelState.READY)], "r2": [entry(ModelState.READY)]}) == [entry(ModelState.READY)]


def test_a_version_is_ready_when_it_is_on_all_replicas_and_the_reason_names_the_others() -> None:
    failed = entry(ModelState.UNAVAILABLE, "no such file")
    (row,) = merged_index({"r1": [entry(ModelState.READY)], "r2": [failed], "r3": [entry(ModelState.READY)]})
    assert row == entry(ModelState.UNAVAILABLE, "READY on 2 of 3 replicas; r2: UNAVAILABLE (no such file)")


def test_a_replica_that_has_never_loaded_it_is_told_in_the_row_of_the_version() -> None:
    (row,) = merged_index({"r1": [entry(ModelState.READY)], "r2": [entry(None, version=None)]})
    assert row == entry(ModelState.UNAVAILABLE, "READY on 1 of 2 replicas; r2: not loaded")


def test_a_version_that_loads_on_one_replica_is_loading() -> None:
    (row,) = merged_index({"r1": [entry(ModelState.READY)], "r2": [entry(ModelState.LOADING)]})
    assert row.state is ModelState.LOADING


def test_statistics_are_sums_and_the_load_is_the_busiest_replicas() -> None:
    def of(count: int, load: float | None) -> ModelStatistics:
        spent = Duration(count, 10 * count)
        return ModelStatistics(
            name="m",
            version=1,
            inference_count=count,
            execution_count=count,
            last_inference_ms=count,
            inference=InferenceStatistics(success=spent, queue=spent),
            batches=(BatchStatistics(batch_size=count, compute_input=spent, compute_infer=spent, compute_output=spent),),
            memory_usage=(MemoryUsage(kind="CPU", id=0, byte_size=count),),
            failures=FailureCounts(backend=count),
            load=load,
        )

    (found,) = merged_statistics([[of(2, 0.5)], [of(2, 1.5)], [of(3, None)]])
    assert (found.inference_count, found.execution_count, found.last_inference_ms) == (7, 7, 3)
    assert found.inference.success == Duration(7, 70)
    assert [(each.batch_size, each.compute_infer) for each in found.batches] == [(2, Duration(4, 40)), (3, Duration(3, 30))]
    assert found.memory_usage == (MemoryUsage(kind="CPU", id=0, byte_size=7),)
    assert (found.failures.backend, found.load) == (7, 1.5)
