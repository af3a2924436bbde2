"""Answers that come after their batch: a model that answers once may do so later, from a thread of its own.

`ModelInstance.execute` returns an `AnswerLater` in place of a result. From then on the request is the engine's with its deadline,
as one of a decoupled model is; it ends with the one result that the backend sends, or with an error of the engine's.
"""

from __future__ import annotations

from collections.abc import Callable

from tpy.backend.execution import ExecutionResult, ResponseSender
from tpy.errors import Internal, TpyError

_NOT_YET = Internal("the answer to the request comes later")


class AnswerLater(ExecutionResult, frozen=True, kw_only=True):
    """`begin` is called once, on the Trio thread, with the sender for the one result: `send(result, final=True, wait=False)`,
    from any thread. It must not block. `error` is there so that whoever looks for a result finds none."""

    begin: Callable[[ResponseSender], None]
    error: TpyError | None = _NOT_YET
