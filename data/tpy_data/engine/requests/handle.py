"""EngineHandle: the handle of a request inside the engine, which also says what the request waits for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, Protocol

from tpy.services import RequestHandle
from tpy_data.schedulers.core import Resource

Resources = Mapping[Resource, int]
"""The count of each resource."""

NO_RESOURCES: Resources = {}


class Execution(NamedTuple):
    """The times of the batch of a request, in nanoseconds. `start_ns` is on the server's Clock."""

    start_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int


class WaitingRequest(NamedTuple):
    """A request to a model with instances that has not ended. `request` is its identity, `model` that of the version that has it.
    `instance` is set for one that only this instance may run. `needs` is what any instance must have to run it, and not yet has;
    `name` the model's. `is_leader`: the request that reports it waits for the answer of this equal one."""

    request: int
    model: Hashable
    queued: bool
    instance: int | None = None
    needs: Resources = NO_RESOURCES
    name: str = ""
    is_leader: bool = False

    @property
    def is_held_up(self) -> bool:
        """True when it waits for an instance or resources, or somebody else waits for it."""
        return self.queued or self.is_leader or bool(self.needs)


class EngineHandle(RequestHandle, Protocol):
    """Every engine's `submit` returns one."""

    def waiting(self) -> Iterable[WaitingRequest]:
        """The requests to models with instances that it waits for now: itself, those of its steps, or an equal one whose answer
        it will get."""
        ...

    def recall(self) -> None:
        """Have what of it an instance was given and has not started wait in the queue, for any instance."""
        ...

    def times(self, now_ns: int) -> Execution | None:
        """The times of its execution so far; None: it was not executed."""
        ...
