"""SequenceOptions: a model's `sequence_batching` block as the cores of sequences use it."""

from __future__ import annotations

import math
import struct

import msgspec

from tpy.config.model_config import ModelConfig, StrategyDirect, StrategyOldest
from tpy.config.normalise import SEQUENCE_IDLE_US_DEFAULT
from tpy.limits import SEQUENCE_REQUESTS_WAITING_MAX, SEQUENCES_LIVE_MAX
from tpy.units import NS_PER_US
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, batcher_options


class DirectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The forming of batches with the strategy direct.

    A batch waits, at most `queue_delay_ns_max` since the oldest request was there, until `ready_min` slots have a request.
    """

    queue_delay_ns_max: int = 0
    ready_min: int = 0


class SequenceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a core of sequences.

    * `model_name`: for the texts of errors.
    * `slots`: sequences that an instance holds at the same time, >= 1.
    * `idle_ns_max`: how long a sequence in a slot may be without a request.
    * `iterative`: a request is rescheduled until its sequence is over; it needs no correlation id.
    * `strategy`: how batches are formed; those of the strategy oldest as a dynamic batcher does.
    * `live_max`, `waiting_max`: sequences that may be live, and requests that may wait.
    """

    model_name: str = ""
    slots: int
    idle_ns_max: int = SEQUENCE_IDLE_US_DEFAULT * NS_PER_US
    iterative: bool = False
    strategy: DirectOptions | DynamicOptions = DirectOptions()
    live_max: int = SEQUENCES_LIVE_MAX
    waiting_max: int = SEQUENCE_REQUESTS_WAITING_MAX


def sequence_options(config: ModelConfig) -> SequenceOptions:
    """The options of a validated configuration that has a `sequence_batching` block. No strategy means direct."""
    batching = config.sequence_batching
    if batching is None:
        raise ValueError(f"model '{config.name}' has no sequence_batching block")
    batch_size_max = max(1, config.max_batch_size)
    slots = batch_size_max
    if batching.oldest is not None:
        slots = batching.oldest.max_candidate_sequences or batch_size_max
        strategy: DirectOptions | DynamicOptions = _oldest(batching.oldest, batch_size_max)
    else:
        strategy = _direct(batching.direct or StrategyDirect(), batch_size_max)
    return SequenceOptions(
        model_name=config.name,
        slots=slots,
        idle_ns_max=(batching.max_sequence_idle_microseconds or SEQUENCE_IDLE_US_DEFAULT) * NS_PER_US,
        iterative=batching.iterative_sequence,
        strategy=strategy,
    )


def _direct(direct: StrategyDirect, batch_size_max: int) -> DirectOptions:
    return DirectOptions(
        queue_delay_ns_max=direct.max_queue_delay_microseconds * NS_PER_US,
        ready_min=_utilized(direct.minimum_slot_utilization, batch_size_max),
    )


def _oldest(oldest: StrategyOldest, batch_size_max: int) -> DynamicOptions:
    # preserve_ordering asks for nothing more: an instance runs one batch after the other, each with the requests that became
    # ready first, so their answers are in that order anyway.
    return batcher_options(oldest, batch_size_max)


def _utilized(utilization: float, slots: int) -> int:
    """The smallest number of slots that are at least this part of all. Compared in single precision, which the configuration has:
    3 of 5 slots reach 0.6."""
    wanted = _single(utilization)
    count = max(0, math.floor(utilization * slots) - 1)
    while count < slots and _single(count / slots) < wanted:
        count += 1
    return count


def _single(number: float) -> float:
    single: float = struct.unpack("f", struct.pack("f", number))[0]
    return single
