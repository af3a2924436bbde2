"""A repository that loses most of its models at once is held: the core against a naive model, and the driver in virtual time."""

from __future__ import annotations

import logging

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule
from trio.testing import MockClock

from tpy.reloading import reload
from tpy_control import ControlPlane
from tpy_control.core.losses import Losses, LossEvent

from .world import World

HOLD_NS = 20
NAMES = st.frozensets(st.sampled_from("abcdef"))


class LossesMachine(RuleBasedStateMachine):
    """Any polls at any times. The model keeps the whole history: what was accepted last, and every poll since."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = Losses(HOLD_NS)
        self.accepted: frozenset[str] = frozenset()
        self.since: list[int] = []
        self.now_ns = 0
        self.gone: frozenset[str] = frozenset()

    @rule(names=NAMES, later_ns=st.integers(0, 15))
    def poll(self, names: frozenset[str], later_ns: int) -> None:
        self.now_ns += later_ns
        found = self.losses.poll("r", names, self.now_ns)
        gone = self.accepted - names
        is_loss = len(self.accepted) > 1 and len(gone) / len(self.accepted) > 0.5
        if is_loss:
            self.since.append(self.now_ns)
        if is_loss and self.now_ns - self.since[0] < HOLD_NS:
            assert found.held == gone
            assert found.event is (LossEvent.BEGUN if len(self.since) == 1 else LossEvent.NONE)
            self.gone = gone
        else:
            assert not found.held
            had = bool(self.since)
            expected = LossEvent.CONFIRMED if is_loss else LossEvent.OVER if had else LossEvent.NONE
            assert found.event is expected
            self.accepted, self.since, self.gone = names, [], frozenset()
        assert self.losses.held()["r"] == len(self.gone)
        assert not found.held & names

    @rule()
    def confirm(self) -> None:
        self.losses.confirm()
        self.accepted -= self.gone
        self.since, self.gone = [], frozenset()


TestLosses = LossesMachine.TestCase
TestLosses.settings = settings(max_examples=60, stateful_step_count=30)


def test_without_a_time_nothing_is_held() -> None:
    losses = Losses(0)
    losses.poll("r", frozenset("abc"), 0)
    assert losses.poll("r", frozenset(), 1).held == frozenset()


def held(control: ControlPlane) -> dict[str, float]:
    (family,) = [each for each in control.metrics() if each.name == "tpy_repository_held_models"]
    return {sample.labels["repository"]: sample.value for sample in family.samples}


def names(world: World) -> list[str]:
    return [row[0] for row in world.index() if row[2] == "READY"]


async def test_an_emptied_repository_is_held_for_two_polls(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    locations = [world.put(name, 1) for name in "abc"]
    other = world.put("z", 1, repository="other")
    async with world.running("poll") as control:
        await trio.sleep(1)
        for location in locations:
            world.source.remove(location)
        await trio.sleep(20)
        assert names(world) == ["a", "b", "c", "z"], "one poll has confirmed it"
        assert held(control) == {locations[0].repository: 3, other.repository: 0}
        assert caplog.text.count("3 of 3 models disappeared from") == 1
        await trio.sleep(30)
        assert names(world) == ["z"]
        assert "did not come back and are unloaded; 0 are left" in caplog.text
        assert held(control) == {locations[0].repository: 0, other.repository: 0}


async def test_a_repository_that_comes_back_has_lost_nothing(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    locations = [world.put(name, 1) for name in "abc"]
    async with world.running("poll"):
        before = {name: world.generations(name) for name in "abc"}
        for location in locations:
            world.source.remove(location)
        await trio.sleep(20)
        for name in "abc":
            world.put(name, 1)
        await trio.sleep(60)
        assert names(world) == ["a", "b", "c"]
        assert {name: world.generations(name) for name in "abc"} == before, "nothing was loaded again"
        assert "has 3 models again" in caplog.text


async def test_sighup_says_that_it_is_meant(autojump_clock: MockClock, world: World) -> None:
    locations = [world.put(name, 1) for name in "abc"]
    async with world.running("poll"):
        for location in locations[:2]:
            world.source.remove(location)
        await trio.sleep(16)
        assert names(world) == ["a", "b", "c"]
        reload("SIGHUP")
        await trio.sleep(5)
        assert names(world) == ["c"]


@pytest.mark.parametrize("removed", [1, 2])
async def test_what_is_no_loss_of_most_is_followed_at_once(autojump_clock: MockClock, world: World, removed: int) -> None:
    locations = [world.put(name, 1) for name in "abcd"]
    async with world.running("poll"):
        for location in locations[:removed]:
            world.source.remove(location)
        await trio.sleep(18)
        assert names(world) == ["a", "b", "c", "d"][removed:]


async def test_the_flag_switches_it_off(autojump_clock: MockClock, world: World) -> None:
    locations = [world.put(name, 1) for name in "abc"]
    async with world.running("poll", hold_losses=False):
        for location in locations:
            world.source.remove(location)
        await trio.sleep(18)
        assert names(world) == []
