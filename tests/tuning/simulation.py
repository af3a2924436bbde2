"""The instances behind a dynamic core, their clients, and what they see: in virtual time, from a seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tpy_data.schedulers.core.batch_tuner import BatchTuner
from tpy_data.schedulers.core.contract import Dispatch, Respond, SchedulerCore, Ticket
from tpy_data.schedulers.core.cost_curve import CostCurve
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.overlap import OverlapTerms
from tpy_data.schedulers.core.tuned_cores import TunedDynamicCore, tuned_options

ROWS_MAX = 32
HAND_OVER_NS = 60 * NS_PER_US
"""The time of the server's loop for a batch: from the end of one to the beginning of the next."""
ROUND_TRIP_NS = 100 * NS_PER_US
"""From an answer to the next request of a client that does nothing between them, about."""

Cost = Callable[[int], int]

COSTS: dict[str, Cost] = {
    "constant": lambda rows: 4 * NS_PER_MS,
    "linear": lambda rows: 2 * NS_PER_MS + rows * NS_PER_MS // 10,
    "stepped": lambda rows: -(-rows // 8) * 2 * NS_PER_MS,
    "EfficientNet": lambda rows: 3 * NS_PER_MS + rows * NS_PER_MS * 3 // 4 + max(0, rows - 16) * NS_PER_MS // 4,
    "quick": lambda rows: 120 * NS_PER_US + rows * 15 * NS_PER_US,
    "convex": lambda rows: NS_PER_MS + rows * rows * NS_PER_MS // 20,
}
"""Models by what a batch costs. Of EfficientNet the rows have most of the cost, and more where caches are too small."""


class Load(Protocol):
    """The requests of some time."""

    def start(self, world: World) -> None:
        """Begin."""
        ...

    def answered(self, world: World, client: int) -> None:
        """A request of this client has its answer."""
        ...


class Request(Ticket):
    """A ticket with its client."""

    __slots__ = ("client", "part", "submitted_ns")

    def __init__(self, client: int, part: int, submitted_ns: int) -> None:
        super().__init__()
        self.client = client
        self.part = part
        self.submitted_ns = submitted_ns


class World:
    """The clock, the core, the instances."""

    def __init__(self, core: SchedulerCore, cost: Cost, seed: int) -> None:
        self.core = core
        self.cost = cost
        self.random = Random(seed)
        self.now_ns = 0
        self.ended_ns = 0
        self.free_ns = 0  # from when the server's loop has nothing to do
        self.load: Load | None = None
        self.part = 0  # of the run: clients of an earlier one ask nothing more
        self.latencies_ns: list[int] = []
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.batches: list[int] = []

    def at(self, time_ns: int, event: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time_ns, self.count, event))

    def forget(self) -> None:
        """Measure from here on."""
        self.latencies_ns.clear()
        self.batches.clear()

    def busy_for(self, time_ns: int) -> int:
        """Have the server's loop at work for so long, when it is free; the time when it is over."""
        self.free_ns = max(self.free_ns, self.now_ns) + time_ns
        return self.free_ns

    def submit(self, client: int) -> None:
        self.core.submit(Request(client, self.part, self.now_ns), self.now_ns)
        self.perform()

    def perform(self) -> None:
        while actions := self.core.take_actions():
            for action in actions:
                if isinstance(action, Dispatch):
                    for batch in action.batches:
                        self.batches.append(len(batch))
                        took_ns = int(self.cost(len(batch)) * max(0.7, self.random.gauss(1, 0.05)))
                        self.at(self.busy_for(HAND_OVER_NS) + took_ns, partial(self.done, action.instance, took_ns))
                elif isinstance(action, Respond):
                    for ticket in action.tickets:
                        assert isinstance(ticket, Request)
                        self.latencies_ns.append(self.now_ns - ticket.submitted_ns)
                        if ticket.part == self.part and self.load is not None:
                            self.load.answered(self, ticket.client)

    def done(self, instance: int, took_ns: int) -> None:
        self.core.done(instance, self.now_ns, (took_ns,))
        self.perform()
        if isinstance(self.core, TunedDynamicCore):
            self.core.tuner.learn()

    def run(self, load: Load, until_ns: int) -> None:
        """Have this load until then. What it has open is answered afterwards, and does not count."""
        self.load = load
        self.part += 1
        load.start(self)
        self._until(until_ns)
        latencies_ns, batches = self.latencies_ns, self.batches
        self.load, self.latencies_ns, self.batches = None, [], []
        self.events = [each for each in self.events if not _is_of(each[2], load)]
        heapq.heapify(self.events)
        ended_ns = self.now_ns
        self._until(None)
        self.latencies_ns, self.batches, self.ended_ns = latencies_ns, batches, ended_ns

    def _until(self, until_ns: int | None) -> None:
        while True:
            deadline_ns = self.core.next_deadline_ns()
            event_ns = self.events[0][0] if self.events else None
            due_ns = min((each for each in (deadline_ns, event_ns) if each is not None), default=None)
            if due_ns is None or (until_ns is not None and due_ns > until_ns):
                return
            self.now_ns = max(self.now_ns, due_ns)
            if due_ns == deadline_ns:
                self.core.advance(self.now_ns)
                self.perform()
            else:
                heapq.heappop(self.events)[2]()


def _is_of(event: Callable[[], None], load: Load) -> bool:
    return isinstance(event, partial) and getattr(event.func, "__self__", None) is load


@dataclass
class Poisson:
    """Requests at a rate, whatever becomes of those before."""

    per_s: float

    def start(self, world: World) -> None:
        self._next(world)

    def answered(self, world: World, client: int) -> None:
        pass

    def _arrive(self, world: World) -> None:
        world.submit(0)
        self._next(world)

    def _next(self, world: World) -> None:
        world.at(world.now_ns + int(world.random.expovariate(self.per_s) * NS_PER_S), partial(self._arrive, world))


@dataclass
class Bursts:
    """`size` requests within `spread_ns`, again and again."""

    size: int
    per_s: float
    spread_ns: int = 300 * NS_PER_US

    def start(self, world: World) -> None:
        self._next(world)

    def answered(self, world: World, client: int) -> None:
        pass

    def _burst(self, world: World) -> None:
        for _ in range(self.size):
            world.at(world.now_ns + world.random.randrange(self.spread_ns), partial(self._arrive, world))
        self._next(world)

    def _arrive(self, world: World) -> None:
        world.submit(0)

    def _next(self, world: World) -> None:
        world.at(world.now_ns + int(world.random.expovariate(self.per_s) * NS_PER_S), partial(self._burst, world))


@dataclass
class Clients:
    """Each waits for its answer, and sends the next request. The server is at each for `server_ns`, one after the other."""

    count: int
    server_ns: int = 0

    def start(self, world: World) -> None:
        for client in range(self.count):
            world.at(world.now_ns + world.random.randrange(NS_PER_MS), partial(self._ask, world, client))

    def answered(self, world: World, client: int) -> None:
        after_ns = ROUND_TRIP_NS // 2 + world.random.randrange(ROUND_TRIP_NS)
        world.at(world.busy_for(self.server_ns) + after_ns, partial(self._ask, world, client))

    def _ask(self, world: World, client: int) -> None:
        world.submit(client)


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    per_s: float
    mean_ns: float
    p99_ns: int
    rows: float


Make = Callable[[], SchedulerCore]


def plain(*, instances: int = 1) -> SchedulerCore:
    """`dynamic_batching { }`."""
    return _with_instances(DynamicCore(_options(ROWS_MAX, 0)), instances)


def fixed(preferred: int, delay_ns: int, *, instances: int = 1) -> SchedulerCore:
    """A preferred size, and a delay."""
    return _with_instances(DynamicCore(_options(preferred, delay_ns)), instances)


def tuned(target_ns: int = 0, *, instances: int = 1) -> SchedulerCore:
    """`batching: auto`."""
    options = tuned_options(_options(ROWS_MAX, 0))
    return _with_instances(TunedDynamicCore(options, BatchTuner(CostCurve(ROWS_MAX), target_ns)), instances)


def pairs() -> Iterator[tuple[int, int]]:
    """The sizes and delays of the grid."""
    for preferred in (4, 8, 16, ROWS_MAX):
        for delay_us in (0, 200, 1000, 4000):
            if (preferred, delay_us) != (ROWS_MAX, 0):
                yield preferred, delay_us * NS_PER_US


def measure(make: Make, cost: Cost, loads: Sequence[tuple[Load, int]], *, seed: int = 1, rounds: int = 1) -> list[Outcome]:
    """The outcome of each of these loads, which last for so long, one after the other, in the last of `rounds`."""
    world = World(make(), cost, seed)
    outcomes: list[Outcome] = []
    for number in range(rounds):
        for load, length_ns in loads:
            began_ns = world.now_ns
            world.forget()
            world.run(load, began_ns + length_ns)
            if number == rounds - 1:
                outcomes.append(_outcome(world, began_ns))
    return outcomes


def _outcome(world: World, began_ns: int) -> Outcome:
    latencies_ns = sorted(world.latencies_ns)
    return Outcome(
        len(latencies_ns) * NS_PER_S / (world.ended_ns - began_ns),
        sum(latencies_ns) / len(latencies_ns),
        latencies_ns[len(latencies_ns) * 99 // 100],
        sum(world.batches) / len(world.batches),
    )


def _options(preferred: int, delay_ns: int) -> DynamicOptions:
    overlap = OverlapTerms() if preferred == ROWS_MAX and delay_ns == 0 else None
    return DynamicOptions(batch_size_max=ROWS_MAX, preferred=frozenset({preferred}), queue_delay_ns_max=delay_ns, overlap=overlap)


def _with_instances(core: SchedulerCore, count: int) -> SchedulerCore:
    for instance in range(count):
        core.add_instance(instance, 0)
    return core


def capacity_per_s(cost: Cost) -> float:
    """Requests in a second at the size that is best for it."""
    return max(rows * NS_PER_S / (cost(rows) + HAND_OVER_NS) for rows in range(1, ROWS_MAX + 1))
