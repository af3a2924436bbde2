"""Runs a decoder or encoder in a thread such that nothing of what it worked on outlives it.

An exception that crosses from a thread to the loop ends in a circle: its traceback refers to the frames that it went through, and
one of Trio's frames there refers to the exception. A refused request would so keep its whole document, in the locals of the
decoder's frames, until the garbage collector comes by, which it does rarely in a server that makes few objects.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar, TypeVarTuple, Unpack

import trio

from tpy.errors import TpyError

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


async def run_in_thread(
    work: Callable[[Unpack[_Arguments]], _Result], *arguments: *_Arguments, limiter: trio.CapacityLimiter
) -> _Result:
    """Returns what `work` returns, or raises what it raises, without the locals of the frames that it came from."""
    outcome = await trio.to_thread.run_sync(_attempt, work, arguments, limiter=limiter)
    if not isinstance(outcome, _Failure):
        return outcome
    error = outcome.take()
    try:
        raise error
    finally:
        del error, work, arguments  # this frame is in the traceback, too


def _attempt(work: Callable[[Unpack[_Arguments]], _Result], arguments: tuple[*_Arguments]) -> _Result | _Failure:
    try:
        return work(*arguments)
    except Exception as error:
        release_frames(error)
        error.__traceback__ = _trace_to_keep(error)
        return _Failure(error)


def _trace_to_keep(error: Exception) -> TracebackType | None:
    """None for a refusal, which is for the client. Anything else is a bug, whose traceback goes to the log; without its first
    frame, which is `_attempt`."""
    trace = error.__traceback__
    return None if trace is None or isinstance(error, TpyError) else trace.tb_next


class _Failure:
    """An exception as a value, once: frames of the thread go on holding this object."""

    __slots__ = ("_errors",)

    def __init__(self, error: Exception) -> None:
        self._errors = [error]

    def take(self) -> Exception:
        """The exception; this object lets go of it."""
        return self._errors.pop()


def forget_trace(error: TpyError) -> None:
    """Let go of all frames that an answered error came through. One that is raised by what holds it, as a response does its own,
    is in a circle with them, and they hold the request and its regions."""
    error.__traceback__ = error.__cause__ = error.__context__ = None


def release_frames(error: BaseException) -> None:
    """Let go of the locals in the tracebacks of `error` and of what led to it. The tracebacks can still be printed; parser errors
    that were replaced (`from None`), which hold the text that they refuse, are forgotten."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        link = pending.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        if link.__suppress_context__:
            link.__context__ = None
        pending += (link.__cause__, link.__context__)
