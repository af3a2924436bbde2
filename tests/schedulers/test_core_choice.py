"""From a model's configuration to a core and its options."""

from __future__ import annotations

import pytest

from tpy.config.model_config import (
    DynamicBatching,
    EnsembleScheduling,
    ModelConfig,
    QueuePolicy,
    TimeoutAction,
)
from tpy.errors import Unsupported
from tpy_data.schedulers.core import make_core
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules, dynamic_options
from tpy_data.schedulers.core.overlap import OverlapTerms


def test_a_model_without_a_scheduling_block_gets_the_default_core() -> None:
    assert isinstance(make_core(ModelConfig(name="m", max_batch_size=8)), DefaultCore)


def test_dynamic_batching_gets_the_dynamic_core() -> None:
    assert isinstance(make_core(ModelConfig(name="m", dynamic_batching=DynamicBatching())), DynamicCore)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (ModelConfig(name="m", ensemble_scheduling=EnsembleScheduling()), "ensemble_scheduling"),
        (ModelConfig(name="m", platform="ensemble"), "ensemble_scheduling"),
        (ModelConfig(name="m", dynamic_batching=DynamicBatching(priority_levels=10**9)), "priority_levels"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(config: ModelConfig, named: str) -> None:
    with pytest.raises(Unsupported, match=f"'[a-z_.]*{named}' of model 'm'"):
        make_core(config)


def test_nothing_configured_means_full_batches_at_once() -> None:
    config = ModelConfig(max_batch_size=8, dynamic_batching=DynamicBatching())
    assert dynamic_options(config) == DynamicOptions(batch_size_max=8, preferred=frozenset({8}), overlap=OverlapTerms())


@pytest.mark.parametrize(
    ("dynamic", "is_on"),
    [
        (DynamicBatching(), True),
        (DynamicBatching(preferred_batch_size=(8,)), True),  # which is the default
        (DynamicBatching(preserve_ordering=True, priority_levels=2, default_priority_level=1), True),
        (DynamicBatching(preferred_batch_size=(4,)), False),
        (DynamicBatching(preferred_batch_size=(4, 8)), False),
        (DynamicBatching(max_queue_delay_microseconds=1), False),
        (DynamicBatching(preferred_batch_size=(8,), max_queue_delay_microseconds=1), False),
    ],
)
def test_half_may_be_left_only_where_no_size_is_preferred_and_nothing_waits(dynamic: DynamicBatching, is_on: bool) -> None:
    overlap = dynamic_options(ModelConfig(max_batch_size=8, dynamic_batching=dynamic)).overlap
    assert overlap == (OverlapTerms() if is_on else None)


def test_a_model_that_does_not_batch_runs_requests_one_by_one() -> None:
    config = ModelConfig(max_batch_size=0, dynamic_batching=DynamicBatching())
    assert dynamic_options(config).batch_size_max == 1


def test_every_field_arrives_in_nanoseconds_and_per_level() -> None:
    own = QueuePolicy(
        timeout_action=TimeoutAction.DELAY, default_timeout_microseconds=3, allow_timeout_override=True, max_queue_size=4
    )
    config = ModelConfig(
        max_batch_size=8,
        dynamic_batching=DynamicBatching(
            preferred_batch_size=(2, 4),
            max_queue_delay_microseconds=7,
            preserve_ordering=True,
            priority_levels=2,
            default_priority_level=2,
            default_queue_policy=QueuePolicy(max_queue_size=9),
            priority_queue_policy={1: own},
        ),
    )
    assert dynamic_options(config) == DynamicOptions(
        batch_size_max=8,
        preferred=frozenset({2, 4}),
        queue_delay_ns_max=7_000,
        preserve_ordering=True,
        levels=(
            QueueRules(
                timeout_action=TimeoutAction.DELAY, default_timeout_ns=3_000, allow_timeout_override=True, queue_size_max=4
            ),
            QueueRules(queue_size_max=9),
        ),
        default_level=1,
    )


def test_without_levels_the_default_policy_is_the_only_one() -> None:
    dynamic = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=9), priority_queue_policy={1: QueuePolicy()})
    assert dynamic_options(ModelConfig(dynamic_batching=dynamic)).levels == (QueueRules(queue_size_max=9),)
