"""DynamicOptions: a model's `dynamic_batching` block as the dynamic core uses it."""

from __future__ import annotations

import msgspec

from tpy.config.model_config import DynamicBatching, ModelConfig, QueuePolicy, StrategyOldest, TimeoutAction
from tpy.errors import Unsupported, invariant
from tpy.limits import PRIORITY_LEVELS_MAX
from tpy.units import NS_PER_US
from tpy_data.schedulers.core.overlap import OverlapTerms


class StartDelay(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler starts no batch until `queued` requests wait, and with the sequence strategy direct, where they are counted
    in slots, `backlogged` in the backlog; from then on it works as ever. 0: it starts at once. `backlogged` counts only where
    `queued` is set, and with the strategy oldest each instance counts what is ready for it: all as in Triton."""

    queued: int = 0
    backlogged: int = 0


NO_START_DELAY = StartDelay()


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """The queue policy of one priority level. Zero means: no timeout, no limit."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    queue_size_max: int = 0

    def queue_timeout_ns(self, timeout_ns: int) -> int:
        """The time that a request that asks for this timeout may wait unexpired, 0 = for ever.

        A request can only shorten the default, so without a default its own timeout changes nothing here.
        """
        if self.allow_timeout_override and 0 < timeout_ns < self.default_timeout_ns:
            return timeout_ns
        return self.default_timeout_ns


class DynamicOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the dynamic core.

    * `batch_size_max`: rows in a batch, >= 1.
    * `preferred`: sizes in rows at which a batch is sent without waiting longer; not empty.
    * `queue_delay_ns_max`: how long the oldest request may wait for company, 0 = not at all.
    * `levels`: the rules of priority levels 1, 2, ...; one entry when the model has no levels.
    * `default_level`: index into `levels` for requests that name no valid level.
    * `overlap`: when to leave half of what waits for the next batch; None: never. Only where no size is preferred to the largest
      and nothing waits for company.
    * `shares_devices`: with a rate limiter, instances wait for resources that other models may have.
    """

    batch_size_max: int = 1
    preferred: frozenset[int] = frozenset({1})
    queue_delay_ns_max: int = 0
    preserve_ordering: bool = False
    levels: tuple[QueueRules, ...] = (QueueRules(),)
    default_level: int = 0
    overlap: OverlapTerms | None = None
    shares_devices: bool = False


def shares_devices(config: ModelConfig) -> bool:
    """True where an instance of the model needs resources of the rate limiter."""
    return any(group.rate_limiter is not None and group.rate_limiter.resources for group in config.instance_group)


def dynamic_options(config: ModelConfig) -> DynamicOptions:
    """The options of a validated configuration that has a `dynamic_batching` block.

    An empty `preferred_batch_size` means [max_batch_size], so that with a delay set a lone request waits for all of it.
    Raises Unsupported for more priority levels than the server keeps queues for.
    """
    dynamic = config.dynamic_batching
    if dynamic is None:
        raise ValueError(f"model '{config.name}' has no dynamic_batching block")
    batch_size_max = max(1, config.max_batch_size)
    level_count = dynamic.priority_levels
    if level_count > PRIORITY_LEVELS_MAX:
        raise Unsupported(
            f"'dynamic_batching.priority_levels' of model '{config.name}' is {level_count}, "
            f"this server supports at most {PRIORITY_LEVELS_MAX}"
        )
    default_rules = _rules(dynamic.default_queue_policy)
    if level_count == 0:
        levels: tuple[QueueRules, ...] = (default_rules,)
        default_level = 0
    else:
        own = {level: _rules(policy) for level, policy in dynamic.priority_queue_policy.items()}
        levels = tuple(own.get(level, default_rules) for level in range(1, level_count + 1))
        default_level = dynamic.default_priority_level - 1
        invariant(0 <= default_level < level_count, f"default_priority_level of model '{config.name}' was not validated")
    return msgspec.structs.replace(
        batcher_options(dynamic, batch_size_max),
        levels=levels,
        default_level=default_level,
        shares_devices=shares_devices(config),
    )


def batcher_options(batching: DynamicBatching | StrategyOldest, batch_size_max: int) -> DynamicOptions:
    """The options that dynamic batching and the strategy oldest share: the forming of batches, and the order of answers."""
    preferred = frozenset(batching.preferred_batch_size) or frozenset({batch_size_max})
    takes_what_waits = preferred == {batch_size_max} and batching.max_queue_delay_microseconds == 0
    return DynamicOptions(
        batch_size_max=batch_size_max,
        preferred=preferred,
        queue_delay_ns_max=batching.max_queue_delay_microseconds * NS_PER_US,
        preserve_ordering=batching.preserve_ordering,
        overlap=OverlapTerms() if takes_what_waits else None,
    )


def _rules(policy: QueuePolicy | None) -> QueueRules:
    if policy is None:
        return QueueRules()
    return QueueRules(
        timeout_action=policy.timeout_action,
        default_timeout_ns=policy.default_timeout_microseconds * NS_PER_US,
        allow_timeout_override=policy.allow_timeout_override,
        queue_size_max=policy.max_queue_size,
    )
