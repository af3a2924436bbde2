"""The recent past of a version's instances, from the batches that they remember."""

from __future__ import annotations

from collections.abc import Iterable

from tpy.limits import RECENT_BATCHES_MAX, RECENT_NS_MAX
from tpy.messages import InstanceActivity, InstanceState, RecentActivity


def recent_activity(instances: Iterable[InstanceActivity], now_ns: int) -> RecentActivity:
    """Batches that ended within RECENT_NS_MAX, or within the time that an instance remembers if that is shorter: quick batches
    soon fill its memory."""
    takers = [instance for instance in instances if instance.state is not InstanceState.PASSIVE]
    if not takers:
        return RecentActivity()
    shares, windows, sizes, times = [], [], [], []
    for instance in takers:
        since_ns = now_ns - RECENT_NS_MAX
        if len(instance.recent) >= RECENT_BATCHES_MAX:
            since_ns = max(since_ns, instance.recent[0].begin_ns)
        window_ns = max(1, now_ns - since_ns)
        ended = [batch for batch in instance.recent if batch.end_ns > since_ns]
        busy_ns = sum(batch.end_ns - max(batch.begin_ns, since_ns) for batch in ended) + instance.executing_ns
        shares.append(min(1.0, busy_ns / window_ns))
        windows.append(window_ns)
        sizes += [batch.batch_size for batch in ended]
        times += [batch.end_ns - batch.begin_ns for batch in ended]
    return RecentActivity(
        window_ns=min(windows),
        batches=len(sizes),
        batch_size_mean=sum(sizes) / max(1, len(sizes)),
        execution_ns_mean=sum(times) // max(1, len(times)),
        busy=sum(shares) / len(shares),
    )
