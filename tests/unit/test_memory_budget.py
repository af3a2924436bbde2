"""BudgetCore: its rules one by one, beside the naive model of the fuzz target, and under simulated traffic."""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from itertools import accumulate, count
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fuzz.engine.memory_budget import History, NaiveBudget, Row
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.config.on_demand import LoadPolicy, LoadWhen, load_policy, unexpected_parameters
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.engine.budget.core.budget import Amounts, BudgetCore, Load, Refuse, Shortage, State, Unload, Why


def core_of(budget: int, sizes: dict[str, int], *, loads_max: int = 2, turn_max: int = 1000, **options: Any) -> BudgetCore[str]:
    return core_of_places((budget,), {key: (size,) for key, size in sizes.items()}, loads_max, turn_max, **options)


def core_of_places(
    budget: Amounts, sizes: dict[str, Amounts], loads_max: int = 2, turn_max: int = 1000, **options: Any
) -> BudgetCore[str]:
    """A core for the host and GPUs."""
    core: BudgetCore[str] = BudgetCore(budget, loads_max=loads_max, turn_ns_max=turn_max)
    for key, size in sizes.items():
        core.add(key, size, **options)
    return core


def load(core: BudgetCore[str], key: str, at: int, took: int = 1) -> None:
    """Ask for a model at this time and have it loaded."""
    core.use(key, at)
    core.ask(key)
    assert Load(key) in core.advance(at)
    core.loaded(key, core.size(key), at + took)


def test_the_least_recently_used_makes_room_and_only_where_that_is_enough() -> None:
    core = core_of(10, {"a": 4, "b": 4, "c": 5, "d": 10})
    load(core, "a", 0)
    load(core, "b", 10)
    core.use("a", 20)
    core.ask("c")
    assert core.advance(30) == [Unload("b", Why.ROOM)]
    core.ask("d")
    assert core.advance(31) == [], "the room of c is not for d"
    core.unloaded("b")
    assert core.advance(40) == [Load("c")], "and a stays, as without c nothing would be won for d"


def test_a_model_is_left_alone_for_as_long_as_it_took_to_load() -> None:
    core = core_of(5, {"a": 5, "b": 5}, resident_ns_min=0)
    load(core, "a", 0, took=100)
    core.ask("b")
    assert core.advance(199) == []
    assert core.next_deadline_ns() == 200
    assert core.advance(200) == [Unload("a", Why.ROOM)]


def test_what_does_not_delay_those_ahead_may_go_before_them() -> None:
    core = core_of(10, {"a": 6, "large": 9, "small": 1, "medium": 3})
    load(core, "a", 0, took=50)
    for key in ("large", "small", "medium"):
        core.ask(key)
    assert core.advance(60, {"a"}) == [], "a is busy, and what is free is for the large one"
    assert core.advance(100) == [Unload("a", Why.ROOM), Load("small")], "9 of 10 are left for the large one"


def test_what_cannot_fit_is_refused_with_its_figures() -> None:
    core = core_of(10, {"a": 8, "b": 11})
    assert core.shortage("b") == Shortage(11, 10, 0)
    assert core.shortage("a") is None
    core.ask("a")
    core.pin("stays", (3,))
    assert core.advance(1) == [Refuse("a")]
    assert core.shortage("a") == Shortage(8, 10, 3)
    assert core.waiting() == []


def test_what_has_turned_out_larger_displaces_others_and_then_itself() -> None:
    core = core_of(10, {"a": 3, "b": 3, "c": 3})
    for at, key in enumerate("abc"):
        load(core, key, at * 10)
    core.ask("a")
    core.loaded("c", (6,), 30)
    assert core.advance(31, {"a"}) == [Unload("b", Why.OVER)]
    core.unloaded("b")
    core.loaded("c", (20,), 40)
    assert core.advance(41, {"a"}) == [Unload("c", Why.OVER)], "nothing busy is unloaded for that"


def test_unused_models_go_and_warm_ones_come() -> None:
    core = core_of(5, {"a": 3}, keep_alive_ns=100)
    core.add("warm", (2,), warm=True)
    core.add("too much", (3,), warm=True)
    assert core.advance(0) == [Load("warm"), Load("too much")]
    core.loaded("warm", (2,), 1)
    core.loaded("too much", (3,), 1)
    load_at = 50
    core.ask("a")
    assert core.advance(load_at) == [Unload("warm", Why.ROOM), Unload("too much", Why.ROOM)]
    core.unloaded("warm")
    core.unloaded("too much")
    assert core.advance(60) == [Load("a")], "warm models are loaded once"
    core.loaded("a", (3,), 61)
    assert core.advance(160, {"a"}) == []
    assert core.advance(259) == []
    assert core.next_deadline_ns() == 260
    assert core.advance(260) == [Unload("a", Why.UNUSED)]


def test_models_that_hang_while_they_load_do_not_keep_others_from_being_loaded() -> None:
    core = core_of(10, {"hangs": 2, "hangs too": 2, "a": 2, "b": 7}, loads_max=2, turn_max=100)
    core.ask("hangs")
    core.ask("hangs too")
    assert core.advance(0) == [Load("hangs"), Load("hangs too")]
    core.ask("a")
    assert core.advance(99) == []
    assert core.next_deadline_ns() == 100
    assert core.advance(100) == [Load("a")]
    core.ask("b")
    assert core.advance(101) == [], "their memory is not for others"


# GPUs


def test_room_on_a_gpu_is_made_by_what_is_there() -> None:
    core = core_of_places((100, 10, 10), {"host": (9, 0, 0), "a": (5, 6, 0), "b": (5, 0, 6), "c": (5, 0, 6)})
    for at, key in enumerate(("host", "b", "a")):
        load(core, key, at * 10)
    core.ask("c")
    assert core.advance(40) == [Unload("b", Why.ROOM)], "the host's models were used longer ago, and stay"
    core.unloaded("b")
    assert core.advance(50) == [Load("c")]
    assert core.used == (19, 6, 6)


def test_a_model_fits_where_it_fits_into_every_place() -> None:
    core = core_of_places((10, 10), {"a": (2, 11), "b": (11, 2), "c": (3, 3)})
    assert core.shortage("a") == Shortage(11, 10, 0, 1)
    assert core.shortage("b") == Shortage(11, 10, 0)
    core.pin("stays", (0, 8))
    assert core.shortage("c") == Shortage(3, 10, 8, 1)
    core.unpin("stays")
    assert core.shortage("c") is None


def test_onto_a_gpu_one_model_loads_at_a_time() -> None:
    core = core_of_places((100, 10, 10), {"a": (1, 2, 0), "b": (1, 2, 0), "c": (1, 0, 2), "d": (1, 0, 0)}, 4)
    for key in "abcd":
        core.ask(key)
    assert core.advance(0) == [Load("a"), Load("c"), Load("d")]
    core.loaded("c", (1, 0, 2), 5)
    assert core.advance(10) == [], "b waits for a"
    core.loaded("a", (1, 2, 0), 11)
    assert core.advance(11) == [Load("b")]


def test_no_model_loads_onto_a_gpu_that_another_one_leaves() -> None:
    core = core_of_places((100, 20, 20), {"v": (1, 4, 0), "a": (1, 4, 0), "b": (1, 0, 4)}, keep_alive_ns=20, turn_max=15)
    load(core, "v", 0)
    for key in "ab":
        core.ask(key)
    assert core.advance(30) == [Unload("v", Why.UNUSED), Load("b")]
    assert core.next_deadline_ns() == 45
    assert core.advance(31) == [], "a would seem to have no memory"
    core.unloaded("v")
    assert core.advance(32) == [Load("a")]


def test_an_unload_that_hangs_does_not_keep_its_gpu_from_others() -> None:
    core = core_of_places((100, 20), {"v": (1, 4), "a": (1, 4)}, keep_alive_ns=20, turn_max=15)
    load(core, "v", 0)
    core.ask("a")
    assert core.advance(30) == [Unload("v", Why.UNUSED)]
    assert core.advance(45) == [Load("a")]


def test_no_model_leaves_a_gpu_that_another_one_loads_onto() -> None:
    core = core_of_places((10, 20), {"v": (5, 4), "a": (4, 4), "host": (5, 0)}, keep_alive_ns=20)
    load(core, "v", 0)
    core.ask("a")
    assert core.advance(10) == [Load("a")]
    core.ask("host")
    assert core.advance(30) == [], "v is idle, and unused"
    core.loaded("a", (4, 4), 31)
    assert core.advance(31) == [Unload("v", Why.UNUSED)]


def test_a_model_of_two_gpus_has_its_turn_where_others_load_one_by_one() -> None:
    sizes = {"a": (1, 1, 0), "b": (1, 0, 1), "both": (1, 1, 1), "c": (1, 1, 0), "d": (1, 0, 1), "host": (1, 0, 0)}
    core = core_of_places((100, 10, 10), sizes, 4)
    for key in sizes:
        core.ask(key)
    assert core.advance(0) == [Load("a"), Load("b"), Load("host")]
    core.loaded("a", sizes["a"], 5)
    assert core.advance(5) == [], "c is behind both"
    core.loaded("b", sizes["b"], 6)
    assert core.advance(6) == [Load("both")]
    core.loaded("both", sizes["both"], 9)
    assert core.advance(9) == [Load("c"), Load("d")]


def test_a_model_that_waits_for_one_gpu_holds_up_nobody_on_another() -> None:
    core = core_of_places((20, 10, 10), {"busy": (5, 10, 0), "first": (5, 10, 0), "next": (5, 4, 0), "other": (5, 0, 10)})
    load(core, "busy", 0, took=50)
    for key in ("first", "next", "other"):
        core.ask(key)
    assert core.advance(60, {"busy"}) == [Load("other")], "next is behind first, on the same GPU"
    core.loaded("other", (5, 0, 10), 70)
    core.unloaded("busy")
    assert core.advance(80) == [Load("first")]


def test_a_model_that_waits_for_a_gpu_keeps_its_room_on_the_host() -> None:
    core = core_of_places((20, 10), {"busy": (1, 10), "first": (15, 10), "large": (10, 0), "small": (4, 0)}, turn_max=50)
    load(core, "busy", 0, took=50)
    for key in ("first", "large", "small"):
        core.ask(key)
    assert core.advance(60, {"busy"}) == [], "20 are less than 1, 15 and 10, and small is behind large on the host"
    core.forget("large")
    assert core.advance(61, {"busy"}) == [Load("small")]


def test_what_has_turned_out_larger_on_a_gpu_displaces_others_there() -> None:
    core = core_of_places((100, 10), {"host": (3, 0), "a": (3, 4), "b": (3, 4)})
    for at, key in enumerate(("host", "a")):
        load(core, key, at * 10)
    core.ask("b")
    assert core.advance(30) == [Load("b")]
    core.loaded("b", (3, 8), 40)
    assert core.is_short
    assert core.advance(41) == [Unload("a", Why.OVER)]


def test_waits_are_told_by_the_pace_of_loads() -> None:
    core = core_of(100, {"a": 1, "b": 1, "c": 1, "d": 1}, loads_max=1)
    load(core, "a", 0, took=1000)
    for key in "bcd":
        core.ask(key)
    core.advance(2000)
    assert core.waiting() == ["c", "d"]
    assert (core.wait_ns("c"), core.wait_ns("d")) == (2000, 3000)


_SIZES = st.tuples(st.integers(1, 8), st.integers(0, 4), st.integers(0, 4))


class Beside(RuleBasedStateMachine):
    """The core beside the naive model. Time passes with each rule."""

    @initialize(
        budget=st.tuples(st.integers(5, 20)) | st.tuples(st.integers(5, 20), st.integers(3, 9), st.integers(3, 9)),
        loads_max=st.integers(1, 3),
        turn_max=st.sampled_from((3, 50)),
        models=st.lists(
            st.tuples(_SIZES, st.sampled_from((0, 4)), st.sampled_from((0, 20)), st.booleans()), min_size=2, max_size=7
        ),
    )
    def begin(self, budget: Amounts, loads_max: int, turn_max: int, models: list[tuple[Amounts, int, int, bool]]) -> None:
        core: BudgetCore[int] = BudgetCore(budget, loads_max=loads_max, turn_ns_max=turn_max)
        self.places = len(budget)
        naive = NaiveBudget(budget=budget, loads_max=loads_max, turn_max=turn_max, pinned=(0,) * self.places)
        self.history = History(core, naive)
        for size, resident_min, keep_alive, warm in models:
            self.history.add(size[: self.places], resident_min=resident_min, keep_alive=keep_alive, warm=warm)

    def some(self, number: int, *states: State) -> Row | None:
        found = [row for row in self.history.naive.rows if row.state in states]
        return found[number % len(found)] if found else None

    @rule(number=st.integers(0, 6), time=st.integers(0, 20))
    def a_request_comes(self, number: int, time: int) -> None:
        self.history.now += time
        row = self.some(number, *State)
        assert row is not None
        self.history.ask(row)

    @rule(number=st.integers(0, 6), time=st.integers(1, 20), size=st.none() | _SIZES)
    def a_load_ends(self, number: int, time: int, size: Amounts | None) -> None:
        row = self.some(number, State.LOADING)
        if row is not None:
            self.history.now += time
            self.history.end_load(row, None if size is None else size[: self.places])

    @rule(number=st.integers(0, 6))
    def an_unload_ends(self, number: int) -> None:
        row = self.some(number, State.DRAINING)
        if row is not None:
            self.history.unload(row)

    @rule(number=st.integers(0, 6), busy=st.booleans(), time=st.integers(0, 60))
    def a_model_is_busy_or_idle(self, number: int, busy: bool, time: int) -> None:
        self.history.now += time
        row = self.some(number, State.LOADED)
        if row is not None:
            (self.history.busy.add if busy else self.history.busy.discard)(row.key)

    @precondition(lambda self: any(row.since is not None for row in self.history.naive.rows))
    @rule(number=st.integers(0, 6))
    def nobody_waits_any_more(self, number: int) -> None:
        waiting = [row for row in self.history.naive.rows if row.since is not None]
        self.history.forget(waiting[number % len(waiting)])

    @rule(size=_SIZES)
    def models_that_stay_change(self, size: Amounts) -> None:
        self.history.pin(size[: self.places])

    @invariant()
    def they_agree(self) -> None:
        if hasattr(self, "history"):
            self.history.decide()


TestBeside = Beside.TestCase
TestBeside.settings = settings(max_examples=100, stateful_step_count=40)


# Simulated traffic


class Seen(NamedTuple):
    """The outcome of a simulated run: requests that found their model loaded, loads, and the waits of all others."""

    requests: int
    hits: int
    loads: int
    waits_ns: list[int]


def simulate(core: BudgetCore[int], arrivals: list[tuple[int, int]], *, load_ns: int, execute_ns: int) -> Seen:
    """Drive the core by requests (time, model): an event queue in place of a loop."""
    order = count()
    events: list[tuple[int, int, str, int]] = [(at, next(order), "arrive", model) for at, model in arrivals]
    heapq.heapify(events)
    open_requests: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    draining: set[int] = set()
    hits, loads, waits = 0, 0, []
    looking_at: int | None = None

    def begin(now: int, model: int) -> None:
        open_requests[model] = open_requests.get(model, 0) + 1
        heapq.heappush(events, (now + execute_ns, next(order), "done", model))

    while events:
        now, _, what, model = heapq.heappop(events)
        if what == "arrive":
            core.use(model, now)
            if core.state(model) is State.LOADED:
                hits += 1
                begin(now, model)
            else:
                waiting.setdefault(model, []).append(now)
                core.ask(model)
        elif what == "done":
            open_requests[model] -= 1
        elif what == "loaded":
            core.loaded(model, core.size(model), now)
            for since in waiting.pop(model, []):
                waits.append(now - since)
                begin(now, model)
        else:
            looking_at = None
        for gone in [each for each in draining if not open_requests.get(each)]:
            draining.discard(gone)
            core.unloaded(gone)
        for action in core.advance(now, {each for each, number in open_requests.items() if number}):
            if isinstance(action, Load):
                loads += 1
                heapq.heappush(events, (now + load_ns, next(order), "loaded", int(str(action.key))))
            elif isinstance(action, Unload):
                draining.add(int(str(action.key)))
        if (core.is_short or draining) and looking_at is None:
            looking_at = now + 20 * NS_PER_MS
            heapq.heappush(events, (looking_at, next(order), "look", 0))
    assert not waiting
    return Seen(len(arrivals), hits, loads, waits)


def lru_hits(models: list[int], room: int) -> int:
    """Of a cache that loads in no time."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for model in models:
        hits += model in kept
        kept[model] = kept.pop(model, None)
        if len(kept) > room:
            kept.popitem(last=False)
    return hits


def zipf(generator: random.Random, models: int, requests: int, *, rate: float, exponent: float) -> list[tuple[int, int]]:
    weights = list(accumulate(1 / rank**exponent for rank in range(1, models + 1)))
    names = list(range(models))
    generator.shuffle(names)
    now, arrivals = 0.0, []
    for chosen in generator.choices(names, cum_weights=weights, k=requests):
        now += generator.expovariate(rate)
        arrivals.append((round(now * NS_PER_S), chosen))
    return arrivals


@pytest.mark.parametrize("exponent", [0.9, 1.2])
def test_a_thousand_models_in_a_budget_for_fifty(exponent: float) -> None:
    """The hit rate is that of an LRU cache within 3 %, although loads take a while and busy models stay."""
    arrivals = zipf(random.Random(7), 1000, 15_000, rate=10, exponent=exponent)
    core: BudgetCore[int] = BudgetCore((50 * 100,), loads_max=4, turn_ns_max=15 * NS_PER_S)
    for model in range(1000):
        core.add(model, (100,))
    seen = simulate(core, arrivals, load_ns=200 * NS_PER_MS, execute_ns=10 * NS_PER_MS)
    ideal = lru_hits([model for _, model in arrivals], 50)
    print(f"hits {seen.hits}, of an LRU {ideal}, loads {seen.loads}, longest wait {max(seen.waits_ns) / NS_PER_S:.2f} s")
    assert abs(seen.hits - ideal) <= 0.03 * seen.requests
    assert abs(seen.requests - seen.loads - ideal) <= 0.03 * seen.requests
    assert max(seen.waits_ns) <= 2 * NS_PER_S, "ten loads, of which four go at a time"


def test_two_models_that_cannot_both_fit_take_turns() -> None:
    """Both are asked all the time. Loading takes a tenth of it, and nobody waits for longer than a turn and two loads."""
    load_ns = NS_PER_S
    core: BudgetCore[int] = BudgetCore((10,), loads_max=2, turn_ns_max=60 * NS_PER_S)
    core.add(0, (6,))
    core.add(1, (6,))
    arrivals = [(at * 50 * NS_PER_MS, at % 2) for at in range(20 * 400)]  # 400 s
    seen = simulate(core, arrivals, load_ns=load_ns, execute_ns=200 * NS_PER_MS)
    assert 400 / 13 <= seen.loads <= 400 / 11 + 1
    assert max(seen.waits_ns) <= 13 * load_ns
    assert seen.hits > 0.4 * seen.requests


def test_a_model_that_is_asked_now_and_then_is_not_starved_by_busy_ones() -> None:
    core: BudgetCore[int] = BudgetCore((4,), loads_max=1, turn_ns_max=5 * NS_PER_S)
    for model in range(5):
        core.add(model, (1 if model else 3,))  # model 0 needs three places of four
    arrivals = [(at * 20 * NS_PER_MS, 1 + at % 4) for at in range(50 * 120)]
    arrivals += [(at * 10 * NS_PER_S + 1, 0) for at in range(1, 12)]
    seen = simulate(core, arrivals, load_ns=NS_PER_S, execute_ns=100 * NS_PER_MS)
    assert max(seen.waits_ns) <= 15 * NS_PER_S


def test_models_of_two_gpus_and_a_host_that_are_all_short_wait_for_a_bounded_time() -> None:
    """All are busy all the time they are loaded, and one needs half of everything."""
    core: BudgetCore[int] = BudgetCore((8, 6, 6), loads_max=4, turn_ns_max=5 * NS_PER_S)
    for model in range(6):
        core.add(model, (2, 3, 0) if model % 2 else (2, 0, 3))
    core.add(6, (4, 3, 3))
    arrivals = [(at * 50 * NS_PER_MS, at % 7) for at in range(20 * 120)]
    seen = simulate(core, arrivals, load_ns=NS_PER_S // 2, execute_ns=500 * NS_PER_MS)
    print(f"hits {seen.hits} of {seen.requests}, loads {seen.loads}, longest wait {max(seen.waits_ns) / NS_PER_S:.2f} s")
    assert max(seen.waits_ns) <= 10 * NS_PER_S, "two turns"


# Sizes and parameters


def config_of(**parameters: str) -> ModelConfig:
    return ModelConfig(name="m", parameters={name: ModelParameter(string_value=value) for name, value in parameters.items()})


def test_parameters_say_when_a_model_is_loaded() -> None:
    assert load_policy(config_of()) == LoadPolicy(LoadWhen.AT_START)
    assert load_policy(config_of(), LoadWhen.ON_DEMAND).when is LoadWhen.ON_DEMAND
    assert load_policy(config_of(load="at_start"), LoadWhen.ON_DEMAND).when is LoadWhen.AT_START
    found = load_policy(config_of(load="warm", keep_alive_seconds="1.5", min_resident_seconds="9"))
    assert found == LoadPolicy(LoadWhen.WARM, 1.5, 9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("load", "lazy"),
        ("keep_alive_seconds", "-1"),
        ("min_resident_seconds", "long"),
        ("keep_alive_seconds", ""),
        ("keep_alive_seconds", "1e300"),
    ],
)
def test_parameters_that_say_nothing_count_as_not_given(name: str, value: str) -> None:
    config = config_of(**{name: value})
    assert load_policy(config, LoadWhen.WARM) == LoadPolicy(LoadWhen.WARM)
    assert [(each.name, each.value) for each in unexpected_parameters(config)] == [(name, value)]
