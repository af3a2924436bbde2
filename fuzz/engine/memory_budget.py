"""The targets of the memory budget: random histories of requests, loads and time, beside a model that has every figure in one
list and works each decision out anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fuzz.chance import Chance
from fuzz.target import Target, Violation
from tpy_data.engine.budget.core.budget import TURN_LOADS, Action, BudgetCore, Load, Refuse, State, Unload, Why

_STEPS = (20, 60, 150)
_RULES = ("ask", "forget", "loaded", "larger", "failed", "unloaded", "time", "pin", "load", "refuse", *(why.name for why in Why))
_INVARIANT = "models are loaded and unloaded for a memory budget in the order, and for the reasons, that its rules give"


@dataclass(kw_only=True, eq=False, slots=True)
class Row:
    """A model. `since` says in which order it began to be waited for, None: it is not."""

    key: int
    size: int
    resident_min: int
    keep_alive: int
    warm: bool
    state: State = State.UNLOADED
    since: int | None = None
    began: int = 0
    loaded: int = 0
    took: int = 0
    used: int = 0


@dataclass(kw_only=True, slots=True)
class NaiveBudget:
    """The decisions, written for being right and nothing else: everything is summed, sorted and filtered anew."""

    budget: int
    loads_max: int
    turn_max: int
    rows: list[Row] = field(default_factory=list)
    pinned: int = 0
    asked: int = 0

    def ask(self, row: Row) -> None:
        """A request waits."""
        if row.state in (State.UNLOADED, State.DRAINING) and row.since is None:
            self.asked += 1
            row.since = self.asked

    def decide(self, now: int, busy: set[int]) -> list[Action]:
        """The actions, in order; they count as begun."""
        actions: list[Action] = []
        for row in self._waiting():
            if row.size > self.budget - self.pinned:
                row.since = None
                actions.append(Refuse(row.key))
        for row in self._loaded():
            if row.key in busy:
                row.used = now
            elif row.keep_alive and row.used + row.keep_alive <= now:
                actions.append(self._unload(row, Why.UNUSED))
        actions += self._shrink(busy)
        room_missing = False
        slots = self.loads_max - sum(row.state is State.LOADING and now - row.began < self.turn_max for row in self.rows)
        ahead = 0
        for row in self._waiting():
            if slots <= 0 or room_missing:
                break
            if row.state is State.DRAINING:
                ahead += row.size
                continue
            slots -= 1
            if self._fits(row, ahead):
                actions.append(self._load(row, now))
                continue
            ahead += row.size
            chosen = self._victims(ahead - self._free() - self._coming(), now, busy)
            room_missing = chosen is None
            actions += [self._unload(victim, why) for victim, why in chosen or ()]
        if not room_missing:
            for row in self.rows:
                if slots > 0 and row.warm and row.state is State.UNLOADED and self._fits(row, ahead):
                    slots -= 1
                    actions.append(self._load(row, now))
        return actions

    def used(self) -> int:
        """All that is or will be in memory."""
        return self.pinned + sum(row.size for row in self.rows if row.state is not State.UNLOADED)

    def _free(self) -> int:
        return self.budget - self.used()

    def _coming(self) -> int:
        return sum(row.size for row in self.rows if row.state is State.DRAINING)

    def _waiting(self) -> list[Row]:
        return sorted((row for row in self.rows if row.since is not None), key=lambda row: row.since or 0)

    def _loaded(self) -> list[Row]:
        return sorted((row for row in self.rows if row.state is State.LOADED), key=lambda row: row.began)

    def _fits(self, row: Row, ahead: int) -> bool:
        return row.size <= self._free() and row.size + ahead <= self._free() + self._coming()

    def _shrink(self, busy: set[int]) -> list[Action]:
        actions: list[Action] = []
        newest = max((row.loaded for row in self._loaded()), default=0)
        for row in sorted(self._loaded(), key=lambda row: (row.loaded == newest, row.used, row.began)):
            if row.key not in busy and self.used() - self._coming() > self.budget:
                actions.append(self._unload(row, Why.OVER))
        return actions

    def _victims(self, short: int, now: int, busy: set[int]) -> list[tuple[Row, Why]] | None:
        def left_until(row: Row) -> int:
            turn = min(TURN_LOADS * row.took, self.turn_max) if row.key in busy else 0
            return row.loaded + max(row.resident_min, row.took, turn)

        may_go = [row for row in self._loaded() if left_until(row) <= now]
        idle = sorted((row for row in may_go if row.key not in busy), key=lambda row: (row.used, row.began))
        turns = sorted((row for row in may_go if row.key in busy), key=lambda row: (row.loaded, row.began))
        ordered = [*((row, Why.ROOM) for row in idle), *((row, Why.TURN) for row in turns)]
        for count in range(len(ordered) + 1):
            if sum(row.size for row, _ in ordered[:count]) >= short:
                return ordered[:count]
        return None

    @staticmethod
    def _load(row: Row, now: int) -> Load:
        row.state, row.began, row.since, row.warm = State.LOADING, now, None, False
        return Load(row.key)

    @staticmethod
    def _unload(row: Row, why: Why) -> Unload:
        row.state = State.DRAINING
        return Unload(row.key, why)


class History:
    """A core and the naive model, told the same, and asked to agree after each step. No two loads begin at the same time: the
    order of what is equal is nobody's business."""

    def __init__(self, core: BudgetCore[int], naive: NaiveBudget) -> None:
        self.core = core
        self.naive = naive
        self.now = 0
        self.busy: set[int] = set()

    def add(self, size: int, *, resident_min: int, keep_alive: int, warm: bool) -> None:
        """One more model."""
        key = len(self.naive.rows)
        self.naive.rows.append(Row(key=key, size=size, resident_min=resident_min, keep_alive=keep_alive, warm=warm))
        self.core.add(key, size, resident_ns_min=resident_min, keep_alive_ns=keep_alive, warm=warm)

    def ask(self, row: Row) -> None:
        """A request comes for a model, and waits where it is not loaded."""
        row.used = self.now
        self.core.use(row.key, self.now)
        self.core.ask(row.key)
        self.naive.ask(row)

    def forget(self, row: Row) -> None:
        """Nobody waits any more."""
        row.since = None
        self.core.forget(row.key)

    def end_load(self, row: Row, size: int | None) -> None:
        """A load is over: the model is so large, or None, it has failed."""
        if size is None:
            self.unload(row)
            return
        row.state, row.size = State.LOADED, size
        row.loaded, row.used, row.took = self.now, self.now, self.now - row.began
        self.core.loaded(row.key, size, self.now)

    def unload(self, row: Row) -> None:
        """Nothing of it is left."""
        self.busy.discard(row.key)
        row.state = State.UNLOADED
        self.core.unloaded(row.key)

    def pin(self, size: int) -> None:
        """The models that stay have so much."""
        self.naive.pinned = size
        self.core.pin(-1, size)

    def decide(self) -> list[Action]:
        """Compare what is decided, and the figures."""
        self.now += 1
        found = self.core.advance(self.now, self.busy)
        before = {row.key: row.state for row in self.naive.rows}
        expected = self.naive.decide(self.now, self.busy)
        _require(_told(found), _told(expected), f"actions at {self.now}, from {before}")
        _require(self.core.used_bytes, self.naive.used(), "bytes in use")
        waiting = sorted((row for row in self.naive.rows if row.since is not None), key=lambda row: row.since or 0)
        _require(self.core.waiting(), [row.key for row in waiting], "what waits")
        _require(
            {row.key: self.core.state(row.key) for row in self.naive.rows}, {r.key: r.state for r in self.naive.rows}, "states"
        )
        return expected


def _step(history: History, chance: Chance) -> None:
    """Something happens, and time passes."""
    row = chance.choice(history.naive.rows)
    history.now += chance.choice((1, 1, 2, 10, 50))
    budget = history.naive.budget
    if row.state is State.LOADING:
        size: int | None = row.size
        if chance.random() < 0.1:
            size = None
        elif chance.random() < 0.3:
            chance.took("larger")
            size = chance.randint(1, budget)
        chance.took("failed" if size is None else "loaded")
        history.end_load(row, size)
    elif row.state is State.DRAINING and chance.random() < 0.5:
        chance.took("unloaded")
        history.unload(row)
    elif row.since is not None and chance.random() < 0.2:
        chance.took("forget")
        history.forget(row)
    elif chance.random() < 0.05:
        chance.took("pin")
        history.pin(chance.randint(0, budget))
    elif row.state is State.LOADED and chance.random() < 0.5:
        (history.busy.add if chance.random() < 0.5 else history.busy.discard)(row.key)
        history.ask(row)
    else:
        chance.took("ask" if row.state is not State.LOADED else "time")
        history.ask(row)
    for action in history.decide():
        chance.took(action.why.name if isinstance(action, Unload) else type(action).__name__.lower())


def _told(actions: Sequence[Action]) -> list[str]:
    """Loads in their order; of the others it says nothing which comes first."""
    loads = [str(action) for action in actions if isinstance(action, Load)]
    return [*loads, *sorted(str(action) for action in actions if not isinstance(action, Load))]


def _require(seen: object, expected: object, what: str) -> None:
    if seen != expected:
        raise Violation(f"{what}: {seen}, expected {expected}")


class ForgetfulCore(BudgetCore[int]):
    """Wrong on purpose: a request does not count as use, so that what is unloaded first is what was loaded first."""

    def use(self, key: int, now_ns: int) -> None:
        """Forgets it."""


def run_history(chance: Chance, kind: type[BudgetCore[int]] = BudgetCore) -> int:
    """Drive a core through a random history beside the naive model; returns the number of its steps."""
    budget, loads_max, turn_max = chance.choice((6, 10, 30)), chance.choice((1, 2, 4)), chance.choice((5, 100))
    core = kind(budget, loads_max=loads_max, turn_ns_max=turn_max)
    history = History(core, NaiveBudget(budget=budget, loads_max=loads_max, turn_max=turn_max))
    for _ in range(chance.randint(2, 9)):
        history.add(
            chance.randint(1, budget + 1) if chance.random() < 0.1 else chance.randint(1, 5),
            resident_min=chance.choice((0, 0, 3, 40)),
            keep_alive=chance.choice((0, 0, 30)),
            warm=chance.random() < 0.2,
        )
    steps = 0
    for _ in chance.rounds(_STEPS):
        steps += 1
        _step(history, chance)
    return steps


def _run_forgetful(chance: Chance) -> int:
    return run_history(chance, ForgetfulCore)


MEMORY_BUDGET = Target(name="memory_budget", invariant=_INVARIANT, run=run_history, smoke_examples=700, rules=_RULES)
CANARY = Target(
    name="memory_budget_canary",
    invariant="a core that unloads what was loaded first, in place of what was used last, is found out",
    run=_run_forgetful,
    smoke_examples=100,
    must_fail=True,
)
