"""CreditPolicy: how many batches an instance may hold, and when it has to give back what it has not started."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.limits import (
    PREFETCHED_BATCHES_MAX,
    QUICK_BATCHES_MAX,
    QUICK_BATCHES_NS_MAX,
    QUICK_SHARE_NS_MIN,
    UNREPORTED_NS_MAX,
)


class _Round:
    """The work of an instance since it held nothing: the number of batches, and their time."""

    __slots__ = ("batches", "busy_ns")

    def __init__(self) -> None:
        self.batches = 0
        self.busy_ns = 0


class CreditPolicy:
    """The credit of each instance, found out here: not the `credit` of `add_instance`, which a dynamic batcher goes by.

    * Of a *quick* model, for which handing over costs more than executing: several batches when it holds none. It begins with
      one; when all were over within QUICK_BATCHES_NS_MAX the next may be twice as many, otherwise as many as were. At most its
      share of what waits, because another instance may be idle before this one comes to them; but not less than what takes
      QUICK_SHARE_NS_MIN, going by its last batch, because another instance would hardly be woken in that time.
    * Of a *slow* model, whose last batch took longer than that, with one instance: some batches at any time, so that it need not
      wait for the server between two. No other instance could do better.
    * Otherwise: one.

    After UNREPORTED_NS_MAX an instance is asked for what it has not started, and what is over: one of the batches takes long.
    `ask_ns` has those times, in order, because every instance gets the same. `slow` are the instances of slow models.
    """

    __slots__ = ("_able", "_least", "_length", "_rounds", "ask_ns", "slow")

    def __init__(self) -> None:
        self._length: dict[int, int] = {}
        self._least: dict[int, int] = {}
        self._able: set[int] = set()
        self.slow: set[int] = set()
        self._rounds: dict[int, _Round] = {}
        self.ask_ns: dict[int, int] = {}

    def add(self, instance: int, *, prefetch: bool) -> None:
        """A new instance; `prefetch`: it may hold batches of a slow model."""
        self._length[instance] = self._least[instance] = 1
        self._rounds[instance] = _Round()
        if prefetch:
            self._able.add(instance)

    def forget(self, instance: int) -> None:
        """The instance leaves."""
        del self._length[instance], self._least[instance], self._rounds[instance]
        self._able.discard(instance)
        self.slow.discard(instance)

    def prefetches(self, instance: int, members: int) -> bool:
        """True when it is the only instance, of a slow model."""
        return members == 1 and instance in self.slow

    def room(self, instance: int, *, held: int, waiting: int, members: int) -> int:
        """The number of `waiting` batches to give to an instance that holds `held`."""
        if self.prefetches(instance, members):
            return min(waiting, max(PREFETCHED_BATCHES_MAX - held, 0))
        if held:
            return 0
        share = waiting if members == 1 else max(-(-waiting // members), self._least[instance])
        return min(self._length[instance], share, waiting)

    def given(self, instance: int, now_ns: int, *, held: int, count: int, members: int) -> None:
        """The instance, which held `held` batches, got `count` more."""
        if held == 0:
            this = self._rounds[instance]
            this.batches = this.busy_ns = 0
        self._watch(instance, now_ns, held=held + count, members=members)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int], *, held: int, members: int) -> None:
        """Batches are over that took so long (0: nobody says, or it was not executed); the instance holds `held` more."""
        length = self._length.get(instance)
        if length is None:
            self.ask_ns.pop(instance, None)
            return  # it has left
        last_ns = times_ns[-1] or next((ns for ns in reversed(times_ns) if ns), 0)
        if last_ns > QUICK_BATCHES_NS_MAX and instance in self._able:
            self.slow.add(instance)
        elif last_ns > 0:
            self.slow.discard(instance)
        if last_ns > 0:
            self._least[instance] = QUICK_SHARE_NS_MIN // last_ns
        this = self._rounds[instance]
        this.batches += len(times_ns)
        this.busy_ns += sum(times_ns)
        if this.busy_ns > QUICK_BATCHES_NS_MAX:
            self._length[instance] = max(1, min(this.batches - 1, QUICK_BATCHES_MAX))
        elif held == 0 and this.busy_ns > 0:
            self._length[instance] = max(length, min(2 * this.batches, QUICK_BATCHES_MAX))
        if self.prefetches(instance, members):
            self._rounds[instance] = _Round()
        self._watch(instance, now_ns, held=held, members=members)

    def asked(self, instance: int) -> None:
        """The instance is asked for what it has not started."""
        self.ask_ns.pop(instance, None)

    def pop_due(self, now_ns: int) -> int | None:
        """An instance that is to be asked now, or None."""
        for instance, at_ns in self.ask_ns.items():
            if at_ns > now_ns:
                break
            del self.ask_ns[instance]
            return instance
        return None

    def _watch(self, instance: int, now_ns: int, *, held: int, members: int) -> None:
        if held < 2 or self.prefetches(instance, members):
            self.ask_ns.pop(instance, None)
        elif instance not in self.ask_ns:
            self.ask_ns[instance] = now_ns + UNREPORTED_NS_MAX
