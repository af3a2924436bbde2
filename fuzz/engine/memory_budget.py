"""The targets of the memory budget: random histories of requests, loads and time, beside a model that has every figure in one
list and works each decision out anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fuzz.chance import Chance
from fuzz.target import Target, Violation
from tpy_data.engine.budget.core.budget import TURN_LOADS, Action, Amounts, BudgetCore, Load, Refuse, State, Unload, Why

_STEPS = (20, 60, 150)
_RULES = (
    "ask",
    "forget",
    "loaded",
    "larger",
    "failed",
    "unloaded",
    "time",
    "pin",
    "load",
    "refuse",
    "gpus",
    *(why.name for why in Why),
)
_INVARIANT = "models are loaded and unloaded for a memory budget in the order, and for the reasons, that its rules give"


@dataclass(kw_only=True, eq=False, slots=True)
class Row:
    """A model. `since` says in which order it began to be waited for, None: it is not."""

    key: int
    size: Amounts
    resident_min: int
    keep_alive: int
    warm: bool
    state: State = State.UNLOADED
    since: int | None = None
    began: int = 0
    loaded: int = 0
    took: int = 0
    used: int = 0

    def places(self) -> set[int]:
        """The places where it has, or is to have, memory."""
        return {place for place, size in enumerate(self.size) if size}


@dataclass(kw_only=True, slots=True)
class NaiveBudget:
    """The decisions, written for being right and nothing else: everything is summed, sorted and filtered anew."""

    budget: Amounts
    loads_max: int
    turn_max: int
    pinned: Amounts
    rows: list[Row] = field(default_factory=list)
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
            is_short = any(row.size[place] > self.budget[place] - self.pinned[place] for place in row.places())
            if is_short and row.state is State.UNLOADED:
                row.since = None
                actions.append(Refuse(row.key))
        for row in self._loaded():
            if row.key in busy:
                row.used = now
            elif row.keep_alive and row.used + row.keep_alive <= now and not self._is_beside(row, State.LOADING, now):
                actions.append(self._unload(row, Why.UNUSED, now))
        actions += self._shrink(now, busy)
        closed: set[int] = set()  # places where no room can be made for models ahead, and GPUs that they wait for
        slots = self.loads_max - len(self._moving(State.LOADING, now))
        ahead: list[Row] = []
        for row in self._waiting():
            if slots <= 0:
                break
            if row.state is State.DRAINING:
                ahead.append(row)
            elif not self._may_go(row, closed, now):
                ahead.append(row)
                closed |= row.places() - {0}
            elif self._fits(row, ahead):
                slots -= 1
                actions.append(self._load(row, now))
            else:
                ahead.append(row)
                wanted = {place: sum(each.size[place] for each in ahead) for place in row.places()}
                missing = {place: wanted[place] - self._free(place) - self._coming(place) for place in wanted}
                chosen, lacking = self._victims(missing, now, busy)
                if lacking:
                    closed |= lacking
                else:
                    slots -= 1
                    actions += [self._unload(victim, why, now) for victim, why in chosen]
        for row in self.rows:
            if (
                slots > 0
                and row.warm
                and row.state is State.UNLOADED
                and self._may_go(row, closed, now)
                and self._fits(row, ahead)
            ):
                slots -= 1
                actions.append(self._load(row, now))
        return actions

    def used(self, place: int) -> int:
        """All that is or will be there."""
        return self.pinned[place] + sum(row.size[place] for row in self.rows if row.state is not State.UNLOADED)

    def _free(self, place: int) -> int:
        return self.budget[place] - self.used(place)

    def _coming(self, place: int) -> int:
        return sum(row.size[place] for row in self.rows if row.state is State.DRAINING)

    def _waiting(self) -> list[Row]:
        return sorted((row for row in self.rows if row.since is not None), key=lambda row: row.since or 0)

    def _loaded(self) -> list[Row]:
        return sorted((row for row in self.rows if row.state is State.LOADED), key=lambda row: row.began)

    def _moving(self, state: State, now: int) -> list[Row]:
        return [row for row in self.rows if row.state is state and now - row.began < self.turn_max]

    def _is_beside(self, row: Row, state: State, now: int) -> bool:
        return bool(row.places() & ({place for other in self._moving(state, now) for place in other.places()} - {0}))

    def _may_go(self, row: Row, closed: set[int], now: int) -> bool:
        if row.places() & closed:
            return False
        return not self._is_beside(row, State.LOADING, now) and not self._is_beside(row, State.DRAINING, now)

    def _fits(self, row: Row, ahead: list[Row]) -> bool:
        for place in row.places():
            before = sum(each.size[place] for each in ahead)
            free, coming = self._free(place), self._coming(place)
            if row.size[place] > free or row.size[place] + before > free + coming:
                return False
        return True

    def _shrink(self, now: int, busy: set[int]) -> list[Action]:
        actions: list[Action] = []
        newest = max((row.loaded for row in self._loaded()), default=0)
        for row in sorted(self._loaded(), key=lambda row: (row.loaded == newest, row.used, row.began)):
            over = [place for place in row.places() if self.used(place) - self._coming(place) > self.budget[place]]
            if row.key not in busy and over:
                actions.append(self._unload(row, Why.OVER, now))
        return actions

    def _victims(self, missing: dict[int, int], now: int, busy: set[int]) -> tuple[list[tuple[Row, Why]], set[int]]:
        """The models to unload, and the places where that is not enough."""

        def left_until(row: Row) -> int:
            turn = min(TURN_LOADS * row.took, self.turn_max) if row.key in busy else 0
            return row.loaded + max(row.resident_min, row.took, turn)

        may_go = [row for row in self._loaded() if left_until(row) <= now and not self._is_beside(row, State.LOADING, now)]
        idle = sorted((row for row in may_go if row.key not in busy), key=lambda row: (row.used, row.began))
        turns = sorted((row for row in may_go if row.key in busy), key=lambda row: (row.loaded, row.began))
        ordered = [*((row, Why.ROOM) for row in idle), *((row, Why.TURN) for row in turns)]
        chosen: list[tuple[Row, Why]] = []

        def lacking() -> set[int]:
            return {place for place, short in missing.items() if short > sum(row.size[place] for row, _ in chosen)}

        for row, why in ordered:
            if row.places() & lacking():
                chosen.append((row, why))
        return chosen, lacking()

    @staticmethod
    def _load(row: Row, now: int) -> Load:
        row.state, row.began, row.since, row.warm = State.LOADING, now, None, False
        return Load(row.key)

    @staticmethod
    def _unload(row: Row, why: Why, now: int) -> Unload:
        row.state, row.began = State.DRAINING, now
        return Unload(row.key, why)


class History:
    """A core and the naive model, told the same, and asked to agree after each step. No two loads begin at the same time: the
    order of what is equal is nobody's business."""

    def __init__(self, core: BudgetCore[int], naive: NaiveBudget) -> None:
        self.core = core
        self.naive = naive
        self.now = 0
        self.busy: set[int] = set()

    def add(self, size: Amounts, *, resident_min: int, keep_alive: int, warm: bool) -> None:
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

    def end_load(self, row: Row, size: Amounts | None) -> None:
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

    def pin(self, size: Amounts) -> None:
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
        used = tuple(map(self.naive.used, range(len(self.naive.budget))))
        _require(self.core.used, used, "bytes in use")
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
        size: Amounts | None = row.size
        if chance.random() < 0.1:
            size = None
        elif chance.random() < 0.3:
            chance.took("larger")
            size = _size(chance, budget, most=budget[0])
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
        history.pin(tuple(chance.randint(0, most) for most in budget))
    elif row.state is State.LOADED and chance.random() < 0.5:
        (history.busy.add if chance.random() < 0.5 else history.busy.discard)(row.key)
        history.ask(row)
    else:
        chance.took("ask" if row.state is not State.LOADED else "time")
        history.ask(row)
    for action in history.decide():
        chance.took(action.why.name if isinstance(action, Unload) else type(action).__name__.lower())


def _size(chance: Chance, budget: Amounts, *, most: int) -> Amounts:
    """Of a model: something on the host, and maybe something on each GPU."""
    return chance.randint(1, most), *(chance.choice((0, chance.randint(1, gpu // 2))) for gpu in budget[1:])


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
    loads_max, turn_max = chance.choice((1, 2, 4)), chance.choice((5, 100))
    gpus = chance.choice((0, 0, 1, 2))
    if gpus:
        chance.took("gpus")
    budget = (chance.choice((6, 10, 30)), *(chance.choice((4, 10)) for _ in range(gpus)))
    core = kind(budget, loads_max=loads_max, turn_ns_max=turn_max)
    history = History(core, NaiveBudget(budget=budget, loads_max=loads_max, turn_max=turn_max, pinned=(0,) * len(budget)))
    for _ in range(chance.randint(2, 9)):
        history.add(
            _size(chance, budget, most=budget[0] + 1 if chance.random() < 0.1 else 5),
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
