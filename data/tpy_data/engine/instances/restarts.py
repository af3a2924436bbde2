"""The rules by which a failed instance is started again: how long requests wait for it, the pauses, and what a crash loop is."""

from __future__ import annotations

from collections import deque

import msgspec

from tpy.limits import CRASH_LOOP_PAUSE_S_MIN, WORKER_RESTART_BACKOFF_S_MAX, WORKER_RESTART_BACKOFF_S_MIN


class RestartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`wait_s` is --instance-restart-wait: requests wait for that long for an instance that is started again when there is no
    other. An instance that failed `loop_failures` times (--crash-loop-failures; 0: never too many) within `loop_window_s`
    (--crash-loop-minutes) is in a crash loop."""

    wait_s: float = 0.0
    loop_failures: int = 0
    loop_window_s: float = 300.0


class Restarts:
    """The failures of one instance and its replacements, and the pause before the next start. Times are seconds of one clock."""

    def __init__(self, options: RestartOptions) -> None:
        self._options = options
        self._failed_s: deque[float] = deque(maxlen=options.loop_failures)
        self.in_row = 0
        """Failures since it executed a batch; that sets it to 0."""
        self._loops = 0
        self.count = 0
        """Instances that were started again."""

    @property
    def is_loop(self) -> bool:
        """True while the last failures came so fast that the instance serves nobody."""
        return self._loops > 0

    def failed(self, now_s: float) -> None:
        """The instance has failed, or could not be started."""
        self.in_row += 1
        self._failed_s.append(now_s)
        full = 0 < self._options.loop_failures == len(self._failed_s)
        self._loops = self._loops + 1 if full and now_s - self._failed_s[0] <= self._options.loop_window_s else 0

    def pause_s(self, started_s: float, now_s: float) -> float:
        """Before the next start: none for an instance that had lived for a while, but for one that fails again and again."""
        if self._loops:
            return min(CRASH_LOOP_PAUSE_S_MIN * 2.0 ** min(self._loops - 1, 60), WORKER_RESTART_BACKOFF_S_MAX)
        pause_s = min(WORKER_RESTART_BACKOFF_S_MIN * 2.0 ** min(self.in_row - 1, 60), WORKER_RESTART_BACKOFF_S_MAX)
        return pause_s if self.in_row > 1 else max(0.0, started_s + pause_s - now_s)

    def loop_reason(self, reason: str) -> str:
        """The reason why it serves nothing, in a crash loop."""
        options = self._options
        return f"crash loop: it failed {options.loop_failures} times in {options.loop_window_s / 60:g} minutes, last: {reason}"
