"""Clients that each wait for the answer to a sentence, and a model that pads its batches: in virtual time, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tpy.units import NS_PER_S, NS_PER_US
from tpy_data.schedulers.core.contract import Dispatch, SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.length_cores import LengthDynamicCore

ROWS_MAX = 32
ELEMENT_NS = 100 * NS_PER_US
"""A batch costs so much for each of its tokens, padding included."""

# fmt: off
SENTENCES = (
    7, 9, 10, 10, 10, 10, 10, 11, 12, 12, 13, 14, 14, 15, 15, 16,
    16, 17, 18, 18, 19, 20, 20, 21, 22, 22, 23, 23, 24, 24, 25, 26,
    26, 27, 28, 28, 29, 29, 30, 31, 32, 32, 33, 34, 35, 36, 37, 38,
    39, 40, 41, 42, 44, 45, 47, 49, 51, 53, 55, 58, 63, 68, 76, 99,
)
# fmt: on
"""Tokens of the 4,529 sentences of this project's pages, as MiniLM counts them: 64 quantiles (2026-11-29)."""


class Sentence(Ticket):
    """A ticket that knows when it was asked."""

    __slots__ = ("asked_ns",)

    def __init__(self, length: int, asked_ns: int) -> None:
        super().__init__()
        self.length = length
        self.asked_ns = asked_ns


@dataclass(frozen=True)
class Served:
    """Of one run. `rare_p99_ns` is of the longest sentences, one in 32."""

    per_s: float
    rows: float
    padding: float
    mean_ns: float
    p99_ns: int
    rare_p99_ns: int


def in_order_of_arrival() -> SchedulerCore:
    """`dynamic_batching { }`."""
    return DynamicCore(DynamicOptions(batch_size_max=ROWS_MAX, preferred=frozenset({ROWS_MAX})))


def by_length(padding_ppm_max: int) -> SchedulerCore:
    """`max_padding`."""
    return LengthDynamicCore(
        DynamicOptions(batch_size_max=ROWS_MAX, preferred=frozenset({ROWS_MAX})), padding_ppm_max=padding_ppm_max
    )


def serve(core: SchedulerCore, clients: int, *, batches: int, batch_ns: int = 0, seed: int = 1) -> Served:
    """The outcome of this many batches, each of which takes `batch_ns` and its tokens. Clients ask again at once."""
    random = Random(seed)
    now_ns, padded, elements = 0, 0, 0
    latencies_ns: list[tuple[int, int]] = []  # with the length
    for _ in range(clients):
        core.submit(Sentence(random.choice(SENTENCES), 0), 0)
    core.add_instance(0, 0)
    [tickets] = _dispatched(core)
    for _ in range(batches):
        area = len(tickets) * max(ticket.length for ticket in tickets)
        padded += area
        elements += sum(ticket.length for ticket in tickets)
        took_ns = batch_ns + area * ELEMENT_NS
        now_ns += took_ns
        for ticket in tickets:
            assert isinstance(ticket, Sentence)
            latencies_ns.append((now_ns - ticket.asked_ns, ticket.length))
            core.submit(Sentence(random.choice(SENTENCES), now_ns), now_ns)
        core.done(0, now_ns, (took_ns,))
        [tickets] = _dispatched(core)
    count = len(latencies_ns)
    return Served(
        per_s=count * NS_PER_S / now_ns,
        rows=count / batches,
        padding=1 - elements / padded,
        mean_ns=sum(latency_ns for latency_ns, _ in latencies_ns) / count,
        p99_ns=_p99([latency_ns for latency_ns, _ in latencies_ns]),
        rare_p99_ns=_p99([latency_ns for latency_ns, length in latencies_ns if length >= SENTENCES[-2]]),
    )


def _dispatched(core: SchedulerCore) -> list[Sequence[Ticket]]:
    return [batch for action in core.take_actions() if isinstance(action, Dispatch) for batch in action.batches]


def _p99(values: list[int]) -> int:
    return sorted(values)[len(values) * 99 // 100]
