"""Readiness checks: all instances must be ready, one check at a time, and none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

import trio
import trio.testing

from tpy.limits import READINESS_CHECK_S_MAX
from tpy_data.engine.instances.readiness import ReadinessChecks


class Opinion:
    """An instance that says what `say` does."""

    has_readiness_check = True

    def __init__(self, say: Callable[[], bool]) -> None:
        self.say = say
        self.asked = 0

    def check_ready(self, timeout_s: float) -> bool:
        self.asked += 1
        return self.say()


async def test_all_must_be_ready() -> None:
    for opinions, ready in (([], True), ([True], True), ([True, False], False), ([False, True], False), ([True, True], True)):
        instances = [Opinion(lambda said=said: said) for said in opinions]  # type: ignore[misc]
        assert await ReadinessChecks(lambda instances=instances: instances).ask() is ready  # type: ignore[misc]


async def test_who_asks_meanwhile_gets_the_same_answer() -> None:
    go = threading.Event()
    opinion = Opinion(lambda: go.wait(20))
    checks = ReadinessChecks(lambda: [opinion])
    answers: list[bool] = []

    async def ask() -> None:
        answers.append(await checks.ask())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        go.set()
    assert answers == [True] * 5
    assert opinion.asked == 1


async def test_another_one_asks_when_the_first_was_cancelled() -> None:
    go = threading.Event()
    opinion = Opinion(lambda: go.wait(20))
    checks = ReadinessChecks(lambda: [opinion])
    answers: list[bool] = []

    async def ask() -> None:
        answers.append(await checks.ask())

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as given_up:
            given_up.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        nursery.start_soon(ask)
        go.set()
    assert answers[0] is True


async def test_one_that_hangs_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    go = threading.Event()
    checks = ReadinessChecks(lambda: [Opinion(lambda: go.wait(20))])
    autojump_clock.autojump_threshold = 0.01
    assert await checks.ask() is False
    go.set()


async def test_who_asks_while_a_check_takes_too_long_gets_what_the_model_says_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The instance gives up at its limit, and its model answers a little later: as long as whoever came later would wait."""
    limit = threading.Event()

    def say() -> bool:
        if opinion.asked == 1:
            limit.wait(20)
            return False
        return True

    opinion = Opinion(say)
    checks = ReadinessChecks(lambda: [opinion])
    autojump_clock.autojump_threshold = 1000
    answers: list[bool] = []

    async def ask() -> None:
        answers.append(await checks.ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(READINESS_CHECK_S_MAX)
        limit.set()
    assert answers == [False, True, True, True]
    assert opinion.asked == 2
