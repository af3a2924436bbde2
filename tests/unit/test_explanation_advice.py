"""The advice of an explanation: facts in, sentences out; and how busy instances were lately."""

from __future__ import annotations

import msgspec
import pytest

from tpy.limits import RECENT_BATCHES_MAX, RECENT_NS_MAX
from tpy.messages import (
    BatchingRules,
    CacheActivity,
    CalledActivity,
    CurvePoint,
    EngineActivity,
    ExecutedBatch,
    InstanceActivity,
    InstanceState,
    LevelActivity,
    MemberActivity,
    MemoryGrowth,
    ModelExplanation,
    QueueActivity,
    RecentActivity,
    ResourceUse,
    SequenceActivity,
    TuningActivity,
    WaitReason,
)
from tpy.units import MIB, NS_PER_MS, NS_PER_S
from tpy_data.engine.explanation.core.advice import RULES, findings
from tpy_data.engine.explanation.core.recent import recent_activity

IDLE = ModelExplanation(name="m", version=1)
DYNAMIC = BatchingRules(scheduler="dynamic_batching", max_batch_size=8)
DELAYED = msgspec.structs.replace(DYNAMIC, queue_delay_ns=5 * NS_PER_MS)
BUSY = RecentActivity(window_ns=NS_PER_S, batches=50, batch_size_mean=3.0, busy=0.98)
ALONE = RecentActivity(window_ns=NS_PER_S, batches=50, batch_size_mean=1.2, busy=0.2)
MANY = {1: 40}
EXECUTING = InstanceActivity(name="m_0", kind="KIND_CPU", state=InstanceState.EXECUTING)
USUAL = tuple(ExecutedBatch(begin, begin + 50 * NS_PER_MS, 1) for begin in range(8))
WAITING = EngineActivity(queue=QueueActivity(waits_for=WaitReason.INSTANCE, levels=(LevelActivity(waiting=12),)))


def waits(reason: WaitReason, **changes: object) -> EngineActivity:
    return EngineActivity(queue=QueueActivity(waits_for=reason, levels=(LevelActivity(waiting=2),)), **changes)  # type: ignore[arg-type]


def growth(mib_per_1000: int, *, leaks: bool = True) -> MemoryGrowth:
    return MemoryGrowth(
        first_bytes=100 * MIB,
        last_bytes=(100 + 50 * mib_per_1000) * MIB,
        requests=50_000,
        period_ns=50 * 60 * NS_PER_S,
        trend_bytes=mib_per_1000 * MIB,
        trend_bytes_min=0,
        trend_bytes_max=9 * MIB,
        leaks=leaks,
    )


def facts(**changes: object) -> ModelExplanation:
    return msgspec.structs.replace(IDLE, **changes)


def member(name: str, **counts: int) -> MemberActivity:
    return MemberActivity(name=name, version=1, **counts)


TABLE: list[tuple[ModelExplanation, str, str]] = [
    (facts(state="UNAVAILABLE", reason="it broke"), "no_instance", "The version is UNAVAILABLE and executes nothing: it broke"),
    (
        facts(instances=(InstanceActivity(name="m_0", kind="KIND_CPU", executing_ns=31 * NS_PER_S),)),
        "instance",
        "Instance 'm_0' has executed one batch for 31 s: the model may hang",
    ),
    (
        facts(
            instances=(
                InstanceActivity(name="m_0", kind="KIND_CPU"),
                InstanceActivity(name="m_1", kind="KIND_CPU", state=InstanceState.FAILED, reason="killed"),
            )
        ),
        "instance",
        "1 of 2 instances have failed and are started again: killed",
    ),
    (
        facts(activity=EngineActivity(queue=QueueActivity(levels=(LevelActivity(waiting=4, size_max=4),)))),
        "max_queue_size",
        "The queue is full (4 requests)",
    ),
    (
        facts(activity=waits(WaitReason.RATE_LIMITER, resources=(ResourceUse(name="R", needed=2, used=3, supply=4),))),
        "rate_limiter",
        "The rate limiter holds 2 requests back: 3 of 4 of resource 'R' are in use, and an execution needs 2.",
    ),
    (
        facts(activity=waits(WaitReason.RATE_LIMITER, resources=(ResourceUse(name="R", needed=1, used=3, supply=4),))),
        "rate_limiter",
        "The rate limiter lets another model execute first",
    ),
    (
        facts(
            activity=EngineActivity(
                queue=QueueActivity(waits_for=WaitReason.SEQUENCE_SLOT, sequences=SequenceActivity(live=6, waiting=2, slots=4))
            )
        ),
        "sequence_slot",
        "All 4 slots have a live sequence and 2 more wait",
    ),
    (
        facts(activity=WAITING, recent=BUSY, batching=BatchingRules(max_batch_size=8)),
        "scheduler",
        "Instances are busy 98% of the time and 12 requests wait: dynamic_batching would have them executed together",
    ),
    (
        facts(activity=WAITING, recent=BUSY),
        "instance",
        "Instances are busy 98% of the time and 12 requests wait: more instances",
    ),
    (
        facts(activity=WAITING, recent=BUSY, batching=DYNAMIC),
        "instance",
        "more instances (instance_group.count); batches have 3.0 of 8 rows on average",
    ),
    (
        facts(activity=WAITING, recent=msgspec.structs.replace(BUSY, batch_size_mean=7.8), batching=DYNAMIC),
        "max_batch_size",
        "batches are full (7.8 of 8 rows): a larger max_batch_size",
    ),
    (
        facts(activity=waits(WaitReason.INSTANCE), recent=msgspec.structs.replace(BUSY, batch_size_mean=7.8), batching=DYNAMIC),
        "instance",  # the two that wait have room in the next batch
        "more instances (instance_group.count); batches have 7.8 of 8 rows on average",
    ),
    (
        facts(
            activity=msgspec.structs.replace(WAITING, called=(CalledActivity(name="c", calls=3, queued=2, busy=0.97),)),
            recent=BUSY,
            instances=(EXECUTING, EXECUTING, EXECUTING),
        ),
        "called_model",
        "Executions wait for the model 'c', which they call: 3 calls, 2 of them in its queue; its instances are busy 97%",
    ),
    (
        facts(
            recent=msgspec.structs.replace(ALONE, batch_size_mean=3.0), batching=DELAYED, batch_sizes=MANY, queue_ns_mean=NS_PER_S
        ),
        "batch_delay",
        "Batches wait for the delay of 5 ms and have 3.0 of 8 rows then, while instances are idle 80% of the time",
    ),
    (
        facts(instances=(msgspec.structs.replace(EXECUTING, executing_ns=3 * NS_PER_S, recent=USUAL),)),
        "instance",
        "Instance 'm_0' has executed one batch for 3 s (usual ones take 50 ms): the model may hang, or its process is stopped",
    ),
    (
        facts(recent=ALONE, batching=DELAYED, batch_sizes=MANY),
        "batch_delay",
        "Batches are formed with 1.2 rows on average: the delay of 5 ms only adds latency.",
    ),
    (
        facts(batch_sizes={2: 3, 3: 9}, batching=msgspec.structs.replace(DELAYED, preferred_batch_sizes=(8, 4))),
        "preferred_batch_size",
        "None of 12 batches had a preferred size (4, 8), most have 3",
    ),
    (
        facts(activity=EngineActivity(cache=CacheActivity(hits=1, misses=499))),
        "cache",
        "The response cache had 0.2% of 500 requests",
    ),
    (
        facts(
            instances=(
                InstanceActivity(name="m_0", kind="KIND_CPU", memory=growth(5, leaks=False)),
                InstanceActivity(name="m_1", kind="KIND_CPU", memory=growth(2)),
                InstanceActivity(name="m_2", kind="KIND_CPU", memory=growth(3)),
            )
        ),
        "memory",
        "Instance 'm_2' (and 1 more) leaks: its process grew from 100 MiB to 250 MiB in 50 min and 50,000 requests, ",
    ),
    (
        facts(activity=EngineActivity(members=(member("a"), member("b", waiting=7)))),
        "member",
        "7 requests wait for member 'b'",
    ),
    (
        facts(
            activity=EngineActivity(
                members=(
                    member("a", compute_ns=NS_PER_MS),
                    member("b", queue_ns=4 * NS_PER_MS, compute_ns=5 * NS_PER_MS),
                )
            )
        ),
        "member",
        "Member 'b' has 90% of the time of all members (4 ms in its queue, 5 ms executing)",
    ),
    (
        facts(
            activity=EngineActivity(queue=QueueActivity(executing=16)),
            batching=BatchingRules(scheduler="ensemble", max_inflight_requests=16),
        ),
        "max_inflight_requests",
        "16 requests are on their way and a step has at most 16",
    ),
    (
        facts(
            activity=EngineActivity(
                queue=QueueActivity(
                    tuning=TuningActivity(
                        target_ns=2 * NS_PER_MS, curve=(CurvePoint(1, 3 * NS_PER_MS, 0, 9),), misses_target=True
                    )
                )
            )
        ),
        "target_p99_ms",
        "target_p99_ms is 2 ms, and the smallest batch takes 3 ms",
    ),
]


@pytest.mark.parametrize(("model", "limit", "start"), TABLE, ids=lambda value: value if isinstance(value, str) else "")
def test_the_advice(model: ModelExplanation, limit: str, start: str) -> None:
    first = findings(model)[0]
    assert first.limit == limit
    assert start in first.sentence


def test_every_rule_is_in_the_table() -> None:
    spoken = {rule for model, _, _ in TABLE for rule in RULES if rule(model) is not None}
    assert spoken == set(RULES)


@pytest.mark.parametrize(
    "model",
    [
        IDLE,
        facts(recent=BUSY, batching=DYNAMIC),  # busy, and nothing waits
        facts(activity=WAITING, recent=ALONE, batching=DYNAMIC),  # a moment's queue in front of idle instances
        facts(recent=ALONE, batching=DELAYED, batch_sizes={1: 3}),  # too few to say
        facts(
            recent=msgspec.structs.replace(ALONE, batch_size_mean=7.9), batching=DELAYED, batch_sizes=MANY, queue_ns_mean=NS_PER_S
        ),
        facts(
            recent=msgspec.structs.replace(ALONE, batch_size_mean=4.0), batching=DELAYED, batch_sizes=MANY
        ),  # nobody waits for it
        facts(
            recent=msgspec.structs.replace(ALONE, batch_size_mean=4.0, busy=0.7),  # sooner, they would have no instance
            batching=DELAYED,
            batch_sizes=MANY,
            queue_ns_mean=NS_PER_S,
        ),
        facts(activity=EngineActivity(called=(CalledActivity(name="c", calls=1, busy=0.3),)), instances=(EXECUTING,)),
        facts(activity=EngineActivity(called=(CalledActivity(name="c", calls=1, queued=1),)), instances=(EXECUTING,) * 3),
        facts(instances=(msgspec.structs.replace(EXECUTING, executing_ns=3 * NS_PER_S),)),  # nothing is known of usual ones
        facts(batch_sizes={4: 1, 3: 9}, batching=msgspec.structs.replace(DELAYED, preferred_batch_sizes=(4,))),
        facts(activity=EngineActivity(cache=CacheActivity(hits=9, misses=491))),
    ],
)
def test_what_is_well_needs_no_advice(model: ModelExplanation) -> None:
    assert findings(model) == []


def instance(
    *batches: tuple[int, int, int], state: InstanceState = InstanceState.IDLE, executing_ns: int = 0
) -> InstanceActivity:
    recent = tuple(ExecutedBatch(begin_ns, end_ns, rows) for begin_ns, end_ns, rows in batches)
    return InstanceActivity(name="m_0", kind="KIND_CPU", state=state, recent=recent, executing_ns=executing_ns)


def test_the_recent_share_counts_what_lies_in_the_last_seconds() -> None:
    now_ns = 100 * NS_PER_S
    since_ns = now_ns - RECENT_NS_MAX
    part_ns = NS_PER_S // 2
    half = instance((since_ns - NS_PER_S, since_ns - 1, 9), (since_ns - part_ns, since_ns + part_ns, 4), executing_ns=NS_PER_S)
    said = recent_activity([half, instance(), instance(state=InstanceState.PASSIVE)], now_ns)
    assert (said.window_ns, said.batches, said.batch_size_mean, said.execution_ns_mean) == (RECENT_NS_MAX, 1, 4.0, NS_PER_S)
    assert said.busy == pytest.approx((0.5 + 1) / 2 / 2)


def test_an_instance_that_remembers_less_counts_for_what_it_remembers() -> None:
    quick = instance(*((1000 + 10 * index, 1005 + 10 * index, 1) for index in range(RECENT_BATCHES_MAX)))
    said = recent_activity([quick], 1000 + 10 * RECENT_BATCHES_MAX)
    assert (said.window_ns, said.batches, said.busy) == (10 * RECENT_BATCHES_MAX, RECENT_BATCHES_MAX, 0.5)


def test_without_instances_nothing_is_recent() -> None:
    assert recent_activity([], 5) == RecentActivity()
