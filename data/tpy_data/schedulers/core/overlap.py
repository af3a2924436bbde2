"""OverlapRule: when an only instance should leave a part of what waits for its next batch.

The clients of a busy model fall into step. All of them wait for one batch; while that computes, the server has nothing to do;
then the answers go out and the next requests come in, while the instance executes the few that happen to be there. Two batches in
turn, each of half the requests, let both work at the same time, and cost the time that a batch takes whatever it holds once more.
So the rule watches for the step, and what it costs, and halves only where that is clearly less.
"""

from __future__ import annotations

import msgspec

from tpy.limits import OVERLAP_BATCHES_MAX, OVERLAP_REQUESTS_MIN, OVERLAP_STEPS_MIN

_LONG_GAP = 4
"""A gap of more than so many times the large batch is not the server's but the clients': the instance is mostly idle."""


class OverlapTerms(msgspec.Struct, frozen=True, kw_only=True):
    """* `requests_min`: a batch of fewer requests is not worth looking at.
    * `steps_min`: how often in a row the step must be seen.
    * `batches_max`: so many batches are halved before the rule looks again.
    """

    requests_min: int = OVERLAP_REQUESTS_MIN
    steps_min: int = OVERLAP_STEPS_MIN
    batches_max: int = OVERLAP_BATCHES_MAX


class OverlapRule:
    """Of one instance, which executes one batch at a time. Counts are requests, not rows.

    A *gap* opens when a batch ends that left less than half as many waiting, and closes when the next batch begins that is at
    least half as large. Of that time the instance was idle or executed small batches. The shortest of them says what a batch
    costs at most that holds next to nothing: `short`. Halving gains about the gap and costs `short`, so it is worth it while
    2 * short < gap; two, because both are measured on a machine that does other things too. A gap that gets too long is given
    up, or fewer clients than there were would be compared with the batches of many for ever.

    Half is of what was open (waited or was executed) at the end of one of the last two batches, which is when most is.
    """

    __slots__ = ("_batches_left", "_large", "_large_ns", "_open", "_open_before", "_short_ns", "_since_ns", "_steps", "_terms")

    def __init__(self, terms: OverlapTerms) -> None:
        self._terms = terms
        self._open = 0
        self._open_before = 0
        self._batches_left = 0
        self._steps = 0
        self._large = 0
        self._large_ns = 0
        self._since_ns = 0
        self._short_ns = 0

    def share_of(self, count: int) -> int:
        """How many of `count` requests, which could go together now, the instance should take."""
        if self._batches_left == 0:
            return count
        most = max(self._open, self._open_before)
        return count if most < self._terms.requests_min else min(count, -(-most // 2))

    def began(self, count: int, now_ns: int) -> None:
        """The instance was given a batch of so many."""
        if self._batches_left > 0:
            self._batches_left -= 1
        elif self._large > 0 and 2 * count >= self._large:
            self._close(now_ns)

    def ended(self, count: int, waiting: int, took_ns: int, now_ns: int) -> None:
        """A batch of so many is over, of which the instance says that it took so long (0: it does not say), and so many wait."""
        self._open_before, self._open = self._open, count + waiting
        if self._batches_left > 0:
            return
        if self._large > 0 and now_ns - self._since_ns > _LONG_GAP * self._large_ns:
            self._large = self._steps = 0
        if self._large > 0:
            if took_ns > 0 and (took_ns < self._short_ns or self._short_ns == 0):
                self._short_ns = took_ns
        elif count >= self._terms.requests_min and 2 * waiting < count:
            self._large, self._large_ns, self._since_ns, self._short_ns = count, took_ns, now_ns, 0

    def _close(self, now_ns: int) -> None:
        gap_ns = now_ns - self._since_ns
        in_step = 0 < 2 * self._short_ns < gap_ns <= _LONG_GAP * self._large_ns
        self._large = 0
        self._steps = self._steps + 1 if in_step else 0
        if self._steps >= self._terms.steps_min:
            self._steps = 0
            self._batches_left = self._terms.batches_max
