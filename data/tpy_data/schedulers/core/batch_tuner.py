"""BatchTuner: how large the next batch should be, and whether to wait for company, from what batches and arrivals were like.

A wait is judged by replay. While the only instance executes, nobody is answered, so what arrives meanwhile would have arrived as
well if the batch had waited: each execution shows what every wait, or none, would have cost its requests and the ones that came.
Nothing has to be tried for that, and a client that sends its next request only after an answer is never waited for without need.
Of several instances the last idle one may wait. What is replayed then ends when one of them is over with a batch: until then all
arrivals are the same with the wait and without, and then the requests that came have an instance.

A size is judged by the cost curve: a batch is split where its parts take less time than the whole, or no more and some of its
requests are answered earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tpy.limits.tuning import (
    COMPANY_MEMORY,
    FIT_BATCHES,
    GAIN_PERMILLE_MIN,
    LEARN_NS_MIN,
    SHARED_GAIN_PERMILLE_MIN,
    SPLIT_NS_MIN,
    WAIT_NS_MAX,
    WINDOWS_LATELY,
    WINDOWS_MEMORY,
    WINDOWS_MIN,
)
from tpy.messages import TunedSize, TunedWait, TuningActivity
from tpy.units import NS_PER_S
from tpy_data.schedulers.core.arrivals import ArrivalRate, Arrivals
from tpy_data.schedulers.core.cost_curve import CostCurve
from tpy_data.schedulers.core.replay import alone, beside, lost_beside_ns, lost_ns
from tpy_data.schedulers.core.splitting import quickest, splits

_PARTS: Final = (32, 8, 4, 2, 1)
"""The waits that are replayed: the time of the batch without company, divided by these."""

_EXACT_ROWS_MAX: Final = 16
"""Up to here each number of rows has a wait for itself, beyond it those of about the same size share one."""

_TRIED_MIN: Final = 4
"""Smaller sizes are not halved for a trial: they are seen often enough."""

_NOISE: Final = 10_000**2
"""The variance of replays that are all alike: 1 % is not a change of the load."""

_IDLE_PERMILLE_MIN: Final = 100
"""The instance counts as idle for at least so long, or the price of its time would have no bound."""


class TunerTerms(msgspec.Struct, frozen=True, kw_only=True):
    """* `windows_min`: replays with a number of rows before its wait may be used.
    * `gain_permille_min`: the share of the requests' time that a wait or a split must save; `shared_gain_permille_min`: a wait
      of one of several instances.
    * `fit_batches`: from one look at the curve to the next.
    * `split_ns_min`: what takes less is neither split nor tried with half its size.
    * `learn_ns_min`: from one batch that is learned of to the next, where the load is as it was.
    """

    windows_min: int = WINDOWS_MIN
    gain_permille_min: int = GAIN_PERMILLE_MIN
    shared_gain_permille_min: int = SHARED_GAIN_PERMILLE_MIN
    fit_batches: int = FIT_BATCHES
    split_ns_min: int = SPLIT_NS_MIN
    learn_ns_min: int = LEARN_NS_MIN


class _Wait:
    """One of the waits for a number of rows: `gain` is the share of their time that it would have saved on average, in
    millionths, with its `variance`, `gain_lately` in the last few replays; `company` are the rows that came in it, in
    thousandths."""

    __slots__ = ("company", "count", "gain", "gain_lately", "variance")

    def __init__(self) -> None:
        self.count = 0
        self.gain = 0
        self.variance = 0
        self.gain_lately = 0
        self.company = 0

    def add(self, gain: int, rows: int) -> None:
        """One more replay. Where the last ones are clearly unlike those before, the load has changed, and only they count."""
        gain = max(-2_000_000, min(gain, 1_000_000))
        self.count += 1
        error, memory = gain - self.gain, min(self.count, WINDOWS_MEMORY)
        self.gain += error // memory
        self.variance += (error * (gain - self.gain) - self.variance) // memory
        self.gain_lately += (gain - self.gain_lately) // min(self.count, WINDOWS_LATELY)
        self.company += (1000 * rows - self.company) // min(self.count, COMPANY_MEMORY)
        drift = self.gain_lately - self.gain
        if self.count > 2 * WINDOWS_LATELY and drift * drift * WINDOWS_LATELY > 16 * (self.variance + _NOISE):
            self.count, self.gain, self.variance = WINDOWS_LATELY, self.gain_lately, drift * drift

    def add_quiet(self, count: int) -> None:
        """Counts `count` replays that gained and lost nothing, because nobody came."""
        count = min(count, WINDOWS_MEMORY)
        for _ in range(min(count, WINDOWS_LATELY)):
            self.gain_lately -= self.gain_lately // min(self.count + 1, WINDOWS_LATELY)
            self.company -= self.company // COMPANY_MEMORY
        memory = min(self.count + count, WINDOWS_MEMORY)
        self.variance += (self.gain * self.gain - self.variance) * count // (memory + count)
        self.gain -= self.gain * count // (memory + count)
        self.count += count

    def pays(self, gain_min: int) -> bool:
        """True if it saves so much, by more than chance may have added."""
        over = self.gain - gain_min
        return over >= 0 and over * over * min(self.count, WINDOWS_MEMORY) >= self.variance


class _Waits:
    """The waits for a number of rows, after `count` replays; `chosen` is the one that pays. The last `quiet` of these replays had
    no company, and are not counted in `waits` yet."""

    __slots__ = ("chosen", "count", "quiet", "waits")

    def __init__(self) -> None:
        self.quiet = 0
        self.count = 0
        self.waits = tuple(_Wait() for _ in _PARTS)
        self.chosen: int | None = None

    def have_not_paid(self) -> bool:
        """True when none of them has paid for long."""
        return self.chosen is None and self.count >= WINDOWS_MEMORY

    def choose(self, windows_min: int, gain_permille_min: int) -> None:
        """Choose the shortest of the waits that save most, if they save enough: one that saves nearly as much splits a convoy."""
        self.chosen = None
        if self.count < windows_min:
            return
        best = max(wait.gain for wait in self.waits)
        gain_min = 1000 * gain_permille_min
        for index, wait in enumerate(self.waits):
            pays = wait.pays(gain_min) and wait.gain_lately >= min(0, gain_min)
            if pays and wait.gain >= best - abs(best) // 128:
                self.chosen = index
                return


class _Window:
    """From when the instance could have had `rows` until the batch is over. They are held until `due_ns`, or until there are
    `goal`. `fresh`: they came just then, to an idle instance; clients that come together look so."""

    __slots__ = ("arrivals", "due_ns", "fresh", "goal", "is_sent", "rows", "since_ns")

    def __init__(self, rows: int, since_ns: int, *, fresh: bool) -> None:
        self.rows = rows
        self.fresh = fresh
        self.since_ns = since_ns
        self.arrivals = Arrivals()
        self.due_ns = since_ns
        self.goal = rows
        self.is_sent = False


class _Over(NamedTuple):
    """A batch that is over."""

    rows: int
    took_ns: int
    now_ns: int
    window: _Window | None


_TERMS: Final = TunerTerms()


class BatchTuner:
    """Of one model version. Sizes are rows.

    `target_ns`: no request waits for company if it would be late then, and a batch is made smaller if that has its oldest request
    in time and the instance is fast enough with smaller ones. `all_stay`: instances neither come nor go. `may_wait`: so it is,
    and nothing else shapes their batches. Of the `instances` more than one are idle where `others_idle`. `over` is the last batch
    that is over and that `learn` is to look at. Until `rests_until_ns` nothing is to be decided of a single row, nor learned.
    """

    __slots__ = (
        "_batches",
        "_knows_until_ns",
        "_parts",
        "_rate",
        "_sent_ns",
        "_terms",
        "_trial",
        "_waits",
        "_whole_rows",
        "_window",
        "all_stay",
        "curve",
        "instances",
        "late",
        "may_wait",
        "misses_target",
        "others_idle",
        "over",
        "rests_until_ns",
        "target_ns",
    )

    def __init__(self, curve: CostCurve, target_ns: int = 0, terms: TunerTerms = _TERMS) -> None:
        self.target_ns = target_ns
        self.all_stay = False
        self.may_wait = False
        self.instances = 1
        self.others_idle = False
        self.misses_target = False  # even with the smallest batch there is
        self.late = 0  # requests that were answered after the target
        self.curve = curve
        self._terms = terms
        self._rate = ArrivalRate()
        self._waits: dict[tuple[bool, int], _Waits] = {}
        self._window: _Window | None = None
        self._parts: list[int] = []  # by cell, the cell to send of it
        self._whole_rows = 0  # a batch with at most these rows is sent whole
        self._trial = 0
        self._batches = 0
        self._knows_until_ns = 0
        self.rests_until_ns = 0
        self._sent_ns = 0  # of the batch that a sole instance has
        self.over: _Over | None = None
        self._look(0)

    # events

    def arrived(self, rows: int, now_ns: int) -> None:
        """A request has come."""
        rate = self._rate
        rate.rows += rows
        if now_ns > rate.half_ns:
            rate.halve(now_ns)
        window = self._window
        if window is not None:
            window.arrivals.add(rows, now_ns - window.since_ns)

    def began(self, rows: int, now_ns: int) -> None:
        """A batch of `rows` rows was sent."""
        self._sent_ns = now_ns if self.all_stay and self.instances == 1 and now_ns >= self.rests_until_ns else 0
        window = self._window
        if window is not None and rows < window.rows:
            self._window = None  # it is over before the whole one would have been, so nobody sees what came meanwhile
        elif window is not None:
            window.is_sent = True

    def ended(self, rows: int, took_ns: int, now_ns: int) -> None:
        """A batch is over, which took so long; 0: nobody says. `learn` looks at it.

        A sole instance is taken for longer than its batch takes: the hand-over to it and back is a part of what a batch costs,
        and of a quick model the larger one.
        """
        if self.over is not None:
            self.learn()
        if took_ns > 0 and self._sent_ns:
            took_ns = max(took_ns, now_ns - self._sent_ns)
        self._sent_ns = 0
        if took_ns > 0 and (self._window is not None or not self._knows_enough(now_ns) or not self.curve.is_known(rows)):
            self._knows_until_ns = now_ns - took_ns + self._terms.learn_ns_min
            self.over = _Over(rows, took_ns, now_ns, self._window)
        self._window = None

    def learn(self) -> None:
        """Learn of the last batch that is over. Apart, because it takes longer than a decision: to be called when that batch is
        answered and the next one sent, at the latest when that is over."""
        over, self.over = self.over, None
        if over is None:
            return
        was_known = self.curve.is_known(over.rows)
        self.curve.add(over.rows, over.took_ns)
        self._batches += 1
        is_new = not was_known and self.curve.is_known(over.rows)
        if is_new or self._batches < self._terms.fit_batches or self._batches % self._terms.fit_batches == 0:
            self._look(over.now_ns)
        if over.window is not None and (over.window.is_sent or self.instances > 1):
            self._replay(over.window, over.now_ns)

    def _knows_enough(self, now_ns: int) -> bool:
        """True soon after the beginning of a batch that was learned of: another one that is like many before says little."""
        return now_ns < self._knows_until_ns

    def forget_waits(self) -> None:
        """The instances are not those of before. What batches cost is still true."""
        self._window, self._sent_ns, self.rests_until_ns = None, 0, 0
        if self.over is not None:
            self.over = self.over._replace(window=None)
        self._waits.clear()

    # decisions

    def holds(self, rows: int, oldest_ns: int, now_ns: int) -> bool:
        """True while `rows` rows, the first of which has waited since `oldest_ns`, should wait for company although an instance
        is idle."""
        if not self.may_wait or self.others_idle:
            self._window = None
            return False
        window = self._window
        if window is None or window.is_sent or oldest_ns > window.since_ns:
            found = self._waits.get(_key(rows, fresh=oldest_ns == now_ns))
            if found is not None and self._knows_enough(now_ns) and found.have_not_paid():
                self._window = None
                if rows == 1 and not self.target_ns and self._has_no_wait_for_one():
                    self.rests_until_ns = self._knows_until_ns
                return False
            window = self._window = self._opened(rows, oldest_ns, now_ns, found)
            self.rests_until_ns = 0
        return rows < window.goal and now_ns < window.due_ns

    def _has_no_wait_for_one(self) -> bool:
        """True where no wait has paid for a single row, neither for one that came to an idle instance nor for one that waited."""
        both = (self._waits.get(_key(1, fresh=True)), self._waits.get(_key(1, fresh=False)))
        return all(each is None or each.have_not_paid() for each in both)

    def due_ns(self) -> int | None:
        """The end of the present wait; None: nothing waits for company."""
        return None if self._window is None or self._window.is_sent else self._window.due_ns

    def size(self, rows: int, oldest_ns: int, now_ns: int) -> int:
        """The number of rows to send of the waiting ones that fit together."""
        if rows <= self._whole_rows and not self.target_ns:
            return rows
        curve, cell = self.curve, self.curve.cell_of(rows)
        part = self._parts[cell] if cell < len(self._parts) else cell
        if self.target_ns:
            left_ns = oldest_ns + self.target_ns - now_ns
            if 0 < left_ns < curve.cell_ns(part):
                part = self._part_in_time(part, left_ns, now_ns)
        return rows if part == cell else min(rows, part * curve.width)

    def explain(self, now_ns: int) -> TuningActivity:
        """Its knowledge, and its choices now."""
        curve = self.curve
        waits = []
        for (fresh, rows), each in sorted(self._waits.items()):
            if each.chosen is not None:
                wait_ns, goal = self._wait(rows, each, each.chosen)
                waits.append(TunedWait(rows, fresh, wait_ns, goal, each.waits[each.chosen].gain // 1000))
        known = set(curve.known())
        batch_rows = min(self._parts[-1] * curve.width, curve.batch_size_max)
        return TuningActivity(
            curve=curve.points(),
            arrivals_per_s=self._rate.per_s(now_ns),
            target_ns=self.target_ns,
            waits=tuple(waits),
            sizes=tuple(
                TunedSize(cell * curve.width, part * curve.width)
                for cell, part in enumerate(self._parts)
                if part != cell and {cell, part} <= known
            ),
            trial_rows=self._trial * curve.width,
            batch_rows=batch_rows,
            batch_ns=curve.time_ns(batch_rows),
            late=self.late,
            may_wait=self.may_wait,
            misses_target=self.misses_target,
        )

    # waits

    def _opened(self, rows: int, oldest_ns: int, now_ns: int, found: _Waits | None) -> _Window:
        """The window of a batch that could go now."""
        window = _Window(rows, now_ns, fresh=oldest_ns == now_ns)
        if found is None or found.chosen is None:
            return window
        wait_ns, goal = self._wait(rows, found, found.chosen)
        window.goal = goal
        window.due_ns = now_ns + wait_ns
        if self.target_ns:
            window.due_ns = min(window.due_ns, oldest_ns + self.target_ns - self.curve.time_ns(goal))
        return window

    def _wait(self, rows: int, waits: _Waits, chosen: int) -> tuple[int, int]:
        """The time of a wait, and the rows that end it."""
        goal = rows + (waits.waits[chosen].company + 500) // 1000
        return _part_ns(self.curve.time_ns(rows), _PARTS[chosen]), min(goal, self.curve.batch_size_max)

    def _replay(self, window: _Window, now_ns: int) -> None:
        """Reckon what each wait would have saved."""
        curve, rows, arrivals, terms = self.curve, window.rows, window.arrivals, self._terms
        next_ns, shared = now_ns - window.since_ns, self.instances > 1
        without = beside(curve, rows, arrivals, next_ns) if shared else alone(curve, rows, arrivals)
        if not without.time_ns:
            return
        waits = self._waits.setdefault(_key(rows, fresh=window.fresh), _Waits())
        waits.count += 1
        if without.company == 0 and waits.chosen is None:
            waits.quiet += 1  # no wait would have changed anything except for the worse, and no wait is used
            return
        for wait in waits.waits if waits.quiet else ():
            wait.add_quiet(waits.quiet)
        waits.quiet = 0
        behind = self._behind(without.both_ns // self.instances, now_ns) // self.instances
        for index, (part, wait) in enumerate(zip(_PARTS, waits.waits, strict=True)):
            wait_ns, goal = _part_ns(without.alone_ns, part), self._wait(rows, waits, index)[1]
            if shared:
                wait_ns = min(wait_ns, next_ns)
                lost = lost_beside_ns(curve, rows, arrivals, without, wait_ns, goal, next_ns, behind)
            else:
                lost = lost_ns(curve, rows, arrivals, without, wait_ns, goal, behind)
            wait.add(-1_000_000 * lost // without.time_ns, arrivals.rows_by(wait_ns))
        waits.choose(terms.windows_min, terms.shared_gain_permille_min if shared else terms.gain_permille_min)

    # sizes

    def _look(self, now_ns: int) -> None:
        """Decide anew which sizes are split, and into what."""
        self._split(now_ns)
        whole = next((cell - 1 for cell, part in enumerate(self._parts) if part != cell), len(self._parts))
        self._whole_rows = whole * self.curve.width

    def _split(self, now_ns: int) -> None:
        curve = self.curve
        curve.fit()
        cells = curve.cell_of(curve.batch_size_max)
        self._parts = list(range(cells + 1))
        self._trial = 0
        known = curve.known()
        if not known:
            return
        self.misses_target = known[0] == 1 and 0 < self.target_ns < curve.cell_ns(1)
        largest = known[-1]
        self._parts[: largest + 1] = splits(
            curve,
            quickest(curve),
            largest,
            self._behind(curve.cell_ns(largest), now_ns) // curve.width,
            self._terms.gain_permille_min,
            self._terms.split_ns_min,
        )
        if self._parts[largest] < largest:
            self._parts[largest:] = [self._parts[largest]] * (cells + 1 - largest)
        self._trial = trial = self._untried(known)
        if trial:
            for cell in range(trial + 1, cells + 1):
                if cell >= largest or self._parts[cell] < cell:
                    self._parts[cell] = trial

    def _untried(self, known: Sequence[int]) -> int:
        """A size that should be tried, because nobody knows whether it is better than the one that is sent when most wait: half
        of that, or twice a part; 0: none."""
        largest = known[-1]
        if self.curve.cell_ns(largest) < self._terms.split_ns_min:
            return 0
        part = self._parts[largest]
        if part < largest and 2 * part < largest and not _has_tried(2 * part, known):
            return 2 * part
        return part // 2 if part >= _TRIED_MIN and not _has_tried(part // 2, known) else 0

    def _behind(self, busy_ns: int, now_ns: int) -> int:
        """The rows that come while the instance is busy: for `busy_ns` with the rows that it has, and then with these."""
        curve = self.curve
        row_ns = min((curve.cell_ns(cell) // (cell * curve.width) for cell in curve.known()), default=0)
        idle = max(_IDLE_PERMILLE_MIN, 1000 - self._rate.per_s(now_ns) * row_ns * 1000 // NS_PER_S)
        return 1000 * self._rate.in_ns(busy_ns, now_ns) // idle

    def _part_in_time(self, cell: int, left_ns: int, now_ns: int) -> int:
        """The largest size that is over in this time, if the instance can do all that comes with it; else `cell`."""
        curve = self.curve
        for part in reversed(curve.known()):
            took_ns = curve.cell_ns(part)
            if part < cell and took_ns <= left_ns:
                enough = part * curve.width * 4 * NS_PER_S > 5 * self._rate.per_s(now_ns) * took_ns
                return part if enough else cell
        return cell


def _has_tried(size: int, known: Sequence[int]) -> bool:
    """True if batches of this size were seen, or of what comes nearest to it where requests have several rows each."""
    return any(size // 2 < cell <= size for cell in known)


def _part_ns(alone_ns: int, part: int) -> int:
    """The wait that is this part of the time of the batch."""
    return max(1, min(alone_ns // part, WAIT_NS_MAX))


def _key(rows: int, *, fresh: bool) -> tuple[bool, int]:
    return fresh, rows if rows <= _EXACT_ROWS_MAX else 1 << (rows.bit_length() - 1)
