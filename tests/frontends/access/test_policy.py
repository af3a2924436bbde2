"""Roles, patterns and rates, against naive models."""

from __future__ import annotations

import re
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tpy.frontends.access.core.policy import Allowance, Role, RoleGrant
from tpy.token_bucket import TokenBucket
from tpy.units import NS_PER_S

NAMES = st.text("ab-", max_size=4)


@given(st.sets(st.sampled_from(Role)), st.lists(st.text("ab*?", max_size=3), max_size=3), st.sets(st.sampled_from(Role)), NAMES)
def test_a_grant_agrees_with_regular_expressions(roles: set[Role], patterns: list[str], wanted: set[Role], model: str) -> None:
    grant = RoleGrant(roles, patterns)
    matched = any(re.fullmatch(each.replace("*", ".*").replace("?", "."), model) for each in patterns)
    for _ in range(2):  # the second time from memory
        assert grant.allows(wanted, model) == (bool(roles & wanted) and matched)
    assert grant.allows(wanted, None) == (bool(roles & wanted) and "*" in patterns)


@given(st.integers(1, 50), st.integers(1, 5), st.lists(st.integers(0, NS_PER_S), max_size=40))
def test_a_bucket_agrees_with_fractions(per_s: int, burst: int, pauses: list[int]) -> None:
    """And says exactly when there is a token again."""
    bucket = TokenBucket(per_s=per_s, burst=burst)
    cost = Fraction(round(NS_PER_S / per_s))
    now, level, before = 5, Fraction(burst), 5
    for pause in pauses:
        now += pause
        level = min(Fraction(burst), level + (now - before) / cost)
        before = now
        wait = bucket.take(now)
        assert (wait == 0) == (level >= 1)
        if wait:
            assert Fraction(wait) == (1 - level) * cost
        else:
            level -= 1


def test_time_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(per_s=1, burst=1)
    assert bucket.take(10) == 0
    assert bucket.take(0) == NS_PER_S
    assert bucket.take(10 + NS_PER_S) == 0


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=30))
def test_concurrency(most: int, steps: list[bool]) -> None:
    allowance = Allowance(concurrency=most)
    running = 0
    for begins in steps:
        if begins:
            began = allowance.begin(0) is None
            assert began == (running < most)
            running += began
        elif running:
            allowance.end()
            running -= 1
    assert allowance.running == running
