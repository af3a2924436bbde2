"""The dynamic cores of models with `max_padding`: those of other models, with batches of requests of about the same length."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tpy.config.model_config import ModelConfig
from tpy.config.tuned_batching import length_batching
from tpy.limits.tuning import (
    LENGTH_LOOKED_AT_MAX,
    LENGTH_WINDOW_BATCHES,
    LENGTH_WINDOW_LOOKS,
    LENGTH_WINDOW_MAX,
    LENGTH_WINDOW_MIN,
)
from tpy.messages import LengthActivity, QueueActivity
from tpy_data.schedulers.core.batch_forming import BatchForming
from tpy_data.schedulers.core.contract import BatchStrategy, Ticket
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import NO_START_DELAY, DynamicOptions, StartDelay, dynamic_options
from tpy_data.schedulers.core.fair_cores import FairDynamicCore
from tpy_data.schedulers.core.length_choice import together
from tpy_data.schedulers.core.tenants import Tenants


def window_of(options: DynamicOptions) -> int:
    """The number of first tickets in the queue that a batch is chosen from, at most."""
    return min(max(LENGTH_WINDOW_MIN, LENGTH_WINDOW_BATCHES * options.batch_size_max), LENGTH_WINDOW_MAX)


class LengthForming(BatchForming):
    """`tickets` are those of the window that may share a batch with the first of them; `ready_count` leaves the chosen ones. A
    strategy is asked for these, in order, and leaves out what comes after the first that it does not take.

    The window becomes smaller where it has few that are alike: then a look costs each of them most. One look in
    LENGTH_WINDOW_LOOKS is at the largest window, which shows whether more are alike there."""

    __slots__ = ("_batches", "_looked_at", "_padding_ppm_max", "_window", "_window_max", "_window_next")

    def __init__(self, options: DynamicOptions, strategy: BatchStrategy | None, padding_ppm_max: int) -> None:
        self._padding_ppm_max = padding_ppm_max
        self._batches = 0
        self._window = self._window_next = self._window_max = window_of(options)
        super().__init__(options, strategy)

    def reset(self) -> None:
        """As `BatchForming.reset`."""
        super().reset()
        self._looked_at = 0

    def add(self, ticket: Ticket) -> bool:
        """As `BatchForming.add`. A ticket that fits none of the others waits until it is the first."""
        if not self.tickets:
            self._signature = ticket.signature
        if ticket.signature == self._signature:
            self.tickets.append(ticket)
        self._looked_at += 1
        return self._looked_at < self._window

    def ready_count(self, now_ns: int) -> int:
        """As `BatchForming.ready_count`: nothing waits for company."""
        self.tickets = together(self.tickets, self._batch_size_max, self._padding_ppm_max)
        if self._looked_at >= self._window:  # else all that waits was seen
            self._batches += 1
            alike = LENGTH_LOOKED_AT_MAX * len(self.tickets)
            self._window_next = min((self._window_next + alike) // 2, self._window_max)
            self._window = self._window_next if self._batches % LENGTH_WINDOW_LOOKS else self._window_max
        strategy = self._strategy
        if strategy is not None:
            strategy.begin()
            strategy.include(self.tickets[0])
            for count, ticket in enumerate(self.tickets[1:], 1):
                if not strategy.include(ticket):
                    return count
        return len(self.tickets)


class Padding:
    """The share that may be padding, and the batches that were executed: their `elements`, and the `area` with padding."""

    __slots__ = ("area", "elements", "ppm_max")

    def __init__(self, ppm_max: int) -> None:
        self.ppm_max = ppm_max
        self.elements = 0
        self.area = 0

    def add(self, tickets: Sequence[Ticket]) -> None:
        """A batch was executed."""
        self.elements += sum([ticket.batch_size * ticket.length for ticket in tickets])
        self.area += sum([ticket.batch_size for ticket in tickets]) * max([ticket.length for ticket in tickets])

    def explain(self) -> LengthActivity:
        """Both as shares."""
        padding = (self.area - self.elements) / self.area if self.area else 0.0
        return LengthActivity(max_padding=self.ppm_max / 1_000_000, padding=padding)


class _ByLength(DynamicCore):
    """The verbs, and a count of the padding."""

    __slots__ = ()

    padding: Padding

    def wants_instance(self, now_ns: int) -> bool:
        """As `DynamicCore.wants_instance`: nothing waits for company."""
        return self._queue.count > self._held_back_max

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """As `DynamicCore.done`."""
        for tickets, took_ns in zip(self._pool.batches(instance), times_ns, strict=False):
            if took_ns > 0:
                self.padding.add(tickets)
        super().done(instance, now_ns, times_ns)

    def explain(self, now_ns: int) -> QueueActivity:
        """As `SchedulerCore.explain`."""
        return msgspec.structs.replace(super().explain(now_ns), lengths=self.padding.explain())


class LengthDynamicCore(_ByLength):
    """See the module."""

    __slots__ = ("padding",)

    def __init__(
        self,
        options: DynamicOptions,
        padding_ppm_max: int,
        delay: StartDelay = NO_START_DELAY,
        strategy: BatchStrategy | None = None,
    ) -> None:
        super().__init__(options, delay, strategy)
        self._forming = LengthForming(options, strategy, padding_ppm_max)
        self.padding = Padding(padding_ppm_max)


class LengthFairCore(_ByLength, FairDynamicCore):
    """See the module: with tenants. The first of a batch is the one whose turn it is; all are charged to their tenants."""

    __slots__ = ("padding",)

    def __init__(
        self,
        options: DynamicOptions,
        padding_ppm_max: int,
        tenants: Tenants,
        delay: StartDelay = NO_START_DELAY,
        strategy: BatchStrategy | None = None,
    ) -> None:
        FairDynamicCore.__init__(self, options, tenants, delay, strategy)
        self._forming = LengthForming(options, strategy, padding_ppm_max)
        self.padding = Padding(padding_ppm_max)


def length_options(options: DynamicOptions) -> DynamicOptions:
    """These options without preferred sizes, delay, and halving of convoys: the length of the others decides."""
    return msgspec.structs.replace(options, preferred=frozenset({options.batch_size_max}), queue_delay_ns_max=0, overlap=None)


def make_length_core(
    config: ModelConfig, tenants: Tenants | None, delay: StartDelay, strategy: BatchStrategy | None
) -> LengthDynamicCore | LengthFairCore | None:
    """As `make_core`; None: this model's batches are not formed by length."""
    by_length = length_batching(config)
    if by_length is None:
        return None
    options = length_options(dynamic_options(config))
    if tenants is None:
        return LengthDynamicCore(options, by_length.padding_ppm_max, delay, strategy)
    return LengthFairCore(options, by_length.padding_ppm_max, tenants, delay, strategy)
