"""The contract of scheduler cores.

A core decides which requests run together, where and when, and who is told no. It never performs anything: decisions are
actions that the driver takes out after each verb and performs. Every accepted ticket ends in exactly one of: `Refuse`,
`Respond`, or a `cancel` by the driver.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from tpy.messages import QueueActivity, SequencePosition

if TYPE_CHECKING:
    from tpy_data.generation.core.cost import Cost
    from tpy_data.schedulers.core.lines import TenantLine
    from tpy_data.schedulers.core.tenants import Tenant


Resource = tuple[str, int | None]
"""A name and the device that has it; None: the machine has it, whatever the device."""


class Outcome(enum.Enum):
    """The reasons why a ticket is refused after it was accepted."""

    TIMED_OUT = "Request timeout expired"
    """Its deadline passed: in the queue (then it never runs) or executing (then its answer is dropped)."""
    STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    """The model version is unloaded before the ticket's turn came, and the drain time is over."""
    NO_INSTANCE = "no instance of the model is left to run the request, and none could be started again"
    """It waited for instances that failed; nobody knows when there will be one again."""
    CANCELLED = "the sequence was cancelled: an earlier request of it was cancelled before it was executed"
    """It waited in a sequence behind a request that was cancelled, or whose deadline passed."""
    SEQUENCE_TIMED_OUT = "timeout of the corresponding sequence has been expired"
    """The timeout of a request of its sequence passed before the sequence got a slot."""
    SEQUENCE_LOST = "the sequence was lost: the model instance that held it failed or was removed"
    """It waited in a sequence that cannot go on, because what it has done so far is gone with its instance."""


class SequenceEnd(enum.Enum):
    """The reasons why a sequence is over."""

    ENDED = "ended"
    """Its END was executed; with iterative sequences, a request of it was not rescheduled."""
    RESTARTED = "restarted"
    """A START began it anew before it had ended; that is another LiveSequence."""
    IDLE = "idle"
    """No request came for max_sequence_idle_microseconds."""
    CANCELLED = "cancelled"
    """A request that waited was cancelled, or its deadline passed."""
    TIMED_OUT = "timed out"
    """The timeout of one of its requests passed while it waited for a slot."""
    LOST = "lost"
    """Its instance is gone."""
    REFUSED = "refused"
    """`stop` or `refuse_waiting` refused a request of it."""


class Phase(enum.Enum):
    """The states of a ticket. Written by its core only."""

    QUEUED = "queued"
    EXECUTING = "executing"
    EXECUTED = "executed"
    """Its answer is there but waits for its turn (preserve_ordering)."""
    ENDED = "ended"


class LiveSequence:
    """A sequence that a core knows: from its START until its END, its idle time-out, its cancellation, or a START that begins it
    anew (that is another object, in the same place).

    `instance` and `slot` are where it runs, None while it waits for a slot; once given they do not change. `restarted`: its START
    came while a sequence of the same id was live. `state` belongs to the driver's owner, who may hang on it what goes from one
    request of the sequence to the next.
    """

    __slots__ = ("correlation_id", "instance", "restarted", "slot", "state")

    def __init__(self, correlation_id: int | str, *, restarted: bool = False) -> None:
        self.correlation_id = correlation_id
        self.restarted = restarted
        self.instance: int | None = None
        self.slot: int | None = None
        self.state: object = None


class Ticket:
    """One request, as a core sees it. The driver subclasses it to hang the request itself on it.

    * `batch_size`: rows, >= 1.
    * `signature`: only tickets with equal signatures may share a batch (shapes without batch dimension, set of inputs).
    * `priority`: as the caller gave it, 0 = default.
    * `timeout_ns`: the caller's timeout, 0 = none. It counts only in queues that allow it, from when the ticket gets there.
    * `deadline_ns`: when the caller is told that it is over, wherever the ticket is then; None = never.
    * `sequence`: where it stands in its sequence, None = in none.
    * `cost`: the room that it needs in an engine; set for EngineCore only.
    * `length` of each of its rows; set where batches are formed by length only.
    * `tenant` and `size_bytes`, of its inputs: set for the queues of tenants only; `line` and `charge` are theirs.
    Fields below are the core's. `live` is set, by the cores of sequences, before `submit` returns. `ready_ns` is from when the
    delay of a batch counts: since it was submitted or rescheduled or, where it must wait for others of its sequence, since those
    were over.

    A core of iterative sequences writes `sequence`: it makes up an id if the request has no id, and takes the flags away when the
    ticket is rescheduled.
    """

    __slots__ = (
        "arrival",
        "batch_size",
        "charge",
        "cost",
        "deadline_ns",
        "length",
        "line",
        "live",
        "phase",
        "priority",
        "queued_ns",
        "ready_ns",
        "sequence",
        "signature",
        "size_bytes",
        "tenant",
        "timeout_ns",
    )

    cost: Cost
    length: int
    tenant: Tenant
    size_bytes: int
    line: TenantLine[Ticket]
    charge: int

    def __init__(
        self,
        *,
        batch_size: int = 1,
        signature: Hashable = None,
        priority: int = 0,
        timeout_ns: int = 0,
        deadline_ns: int | None = None,
        sequence: SequencePosition | None = None,
    ) -> None:
        self.batch_size = batch_size
        self.signature = signature
        self.priority = priority
        self.timeout_ns = timeout_ns
        self.deadline_ns = deadline_ns
        self.sequence = sequence
        self.live: LiveSequence | None = None
        self.phase = Phase.QUEUED
        self.queued_ns = 0
        self.ready_ns = 0
        self.arrival = 0


class Dispatch(msgspec.Struct, frozen=True):
    """Have this instance run these batches, one after the other, behind the batches that it holds. The driver says `done` for
    each that is over, and `revoked` for batches that were given back. A ticket that has ended before its batch's turn is passed
    over.

    `slots`, when there are any, are the places of the only batch from the first to the last that is taken, each with its ticket
    or empty (None); then its tickets are the same without the empty ones. The model sees an empty place as a request that is not
    READY.
    """

    instance: int
    batches: Sequence[Sequence[Ticket]]
    slots: Sequence[Ticket | None] = ()


class Revoke(msgspec.Struct, frozen=True):
    """Take back the batches that this instance holds and has not started, and say so with `revoked`."""

    instance: int


class Respond(msgspec.Struct, frozen=True):
    """Give these tickets the answers of their execution now, in this order."""

    tickets: Sequence[Ticket]


class Refuse(msgspec.Struct, frozen=True):
    """Answer this ticket with an error; if it is executing, drop its result."""

    ticket: Ticket
    outcome: Outcome


class SequenceEnded(msgspec.Struct, frozen=True):
    """This sequence is over: nothing of it waits or runs, and nothing more comes. Its slot may have its next one already."""

    sequence: LiveSequence
    why: SequenceEnd


class Retired(msgspec.Struct, frozen=True):
    """The end of `retire_instance`: the instance has nothing more to do and is no longer a member. A batch that it still
    runs (only cores without sequences leave one) completes as after `remove_instance`."""

    instance: int


Action = Dispatch | Revoke | Respond | Refuse | SequenceEnded | Retired


class CoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Counts at one moment. `queued` wait, those among them that an instance holds behind another batch; `executing` run (each
    counts requests, not rows). `sequences` are live, in slots or waiting for one."""

    queued: int
    executing: int
    idle_instances: int
    sequences: int = 0


class BatchStrategy(Protocol):
    """Custom batching: says which tickets belong into a batch, besides the limits of the configuration. Must neither block for
    long nor raise."""

    def begin(self) -> None:
        """A batch begins to be formed."""
        ...

    def include(self, ticket: Ticket) -> bool:
        """True if the ticket, which is the next one, belongs into the batch too. The first one is in it whatever is said."""
        ...

    def end(self) -> None:
        """The batch is sent, or begins to be formed anew."""
        ...


class SchedulerCore(Protocol):
    """The verbs. Instances are small integers that the driver gives out. An instance runs the batches that it holds in the order
    in which it got them."""

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        """A new idle instance. `prefetch`: while it runs one batch it may hold others, also when they take long. `credit`: the
        number of batches that a dynamic batcher may have it hold at any time, for one that copies a batch while it computes
        another; of an engine, the sequences that it has room for, and `tokens` those of all of them (0: any number)."""
        ...

    def remove_instance(self, instance: int, now_ns: int) -> None:
        """The instance takes no new batch. For the batches that it holds, `done` or `revoked` still follow (and end its
        membership). Sequences that it holds are lost. Not for an instance that has `Retired`."""
        ...

    def retire_instance(self, instance: int, now_ns: int) -> None:
        """The instance is to go when it can without loss: it takes no new sequences (without sequences: no new batch), and
        `Retired` follows when the batches that it holds are over, unless `remove_instance` is called before."""
        ...

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        """Accept a ticket. Raises Unavailable("Exceeds maximum queue size") when its queue is full; the ticket is then not
        accepted."""
        ...

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        """Forget the ticket: it gets no action any more; if it is executing its result is dropped. No-op when ENDED."""
        ...

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """The oldest batches that this instance holds are over, as many as `times_ns` has entries (whether they succeeded is not
        the core's business): how long the instance was at each; 0: nobody says, or it was passed over."""
        ...

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """The model gave the executing ticket back (release flag RESCHEDULE): when `done` comes it is not over but waits
        again, in a sequence as its next request. To be called before `done`. No-op when the ticket has ENDED."""
        ...

    def next_deadline_ns(self) -> int | None:
        """The time at which `advance` must be called at the latest; None: not needed."""
        ...

    def advance(self, now_ns: int) -> None:
        """Time has passed. `now_ns` never goes backwards."""
        ...

    def refuse_waiting(self, now_ns: int) -> None:
        """Refuse (NO_INSTANCE) everything that is queued; what comes later is accepted."""
        ...

    def stop(self, now_ns: int) -> None:
        """Refuse (STOPPING) everything that is queued; executing batches still complete."""
        ...

    def refuse_executing(self, now_ns: int) -> None:
        """Refuse (STOPPING) everything that executes; its results are dropped if they come. To be called after `stop`."""
        ...

    def recall(self, now_ns: int) -> None:
        """Have everything wait again that is given to an instance and not started, as far as that can be."""
        ...

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """The answer to a `Revoke`, or an instance has failed: the last `batches` batches that it holds were not started and will
        not be. They wait again, ordered by arrival."""
        ...

    def take_actions(self) -> list[Action]:
        """The decisions since the last call, in order; the driver must perform them all."""
        ...

    def snapshot(self) -> CoreSnapshot:
        """Counts, for statistics and tests."""
        ...

    def explain(self, now_ns: int) -> QueueActivity:
        """The requests that wait, and why. Changes nothing."""
        ...
