"""ServerCalls: how a model calls the server that it runs in: other models, and the repository.

A backend finds it in `ModelContext.server`. Everything here may be called from any thread and returns at once; what follows from
a call arrives, on the Trio thread, at the object that was given with it. That object must neither block nor raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tpy.backend.execution import ExecutionRequest
from tpy.demand import Demand
from tpy.errors import TpyError
from tpy.messages import InferenceRequest, InferenceResponse, LoadRequest

Done = Callable[[TpyError | None], None]
"""Takes the end of a repository call: None when it did what it should."""


class WaitingBatch:
    """A batch whose execution waits for calls: it cannot end before them, and until then its instance is taken.

    The backend makes one for a batch that calls, gives it along with each such call, and sets `completed` when `execute`
    returns. The server needs it to see models that wait for each other in a circle.
    """

    __slots__ = ("completed", "requests")

    def __init__(self, requests: Sequence[ExecutionRequest]) -> None:
        self.requests = requests
        self.completed = False


class CallSink(Protocol):
    """Takes the responses of one call."""

    def deliver(self, response: InferenceResponse) -> None:
        """Take one response; the last one has `final`."""
        ...

    def refuse(self, error: TpyError) -> None:
        """The call was not accepted; nothing follows."""
        ...


class ServerCall(Protocol):
    """A call under way."""

    def cancel(self) -> None:
        """Forget the call; its sink is called no more, apart from what is on its way to it. Idempotent."""
        ...

    def taken(self, count: int) -> None:
        """The caller has taken `count` more responses. The called model waits while as many are not taken as the server holds
        for one request (tpy.limits). Needed of calls with `streams` only."""
        ...


class ServerCalls(Protocol):
    """The server, as a model sees it."""

    def infer(
        self, request: InferenceRequest, sink: CallSink, *, streams: bool, waiting: WaitingBatch | None = None
    ) -> ServerCall:
        """Run a request; on the Trio thread it is submitted before this returns, and may be answered. Without `streams` a
        decoupled model is refused. With `waiting`, the call is refused (Unavailable) when it could never end because every
        instance that could run it waits, in the end, for this call."""
        ...

    def load_model(self, request: LoadRequest, done: Done) -> None:
        """As `RepositoryService.load`."""
        ...

    def unload_model(self, model_name: str, done: Done, *, unload_dependents: bool) -> None:
        """As `RepositoryService.unload`."""
        ...

    def is_model_ready(self, model_name: str, version: int | None, answer: Callable[[bool], None]) -> None:
        """Pass True to `answer` if the version (None: the newest) would serve a request now; False for unknown models."""
        ...


class DescriptorReader(Protocol):
    """Reads from a descriptor that the loop watches. Used on the Trio thread; must neither block nor raise."""

    def ready(self) -> Demand:
        """Something has come, or it wanted to continue. `Demand.PAUSE`: watch no longer."""
        ...

    def unwatched(self) -> None:
        """Nobody watches any more, although `ready` did not say PAUSE."""
        ...


@runtime_checkable
class LoopCalls(Protocol):
    """ServerCalls may have this as well: then the Trio thread itself reads what worker processes send."""

    def watch(self, descriptor: int, reader: DescriptorReader) -> bool:
        """Tell `reader` whenever the descriptor, which is the server's from now on, is readable. Any thread. False when the loop
        has ended: then nothing was done."""
        ...
