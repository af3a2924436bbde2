"""ReadinessChecks: asks the instances of a version whether they are ready, where they know better than the server.

One check runs at a time; who asks meanwhile gets its answer, or, when it took too long, that of the next, which waits for what
the model is still at. The instances are asked in threads, beside what they execute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from tpy.backend import ChecksReadiness
from tpy.limits import READINESS_CHECK_GRACE_S, READINESS_CHECK_S_MAX


class _Asking:
    """A check that runs. No `answer` after `done`: its task was cancelled."""

    __slots__ = ("answer", "began_s", "done")

    def __init__(self) -> None:
        self.answer: bool | None = None
        self.began_s = trio.current_time()
        self.done = trio.Event()

    def took_too_long(self) -> bool:
        """True when the only reason for the answer is that the model did not answer in time."""
        return self.answer is False and trio.current_time() - self.began_s >= READINESS_CHECK_S_MAX


class ReadinessChecks:
    """`instances` gives those to ask now. All of them must be ready."""

    def __init__(self, instances: Callable[[], Sequence[ChecksReadiness]]) -> None:
        self._instances = instances
        self._asking: _Asking | None = None

    async def ask(self) -> bool:
        """True when all are ready; false also when one has not said so in time."""
        waited = False
        while (running := self._asking) is not None:
            await running.done.wait()
            if running.answer is not None and (waited or not running.took_too_long()):
                return running.answer
            waited = waited or running.answer is not None
        asking = self._asking = _Asking()
        try:
            asking.answer = await self._check(self._instances())
            return asking.answer
        finally:
            self._asking = None
            asking.done.set()

    @staticmethod
    async def _check(instances: Sequence[ChecksReadiness]) -> bool:
        if not instances:
            await trio.lowlevel.checkpoint()
            return True
        limiter = trio.CapacityLimiter(len(instances))
        ready: list[bool] = []

        async def check(instance: ChecksReadiness) -> None:
            # Model code in this process can hang for ever: then its thread is left behind, and the instance starts no other one.
            ready.append(
                await trio.to_thread.run_sync(
                    instance.check_ready, READINESS_CHECK_S_MAX, abandon_on_cancel=True, limiter=limiter
                )
            )

        with trio.move_on_after(READINESS_CHECK_S_MAX + READINESS_CHECK_GRACE_S):
            async with trio.open_nursery() as nursery:
                for instance in instances:
                    nursery.start_soon(check, instance)
        return len(ready) == len(instances) and all(ready)
