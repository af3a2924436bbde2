"""ServedCopy: a loaded copy of a version, as a request holds it. Implements `tpy.services.ResolvedModel`."""

from __future__ import annotations

from itertools import count

from tpy.clock import Clock
from tpy.messages import InferenceRequest, ModelDescription
from tpy.services import RequestHandle, ResponseSink
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.requests.request_log import submit_logged

_numbers = count(1)


class ServedCopy:
    """One for each engine that is switched in: with the description that its requests are decoded by."""

    __slots__ = ("_clock", "_engine", "_submit", "copy", "description")

    def __init__(self, engine: ModelEngine, description: ModelDescription, clock: Clock) -> None:
        self.copy = next(_numbers)
        self.description = description
        self._engine = engine
        self._submit = engine.submit
        self._clock = clock

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> RequestHandle:
        """As `ResolvedModel.submit`."""
        return submit_logged(self._submit, request, sink, self._clock)

    def hold(self) -> None:
        """As `ResolvedModel.hold`."""
        self._engine.hold()

    def release(self) -> None:
        """As `ResolvedModel.release`."""
        self._engine.release()
