"""From a `sequence_batching` block to the options of its core."""

from __future__ import annotations

import pytest

from tpy.config.model_config import ModelConfig, SequenceBatching, StrategyDirect, StrategyOldest
from tpy_data.schedulers.core import make_core
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.overlap import OverlapTerms
from tpy_data.schedulers.core.sequence_core import SequenceCore
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions, sequence_options


def config_of(batching: SequenceBatching, max_batch_size: int = 8) -> ModelConfig:
    return ModelConfig(name="m", max_batch_size=max_batch_size, sequence_batching=batching)


def test_no_strategy_means_direct_with_a_slot_for_each_row() -> None:
    assert sequence_options(config_of(SequenceBatching())) == SequenceOptions(
        model_name="m", slots=8, idle_ns_max=1_000_000_000, strategy=DirectOptions()
    )


def test_a_model_that_does_not_batch_has_one_slot() -> None:
    assert sequence_options(config_of(SequenceBatching(), 0)).slots == 1
    assert sequence_options(config_of(SequenceBatching(oldest=StrategyOldest()), 0)).slots == 1


def test_direct_in_nanoseconds_and_slots() -> None:
    direct = StrategyDirect(max_queue_delay_microseconds=7, minimum_slot_utilization=0.5)
    options = sequence_options(config_of(SequenceBatching(direct=direct, max_sequence_idle_microseconds=3)))
    assert options.strategy == DirectOptions(queue_delay_ns_max=7_000, ready_min=4)
    assert options.idle_ns_max == 3_000


@pytest.mark.parametrize(
    ("utilization", "slots", "ready_min"),
    [(0.0, 5, 0), (0.01, 5, 1), (0.6, 5, 3), (0.6000000238418579, 5, 3), (0.61, 5, 4), (1.0, 5, 5), (1.0, 65_536, 65_536)],
)
def test_a_share_of_the_slots_is_compared_in_single_precision(utilization: float, slots: int, ready_min: int) -> None:
    batching = SequenceBatching(direct=StrategyDirect(minimum_slot_utilization=utilization))
    strategy = sequence_options(config_of(batching, slots)).strategy
    assert isinstance(strategy, DirectOptions)
    assert strategy.ready_min == ready_min


def test_oldest_has_slots_of_its_own_and_a_dynamic_batcher() -> None:
    oldest = StrategyOldest(
        max_candidate_sequences=64, preferred_batch_size=(2, 4), max_queue_delay_microseconds=5, preserve_ordering=True
    )
    options = sequence_options(config_of(SequenceBatching(oldest=oldest, iterative_sequence=True)))
    assert options.slots == 64
    assert options.iterative
    assert options.strategy == DynamicOptions(
        batch_size_max=8, preferred=frozenset({2, 4}), queue_delay_ns_max=5_000, preserve_ordering=True
    )


def test_oldest_without_numbers_fills_whole_batches() -> None:
    options = sequence_options(config_of(SequenceBatching(oldest=StrategyOldest())))
    assert options.slots == 8
    assert options.strategy == DynamicOptions(batch_size_max=8, preferred=frozenset({8}), overlap=OverlapTerms())


@pytest.mark.parametrize(
    ("oldest", "halves"),
    [
        (StrategyOldest(preferred_batch_size=(8,)), True),
        (StrategyOldest(preferred_batch_size=(4, 8)), False),
        (StrategyOldest(max_queue_delay_microseconds=1), False),
    ],
)
def test_batches_may_be_halved_where_nobody_named_sizes_or_a_delay(oldest: StrategyOldest, halves: bool) -> None:
    strategy = sequence_options(config_of(SequenceBatching(oldest=oldest))).strategy
    assert isinstance(strategy, DynamicOptions)
    assert (strategy.overlap is not None) is halves


def test_slots_that_nobody_uses_cost_nothing() -> None:
    core = make_core(config_of(SequenceBatching(oldest=StrategyOldest(max_candidate_sequences=2**31 - 1))))
    assert isinstance(core, SequenceCore)
    core.add_instance(0, 0)
