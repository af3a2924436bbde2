"""The rule that leaves half of what waits for the next batch: by examples, and what it is worth in a closed loop."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpy.units import NS_PER_US
from tpy_data.schedulers.core.contract import Dispatch, Respond, Ticket
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules
from tpy_data.schedulers.core.overlap import OverlapRule, OverlapTerms

TERMS = OverlapTerms(requests_min=4, convoys_min=3, batches_max=5)
TRIAL = OverlapTerms(requests_min=4, convoys_min=3, batches_max=5, trial_batches=2)


class Watched:
    """A rule with its clock."""

    def __init__(self, terms: OverlapTerms = TERMS) -> None:
        self.rule = OverlapRule(terms)
        self.now_ns = 0

    def batch(self, count: int, *, waiting: int, took_ns: int, after_ns: int = 0) -> int:
        """A batch of `count`, or of what the rule says, that leaves so many more waiting and is seen to be over `after_ns` later
        than it is; how many went."""
        share = self.rule.share_of(count)
        self.rule.began(share, self.now_ns)
        self.now_ns += took_ns + after_ns
        self.rule.ended(share, waiting + count - share, took_ns, self.now_ns)
        return share

    def step(self, count: int = 15, *, large_ns: int = 100, short_ns: int = 10, gap_ns: int = 100) -> int:
        """A large batch, and one of the next request until all others are there; how many went with the large one."""
        share = self.batch(count, waiting=1, took_ns=large_ns)
        if share == count:
            self.batch(1, waiting=count, took_ns=short_ns, after_ns=gap_ns - short_ns)
        return share


def halving() -> Watched:
    """A rule that halves its next batches."""
    watched = Watched()
    for _ in range(TERMS.convoys_min):
        watched.step()
    assert watched.batch(15, waiting=1, took_ns=100) == 15  # it ends the last of the gaps
    return watched


# the rule alone


def test_what_is_seen_often_enough_in_a_row_halves() -> None:
    watched = halving()
    assert watched.batch(16, waiting=0, took_ns=60) == 8


def test_half_is_of_all_that_was_open_rounded_up_and_never_more_than_there_is() -> None:
    watched = halving()
    watched.batch(1, waiting=16, took_ns=10)
    assert [watched.rule.share_of(count) for count in (1, 8, 9, 10, 17)] == [1, 8, 9, 9, 9]


def test_what_was_open_two_batches_ago_still_counts_and_three_ago_does_not() -> None:
    watched = halving()
    assert [watched.batch(8, waiting=0, took_ns=50) for _ in range(3)] == [8, 8, 4]


def test_it_looks_again_after_so_many_batches() -> None:
    watched = halving()
    assert [watched.batch(16, waiting=0, took_ns=60) for _ in range(7)] == [8, 8, 8, 8, 8, 16, 16]


def test_what_it_sees_when_it_looks_again_must_be_as_often_in_a_row() -> None:
    watched = halving()
    for _ in range(TERMS.batches_max):
        watched.batch(8, waiting=8, took_ns=60)
    assert [watched.step() for _ in range(5)] == [15, 15, 15, 15, 8]


def test_one_time_without_the_step_begins_the_count_anew() -> None:
    watched = Watched()
    counts = [watched.step(gap_ns=gap_ns) for gap_ns in (100, 100, 20, 100, 100, 100, 100, 100)]
    assert counts == [15, 15, 15, 15, 15, 15, 15, 8]


@pytest.mark.parametrize(
    ("what", "step"),
    [
        ("clients that take their time", {"gap_ns": 401}),
        ("a batch costs as much whatever it holds", {"short_ns": 50}),
        ("nobody says what a short batch costs", {"short_ns": 0}),
        ("nobody says what any batch costs", {"short_ns": 0, "large_ns": 0}),
        ("few requests", {"count": 3}),
    ],
)
def test_never_with(what: str, step: dict[str, int]) -> None:
    watched = Watched()
    counts = [watched.step(**step) for _ in range(20)]
    assert set(counts) == {step.get("count", 15)}, what


@pytest.mark.parametrize("step", [{"gap_ns": 400}, {"short_ns": 49}, {"count": 4}])
def test_just_so_it_does(step: dict[str, int]) -> None:
    watched = Watched()
    counts = [watched.step(**step) for _ in range(5)]
    assert counts[-1] < counts[0]


def test_batches_that_follow_one_another_are_no_step() -> None:
    watched = Watched()
    assert {watched.batch(8, waiting=8, took_ns=100) for _ in range(20)} == {8}


def test_a_batch_that_leaves_half_as_many_waiting_is_no_large_one() -> None:
    watched = Watched()
    counts: list[int] = []
    for _ in range(20):
        counts.append(watched.batch(8, waiting=4, took_ns=100))
        watched.batch(1, waiting=8, took_ns=10, after_ns=90)
    assert set(counts) == {8}


def test_a_gap_that_is_too_long_when_it_ends_is_no_step() -> None:
    watched = Watched()
    counts: list[int] = []
    for _ in range(20):
        counts.append(watched.batch(15, waiting=1, took_ns=100))
        watched.batch(1, waiting=0, took_ns=10)
        watched.now_ns += 391
    assert set(counts) == {15}


def test_a_batch_of_half_as_many_ends_the_gap() -> None:
    watched = Watched()
    for count in (16, 8, 4, 4):
        watched.step(count)
    assert watched.rule.share_of(4) < 4


@pytest.mark.parametrize(
    ("short_ns", "halves"), [((50, 10, 60), True), ((0, 10, 0), True), ((60, 60), False), ((0, 60, 0), False)]
)
def test_of_several_small_batches_the_shortest_that_is_known_counts(short_ns: tuple[int, ...], halves: bool) -> None:
    """The gap is of 120 ns."""
    watched = Watched()
    for _ in range(3):
        watched.batch(15, waiting=1, took_ns=100)
        for took_ns in short_ns:
            watched.batch(1, waiting=1, took_ns=took_ns)
        watched.now_ns += 120 - sum(short_ns)
    watched.batch(15, waiting=1, took_ns=100)
    assert (watched.rule.share_of(15) < 15) is halves


def test_with_fewer_than_are_worth_looking_at_nothing_is_halved() -> None:
    watched = halving()
    assert [watched.batch(count, waiting=0, took_ns=50) for count in (3, 3, 3, 4, 4)] == [3, 3, 3, 4, 2]


def test_fewer_clients_than_there_were_are_looked_at_too() -> None:
    watched = Watched()
    watched.step(63)
    assert [watched.step() for _ in range(8)][-1] == 8


def test_a_gap_that_was_given_up_begins_the_count_anew() -> None:
    watched = Watched()
    for _ in range(3):
        watched.step(31)
    watched.now_ns += 1000  # the fourth never comes
    assert [watched.step() for _ in range(5)] == [15, 15, 15, 15, 8]


# the trial

HALF, ONE, ALL = 8, 1, 16
"""The size that a rule gives of 16 that wait and were open."""


def begin_to_halve(watched: Watched, *, large_ns: int = 100, gap_ns: int = 100) -> None:
    """See gaps behind batches of 16 often enough. Of the batch that ends the last of them nobody says what it took."""
    for _ in range(TRIAL.convoys_min):
        assert watched.step(16, large_ns=large_ns, gap_ns=gap_ns) == ALL
    assert watched.batch(16, waiting=0, took_ns=0) == ALL


def tried(*took_ns: int, large_ns: int = 100, gap_ns: int = 100, count: int = 8) -> Watched:
    """A rule that has begun to halve and then seen such batches of at most `count` be over."""
    watched = Watched(TRIAL)
    begin_to_halve(watched, large_ns=large_ns, gap_ns=gap_ns)
    for one_ns in took_ns:
        watched.batch(count, waiting=16 - count, took_ns=one_ns)
    return watched


@pytest.mark.parametrize(("large_ns", "gap_ns", "half_ns"), [(100, 100, 100), (40, 100, 70), (100, 42, 71), (200, 30, 115)])
def test_two_halves_that_take_as_long_as_batch_and_gap_end_it(large_ns: int, gap_ns: int, half_ns: int) -> None:
    assert tried(half_ns, half_ns, large_ns=large_ns, gap_ns=gap_ns).rule.share_of(16) == ONE
    assert tried(half_ns - 1, half_ns - 1, large_ns=large_ns, gap_ns=gap_ns).rule.share_of(16) == HALF


def test_a_model_whose_time_is_that_of_its_rows_goes_on() -> None:
    """300 us and 50 for each."""
    assert tried(700, 700, large_ns=1100, gap_ns=1200).rule.share_of(16) == HALF


@pytest.mark.parametrize(
    ("took_ns", "part"),
    [
        ((300,), HALF),  # half of the trial
        ((300, 99), HALF),
        ((99, 300), HALF),
        ((300, 300), ONE),
        ((300, 300, 50), ONE),
        ((50, 300, 300, 300), HALF),  # there is one trial
        ((0, 300), HALF),
        ((0, 300, 300), ONE),
        ((300, 0, 99), HALF),
    ],
)
def test_the_quickest_of_the_first_that_say_what_they_took_counts(took_ns: tuple[int, ...], part: int) -> None:
    assert tried(*took_ns).rule.share_of(16) == part


@pytest.mark.parametrize(("count", "part"), [(3, HALF), (4, ONE)])
def test_a_batch_of_less_than_a_quarter_says_nothing_of_half(count: int, part: int) -> None:
    assert tried(300, 300, count=count).rule.share_of(16) == part


def test_after_a_trial_that_failed_single_ones_go_for_as_long_as_the_gap_was() -> None:
    watched = tried(300, 300, gap_ns=120)
    assert [watched.batch(16, waiting=0, took_ns=took_ns) for took_ns in (60, 59, 1, 300, 300)] == [ONE, ONE, ONE, ALL, ALL]


@pytest.mark.parametrize(("batches", "steps"), [(TRIAL.batches_max - 1, 4), (TRIAL.batches_max - 2, 5)])
def test_after_a_trial_that_failed_it_looks_again_after_so_many_batches(batches: int, steps: int) -> None:
    """The last of them is the first that is looked at: the large one of a step, or the small one."""
    watched = tried(300, 300)
    assert [watched.batch(16, waiting=16, took_ns=100) for _ in range(batches)] == [ONE] + [ALL] * (batches - 1)
    assert [watched.step(16) for _ in range(steps)] == [ALL] * steps
    assert watched.step(16) < ALL


def test_the_next_halving_has_a_trial_of_its_own() -> None:
    watched = tried(50, 50)
    for _ in range(TRIAL.batches_max - 2):
        assert watched.batch(8, waiting=8, took_ns=50) == HALF
    watched.batch(4, waiting=4, took_ns=50)
    begin_to_halve(watched)
    for _ in range(TRIAL.trial_batches):
        assert watched.batch(8, waiting=8, took_ns=300) == HALF
    assert watched.rule.share_of(16) == ONE


# in the core


def core_of(*, overlap: OverlapTerms | None, levels: int = 1) -> DynamicCore:
    core = DynamicCore(
        DynamicOptions(
            batch_size_max=64,
            preferred=frozenset({64}),
            levels=(QueueRules(),) * levels,
            overlap=overlap,
            default_level=levels - 1,
        )
    )
    core.add_instance(0, 0)
    return core


def dispatched(core: DynamicCore) -> list[Ticket]:
    """The tickets of the batches that the core has decided to send."""
    return [ticket for action in core.take_actions() if isinstance(action, Dispatch) for ticket in action.batches[0]]


def fall_into_step(core: DynamicCore, now_ns: int = 0) -> int:
    """Let 15 requests and one more be seen in turn, until the core halves; instance 0 is idle then."""
    for _ in range(TERMS.convoys_min + 1):
        core.submit(Ticket(), now_ns)
        for _ in range(15):
            core.submit(Ticket(), now_ns + 90)
        core.done(0, now_ns + 100, (10,))
        core.done(0, now_ns + 200, (100,))
        now_ns += 200
    core.take_actions()
    return now_ns


def submit(core: DynamicCore, count: int, now_ns: int, priority: int = 0) -> list[Ticket]:
    tickets = [Ticket(priority=priority) for _ in range(count)]
    for ticket in tickets:
        core.submit(ticket, now_ns)
    return tickets


def test_what_is_left_goes_when_the_instance_is_idle_again() -> None:
    core = core_of(overlap=TERMS)
    now_ns = fall_into_step(core)
    first, *others = submit(core, 16, now_ns)
    assert dispatched(core) == [first]
    core.done(0, now_ns + 10, (10,))
    assert dispatched(core) == others[:8]
    core.done(0, now_ns + 60, (50,))
    assert dispatched(core) == others[8:]
    core.done(0, now_ns + 110, (50,))
    assert core.snapshot().queued == core.snapshot().executing == 0


def test_half_is_the_half_with_the_higher_priority() -> None:
    core = core_of(overlap=TERMS, levels=2)
    now_ns = fall_into_step(core)
    submit(core, 1, now_ns)
    low, high = submit(core, 8, now_ns, priority=2), submit(core, 7, now_ns, priority=1)
    core.take_actions()
    core.done(0, now_ns + 10, (10,))
    assert dispatched(core) == [*high, low[0]]
    core.done(0, now_ns + 60, (50,))
    assert dispatched(core) == low[1:]


def is_halving(core: DynamicCore, now_ns: int) -> bool:
    submit(core, 16, now_ns)
    core.take_actions()
    core.done(0, now_ns + 10, (10,))
    return len(dispatched(core)) < 15


def test_in_step_it_halves() -> None:
    core = core_of(overlap=TERMS)
    assert is_halving(core, fall_into_step(core))


def test_without_terms_it_never_does() -> None:
    core = core_of(overlap=None)
    assert not is_halving(core, fall_into_step(core))


def test_of_several_instances_each_takes_all_that_waits() -> None:
    core = core_of(overlap=TERMS)
    now_ns = fall_into_step(core)
    core.add_instance(1, now_ns)
    submit(core, 16, now_ns)
    core.take_actions()
    core.done(0, now_ns + 10, (10,))
    assert len(dispatched(core)) == 14


def test_an_instance_that_was_replaced_is_looked_at_anew() -> None:
    core = core_of(overlap=TERMS)
    now_ns = fall_into_step(core)
    core.remove_instance(0, now_ns)
    core.add_instance(0, now_ns)
    assert not is_halving(core, now_ns)
    now_ns += 10
    core.done(0, now_ns + 100, (100,))
    assert is_halving(core, fall_into_step(core, now_ns + 100))


def test_while_another_still_leaves_nothing_is_looked_at() -> None:
    core = core_of(overlap=TERMS)
    core.add_instance(1, 0)
    core.submit(Ticket(), 0)
    core.submit(Ticket(), 0)
    core.remove_instance(1, 0)
    core.done(0, 1)
    now_ns = fall_into_step(core, 1)
    assert not is_halving(core, now_ns)
    now_ns += 10
    core.done(1, now_ns)
    core.done(0, now_ns + 100, (100,))
    assert is_halving(core, fall_into_step(core, now_ns + 100))


def test_an_instance_that_is_lent_for_one_batch_at_a_time_is_never_halved() -> None:
    """As GatedDriver does it."""
    core = core_of(overlap=TERMS)
    assert core.take_idle() == [0]
    now_ns = 0
    for _ in range(20):
        for count in (1, 15):
            submit(core, count, now_ns)
            core.add_instance(0, now_ns)
            assert len(dispatched(core)) == count
            now_ns += 100
            core.remove_instance(0, now_ns)
            core.done(0, now_ns, (10 * count,))


# in a closed loop


class ClosedLoop:
    """In virtual time: clients that ask again when they have their answer, a server's loop that needs `request_us` for each
    answer and the next request, one at a time, and a model that needs `batch_us` + n * `row_us` for n of them, or `single_us` for
    one.

    The loop sees that a batch is over when it has done `turn` of them, or all that there are.
    """

    def __init__(
        self,
        *,
        clients: int,
        batch_us: int,
        row_us: int,
        request_us: int,
        single_us: int | None = None,
        turn: int = 1000,
        jitter: float = 0.0,
    ) -> None:
        self.clients = clients
        self.batch_us = batch_us
        self.row_us = row_us
        self.request_us = request_us
        self.single_us = batch_us + row_us if single_us is None else single_us
        self.turn = turn
        self.jitter = jitter

    def rows_per_s(self, overlap: OverlapTerms | None, answers: int) -> float:
        chance = Random(answers)
        core = core_of(overlap=overlap)
        asking = self.clients
        answered = now_ns = took_ns = ends_ns = in_turn = 0
        while answered < answers:
            if asking and in_turn < self.turn:
                asking -= 1
                in_turn += 1
                now_ns += self._lasts_ns(self.request_us, chance)
                core.submit(Ticket(), now_ns)
            else:
                in_turn = 0
                if ends_ns > now_ns and asking:
                    continue
                now_ns = max(now_ns, ends_ns)
                core.done(0, now_ns, (took_ns,))
            for action in core.take_actions():
                if isinstance(action, Dispatch):
                    took_ns = self._lasts_ns(self._model_us(len(action.batches[0])), chance)
                    ends_ns = now_ns + took_ns
                elif isinstance(action, Respond):
                    asking += len(action.tickets)
                    answered += len(action.tickets)
        return answered * 1e9 / now_ns

    def _model_us(self, count: int) -> int:
        return self.single_us if count == 1 else self.batch_us + self.row_us * count

    def _lasts_ns(self, time_us: int, chance: Random) -> int:
        return int(time_us * NS_PER_US * (1 + self.jitter * chance.random()))


@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_both_work_at_the_same_time(jitter: float) -> None:
    loop = ClosedLoop(clients=64, batch_us=300, row_us=50, request_us=80, jitter=jitter)
    assert loop.rows_per_s(OverlapTerms(), 10_000) >= 1.2 * loop.rows_per_s(None, 10_000)


@pytest.mark.parametrize("jitter", [0.0, 0.2])
@pytest.mark.parametrize("turn", [8, 1000])
@pytest.mark.parametrize(("clients", "request_us"), [(16, 150), (16, 400), (64, 50), (64, 80), (64, 150), (64, 300)])
def test_a_model_of_a_fixed_shape_that_is_quick_with_one_pays_for_the_trials_only(
    clients: int, request_us: int, turn: int, jitter: float
) -> None:
    loop = ClosedLoop(
        clients=clients, batch_us=20_000, row_us=0, single_us=1_000, request_us=request_us, turn=turn, jitter=jitter
    )
    assert loop.rows_per_s(OverlapTerms(), 10_000) >= 0.95 * loop.rows_per_s(None, 10_000)


@settings(max_examples=15, database=None)
@given(
    clients=st.integers(1, 160),
    batch_us=st.sampled_from((0, 10, 100, 300, 1_000, 3_000, 10_000)),
    row_us=st.sampled_from((1, 5, 20, 50, 100, 300)),
    request_us=st.sampled_from((5, 20, 50, 80, 150, 400)),
    turn=st.sampled_from((8, 32, 1000)),
    jitter=st.sampled_from((0.0, 0.3)),
)
def test_it_costs_nothing_to_speak_of_anywhere(
    clients: int, batch_us: int, row_us: int, request_us: int, turn: int, jitter: float
) -> None:
    loop = ClosedLoop(clients=clients, batch_us=batch_us, row_us=row_us, request_us=request_us, turn=turn, jitter=jitter)
    assert loop.rows_per_s(OverlapTerms(), 4_000) >= 0.97 * loop.rows_per_s(None, 4_000)
