"""One execution of a model: requests, their responses and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import msgspec
import numpy as np

from tpy.backend.implicit_state import SequenceState
from tpy.devices import DeviceArray
from tpy.errors import Internal, TpyError
from tpy.messages import ParameterValue, RequestRecord, Residency, SequencePosition, Tensor


class ResponseSender(Protocol):
    """Sends the responses of one request of a decoupled model. Any thread, also after `execute` has returned.

    The request ends with its final response; whoever has a sender must send one, whatever happens. When `execute` raises, or
    returns a result with an error, every request of the batch that has not ended does, with that error.
    """

    def send(self, result: ExecutionResult | None, *, final: bool, wait: bool = True) -> None:
        """Send one response; `result` None with `final` ends the request without data. Raises ValueError after the final.

        Waits while as many responses as the server holds for one request (tpy.limits) are not taken; a cancelled request
        takes everything, for nobody. With `wait` False it never waits: for a backend that counts what was taken (`watch`) and
        makes its model wait elsewhere.
        """
        ...

    def is_full(self) -> bool:
        """Returns whether `send` would wait. Any thread."""

    def watch(self, taken: Callable[[int], None], ended: Callable[[], None]) -> None:
        """Be told, on the Trio thread, how many more responses were taken (`taken`), and once when nobody waits any more
        (`ended`: cancelled, timed out, answered in another way; at once when that is so already). Both must return at once.
        Neither is called for a request that ended with its own final response. To be called before the first `send`."""
        ...


class ExecutionRequest(Protocol):
    """One request inside a batch, as a backend sees it.

    `inputs` maps input name to its array in the *model's* shape (reshape applied, batch dimension first when the model batches);
    optional inputs that were not given are absent. Arrays are read-only. `requested_outputs` empty means all.
    `timeout_us` is the caller's own (0 = none). `batch_size` is max(1, first dimension).

    Of a sequence, the control tensors of the configuration are among the `inputs`. An empty place in a batch of sequences (direct
    scheduling) is a request too, and is executed like any other: it is not READY, has inputs of zeros, correlation id 0 and no
    `sequence`, and its result goes nowhere.
    """

    @property
    def id(self) -> str: ...
    @property
    def inputs(self) -> Mapping[str, Tensor]: ...
    @property
    def requested_outputs(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> Mapping[str, ParameterValue]: ...
    @property
    def residency(self) -> Residency | None:
        """The outputs that may stay on a device; None: none of them."""
        ...

    @property
    def sequence(self) -> SequencePosition | None: ...
    @property
    def timeout_us(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def sender(self) -> ResponseSender | None:
        """For decoupled models only."""
        ...

    @property
    def record(self) -> RequestRecord | None:
        """The record of the request, for calls that belong to it; None while nobody observes it."""
        ...

    @property
    def state(self) -> SequenceState | None:
        """For models with implicit state only, and then always there."""
        ...

    def is_cancelled(self) -> bool:
        """Returns True if nobody waits for the response any more. Cheap; may be called from any thread."""
        ...


class ExecutionResult(msgspec.Struct, frozen=True):
    """The answer to one request: outputs in the *model's* shapes, or an error for this request alone.

    Outputs that were not requested may be included; the engine drops them, and puts the rest in the configuration's order.

    `reschedule`, for models with `iterative_sequence` only (release flag RESCHEDULE): this was one iteration; the request goes
    back to its scheduler to be executed again, later. Nothing else of the result counts then. A decoupled model that gives
    requests back returns one result per request instead of none; the others of them are ignored unless they have an error.
    """

    outputs: Sequence[Tensor] = ()
    error: TpyError | None = None
    parameters: Mapping[str, ParameterValue] = msgspec.field(default_factory=dict)
    reschedule: bool = False


class PhaseTimes:
    """Boundaries of one execution, in time.monotonic_ns. The engine sets `start` and `end`; the backend says when its inputs
    were ready and when outputs began; what it does not say counts as inference."""

    __slots__ = ("end_ns", "input_end_ns", "output_start_ns", "start_ns")

    def __init__(self) -> None:
        self.start_ns = 0
        self.input_end_ns = 0
        self.output_start_ns = 0
        self.end_ns = 0

    def inputs_ready(self) -> None:
        """Inputs are gathered; inference begins."""
        self.input_end_ns = time.monotonic_ns()

    def outputs_begin(self) -> None:
        """Inference is over; outputs are being made."""
        self.output_start_ns = time.monotonic_ns()


class ExecutionBatch:
    """Requests that run together; their batch sizes sum to at most max_batch_size (one request when the model does not batch).

    All have the same inputs, with equal shapes apart from the batch dimension and from ragged inputs (`tpy.backend.batching_of`).
    """

    __slots__ = ("requests", "times")

    requests: Sequence[ExecutionRequest]
    times: PhaseTimes

    def __init__(self, requests: Sequence[ExecutionRequest], times: PhaseTimes) -> None:
        self.requests = requests
        self.times = times


_NOT_YET = Internal("the answer to the request comes later")


class AnswerLater(ExecutionResult, frozen=True, kw_only=True):
    """`begin` is called once, on the Trio thread, with the sender for the one result: `send(result, final=True, wait=False)`,
    from any thread. It must not block. `error` is there so that whoever looks for a result finds none."""

    begin: Callable[[ResponseSender], None]
    error: TpyError | None = _NOT_YET


def flaw_of(result: object, residency: Residency | None = None) -> str | None:
    """The breach of contract in a backend's result, None for none. On the Trio thread it would take the server down."""
    if type(result) is not ExecutionResult:
        return None if type(result) is AnswerLater else f"a result of type {type(result).__name__}"
    if result.error is not None:
        return None if isinstance(result.error, TpyError) else f"an error of type {type(result.error).__name__}"
    for output in result.outputs:
        if type(output) is not Tensor or not isinstance(output.array, np.ndarray):
            flaw = _not_on_the_host(output, residency)
            if flaw is not None:
                return flaw
        if output.array.dtype != output.datatype.numpy:
            return f"output '{output.name}' as {output.datatype.value} with dtype {output.array.dtype}"
    return None


def _not_on_the_host(output: object, residency: Residency | None) -> str | None:
    """The flaw of an output that is not a tensor in host memory."""
    if type(output) is not Tensor or not isinstance(cast(object, output.array), DeviceArray):
        return f"an output of type {type(output).__name__}"
    if residency is None or not residency.keeps(output.name):
        return f"output '{output.name}' on a device, where it may not stay"
    return None
