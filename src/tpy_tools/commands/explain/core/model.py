"""An explanation of a model version, as lines."""

from __future__ import annotations

from collections.abc import Iterator

from tpy.echo import printable
from tpy.messages import (
    BatchingRules,
    InstanceActivity,
    InstanceState,
    MemoryGrowth,
    ModelExplanation,
    QueueActivity,
    TuningActivity,
    WaitReason,
)
from tpy.units import KIB, MIB, NS_PER_S
from tpy_tools.commands.explain.core.rollout import words_of
from tpy_tools.commands.explain.core.units import duration

_WAITS = {
    WaitReason.NOTHING: "no request waits",
    WaitReason.INSTANCE: "a free instance: all execute",
    WaitReason.NO_INSTANCE: "a live instance",
    WaitReason.BATCH_DELAY: "other requests, to form a batch",
    WaitReason.PREFERRED_BATCH_SIZE: "other requests, to form a batch of a preferred size",
    WaitReason.RATE_LIMITER: "the rate limiter",
    WaitReason.SEQUENCE_SLOT: "a slot for its sequence",
    WaitReason.START_DELAY: "more requests, before the scheduler begins (TRITONSERVER_DELAY_SCHEDULER)",
    WaitReason.CACHE: "the answer of an equal request, or the response cache",
    WaitReason.LOAD: "the model to be loaded (--model-memory-budget)",
    WaitReason.MEMBER: "a member of the ensemble",
}
_INSTANCES_SHOWN_MAX = 32
_SIZES_SHOWN_MAX = 12


def lines_of(model: ModelExplanation) -> Iterator[str]:
    """The lines of one version."""
    reason = f": {printable(model.reason)}" if model.reason else ""
    yield f"{printable(model.name)}, version {model.version}: {model.state}{reason}"
    yield f"  requests    {model.succeeded} answered, {model.failed} failed{_times(model)}"
    if model.rollout is not None:
        yield f"  rollout     {printable(words_of(model.rollout))}"
    yield f"  batching    {_batching(model.batching)}"
    yield from _queue(model.activity.queue)
    if model.activity.queue.tuning is not None:
        yield from _tuning(model.activity.queue.tuning)
    if (lengths := model.activity.queue.lengths) is not None:
        yield f"  lengths     max_padding {lengths.max_padding:.3g}; of all that was executed {lengths.padding:.0%} was padding"
    yield from _instances(model)
    yield from _batches(model)
    yield from _others(model)
    yield f"  limit       {model.limit.replace('_', ' ')}"
    for sentence in model.advice or ("Nothing to change.",):
        yield f"  advice      {printable(sentence)}"


def _times(model: ModelExplanation) -> str:
    if not model.succeeded:
        return ""
    return f"; on average {duration(model.queue_ns_mean)} in the queue, {duration(model.compute_ns_mean)} executing"


def _batching(rules: BatchingRules) -> str:
    parts = ["one request at a time" if rules.scheduler == "default" else rules.scheduler]
    if rules.max_batch_size:
        parts.append(f"max_batch_size {rules.max_batch_size}")
    if rules.preferred_batch_sizes:
        parts.append(f"preferred {', '.join(map(str, rules.preferred_batch_sizes))}")
    if rules.queue_delay_ns:
        parts.append(f"delay {duration(rules.queue_delay_ns)}")
    if rules.max_inflight_requests:
        parts.append(f"max_inflight_requests {rules.max_inflight_requests}")
    if rules.decoupled:
        parts.append("decoupled")
    return ", ".join(parts)


def _queue(queue: QueueActivity) -> Iterator[str]:
    given = f", {queue.prefetched} given to an instance and not started" if queue.prefetched else ""
    yield f"  now         {queue.executing} executing, {queue.waiting} waiting{given}"
    for level in queue.levels:
        if level.waiting:
            name = f"priority {level.priority}: " if level.priority else ""
            of = f" of at most {level.size_max}" if level.size_max else ""
            yield f"  queue       {name}{level.waiting}{of} waiting, the oldest for {duration(level.oldest_ns)}"
    for tenant in queue.tenants:
        of = f"share {tenant.share:.0%}, the oldest for {duration(tenant.oldest_ns)}"
        yield f"  tenant      {tenant.name}: {tenant.waiting} waiting, {of}"
    if queue.waits_for is not WaitReason.NOTHING:
        due = "" if queue.due_ns is None else f", for {duration(queue.due_ns)} more at most"
        yield f"  waits for   {_WAITS[queue.waits_for]}{due}"
    if queue.sequences is not None:
        sequences = queue.sequences
        yield f"  sequences   {sequences.live} live, {sequences.waiting} of them waiting for one of {sequences.slots} slots"


def _tuning(tuning: TuningActivity) -> Iterator[str]:
    """Lines of `batching: auto`: what is known, what is done, and why."""
    target = f"target_p99_ms {duration(tuning.target_ns)}, " if tuning.target_ns else ""
    yield f"  tuning      {target}{tuning.arrivals_per_s} rows arrive in a second"
    points = tuning.curve
    if len(points) > _SIZES_SHOWN_MAX:
        points = tuple(points[index * (len(points) - 1) // (_SIZES_SHOWN_MAX - 1)] for index in range(_SIZES_SHOWN_MAX))
    for point in points:
        row = f", {duration(point.mean_ns // point.rows)} for a row" if point.rows > 1 else ""
        yield f"  cost        {_rows(point.rows)}: {duration(point.mean_ns)}, give or take {duration(point.deviation_ns)}{row}"
    if tuning.trial_rows:
        yield f"  size        {tuning.trial_rows} rows are tried, to know whether a larger batch is worth its time"
    for size in tuning.sizes[-_SIZES_SHOWN_MAX:]:
        yield f"  size        of {size.rows} rows {size.sent} go at once: the parts take no longer than the whole"
    if not tuning.sizes:
        yield "  size        all that wait go at once, up to max_batch_size: no split saves time"
    if not tuning.may_wait:
        halving = "clients come together, and half of them at a time has instance and server work at the same time"
        otherwise = "not while instances come and go, hold batches ahead, or take turns by the rate limiter"
        yield f"  wait        none: {halving if tuning.halving else otherwise}"
        return
    for wait in tuning.waits[:_SIZES_SHOWN_MAX]:
        rows = f"{_rows(wait.rows)} that came to an idle instance" if wait.fresh else f"{_rows(wait.rows)} left after a batch"
        saved = f"that saves {wait.gain_permille / 10:.0f} % of the requests' time"
        yield f"  wait        {rows}: up to {duration(wait.wait_ns)}, until there are {wait.goal}; {saved}"
    if not tuning.waits:
        yield "  wait        none: replaying the last executions, no wait would have saved enough of the requests' time"


def _rows(count: int) -> str:
    return f"{count} rows" if count > 1 else "1 row"


def _instances(model: ModelExplanation) -> Iterator[str]:
    for instance in model.instances[:_INSTANCES_SHOWN_MAX]:
        yield f"  instance    {_instance(instance)}"
    if len(model.instances) > _INSTANCES_SHOWN_MAX:
        yield f"  instance    {len(model.instances) - _INSTANCES_SHOWN_MAX} more"
    for instance in model.instances[:_INSTANCES_SHOWN_MAX]:
        if instance.memory is not None:
            yield f"  memory      {printable(instance.name)}: {_growth(instance.memory)}"
    recent = model.recent
    if recent.window_ns:
        yield (
            f"  recent      busy {recent.busy:.0%} of the last {duration(recent.window_ns)}; {recent.batches} batches of "
            f"{recent.batch_size_mean:.1f} rows in {duration(recent.execution_ns_mean)} on average"
        )


def _instance(instance: InstanceActivity) -> str:
    device = f"GPU {instance.device_id}" if instance.kind == "KIND_GPU" else instance.kind.removeprefix("KIND_")
    text = f"{printable(instance.name)} on {device}: {instance.state.value.replace('_', ' ')}"
    if instance.state is InstanceState.FAILED:
        return f"{text}: {printable(instance.reason)}"
    if instance.executing_ns:
        text += f" for {duration(instance.executing_ns)}"
    if instance.state is not InstanceState.PASSIVE:
        text += f", holds {instance.held}, {instance.batches} batches done"
    return text


def _growth(memory: MemoryGrowth) -> str:
    first, last = memory.first_bytes / MIB, memory.last_bytes / MIB
    trend, least, most = (value / KIB for value in (memory.trend_bytes, memory.trend_bytes_min, memory.trend_bytes_max))
    minutes = round(memory.period_ns / (60 * NS_PER_S))
    return (
        f"{first:,.0f} MiB, {minutes} min later {last:,.0f} MiB, {trend:+,.0f} KiB per 1,000 requests "
        f"(from {least:+,.0f} to {most:+,.0f})"
    )


def _batches(model: ModelExplanation) -> Iterator[str]:
    sizes = sorted(model.batch_sizes.items(), key=lambda item: (-item[1], item[0]))[:_SIZES_SHOWN_MAX]
    if sizes:
        total = sum(model.batch_sizes.values())
        shares = ", ".join(f"{size}: {count / total:.0%}" for size, count in sorted(sizes))
        yield f"  batch sizes {shares} of {total} batches"


def _others(model: ModelExplanation) -> Iterator[str]:
    activity = model.activity
    if activity.cache is not None:
        asked = activity.cache.hits + activity.cache.misses
        share = f"{activity.cache.hits / asked:.0%} of {asked}" if asked else "none yet"
        yield f"  cache       answered {share}; {activity.cache.waiting} waiting in front of it"
    for resource in activity.resources:
        device = "" if resource.device is None else f" of device {resource.device}"
        yield (
            f"  resource    {printable(resource.name)}{device}: {resource.used} of {resource.supply} in use, an execution needs "
            f"{resource.needed}"
        )
    for called in activity.called:
        queued = f"{called.calls} waited for, {called.queued} of them in its queue"
        yield f"  calls       {printable(called.name)}: {queued}; its instances are busy {called.busy:.0%}"
    for member in activity.members:
        yield (
            f"  member      {printable(member.name)}, version {member.version}: {member.executing} executing, {member.waiting} "
            f"waiting; on average {duration(member.queue_ns)} in the queue, {duration(member.compute_ns)} executing"
        )
