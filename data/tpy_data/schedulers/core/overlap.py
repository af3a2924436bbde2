"""OverlapRule: when a sole instance should leave a part of the queue for its next batch.

The clients of a busy model form a convoy: all of them wait for one batch, and while it computes, the server is idle; then the
answers go out and the next requests come in, while the instance executes the few that happen to be there. Two alternating batches
of half the requests keep both busy, at the price of a batch's fixed cost. So the rule watches for a convoy and what it costs, and
halves batches only if that is clearly cheaper. The cost of half a batch is unknown until it is tried, so the first halved batches
are a trial.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from tpy.limits import OVERLAP_BATCHES_MAX, OVERLAP_CONVOYS_MIN, OVERLAP_REQUESTS_MIN, OVERLAP_TRIAL_BATCHES

_LONG_GAP = 4
"""Longest gap, in lengths of a large batch: in a longer one the instance waits for clients rather than for the server."""


class OverlapTerms(msgspec.Struct, frozen=True, kw_only=True):
    """* `requests_min`: a batch of fewer requests is not worth looking at.
    * `convoys_min`: how often in a row the convoy must be seen.
    * `batches_max`: the number of batches that are halved, or after a failed trial not halved, before the rule looks again.
    * `trial_batches`: the number of halved batches in a trial; the quickest of them decides whether to go on.
    """

    requests_min: int = OVERLAP_REQUESTS_MIN
    convoys_min: int = OVERLAP_CONVOYS_MIN
    batches_max: int = OVERLAP_BATCHES_MAX
    trial_batches: int = OVERLAP_TRIAL_BATCHES


class _Gap:
    """From the end of a large batch, with its number of requests and its length, to the beginning of the next.

    `short_ns`: what the quickest batch meanwhile took; 0: not known.
    """

    __slots__ = ("large", "large_ns", "short_ns", "since_ns")

    def __init__(self, large: int, large_ns: int, since_ns: int) -> None:
        self.large = large
        self.large_ns = large_ns
        self.short_ns = 0
        self.since_ns = since_ns

    def is_too_long(self, now_ns: int) -> bool:
        """True when the gap is due to the clients rather than to the server."""
        return now_ns - self.since_ns > _LONG_GAP * self.large_ns

    def is_worth_it(self, now_ns: int) -> bool:
        """True when the gap is due to the server, and clearly longer than what avoiding it costs."""
        return 0 < 2 * self.short_ns < now_ns - self.since_ns and not self.is_too_long(now_ns)


class _Part(Enum):
    """The part of the waiting requests that goes."""

    HALF = auto()
    ONE = auto()
    ALL = auto()


class _Halving:
    """From the end of the last gap until the rule looks again: batches are halved, unless that turns out not to pay.

    The trial is the first batches with at least a quarter of the large one's requests. If twice the time of the quickest of them
    is no less than the large one's time and the gap together, halving gains nothing. Clients in two halves would stay so for
    ever, as one is at work while the other comes back. So then single requests go for as long as the gap was, while the others
    gather, and after that all that wait.
    """

    __slots__ = ("_gap", "_gap_ns", "_gathered_ns", "_terms", "_took_ns", "batches_left", "part")

    def __init__(self, gap: _Gap, gap_ns: int, terms: OverlapTerms) -> None:
        self._gap = gap
        self._gap_ns = gap_ns
        self._gathered_ns = 0
        self._terms = terms
        self._took_ns: list[int] = []
        self.batches_left = terms.batches_max
        self.part = _Part.HALF

    def ended(self, count: int, took_ns: int, now_ns: int) -> None:
        """A batch of `count` requests is over; the instance says that it took `took_ns`."""
        if self.part is _Part.ONE and now_ns >= self._gathered_ns:
            self.part = _Part.ALL
        elif self._fails_with(count, took_ns):
            self.part = _Part.ONE
            self._gathered_ns = now_ns + self._gap_ns
            self.batches_left = self._terms.batches_max

    def _fails_with(self, count: int, took_ns: int) -> bool:
        """True when this is the last batch of the trial, and halving does not pay."""
        if took_ns == 0 or 4 * count < self._gap.large:
            return False
        self._took_ns.append(took_ns)
        is_last = len(self._took_ns) == self._terms.trial_batches
        return is_last and 2 * min(self._took_ns) >= self._gap.large_ns + self._gap_ns


class OverlapRule:
    """Watches one instance, which executes one batch at a time, and says how much of the queue it should take. Counts are
    requests, not rows.

    A *gap* opens when a batch ends that left less than half as many waiting, and closes when the next batch begins that is at
    least half as large. Of that time the instance was idle or executed small batches. The shortest of them says what a batch
    costs at most that holds next to nothing: `short`. Halving gains about the gap and costs `short`, so it is worth it while
    2 * short < gap; two, because both are measured on a machine that does other things too. A gap that gets too long is given
    up, or fewer clients than there were would be compared with the batches of many for ever.

    A model may be quick with next to nothing and slow with half: that is found out by trying (_Halving).

    Half is of what was open (waited or was executed) at the end of one of the last two batches, which is when most is.
    """

    __slots__ = ("_convoys", "_gap", "_halving", "_open", "_open_before", "_terms")

    def __init__(self, terms: OverlapTerms) -> None:
        self._terms = terms
        self._open = 0
        self._open_before = 0
        self._convoys = 0
        self._gap: _Gap | None = None
        self._halving: _Halving | None = None

    @property
    def is_halving(self) -> bool:
        """True while less goes than could."""
        return self._halving is not None and self._halving.part is not _Part.ALL

    def share_of(self, count: int) -> int:
        """The number of `count` requests, which could go together now, that the instance should take."""
        part = _Part.ALL if self._halving is None else self._halving.part
        if part is not _Part.HALF:
            return count if part is _Part.ALL else 1
        most = max(self._open, self._open_before)
        return count if most < self._terms.requests_min else min(count, -(-most // 2))

    def began(self, count: int, now_ns: int) -> None:
        """The instance was given a batch of `count` requests."""
        gap, halving = self._gap, self._halving
        if halving is not None:
            halving.batches_left -= 1
            if halving.batches_left == 0:
                self._halving = None
        elif gap is not None and 2 * count >= gap.large:
            self._convoys = self._convoys + 1 if gap.is_worth_it(now_ns) else 0
            self._gap = None
            if self._convoys >= self._terms.convoys_min:
                self._convoys = 0
                self._halving = _Halving(gap, now_ns - gap.since_ns, self._terms)

    def ended(self, count: int, waiting: int, took_ns: int, now_ns: int) -> None:
        """A batch of `count` requests is over, `waiting` wait; the instance says that it took `took_ns` (0: it does not say)."""
        self._open_before, self._open = self._open, count + waiting
        if self._halving is not None:
            self._halving.ended(count, took_ns, now_ns)
            return
        gap = self._gap
        if gap is not None and gap.is_too_long(now_ns):
            gap = self._gap = None
            self._convoys = 0
        if gap is not None:
            if took_ns > 0 and (took_ns < gap.short_ns or gap.short_ns == 0):
                gap.short_ns = took_ns
        elif count >= self._terms.requests_min and 2 * waiting < count:
            self._gap = _Gap(count, took_ns, now_ns)
