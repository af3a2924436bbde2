"""Requests that both versions of a rollout answer: the answer of the old one is sent, that of the new one is compared with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import trio

from tpy.config.rollout import RolloutShadow
from tpy.errors import TpyError
from tpy.limits import ROLLOUT_COPIES_MAX, ROLLOUT_COPY_BYTES_MAX
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Tensor
from tpy.messages.tensors import held_bytes
from tpy.services import ResponseSink
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.requests.observed_request import RelayedRequest
from tpy_data.engine.serving.served_copy import ServedCopy

Ended = Callable[[TpyError | None], None]
"""A version has answered."""


class Comparison:
    """One request. `answers` are those of the old and the new version, None where one is an error or too large to be kept."""

    __slots__ = ("_over", "answers", "compared", "left", "shadow")

    def __init__(self, shadow: RolloutShadow, compared: Callable[[str], None], over: Callable[[Comparison], None]) -> None:
        """`compared` is told the difference, `over` when both versions have ended the request."""
        self.shadow = shadow
        self.compared = compared
        self.answers: list[Sequence[Tensor] | None] = [None, None]
        self.left = {0, 1}
        self._over = over

    def ended(self, number: int, response: InferenceResponse | None) -> None:
        """The version of this number has ended the request, None: without a response. Idempotent."""
        if number not in self.left:
            return
        self.left.remove(number)
        if response is not None and response.error is None and _can_be_kept(response.outputs):
            self.answers[number] = response.outputs
        if not self.left:
            self._over(self)


class Shadows:
    """Those of a data plane. On the Trio thread, except for the comparison itself; `run` is a task of the nursery."""

    def __init__(self) -> None:
        self._open = 0
        self._answered: deque[Comparison] = deque()
        self._woken = trio.Event()

    def __len__(self) -> int:
        """Requests that were copied and whose answers are not compared yet."""
        return self._open

    async def run(self) -> None:
        """Compare what was answered, one after another. Runs until cancelled."""
        while True:
            while self._answered:
                comparison = self._answered.popleft()
                old, new = comparison.answers
                if old is not None and new is not None:
                    found = await trio.to_thread.run_sync(difference, old, new, comparison.shadow.rtol, comparison.shadow.atol)
                    comparison.compared(found)
                self._open -= 1
            self._woken = trio.Event()
            await self._woken.wait()

    def takes(self, request: InferenceRequest) -> bool:
        """Returns whether a request can be copied: few are at the moment, and its inputs are small and stay as they are."""
        if self._open >= ROLLOUT_COPIES_MAX or request.sequence is not None:
            return False
        if request.residency is not None and request.residency.inputs:
            return False
        return _can_be_kept(request.inputs)

    def submit(
        self,
        request: InferenceRequest,
        sink: ResponseSink,
        versions: tuple[ServedCopy, ServedCopy],
        ended: tuple[Ended, Ended],
        shadow: RolloutShadow,
        compared: Callable[[str], None],
    ) -> EngineHandle:
        """Submit a request to the old version, as `ResolvedModel.submit`, and then to the new one. `ended` is called for each of
        them, and `compared` with the difference if both have answered."""
        old, new = versions
        comparison = Comparison(shadow, compared, self._over)
        copied = CopiedRequest(sink, comparison, ended[0])
        try:
            copied.begun(old.submit(request, copied))
        except TpyError as refusal:
            ended[0](refusal)
            raise
        self._open += 1
        try:  # it counts in no limit of its tenant again, and nobody observes it
            copy = msgspec.structs.replace(request, record=None, is_call=True, residency=None)
            new.submit(copy, _Copy(comparison, ended[1]))
        except TpyError as refusal:
            ended[1](refusal)
            comparison.ended(1, None)
        return copied

    def _over(self, comparison: Comparison) -> None:
        self._answered.append(comparison)
        self._woken.set()


class CopiedRequest(RelayedRequest):
    """The request that the client has, to the old version."""

    __slots__ = ("_comparison", "_ended")

    def __init__(self, sink: ResponseSink, comparison: Comparison, ended: Ended) -> None:
        super().__init__(sink)
        self._comparison = comparison
        self._ended = ended

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        if response.final:
            self._ended(response.error)
            self._comparison.ended(0, response)
        super().deliver(response)

    def cancel(self) -> None:
        """As `RequestHandle.cancel`: the answer of the new version is compared with nothing."""
        super().cancel()
        self._comparison.ended(0, None)


class _Copy:
    """Takes the answer of the new version, which nobody else gets."""

    __slots__ = ("_comparison", "_ended")

    def __init__(self, comparison: Comparison, ended: Ended) -> None:
        self._comparison = comparison
        self._ended = ended

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        if response.final:
            self._ended(response.error)
            self._comparison.ended(1, response)


def _can_be_kept(tensors: Sequence[Tensor]) -> bool:
    """They are small, and neither on a device, where a step of an ensemble may leave them, nor in shared memory, which may be
    written to meanwhile."""
    in_memory = all(isinstance(each.array, np.ndarray) for each in tensors)
    return in_memory and held_bytes(tensors, ROLLOUT_COPY_BYTES_MAX) < ROLLOUT_COPY_BYTES_MAX


def difference(old: Sequence[Tensor], new: Sequence[Tensor], rtol: float, atol: float) -> str:
    """The first difference of two answers, in words; "" for none. Blocks for as long as their elements take."""
    named = {each.name: each for each in new}
    if missing := {each.name for each in old} ^ named.keys():
        return f"output '{min(missing)}' is in one answer only"
    for before in old:
        now = named[before.name]
        if (before.datatype, before.array.shape) != (now.datatype, now.array.shape):
            shapes = [f"{each.datatype.name} {list(each.array.shape)}" for each in (now, before)]
            return f"output '{before.name}' is {shapes[0]}, was {shapes[1]}"
        differs = _differing(before.array, now.array, rtol, atol)
        if differs is not None:
            place = ", ".join(map(str, differs))
            return f"output '{before.name}' [{place}] is {now.array[differs]!s:.40}, was {before.array[differs]!s:.40}"
    return ""


def _differing(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any], rtol: float, atol: float) -> tuple[int, ...] | None:
    """The place of the first element that differs."""
    if old.dtype == DataType.BF16.numpy:  # which NumPy does not know as a floating type
        old, new = old.astype(np.float32), new.astype(np.float32)
    is_number = np.issubdtype(old.dtype, np.floating)
    agree = np.isclose(new, old, rtol, atol, equal_nan=True) if is_number else np.asarray(old == new)
    if agree.all():
        return None
    return tuple(int(each) for each in np.unravel_index(int(np.argmin(agree)), agree.shape))
