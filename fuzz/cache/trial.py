"""CacheTrial: the core of the local cache and a naive list on one history, compared after every verb."""

from __future__ import annotations

from collections import Counter

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy_data.cache.core.flights import Flights
from tpy_data.cache.core.lru import LruCore

INVARIANT = (
    "the cache holds exactly what a list in order of last use would, evicts exactly the least recently used and no more than it "
    "must, never holds more bytes than it has, gives every byte back that is evicted, replaced or forgotten; of equal requests "
    "one leads at a time, the others wait in order of arrival, each leaves exactly once, and nobody waits without a leader"
)


class CacheTrial:
    """One history of LruCore."""

    def __init__(self, core: LruCore[int], bytes_max: int, taken: Counter[str]) -> None:
        self.taken = taken
        self.core = core
        self.bytes_max = bytes_max
        self.kept: list[tuple[bytes, int, int, str]] = []
        """Key, value, size, owner; the least recently used first."""
        self.evictions = 0
        self.steps: list[str] = []

    def get(self, key: bytes) -> None:
        self.taken["get"] += 1
        self.steps.append(f"get {key!r}")
        found = next((entry for entry in self.kept if entry[0] == key), None)
        if found is not None:
            self.kept.remove(found)
            self.kept.append(found)
        self._same("get", self.core.get(key), None if found is None else found[1])
        self._check()

    def put(self, key: bytes, value: int, size: int, owner: str) -> None:
        self.taken["put"] += 1
        self.steps.append(f"put {key!r} {value} {size} {owner}")
        fits = size <= self.bytes_max
        if fits:
            self.kept = [entry for entry in self.kept if entry[0] != key]
            while sum(entry[2] for entry in self.kept) + size > self.bytes_max:
                self.kept.pop(0)
                self.evictions += 1
                self.taken["evict"] += 1
            self.kept.append((key, value, size, owner))
        self._same("put", self.core.put(key, value, size, owner), fits)
        self._check()

    def forget(self, owner: str) -> None:
        self.taken["forget"] += 1
        self.steps.append(f"forget {owner}")
        self.kept = [entry for entry in self.kept if entry[3] != owner]
        self.core.forget(owner)
        self._check()

    def finish(self) -> None:
        for owner in {entry[3] for entry in self.kept}:
            self.forget(owner)
        self._same("bytes in the end", self.core.bytes_used, 0)

    def _check(self) -> None:
        self._same("keys", self.core.keys(), [entry[0] for entry in self.kept])
        self._same("bytes", self.core.bytes_used, sum(entry[2] for entry in self.kept))
        self._same("entries", len(self.core), len(self.kept))
        self._same("evictions", self.core.evictions, self.evictions)
        if self.core.bytes_used > self.bytes_max:
            raise Violation(f"{self.core.bytes_used} of {self.bytes_max} bytes are used")

    def _same(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise Violation(f"{what}: should be {expected!r}, is {found!r}\n" + "\n".join(self.steps))


class FlightTrial:
    """One history of Flights: lists of members by key, whose first one leads."""

    def __init__(self, taken: Counter[str]) -> None:
        self.taken = taken
        self.core: Flights[int] = Flights()
        self.lines: dict[bytes, list[int]] = {}
        self.members = 0
        self.left: list[int] = []
        self.steps: list[str] = []

    def arrive(self, key: bytes) -> None:
        self.taken["arrive"] += 1
        member = self.members
        self.members += 1
        self.steps.append(f"{member} arrives for {key!r}")
        line = self.lines.setdefault(key, [])
        if line:
            self.core.wait(key, member)
        else:
            self.core.begin(key, member)
        line.append(member)
        self._check()

    def give_up(self, key: bytes, place: int) -> None:
        """Somebody of the line, the leader too, wants no answer any more."""
        self.taken["give up" if place else "leader gives up"] += 1
        member = self.lines[key].pop(place)
        self.left.append(member)
        self.steps.append(f"{member} gives up {key!r}")
        if place:
            self.core.leave(key, member)
        else:
            self._same("successor", self.core.succeed(key), self.lines[key][0] if self.lines[key] else None)
        self._check()

    def answer(self, key: bytes) -> None:
        self.taken["answer"] += 1
        line = self.lines.pop(key)
        self.steps.append(f"{key!r} is answered")
        self._same("who waited", self.core.end(key), line[1:])
        self.left.extend(line)
        self._check()

    def finish(self) -> None:
        for key in list(self.lines):
            self.answer(key)
        self._same("who has left", sorted(self.left), list(range(self.members)))

    def _check(self) -> None:
        self.lines = {key: line for key, line in self.lines.items() if line}
        self._same("flights", len(self.core), len(self.lines))
        self._same("waiting", self.core.waiting, sum(len(line) - 1 for line in self.lines.values()))
        self._same("members", sorted(self.core.members()), sorted(m for line in self.lines.values() for m in line[1:]))
        for key in (b"a", b"b", b"c"):
            line = self.lines.get(key)
            self._same("leader", self.core.leader(key), line[0] if line else None)

    def _same(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise Violation(f"{what}: should be {expected!r}, is {found!r}\n" + "\n".join(self.steps))


def run_cache(core: LruCore[int], bytes_max: int, chance: Chance) -> int:
    """A random history of the LRU core; returns its number of steps."""
    trial = CacheTrial(core, bytes_max, chance.taken)
    keys = [b"%d" % number for number in range(chance.choice((2, 4, 9)))]
    for step in chance.rounds((50, 60, 80)):
        rule = chance.random()
        if rule < 0.45:
            trial.put(chance.choice(keys), step, chance.choice((0, 1, 1, 2, 3, 5, bytes_max, bytes_max + 1)), chance.choice("xy"))
        elif rule < 0.95:
            trial.get(chance.choice(keys))
        else:
            trial.forget(chance.choice("xy"))
    trial.finish()
    return len(trial.steps)


def run_flights(chance: Chance) -> int:
    """A random history of Flights; returns its number of steps."""
    trial = FlightTrial(chance.taken)
    for _ in chance.rounds((50, 60, 80)):
        rule = chance.random()
        if rule < 0.5 or not trial.lines:
            trial.arrive(chance.choice((b"a", b"b", b"c")))
        elif rule < 0.8:
            key = chance.choice(sorted(trial.lines))
            trial.give_up(key, chance.randrange(len(trial.lines[key])))
        else:
            trial.answer(chance.choice(sorted(trial.lines)))
    trial.finish()
    return len(trial.steps)
