"""ModelContext.server of a hosted backend: calls to other models are refused with a reason."""

from __future__ import annotations

from collections.abc import Callable

from tpy.backend import CallSink, Done, ServerCall, WaitingBatch
from tpy.errors import Unsupported
from tpy.messages import InferenceRequest, LoadRequest

REFUSAL = (
    "a model in a worker process cannot call the server, unless it is a Python model: serve it with the parameter isolation "
    "'thread', or make the call from a Python model"
)


class NoCalls:
    """A `ServerCalls`, and the `ServerCall` that nothing comes of."""

    def infer(
        self, request: InferenceRequest, sink: CallSink, *, streams: bool, waiting: WaitingBatch | None = None
    ) -> ServerCall:
        """As `ServerCalls.infer`: refused."""
        sink.refuse(Unsupported(REFUSAL))
        return self

    def load_model(self, request: LoadRequest, done: Done) -> None:
        """As `ServerCalls.load_model`: refused."""
        done(Unsupported(REFUSAL))

    def unload_model(self, model_name: str, done: Done, *, unload_dependents: bool) -> None:
        """As `ServerCalls.unload_model`: refused."""
        done(Unsupported(REFUSAL))

    def is_model_ready(self, model_name: str, version: int | None, answer: Callable[[bool], None]) -> None:
        """As `ServerCalls.is_model_ready`: nothing can be called."""
        answer(False)

    def cancel(self) -> None:
        """As `ServerCall.cancel`."""

    def taken(self, count: int) -> None:
        """As `ServerCall.taken`."""
