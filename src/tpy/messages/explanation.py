"""The activity of the engine for a model version, and why requests wait. Times are nanoseconds; those of batches are on the
server's monotonic clock, as `ModelExplanation.now_ns` is."""

from __future__ import annotations

import enum

import msgspec

from tpy.messages.models import RolloutStatus
from tpy.messages.statistics import MemoryGrowth


class WaitReason(enum.Enum):
    """The reasons why the first request in the queue is not executed yet."""

    NOTHING = "nothing"
    """No request waits."""
    INSTANCE = "instance"
    """Every instance executes as many batches as it may hold."""
    NO_INSTANCE = "no_instance"
    """No instance is alive."""
    BATCH_DELAY = "batch_delay"
    """An instance is free; the batch waits for other requests, at most for the configured delay."""
    PREFERRED_BATCH_SIZE = "preferred_batch_size"
    """As BATCH_DELAY, until a preferred size is reached."""
    RATE_LIMITER = "rate_limiter"
    """An instance is free; the resources that it needs are not, or another model's turn is first."""
    SEQUENCE_SLOT = "sequence_slot"
    """Every slot has a live sequence; the sequence of the request waits for one."""
    START_DELAY = "start_delay"
    """The scheduler begins when more requests wait (TRITONSERVER_DELAY_SCHEDULER)."""
    CACHE = "cache"
    """The response cache is asked, or an equal request executes whose answer serves both."""
    LOAD = "load"
    """The model is loaded on demand, and is not loaded yet."""
    MEMBER = "member"
    """The request is in a member of the ensemble."""


class LevelActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that wait with one priority, 1 the highest; 0: the model has no priorities. `oldest_ns`: the time that the first
    of them has waited. `size_max` 0: no limit."""

    priority: int = 0
    waiting: int = 0
    oldest_ns: int = 0
    size_max: int = 0


class TenantActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a tenant that wait. `share` is what it gets of the instances' time while all of these tenants wait."""

    name: str
    waiting: int
    oldest_ns: int
    share: float


class SequenceActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences of a model version: `live` ones have one of the `slots` of its instances, or are among the `waiting` ones."""

    live: int = 0
    waiting: int = 0
    slots: int = 0


class CurvePoint(msgspec.Struct, frozen=True):
    """Batches of `rows` take `mean_ns`, give or take `deviation_ns`; `count` is how many the mean rests on."""

    rows: int
    mean_ns: int
    deviation_ns: int
    count: int


class TunedWait(msgspec.Struct, frozen=True):
    """While an instance is idle, `rows`, which came just then if `fresh`, wait up to `wait_ns` for company, until there are
    `goal`. That saves `gain_permille` of the requests' time."""

    rows: int
    fresh: bool
    wait_ns: int
    goal: int
    gain_permille: int


class TunedSize(msgspec.Struct, frozen=True):
    """Of `rows` that wait, only `sent` go at once."""

    rows: int
    sent: int


class TuningActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The tuner of a model with `batching: auto`. `target_ns` 0: not set; `misses_target`: even the smallest batch does. `late`
    requests were answered after the target. `trial_rows`: the size that is being tried, 0: no trial. Of a full queue
    `batch_rows` go at once, and should take `batch_ns` (0: nothing is known). `may_wait`: instances neither come nor go, and no
    convoy is halved (`halving`)."""

    curve: tuple[CurvePoint, ...] = ()
    arrivals_per_s: int = 0
    target_ns: int = 0
    waits: tuple[TunedWait, ...] = ()
    sizes: tuple[TunedSize, ...] = ()
    trial_rows: int = 0
    batch_rows: int = 0
    batch_ns: int = 0
    late: int = 0
    may_wait: bool = False
    halving: bool = False
    misses_target: bool = False


class LengthActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Batches that are formed by length. `max_padding` is the share of a batch that may be padding, `padding` the share that it
    was in all batches that were executed."""

    max_padding: float
    padding: float


class QueueActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a model version that have no answer yet. `executing` are on instances; `prefetched` were given to an
    instance that executes something before them; the others wait in `levels`. `due_ns`: the time after which a batch that
    is being formed is executed as it is. `tenants` are the tenants that share the `levels`; `tuning` is there with
    `batching: auto`, `lengths` in its place with `max_padding`."""

    waits_for: WaitReason = WaitReason.NOTHING
    executing: int = 0
    prefetched: int = 0
    levels: tuple[LevelActivity, ...] = ()
    due_ns: int | None = None
    sequences: SequenceActivity | None = None
    tenants: tuple[TenantActivity, ...] = ()
    tuning: TuningActivity | None = None
    lengths: LengthActivity | None = None

    @property
    def waiting(self) -> int:
        """All that wait, in the queue or prefetched."""
        return self.prefetched + sum(level.waiting for level in self.levels)

    @property
    def oldest_ns(self) -> int:
        """The time that the oldest request in the queue has waited."""
        return max((level.oldest_ns for level in self.levels), default=0)


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of the rate limiter: every instance of the version holds at least `needed` of it while it executes, all models
    together hold `used` of `supply` now. `device` None: the resource is global."""

    name: str
    device: int | None = None
    needed: int
    used: int
    supply: int


class CacheActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The response cache as requests of this version met it. `waiting`: those for which it is asked, or whose equal executes."""

    hits: int = 0
    misses: int = 0
    waiting: int = 0


class MemberActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a model that executes a step of an ensemble, with all requests that it has, also those of other callers.
    `queue_ns`, `compute_ns`: averages of its requests since it was loaded."""

    name: str
    version: int
    waits_for: WaitReason = WaitReason.NOTHING
    waiting: int = 0
    executing: int = 0
    queue_ns: int = 0
    compute_ns: int = 0


class CalledActivity(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose answers executions of this version wait for now, because their code has called it. `calls` of them, of which
    `queued` wait in its queue; `busy` is the recent share of time in which its instances executed, for anybody."""

    name: str
    calls: int = 0
    queued: int = 0
    busy: float = 0.0


class EngineActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The activity of an engine. `cache` is there for models whose answers are kept, `members` for ensembles, `resources` with
    a rate limiter, `called` for models that call others."""

    queue: QueueActivity = QueueActivity()
    cache: CacheActivity | None = None
    resources: tuple[ResourceUse, ...] = ()
    members: tuple[MemberActivity, ...] = ()
    called: tuple[CalledActivity, ...] = ()


class ExecutedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch that an instance executed."""

    begin_ns: int
    end_ns: int
    batch_size: int


class InstanceState(enum.Enum):
    """The states of an instance."""

    IDLE = "idle"
    EXECUTING = "executing"
    HELD_BACK = "held_back"
    """It has a batch that waits for resources of the rate limiter."""
    PASSIVE = "passive"
    """It never gets requests."""
    CLOSING = "closing"
    """It executes what it has and ends."""
    FAILED = "failed"
    """It has ended, and is started again."""


class InstanceActivity(msgspec.Struct, frozen=True, kw_only=True):
    """An instance: `held` batches were given to it, of which it works on `credit` at a time; `batches` are over since it was
    started. `executing_ns`: the time that its present batch has taken so far. `recent` are its last batches, the newest last.
    `memory` is there for one in a separate process, once its growth is known."""

    name: str
    kind: str
    device_id: int = 0
    state: InstanceState = InstanceState.IDLE
    reason: str = ""
    executing_ns: int = 0
    held: int = 0
    credit: int = 1
    batches: int = 0
    recent: tuple[ExecutedBatch, ...] = ()
    memory: MemoryGrowth | None = None


class BatchingRules(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration's rules for batches. `scheduler` is "default", "dynamic_batching", "sequence_batching" or "ensemble".
    `max_inflight_requests` is that of an ensemble."""

    scheduler: str = "default"
    max_batch_size: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    queue_delay_ns: int = 0
    decoupled: bool = False
    max_inflight_requests: int = 0


class RecentActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The last seconds, as far as instances remember their batches: `busy` is the share of `window_ns` in which an instance
    executed, as a mean over the instances that take batches."""

    window_ns: int = 0
    batches: int = 0
    batch_size_mean: float = 0.0
    execution_ns_mean: int = 0
    busy: float = 0.0


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Durations that half, 90 % and 99 % of the requests did not exceed, to 0.4 %."""

    p50_ns: int = 0
    p90_ns: int = 0
    p99_ns: int = 0


class RecentLatency(msgspec.Struct, frozen=True, kw_only=True):
    """The last ten seconds: `requests` were answered, `total` from their arrival to their answer, `queue` before they
    were executed. Kept only while somebody asks: the first explanation finds none."""

    requests: int = 0
    total: Percentiles = Percentiles()
    queue: Percentiles = Percentiles()


class ModelExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One model version. `limit` is what bounds its throughput or latency now, in a word (see `WaitReason`; "max_batch_size" and
    "batch_delay" also without a queue); `advice` are sentences on what to change, the most important first. `rollout` is that of
    which this version is the old or the new one."""

    name: str
    version: int
    namespace: str = ""
    state: str = "READY"
    reason: str = ""
    now_ns: int = 0
    batching: BatchingRules = BatchingRules()
    activity: EngineActivity = EngineActivity()
    instances: tuple[InstanceActivity, ...] = ()
    recent: RecentActivity = RecentActivity()
    latency: RecentLatency = RecentLatency()
    batch_sizes: dict[int, int] = {}
    """Batches executed since the version was loaded, by size."""
    succeeded: int = 0
    failed: int = 0
    queue_ns_mean: int = 0
    compute_ns_mean: int = 0
    limit: str = "nothing"
    advice: tuple[str, ...] = ()
    rollout: RolloutStatus | None = None
