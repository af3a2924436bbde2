"""Advice: sentences on what to change, and the limit that binds, from what an explanation has.

Each rule looks at one thing and says nothing where that is well. The first that has something to say names the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tpy.messages import InstanceActivity, InstanceState, LevelActivity, MemoryGrowth, ModelExplanation, ResourceUse, WaitReason
from tpy.units import KIB, MIB, NS_PER_MS, NS_PER_S

BUSY_MIN: Final = 0.8
"""From this share on instances are what binds."""
FULL_MIN: Final = 0.9
"""A mean batch of this part of the largest counts as full."""
ALONE_MAX: Final = 1.5
"""Rows in a mean batch that had no company."""
BATCHES_MIN: Final = 8
"""Fewer batches say nothing about their sizes."""
LONG_EXECUTION_NS: Final = 30 * NS_PER_S
UNUSUAL_EXECUTION_NS: Final = 2 * NS_PER_S
UNUSUAL_FACTOR: Final = 20
"""An execution of at least this length, and this many times as long as the previous ones on average, is unusual."""
IDLE_MAX: Final = 0.5
"""Up to this share instances have room for batches that come sooner."""
LOOKUPS_MIN: Final = 100
"""Fewer say nothing about a cache."""
HIT_SHARE_MIN: Final = 0.01


class Finding(NamedTuple):
    """The limit, in a word, and a sentence on what to do about it."""

    limit: str
    sentence: str


Rule = Callable[[ModelExplanation], Finding | None]


def findings(model: ModelExplanation) -> list[Finding]:
    """All that the rules have to say, the most important first."""
    return [finding for rule in RULES if (finding := rule(model)) is not None]


def _not_alive(model: ModelExplanation) -> Finding | None:
    if model.state == "READY":
        return None
    reason = f": {model.reason}" if model.reason else ""
    return Finding(WaitReason.NO_INSTANCE.value, f"The version is {model.state} and executes nothing{reason}")


def _long_execution(model: ModelExplanation) -> Finding | None:
    long = [each for each in model.instances if each.executing_ns >= min(LONG_EXECUTION_NS, _unusual_ns(each))]
    if not long:
        return None
    longest = max(long, key=lambda each: each.executing_ns)
    usual = f" (usual ones take {_ms(_mean_ns(longest))})" if longest.recent else ""
    return Finding(
        WaitReason.INSTANCE.value,
        f"Instance '{longest.name}' has executed one batch for {longest.executing_ns // NS_PER_S} s{usual}: the model may hang, "
        "or its process is stopped; the log has its stack after 30 s.",
    )


def _mean_ns(instance: InstanceActivity) -> int:
    return sum(batch.end_ns - batch.begin_ns for batch in instance.recent) // max(1, len(instance.recent))


def _unusual_ns(instance: InstanceActivity) -> int:
    """The time from which on an execution is unusual."""
    if len(instance.recent) < BATCHES_MIN:
        return LONG_EXECUTION_NS
    return max(UNUSUAL_EXECUTION_NS, UNUSUAL_FACTOR * _mean_ns(instance))


def _failed_instances(model: ModelExplanation) -> Finding | None:
    failed = [each for each in model.instances if each.state is InstanceState.FAILED]
    if not failed or model.state != "READY":
        return None
    return Finding(
        WaitReason.INSTANCE.value,
        f"{len(failed)} of {len(model.instances)} instances have failed and are started again: {failed[0].reason}",
    )


def _full_queue(model: ModelExplanation) -> Finding | None:
    full = [level for level in model.activity.queue.levels if level.size_max and level.waiting >= level.size_max]
    if not full:
        return None
    return Finding(
        "max_queue_size",
        f"The queue{_of_priority(full[0])} is full ({full[0].waiting} requests): further ones are refused. "
        "A larger max_queue_size has them wait instead.",
    )


def _rate_limiter(model: ModelExplanation) -> Finding | None:
    if model.activity.queue.waits_for is not WaitReason.RATE_LIMITER:
        return None
    scarce = [each for each in model.activity.resources if each.used + each.needed > each.supply]
    if not scarce:
        return Finding(
            WaitReason.RATE_LIMITER.value,
            "The rate limiter lets another model execute first: a lower `priority` number in `rate_limiter` has this one's turn "
            "come more often.",
        )
    short = scarce[0]
    return Finding(
        WaitReason.RATE_LIMITER.value,
        f"The rate limiter holds {_requests(model)} back: {short.used} of {short.supply} of resource '{short.name}'"
        f"{_of_device(short)} are in use, and an execution needs {short.needed}. "
        f"More of it (--rate-limit-resource), or instances that need less.",
    )


def _sequence_slots(model: ModelExplanation) -> Finding | None:
    sequences = model.activity.queue.sequences
    if model.activity.queue.waits_for is not WaitReason.SEQUENCE_SLOT or sequences is None:
        return None
    return Finding(
        WaitReason.SEQUENCE_SLOT.value,
        f"All {sequences.slots} slots have a live sequence and {sequences.waiting} more wait for one: more instances, a larger "
        "max_batch_size (max_candidate_sequences with the strategy oldest), or a shorter max_sequence_idle_microseconds, if "
        "clients leave sequences without an END.",
    )


def _called_models(model: ModelExplanation) -> Finding | None:
    """The instances wait for a model that is busy itself: more of them would wait, too."""
    executing = sum(each.state is InstanceState.EXECUTING for each in model.instances)
    called = [each for each in model.activity.called if each.queued or each.busy >= BUSY_MIN]
    if not called or not executing:
        return None
    most = max(called, key=lambda each: (each.queued, each.busy))
    if 2 * most.calls < executing:
        return None
    return Finding(
        "called_model",
        f"Executions wait for the model '{most.name}', which they call: {most.calls} calls, {most.queued} of them in its queue; "
        f"its instances are busy {most.busy:.0%} of the time. Its own explanation says why; more instances of this model would "
        "wait, too.",
    )


def _busy_instances(model: ModelExplanation) -> Finding | None:
    queue, recent, batching = model.activity.queue, model.recent, model.batching
    if queue.waits_for is not WaitReason.INSTANCE or recent.busy < BUSY_MIN or _called_models(model) is not None:
        return None
    verb = "wait" if queue.waiting > 1 else "waits"
    start = f"Instances are busy {recent.busy:.0%} of the time and {_requests(model)} {verb}: "
    if batching.scheduler == "default" and batching.max_batch_size > 1:
        return Finding(
            "scheduler", f"{start}dynamic_batching would have them executed together, up to {batching.max_batch_size} at a time."
        )
    if batching.max_batch_size <= 1:
        return Finding(WaitReason.INSTANCE.value, f"{start}more instances (instance_group.count), or a model that takes batches.")
    mean = f"{recent.batch_size_mean:.1f} of {batching.max_batch_size} rows"
    if recent.batch_size_mean >= FULL_MIN * batching.max_batch_size and queue.waiting > batching.max_batch_size:
        return Finding(
            "max_batch_size",
            f"{start}batches are full ({mean}): a larger max_batch_size if the model gains by it, or more instances.",
        )
    return Finding(WaitReason.INSTANCE.value, f"{start}more instances (instance_group.count); batches have {mean} on average.")


def _idle_delay(model: ModelExplanation) -> Finding | None:
    recent, delay_ns = model.recent, model.batching.queue_delay_ns
    if not delay_ns or not recent.batches or sum(model.batch_sizes.values()) < BATCHES_MIN or recent.busy >= BUSY_MIN:
        return None
    if recent.batch_size_mean > ALONE_MAX:
        return _long_delay(model)
    return Finding(
        WaitReason.BATCH_DELAY.value,
        f"Batches are formed with {recent.batch_size_mean:.1f} rows on average: the delay of {_ms(delay_ns)} only adds latency. "
        "A shorter max_queue_delay_microseconds, or clients that send more at the same time.",
    )


def _long_delay(model: ModelExplanation) -> Finding | None:
    """Batches wait for the whole delay, are not full then, and instances are idle meanwhile."""
    recent, batching = model.recent, model.batching
    waited = 2 * model.queue_ns_mean >= batching.queue_delay_ns
    if not waited or recent.busy > IDLE_MAX or recent.batch_size_mean >= FULL_MIN * batching.max_batch_size:
        return None
    return Finding(
        WaitReason.BATCH_DELAY.value,
        f"Batches wait for the delay of {_ms(batching.queue_delay_ns)} and have {recent.batch_size_mean:.1f} of "
        f"{batching.max_batch_size} rows then, while instances are idle {1 - recent.busy:.0%} of the time: a shorter "
        "max_queue_delay_microseconds answers sooner.",
    )


def _missed_target(model: ModelExplanation) -> Finding | None:
    tuning, p99_ns = model.activity.queue.tuning, model.latency.total.p99_ns
    if tuning is None or not tuning.target_ns:
        return None
    target = f"target_p99_ms is {_ms(tuning.target_ns)}"
    if tuning.misses_target:
        return Finding(
            "target_p99_ms",
            f"{target}, and the smallest batch takes {_ms(tuning.curve[0].mean_ns)}: no batching can meet it.",
        )
    if p99_ns <= tuning.target_ns:
        return None
    return Finding(
        "target_p99_ms",
        f"{target}, and 99 % of the last requests took up to {_ms(p99_ns)}, up to {_ms(model.latency.queue.p99_ns)} of it in the "
        "queue: more instances, or less load.",
    )


def _missed_sizes(model: ModelExplanation) -> Finding | None:
    preferred = model.batching.preferred_batch_sizes
    executed = sum(model.batch_sizes.values())
    if not preferred or not model.batching.queue_delay_ns or executed < BATCHES_MIN:
        return None
    if any(model.batch_sizes.get(size) for size in preferred):
        return None
    most = max(model.batch_sizes, key=lambda size: model.batch_sizes[size])
    sizes = ", ".join(str(size) for size in sorted(preferred))
    return Finding(
        WaitReason.PREFERRED_BATCH_SIZE.value,
        f"None of {executed} batches had a preferred size ({sizes}), most have {most}: every batch waits for the whole delay of "
        f"{_ms(model.batching.queue_delay_ns)}. Sizes that occur, or none.",
    )


def _members(model: ModelExplanation) -> Finding | None:
    members = model.activity.members
    if not members:
        return None
    queue_of = max(members, key=lambda each: each.waiting)
    if queue_of.waiting:
        verb = "requests wait" if queue_of.waiting > 1 else "request waits"
        return Finding(
            WaitReason.MEMBER.value,
            f"{queue_of.waiting} {verb} for member '{queue_of.name}': its explanation says why.",
        )
    total_ns = sum(each.queue_ns + each.compute_ns for each in members)
    slowest = max(members, key=lambda each: each.queue_ns + each.compute_ns)
    share = (slowest.queue_ns + slowest.compute_ns) / max(1, total_ns)
    if len(members) == 1 or share < 0.5:
        return None
    return Finding(
        WaitReason.MEMBER.value,
        f"Member '{slowest.name}' has {share:.0%} of the time of all members ({_ms(slowest.queue_ns)} in its queue, "
        f"{_ms(slowest.compute_ns)} executing): begin there.",
    )


def _inflight(model: ModelExplanation) -> Finding | None:
    bound, executing = model.batching.max_inflight_requests, model.activity.queue.executing
    if not bound or executing < bound:
        return None
    return Finding(
        "max_inflight_requests",
        f"{executing} requests are on their way and a step has at most {bound} (max_inflight_requests): earlier steps "
        "may be held back.",
    )


def _useless_cache(model: ModelExplanation) -> Finding | None:
    cache = model.activity.cache
    if cache is None or cache.hits + cache.misses < LOOKUPS_MIN:
        return None
    share = cache.hits / (cache.hits + cache.misses)
    if share >= HIT_SHARE_MIN:
        return None
    return Finding(
        WaitReason.CACHE.value,
        f"The response cache had {share:.1%} of {cache.hits + cache.misses} requests: it costs each a lookup and gains nothing.",
    )


def _leaks(model: ModelExplanation) -> Finding | None:
    leaking = [(each.name, each.memory) for each in model.instances if each.memory is not None and each.memory.leaks]
    if not leaking:
        return None
    name, growth = max(leaking, key=lambda each: each[1].trend_bytes)
    more = f" (and {len(leaking) - 1} more)" if len(leaking) > 1 else ""
    return Finding(
        "memory",
        f"Instance '{name}'{more} leaks: its process {grown(growth)}. Look for what `execute` keeps; until that is found, "
        "unloading and loading the model gives the memory back.",
    )


RULES: Final[tuple[Rule, ...]] = (
    _not_alive,
    _long_execution,
    _failed_instances,
    _full_queue,
    _missed_target,
    _rate_limiter,
    _sequence_slots,
    _called_models,
    _busy_instances,
    _inflight,
    _members,
    _missed_sizes,
    _idle_delay,
    _useless_cache,
    _leaks,
)


def grown(growth: MemoryGrowth) -> str:
    """Returns the growth of a process in words."""
    minutes = round(growth.period_ns / (60 * NS_PER_S))
    return (
        f"grew from {_mib(growth.first_bytes)} to {_mib(growth.last_bytes)} in {minutes} min and {growth.requests:,} requests, "
        f"{growth.trend_bytes / KIB:,.0f} KiB per 1,000 requests"
    )


def _requests(model: ModelExplanation) -> str:
    count = max(1, model.activity.queue.waiting)
    return f"{count} requests" if count > 1 else "1 request"


def _of_priority(level: LevelActivity) -> str:
    return f" of priority {level.priority}" if level.priority else ""


def _of_device(resource: ResourceUse) -> str:
    return "" if resource.device is None else f" of device {resource.device}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.0f} MiB"


def _ms(ns: int) -> str:
    return f"{ns / NS_PER_MS:.3g} ms"
