"""A dynamic core with tickets, for tests of its rules."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.config.model_config import TimeoutAction
from tpy_data.schedulers.core.contract import Action, Dispatch, Ticket
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules

DELAY = TimeoutAction.DELAY


def core_of(*, batch: int = 4, preferred: Sequence[int] = (), delay_ns: int = 0, rules: QueueRules | None = None) -> DynamicCore:
    """A core with one level and one idle instance, 0."""
    core = DynamicCore(
        DynamicOptions(
            batch_size_max=batch,
            preferred=frozenset(preferred or (batch,)),
            queue_delay_ns_max=delay_ns,
            levels=(rules or QueueRules(),),
        )
    )
    core.add_instance(0, 0)
    return core


def tickets_of(*batch_sizes: int, signature: str = "a") -> list[Ticket]:
    return [Ticket(batch_size=batch_size, signature=signature) for batch_size in batch_sizes]


def submit(core: DynamicCore, *tickets: Ticket, now_ns: int = 0) -> list[Action]:
    for ticket in tickets:
        core.submit(ticket, now_ns)
    return core.take_actions()


def occupy(core: DynamicCore, now_ns: int = 0) -> None:
    """Keep instance 0 busy with a request that the test ignores."""
    core.submit(Ticket(batch_size=8, signature="occupied"), now_ns)
    core.advance(core.next_deadline_ns() or now_ns)
    assert core.take_actions()[0].__class__ is Dispatch


def complete(core: DynamicCore, now_ns: int) -> list[list[Ticket]]:
    """Instance 0 is done; the batches that this starts."""
    core.done(0, now_ns)
    return [list(action.batches[0]) for action in core.take_actions() if isinstance(action, Dispatch)]
