"""BudgetCore: which models to load and which to unload, so that the loaded ones fit into a memory budget.

There may be several places with a budget: the memory of the host, and that of each GPU. A model fits where it fits into all of
them. Sans-IO: told of requests, loads, unloads and the time, it decides. The rules:

* Models that are waited for are loaded in the order in which they began to be. One may be loaded before those ahead of it only
  where that leaves them all the room that they wait for, and at most `loads_max` load at a time. A load that has taken longer
  than `turn_ns_max` does not count there: models that hang while they load do not keep all others from being loaded.
* Room is made by unloading idle models, the least recently used first, and only where that makes enough. A model that has nothing
  in the places that are short stays. A model is left alone for as long as it took to load, and for its minimum residency.
* Where idle models are not enough, busy ones take turns, the one that was loaded first goes first: each is left for
  TURN_LOADS times as long as it took to load, but no longer than `turn_ns_max`. So two models that cannot both fit and are both
  asked all the time serve for that long in turn, and a model that is waited for gets its place within a turn of those ahead.
* Models that wait for a place where no room can be made hold up all models behind them that need this place. In other places
  they keep their room: a model behind them is loaded only where all of them would fit.
* Onto a GPU one model loads at a time: what the GPU has grown by meanwhile is its size. A model that waits for this goes before
  those behind it on each of its GPUs. While one loads onto a GPU no other one leaves it for room, and while one leaves it none
  loads, for `turn_ns_max` at most: the one that is loaded would seem too small. Only a budget that is exceeded does not wait.
* A model that has turned out larger than expected has idle ones unloaded until the budget is kept.
* A model that could not be loaded if it were the only one is refused at once.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

TURN_LOADS: Final = 10
"""A turn of a busy model, in times of its load: loading takes a tenth of the time at most."""

_PACE: Final = 8
"""Loads that the mean duration of a load is taken over, about."""

K = TypeVar("K")

Amounts = tuple[int, ...]
"""Bytes by place: those of the host's memory, then of each GPU with a budget."""

HOST: Final = 0
"""The place that each budget has."""


class Why(enum.Enum):
    """The reasons for an unload."""

    ROOM = "to make room"
    TURN = "to make room, its turn is over"
    OVER = "the budget is exceeded"
    UNUSED = "unused for its keep_alive time"


class Load(msgspec.Struct, frozen=True):
    """Load this model."""

    key: object


class Unload(msgspec.Struct, frozen=True):
    """Give this model no more requests, and unload it when it has answered its last one."""

    key: object
    why: Why


class Refuse(msgspec.Struct, frozen=True):
    """Refuse what waits for this model: it cannot fit any more."""

    key: object


Action = Load | Unload | Refuse


class Shortage(NamedTuple):
    """The figures of a model that cannot fit: its bytes, the budget's, and the bytes of models that stay, all in this place."""

    needed_bytes: int
    budget_bytes: int
    pinned_bytes: int
    place: int = HOST


class State(enum.Enum):
    """The states of a model on demand."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"


_MOVING: Final = (State.LOADING, State.DRAINING)


class _Model(Generic[K]):
    """A model on demand. `began_ns` is when its last load or unload began, `load_ns` how long its last load took, `loaded_ns`
    when that ended; it was in use at `used_ns`."""

    __slots__ = ("began_ns", "keep_alive_ns", "key", "load_ns", "loaded_ns", "resident_ns_min", "size", "state", "used_ns")

    def __init__(self, key: K, size: Amounts, resident_ns_min: int, keep_alive_ns: int) -> None:
        self.key = key
        self.size = size
        self.resident_ns_min = resident_ns_min
        self.keep_alive_ns = keep_alive_ns
        self.state = State.UNLOADED
        self.began_ns = self.loaded_ns = self.used_ns = self.load_ns = 0

    def idle_at_ns(self) -> int:
        """From when on it may be unloaded while it is idle."""
        return self.loaded_ns + max(self.resident_ns_min, self.load_ns)


class BudgetCore(Generic[K]):
    """The models of a budget. Keys are the caller's; all amounts have the places of `budget`."""

    def __init__(self, budget: Amounts, *, loads_max: int, turn_ns_max: int) -> None:
        self.budget = budget
        self._places = range(len(budget))
        self._none: Amounts = (0,) * len(budget)
        self._loads_max = loads_max
        self._turn_ns_max = turn_ns_max
        self._models: dict[K, _Model[K]] = {}
        self._pinned: dict[K, Amounts] = {}
        self._waiting: dict[K, _Model[K]] = {}  # in the order in which they began to be waited for
        self._warm: dict[K, _Model[K]] = {}  # to be loaded once, where there is room
        self._resident: dict[K, _Model[K]] = {}  # loading, loaded or draining
        self._load_ns_mean = 0
        self._now_ns = 0

    # The models

    def add(self, key: K, size: Amounts, *, resident_ns_min: int = 0, keep_alive_ns: int = 0, warm: bool = False) -> None:
        """A model that is not loaded. `keep_alive_ns` 0: it is never unloaded only because nobody uses it. `warm`: load it when
        there is room, without being asked for it."""
        model = self._models[key] = _Model(key, size, resident_ns_min, keep_alive_ns)
        if warm:
            self._warm[key] = model

    def remove(self, key: K) -> None:
        """The model is no more, and neither is its memory. No-op for one that is not there."""
        for models in (self._models, self._waiting, self._warm, self._resident):
            models.pop(key, None)

    def pin(self, key: K, size: Amounts) -> None:
        """A model that stays takes this much of the budget."""
        self._pinned[key] = size

    def unpin(self, key: K) -> None:
        """It does not any more. No-op for one that never did."""
        self._pinned.pop(key, None)

    # What happens to them

    def ask(self, key: K) -> None:
        """A request waits for this model. No-op while one does already."""
        model = self._models[key]
        if model.state in (State.UNLOADED, State.DRAINING):
            self._waiting.setdefault(key, model)

    def forget(self, key: K) -> None:
        """No request waits for it any more."""
        self._waiting.pop(key, None)

    def expect(self, key: K, size: Amounts) -> None:
        """A model that is not loaded is thought to be of this size. No-op for one that is."""
        model = self._models[key]
        if model.state is State.UNLOADED:
            model.size = size

    def use(self, key: K, now_ns: int) -> None:
        """A request has come for it."""
        self._models[key].used_ns = now_ns

    def loaded(self, key: K, size: Amounts, now_ns: int) -> None:
        """A load is over, and has shown how large the model is."""
        model = self._models[key]
        model.state, model.size = State.LOADED, size
        model.loaded_ns = model.used_ns = now_ns
        model.load_ns = now_ns - model.began_ns
        self._load_ns_mean += (model.load_ns - self._load_ns_mean) // _PACE if self._load_ns_mean else model.load_ns

    def resized(self, key: K, size: Amounts) -> None:
        """A loaded model has more or fewer instances. No-op for one that is not loaded."""
        model = self._models[key]
        if model.state is State.LOADED:
            model.size = size

    def unloaded(self, key: K) -> None:
        """Nothing of it is left: it was unloaded, or its load has failed. Others may wait for it already."""
        model = self._resident.pop(key, None)
        if model is not None:
            model.state = State.UNLOADED

    # Decisions

    def advance(self, now_ns: int, busy: Collection[K] = ()) -> list[Action]:
        """The actions to take now; they count as begun. `busy` are the loaded models that have requests."""
        self._now_ns = now_ns
        actions: list[Action] = []
        # One that is being unloaded may be expected to be smaller, once it is gone.
        unloaded = [key for key, model in self._waiting.items() if model.state is State.UNLOADED]
        for key in [key for key in unloaded if self.shortage(key) is not None]:
            del self._waiting[key]
            actions.append(Refuse(key))
        for model in self._in(State.LOADED):
            if model.key in busy:
                model.used_ns = now_ns
            elif model.keep_alive_ns and now_ns >= model.used_ns + model.keep_alive_ns and not self._shares(model, State.LOADING):
                actions.append(self._unload(model, Why.UNUSED))
        actions.extend(self._keep_budget(busy))
        actions.extend(self._serve_waiting(busy))
        return actions

    def next_deadline_ns(self) -> int | None:
        """The time when `advance` may have something new to decide, if nothing happens before; None: never. Busy models may
        become idle at any time: whoever drives this looks again while `is_short`."""
        times = [model.used_ns + model.keep_alive_ns for model in self._in(State.LOADED) if model.keep_alive_ns]
        times += [model.began_ns + self._turn_ns_max for state in _MOVING for model in self._in(state)]
        if self._waiting:
            times += [at for model in self._in(State.LOADED) for at in (model.idle_at_ns(), self._turn_at_ns(model))]
        return min([at for at in times if at > self._now_ns], default=None)

    @property
    def is_short(self) -> bool:
        """True while a model waits for the memory of others, or the budget is exceeded."""
        if any(model.state is State.UNLOADED for model in self._waiting.values()):
            return True
        return any(free < 0 for free in self._free())

    # Questions

    @property
    def pinned(self) -> Amounts:
        """Of models that stay."""
        return self._sum(self._pinned.values())

    @property
    def used(self) -> Amounts:
        """Of all models that have memory, or are about to."""
        return self._sum([*self._pinned.values(), *[model.size for model in self._resident.values()]])

    def state(self, key: K) -> State:
        """The state of a model."""
        return self._models[key].state

    def counts(self) -> dict[State, int]:
        """The models in each state."""
        counts = dict.fromkeys(State, 0)
        for model in self._resident.values():
            counts[model.state] += 1
        counts[State.UNLOADED] = len(self._models) - len(self._resident)
        return counts

    def loaded_keys(self) -> list[K]:
        """The models that are loaded and not being unloaded."""
        return [model.key for model in self._in(State.LOADED)]

    def waiting(self) -> list[K]:
        """The models that are waited for and not yet loaded, in their order."""
        return list(self._waiting)

    def size(self, key: K) -> Amounts:
        """The size that is reckoned with."""
        return self._models[key].size

    def shortage(self, key: K) -> Shortage | None:
        """The figures of a model that could not be loaded if it were the only one; None: it could be."""
        return shortage(self._models[key].size, self.budget, self.pinned)

    def wait_ns(self, key: K) -> int:
        """About the time until a model is loaded that begins, or has begun, to be waited for."""
        waiting = list(self._waiting)
        ahead = waiting.index(key) if key in self._waiting else len(waiting)
        loading = self._loads()
        return (1 + (ahead + loading) // self._loads_max) * self._load_ns_mean

    # Inside

    def _in(self, state: State) -> Iterator[_Model[K]]:
        return (model for model in list(self._resident.values()) if model.state is state)

    def _turn_at_ns(self, model: _Model[K]) -> int:
        """From when on it may be unloaded while it is busy."""
        turn_ns = min(TURN_LOADS * model.load_ns, self._turn_ns_max)
        return max(model.idle_at_ns(), model.loaded_ns + turn_ns)

    def _keep_budget(self, busy: Collection[K]) -> Iterator[Action]:
        """Unload idle models while the loaded ones exceed the budget. The model loaded last goes last: it is to displace the
        others."""
        short = [-free - draining for free, draining in zip(self._free(), self._sum_in(State.DRAINING), strict=True)]
        if max(short) <= 0:
            return
        newest = max((model.loaded_ns for model in self._in(State.LOADED)), default=0)
        idle = [model for model in self._in(State.LOADED) if model.key not in busy]
        for model in sorted(idle, key=lambda model: (model.loaded_ns == newest, model.used_ns)):
            if _relieve(short, model.size):
                yield self._unload(model, Why.OVER)

    def _serve_waiting(self, busy: Collection[K]) -> Iterator[Action]:
        """Room is made only for as many models as may load now: those behind them can be served by what is loaded for longer."""
        slots = self._loads_max - self._loads()
        claimed = self._none  # by models ahead in the queue
        blocked: set[int] = set()  # places where no room can be made for models ahead, and GPUs that they wait for
        for model in list(self._waiting.values()):
            if slots <= 0:
                return
            # The memory of one that is draining is for another one: it will be next.
            if model.state is State.DRAINING or self._may_not(model, blocked):
                claimed = self._sum((claimed, model.size))
                if model.state is not State.DRAINING:  # else whatever loads onto its GPUs one by one would be ahead for ever
                    blocked.update(place for place in self._places[1:] if model.size[place])
                continue
            if self._fits(model, claimed):
                slots -= 1
                yield self._load(model)
                continue
            claimed = self._sum((claimed, model.size))
            unloads = self._make_room(model, claimed, busy)
            if isinstance(unloads, set):
                blocked |= unloads
                continue
            slots -= 1
            yield from unloads
        for model in list(self._warm.values()):
            if model.state is not State.UNLOADED:
                del self._warm[model.key]
            elif slots > 0 and not self._may_not(model, blocked) and self._fits(model, claimed):
                slots -= 1
                yield self._load(model)

    def _may_not(self, model: _Model[K], blocked: Collection[int]) -> bool:
        """It is to have memory where models ahead wait for room, or on a GPU that another one loads onto or leaves."""
        return any(model.size[place] for place in blocked) or any(self._shares(model, state) for state in _MOVING)

    def _shares(self, model: _Model[K], state: State) -> bool:
        """It has, or is to have, memory on a GPU of a model in this state, one that moves."""
        if not any(model.size[1:]):
            return False
        return any(
            mine and other for each in self._moving(state) for mine, other in zip(model.size[1:], each.size[1:], strict=True)
        )

    def _fits(self, model: _Model[K], claimed: Amounts) -> bool:
        """There is room for it, and with what is being unloaded also for those ahead."""
        return all(
            needed <= min(free, free + draining - ahead)
            for needed, free, draining, ahead in zip(model.size, self._free(), self._sum_in(State.DRAINING), claimed, strict=True)
            if needed
        )

    def _make_room(self, model: _Model[K], wanted: Amounts, busy: Collection[K]) -> list[Action] | set[int]:
        """The unloads that make as much room as is `wanted` where this model is to be, together with what is free or being
        unloaded; or the places where that is not possible."""
        short = [
            ahead - free - draining if needed else 0
            for needed, ahead, free, draining in zip(model.size, wanted, self._free(), self._sum_in(State.DRAINING), strict=True)
        ]
        victims: list[tuple[_Model[K], Why]] = []
        for other, why in self._candidates(busy):
            if max(short) <= 0:
                break
            if _relieve(short, other.size):
                victims.append((other, why))
        lacking = {place for place in self._places if short[place] > 0}
        return lacking or [self._unload(other, why) for other, why in victims]

    def _candidates(self, busy: Collection[K]) -> Iterable[tuple[_Model[K], Why]]:
        """The models that may be unloaded for others, the one to go first in front."""
        loaded = [model for model in self._in(State.LOADED) if not self._shares(model, State.LOADING)]
        idle = [model for model in loaded if model.key not in busy and self._now_ns >= model.idle_at_ns()]
        turns = [model for model in loaded if model.key in busy and self._now_ns >= self._turn_at_ns(model)]
        yield from ((model, Why.ROOM) for model in sorted(idle, key=lambda model: model.used_ns))
        yield from ((model, Why.TURN) for model in sorted(turns, key=lambda model: model.loaded_ns))

    def _moving(self, state: State) -> Iterator[_Model[K]]:
        """The models that are being loaded, or unloaded, and count as such: one that hangs does not."""
        return (model for model in self._in(state) if self._now_ns < model.began_ns + self._turn_ns_max)

    def _loads(self) -> int:
        return sum(1 for _ in self._moving(State.LOADING))

    def _free(self) -> Amounts:
        """The rest of the budget, less than 0 where it is exceeded."""
        return tuple([budget - used for budget, used in zip(self.budget, self.used, strict=True)])

    def _sum(self, amounts: Iterable[Amounts]) -> Amounts:
        return tuple([sum(column) for column in zip(self._none, *amounts, strict=True)])

    def _sum_in(self, state: State) -> Amounts:
        return self._sum([model.size for model in self._in(state)])

    def _load(self, model: _Model[K]) -> Load:
        model.state, model.began_ns = State.LOADING, self._now_ns
        self._resident[model.key] = model
        self._waiting.pop(model.key, None)
        self._warm.pop(model.key, None)
        return Load(model.key)

    def _unload(self, model: _Model[K], why: Why) -> Unload:
        model.state, model.began_ns = State.DRAINING, self._now_ns
        return Unload(model.key, why)


def shortage(needed: Amounts, budget: Amounts, pinned: Amounts) -> Shortage | None:
    """The figures of the first place where so much does not fit beside models that stay; None: it fits everywhere."""
    for place, (wanted, all_bytes, taken) in enumerate(zip(needed, budget, pinned, strict=True)):
        if wanted and wanted > all_bytes - taken:
            return Shortage(wanted, all_bytes, taken, place)
    return None


def _relieve(short: list[int], size: Amounts) -> bool:
    """Take a model's memory from what is short. Returns False, without a change, for a model that does not help."""
    helps = any(missing > 0 and freed for missing, freed in zip(short, size, strict=True))
    if helps:
        short[:] = [missing - freed for missing, freed in zip(short, size, strict=True)]
    return helps
