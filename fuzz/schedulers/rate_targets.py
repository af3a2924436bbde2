"""The targets of the rate limiter."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.schedulers.rate_trial import INVARIANT, run_rates
from fuzz.target import Target
from tpy_data.schedulers.core.rate_limiter import Grant, RateLimiterCore


class GreedyCore(RateLimiterCore):
    """Wrong on purpose: one grant too many is never noticed, because nothing is written down."""

    def take_grants(self) -> list[Grant]:
        grants = super().take_grants()
        self._used.clear()
        return grants


def _canary(chance: Chance) -> int:
    return run_rates(chance, GreedyCore)


RULES = ("declare", "refused", "add", "remove", "want", "unwant", "granted", "release", "forget")
RATE_LIMITER = Target(name="rate_limiter", invariant=INVARIANT, run=run_rates, smoke_examples=2000, rules=RULES)
CANARY = Target(
    name="rate_limiter_canary",
    invariant="a rate limiter that forgets what it gave is found out",
    run=_canary,
    smoke_examples=100,
    must_fail=True,
)
