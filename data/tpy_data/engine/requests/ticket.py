"""RequestTicket: one admitted request, from submission to its last answer. The same object is the scheduler's ticket, the
backend's ExecutionRequest and the frontend's RequestHandle: one allocation, no table of requests anywhere."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Protocol

from tpy.backend import ExecutionResult, SequenceState
from tpy.messages import InferenceRequest, ParameterValue, RequestRecord, Residency, Tensor
from tpy.services import ResponseSink
from tpy.units import NS_PER_US
from tpy_data.engine.requests.handle import NO_RESOURCES, Execution, Resources, WaitingRequest
from tpy_data.engine.requests.response_stream import ResponseStream
from tpy_data.schedulers.core.contract import Phase, Ticket


class ResourceGate(Protocol):
    """Keeps the instances of a rate limited engine from running."""

    def needs(self) -> Resources:
        """The resources that every instance holds while it runs."""
        ...

    def supply(self) -> Resources:
        """All that there is, in the whole server."""
        ...

    def used(self) -> Resources:
        """The part of it that is held now."""
        ...

    def keeps_back(self, number: int) -> bool:
        """True when a batch that this instance was given waits for resources."""
        ...


class TicketOwner(Protocol):
    """The engine that has the ticket."""

    @property
    def name(self) -> str:
        """Its model's."""
        ...

    @property
    def instance_count(self) -> int:
        """The number of instances that take its work."""
        ...

    @property
    def gate(self) -> ResourceGate | None:
        """None: nothing is rate limited."""
        ...

    def cancel(self, ticket: RequestTicket) -> None:
        """Forget the ticket: the caller gives up."""
        ...

    def recall(self) -> None:
        """Have every request that no instance has started wait in the queue, for any of them."""
        ...


class RequestTicket(Ticket):
    """`inputs` are in the model's shapes. `result` and `execution` are there once the batch was executed. `abandoned` is set when
    nobody waits any more; instance threads read it. `sender` is there for decoupled models only."""

    __slots__ = (
        "abandoned",
        "execution",
        "id",
        "inputs",
        "owner",
        "parameters",
        "record",
        "requested_outputs",
        "residency",
        "result",
        "sender",
        "sink",
        "timeout_us",
    )

    inputs: Mapping[str, Tensor]
    parameters: Mapping[str, ParameterValue]
    requested_outputs: tuple[str, ...]
    record: RequestRecord | None
    residency: Residency | None
    sender: ResponseStream | None
    result: ExecutionResult | None
    execution: Execution | None

    def __init__(
        self,
        request: InferenceRequest,
        inputs: Mapping[str, Tensor],
        *,
        batch_size: int,
        signature: Hashable,
        sink: ResponseSink,
        owner: TicketOwner,
    ) -> None:
        # The fields of Ticket are set here, but `ready_ns`, which the cores set that read it: the keyword call of its constructor
        # is felt on this path.
        self.batch_size = batch_size
        self.signature = signature
        self.priority = request.priority
        self.timeout_ns = request.timeout_us * NS_PER_US
        self.deadline_ns = request.deadline_ns
        self.phase = Phase.QUEUED
        self.queued_ns = 0
        self.arrival = 0
        self.id = request.id
        self.inputs = inputs
        self.parameters = request.parameters
        self.requested_outputs = request.requested_outputs
        self.record = request.record
        self.residency = request.residency
        self.sequence = request.sequence
        self.live = None
        self.timeout_us = request.timeout_us
        self.sender = None
        self.sink = sink
        self.owner = owner
        self.result = None
        self.execution = None
        self.abandoned = False

    @property
    def state(self) -> SequenceState | None:
        """None here; requests of models with implicit state are of another class."""
        return None

    def is_cancelled(self) -> bool:
        """True when nobody waits for the answer any more."""
        return self.abandoned

    # EngineHandle

    def cancel(self) -> None:
        """Forget the request; no answer follows. Safe at any time."""
        self.owner.cancel(self)

    def pause(self) -> None:
        """Deliver no more for now. Without effect on a request that is answered once."""
        if self.sender is not None:
            self.sender.pause()

    def resume(self) -> None:
        """Deliver again."""
        if self.sender is not None:
            self.sender.resume()

    def waiting(self) -> Iterator[WaitingRequest]:
        """Itself, while it is queued or executed."""
        if self.phase is Phase.QUEUED or self.phase is Phase.EXECUTING:
            instance = None if self.live is None else self.live.instance
            queued, owner = self.phase is Phase.QUEUED, self.owner
            yield WaitingRequest(id(self), id(owner), queued, instance, self._missing(instance, queued=queued), owner.name)

    def recall(self) -> None:
        """As `EngineHandle.recall`."""
        if self.phase is Phase.EXECUTING:
            self.owner.recall()

    def times(self, now_ns: int) -> Execution | None:
        """As `EngineHandle.times`. The final response of a decoupled model may come before its execution is over."""
        if self.execution is None and self.sender is not None and self.sender.began_ns:
            return Execution(self.sender.began_ns, 0, now_ns - self.sender.began_ns, 0)
        return self.execution

    def _missing(self, instance: int | None, *, queued: bool) -> Resources:
        """The resources without which it cannot be executed, while it has not got them. A batch of a sequence waits for them when
        its instance has it already."""
        gate = self.owner.gate
        if gate is None or not (queued or (instance is not None and gate.keeps_back(instance))):
            return NO_RESOURCES
        return gate.needs()
