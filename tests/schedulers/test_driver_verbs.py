"""The driver: every verb feeds the core and performs what it decided before it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio
from trio.testing import MockClock

from tpy.errors import Unavailable
from tpy.messages import QueueActivity
from tpy.testing.trio_clock import TrioClock
from tpy_data.schedulers.core.contract import (
    Action,
    CoreSnapshot,
    Dispatch,
    LiveSequence,
    Outcome,
    Refuse,
    Respond,
    Retired,
    Revoke,
    SequenceEnd,
    SequenceEnded,
    Ticket,
)
from tpy_data.schedulers.driver import SchedulerDriver
from tpy_data.schedulers.gated_driver import GatedDriver


class ScriptedCore:
    """Notes the verbs and their times, and decides what the test has laid out."""

    def __init__(self) -> None:
        self.verbs: list[tuple[object, ...]] = []
        self.decisions: list[list[Action]] = []
        self.deadline_ns: int | None = None

    def __getattr__(self, verb: str) -> Callable[..., None]:
        def note(*arguments: object, **named: object) -> None:
            self.verbs.append((verb, *arguments, *named.items()))

        return note

    def next_deadline_ns(self) -> int | None:
        return self.deadline_ns

    def take_actions(self) -> list[Action]:
        return self.decisions.pop(0) if self.decisions else []

    def explain(self, now_ns: int) -> QueueActivity:
        return QueueActivity()

    def snapshot(self) -> CoreSnapshot:
        return CoreSnapshot(queued=1, executing=2, idle_instances=3)


class Notebook:
    """A performer that notes, and calls back at its first action."""

    def __init__(self) -> None:
        self.performed: list[tuple[object, ...]] = []
        self.call_back: Callable[[], None] | None = None

    def _note(self, *what: object) -> None:
        self.performed.append(("begin", *what))
        call_back, self.call_back = self.call_back, None
        if call_back is not None:
            call_back()
        self.performed.append(("end", *what))

    def dispatch(self, instance: int, batches: Sequence[Sequence[Ticket]], slots: Sequence[Ticket | None]) -> None:
        self._note("dispatch", instance, [list(tickets) for tickets in batches], list(slots))

    def revoke(self, instance: int) -> int:
        self._note("revoke", instance)
        return 3

    def respond(self, tickets: Sequence[Ticket]) -> None:
        self._note("respond", list(tickets))

    def refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        self._note("refuse", ticket, outcome)

    def sequence_ended(self, sequence: LiveSequence, why: SequenceEnd) -> None:
        self._note("ended", sequence, why)

    def retired(self, instance: int) -> None:
        self._note("retired", instance)

    def begun(self) -> list[list[object]]:
        return [list(rest) for edge, *rest in self.performed if edge == "begin"]


def driven() -> tuple[ScriptedCore, Notebook, SchedulerDriver]:
    core, notebook = ScriptedCore(), Notebook()
    return core, notebook, SchedulerDriver(core, TrioClock(trio.lowlevel.current_clock()), notebook)


TICKET = Ticket()
VERBS: list[tuple[Callable[[SchedulerDriver], None], tuple[object, ...]]] = [
    (lambda driver: driver.submit(TICKET), ("submit", TICKET, 0)),
    (lambda driver: driver.cancel(TICKET), ("cancel", TICKET, 0)),
    (lambda driver: driver.done(4), ("done", 4, 0, (0,))),
    (lambda driver: driver.done(4, [1, 5]), ("done", 4, 0, [1, 5])),
    (lambda driver: driver.recall(), ("recall", 0)),
    (lambda driver: driver.reschedule(TICKET), ("reschedule", TICKET, 0)),
    (lambda driver: driver.add_instance(4), ("add_instance", 4, 0, ("prefetch", False), ("credit", 1), ("tokens", 0))),
    (
        lambda driver: driver.add_instance(4, prefetch=True, credit=2, tokens=9),
        ("add_instance", 4, 0, ("prefetch", True), ("credit", 2), ("tokens", 9)),
    ),
    (lambda driver: driver.remove_instance(4), ("remove_instance", 4, 0)),
    (lambda driver: driver.retire_instance(4), ("retire_instance", 4, 0)),
    (lambda driver: driver.refuse_waiting(), ("refuse_waiting", 0)),
    (lambda driver: driver.stop(), ("stop", 0)),
    (lambda driver: driver.refuse_executing(), ("refuse_executing", 0)),
]


@pytest.mark.parametrize(("verb", "told"), VERBS)
async def test_each_verb_performs_what_the_core_decided(
    autojump_clock: MockClock, verb: Callable[[SchedulerDriver], None], told: tuple[object, ...]
) -> None:
    core, notebook, driver = driven()
    core.decisions = [[Retired(9), Retired(10)]]
    verb(driver)
    assert core.verbs == [told]
    assert notebook.begun() == [["retired", 9], ["retired", 10]]


async def test_each_action_has_its_performer(autojump_clock: MockClock) -> None:
    core, notebook, driver = driven()
    sequence = LiveSequence(1)
    core.decisions = [
        [
            Dispatch(1, [[TICKET]]),
            Dispatch(2, [[TICKET], [TICKET]]),
            Dispatch(3, [[TICKET]], slots=[None, TICKET]),
            Respond([TICKET]),
            Refuse(TICKET, Outcome.TIMED_OUT),
            Revoke(4),
            SequenceEnded(sequence, SequenceEnd.ENDED),
            Retired(5),
        ]
    ]
    driver.submit(TICKET)
    assert notebook.begun() == [
        ["dispatch", 1, [[TICKET]], []],
        ["dispatch", 2, [[TICKET], [TICKET]], []],
        ["dispatch", 3, [[TICKET]], [None, TICKET]],
        ["respond", [TICKET]],
        ["refuse", TICKET, Outcome.TIMED_OUT],
        ["revoke", 4],
        ["ended", sequence, SequenceEnd.ENDED],
        ["retired", 5],
    ]
    assert core.verbs == [("submit", TICKET, 0), ("revoked", 4, 0, 3)]
    assert driver.snapshot() == core.snapshot()


async def test_a_verb_inside_of_an_action_is_performed_after_it(autojump_clock: MockClock) -> None:
    core, notebook, driver = driven()
    core.decisions = [[Retired(1), Retired(2)], [Retired(3)]]
    notebook.call_back = driver.stop
    driver.submit(TICKET)
    assert [edge[0] for edge in notebook.performed] == ["begin", "end"] * 3
    assert notebook.begun() == [["retired", 1], ["retired", 2], ["retired", 3]]
    core.decisions = [[Retired(4)]]
    driver.stop()  # and it performs as before
    assert notebook.begun()[-1] == ["retired", 4]


async def test_what_was_decided_on_a_refused_request_inside_of_an_action_is_performed(autojump_clock: MockClock) -> None:
    core, notebook, driver = driven()

    def refuse(ticket: Ticket, now_ns: int) -> None:
        core.decisions = [[Retired(2)]]
        raise Unavailable("full")

    def submit() -> None:
        core.submit = refuse  # type: ignore[attr-defined]
        with pytest.raises(Unavailable):
            driver.submit(TICKET)

    core.decisions = [[Retired(1)]]
    notebook.call_back = submit
    driver.stop()
    assert notebook.begun() == [["retired", 1], ["retired", 2]]


async def test_what_revoked_batches_lead_to_is_performed(autojump_clock: MockClock) -> None:
    core, notebook, driver = driven()
    core.decisions = [[Revoke(4)], [Dispatch(1, [[TICKET]])]]
    driver.submit(TICKET)
    assert notebook.begun() == [["revoke", 4], ["dispatch", 1, [[TICKET]], []]]


async def test_a_performer_that_raises_does_not_stop_the_driver(autojump_clock: MockClock) -> None:
    core, notebook, driver = driven()

    def fail() -> None:
        raise RuntimeError("a bug")

    core.decisions = [[Retired(1)]]
    notebook.call_back = fail
    with pytest.raises(RuntimeError, match="a bug"):
        driver.stop()
    core.decisions = [[Retired(2)]]
    driver.stop()
    assert notebook.begun()[-1] == ["retired", 2]


async def test_the_core_advances_at_deadlines_and_time_never_goes_back(autojump_clock: MockClock) -> None:
    core, notebook, driver = driven()
    async with trio.open_nursery() as nursery:
        core.deadline_ns = 5_000_000_000
        driver.submit(TICKET)
        nursery.start_soon(driver.run)
        await trio.sleep(1)
        core.deadline_ns = 3_000_000_001  # sooner, while the task sleeps
        driver.submit(TICKET)
        core.verbs.clear()
        core.deadline_ns = None
        core.decisions = [[Retired(7)]]
        await trio.sleep(5)
        assert core.verbs == [("advance", 3_000_000_001)]
        assert notebook.begun() == [["retired", 7]]
        nursery.cancel_scope.cancel()


class Backwards:
    """A clock that goes back by a nanosecond, as one that is made of floats may seem to."""

    def __init__(self) -> None:
        self.times_ns = [10, 9, 12, 11]

    def now_ns(self) -> int:
        return self.times_ns.pop(0)

    def wall_ms(self) -> int:
        return 0


async def test_a_clock_that_goes_back_stands_still_for_the_core() -> None:
    core = ScriptedCore()
    driver = SchedulerDriver(core, Backwards(), Notebook())
    for _ in range(4):
        driver.stop()
    assert [verb[1] for verb in core.verbs] == [10, 10, 12, 12]


class NotedGate:
    """Lends what it is told to, and notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.taker: Callable[[int], None] | None = None

    def grant(self) -> None:
        self.heard.append(("grant",))

    def take(self, taker: Callable[[int], None]) -> None:
        self.taker = taker

    def add(self, number: int) -> None:
        self.heard.append(("add", number))

    def remove(self, number: int) -> None:
        self.heard.append(("remove", number))

    def want(self, wanted: bool) -> None:
        self.heard.append(("want", wanted))

    def release(self, number: int, *, used: bool = True) -> None:
        self.heard.append(("release", number, used))


class PooledScript(ScriptedCore):
    """Says which instances found no work."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: list[int] = []
        self.wants = False

    def take_idle(self) -> list[int]:
        idle, self.idle = self.idle, []
        return idle

    def wants_instance(self, now_ns: int) -> bool:
        return self.wants


async def test_a_gated_driver_gives_back_what_it_was_lent(autojump_clock: MockClock) -> None:
    core, gate = PooledScript(), NotedGate()
    driver = GatedDriver(core, TrioClock(trio.lowlevel.current_clock()), Notebook(), gate)

    def heard() -> list[tuple[object, ...]]:
        heard, gate.heard = gate.heard, []
        return heard

    driver.add_instance(1)
    assert heard() == [("add", 1), ("want", False), ("grant",)]
    core.wants = True
    driver.submit(TICKET)
    assert heard() == [("want", True), ("grant",)]
    assert gate.taker is not None
    core.wants = False
    gate.taker(1)  # and the core gives it work
    assert heard() == [("want", False), ("grant",)]
    core.verbs.clear()
    driver.done(1, [3])
    assert core.verbs == [("remove_instance", 1, 0), ("done", 1, 0, [3])]
    assert heard() == [("release", 1, True), ("want", False), ("grant",)]
    core.idle = [1]
    gate.taker(1)  # and there is no work after all
    assert heard() == [("release", 1, False), ("want", False), ("grant",)]
    gate.taker(1)
    heard()
    core.verbs.clear()
    driver.remove_instance(1)  # while it runs: it is given back when that is over
    driver.remove_instance(1)
    assert heard() == [("remove", 1), ("want", False), ("grant",)] * 2
    assert [verb[:2] for verb in core.verbs] == [("remove_instance", 1)]
    driver.done(1)
    assert [verb[:2] for verb in core.verbs] == [("remove_instance", 1), ("done", 1)]
    assert heard() == [("release", 1, True), ("want", False), ("grant",)]
    core.verbs.clear()
    driver.add_instance(2)
    driver.remove_instance(2)  # the core never had it
    assert "remove_instance" not in [verb[0] for verb in core.verbs]


async def test_an_instance_that_found_no_work_goes_back_before_it_leaves(autojump_clock: MockClock) -> None:
    core, gate, notebook = PooledScript(), NotedGate(), Notebook()
    driver = GatedDriver(core, TrioClock(trio.lowlevel.current_clock()), notebook, gate)

    def leave() -> None:
        core.idle = [1]
        driver.remove_instance(1)

    core.decisions = [[Retired(9)]]
    notebook.call_back = leave
    assert gate.taker is not None
    gate.taker(1)
    assert gate.heard[:2] == [("release", 1, False), ("remove", 1)]
    assert "remove_instance" not in [verb[0] for verb in core.verbs]
