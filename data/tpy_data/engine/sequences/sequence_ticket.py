"""SequenceTicket: a request of a sequence model. It also shows the backend what one request of a sequence leaves to the next."""

from __future__ import annotations

from typing import Any

from tpy.backend import SequenceState
from tpy_data.engine.requests.handle import Execution
from tpy_data.engine.requests.ticket import RequestTicket


class SequenceTicket(RequestTicket):
    """`state` is there from when the ticket is given to an instance, for models with implicit state. A ticket without `live` is
    an empty place in a batch."""

    __slots__ = ("_earlier", "_state")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As a RequestTicket."""
        super().__init__(*arguments, **options)
        self._state: SequenceState | None = None
        self._earlier: Execution | None = None

    @property
    def state(self) -> SequenceState | None:
        """As `ExecutionRequest.state`."""
        return self._state

    def carry(self, state: SequenceState) -> None:
        """Show the backend this state."""
        self._state = state

    def add_earlier(self) -> None:
        """An execution is over; the times of those before it are added."""
        before, execution = self._earlier, self.execution
        if before is not None and execution is not None:
            self.execution = Execution(
                before.start_ns,
                before.input_ns + execution.input_ns,
                before.infer_ns + execution.infer_ns,
                before.output_ns + execution.output_ns,
            )

    def give_back(self) -> None:
        """The model wants the request again: it has not been executed yet, as far as statistics go."""
        self._earlier, self.execution = self.execution, None
        self.result = None
