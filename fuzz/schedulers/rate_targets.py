"""The targets of the rate limiter."""

from __future__ import annotations

import random

from fuzz.schedulers.rate_trial import INVARIANT, run_rates
from fuzz.target import Target
from tpy_data.schedulers.core.rate_limiter import Grant, RateLimiterCore


class GreedyCore(RateLimiterCore):
    """Wrong on purpose: one grant too many is never noticed, because nothing is written down."""

    def take_grants(self) -> list[Grant]:
        grants = super().take_grants()
        self._used.clear()
        return grants


RATE_LIMITER = Target(
    name="rate_limiter", invariant=INVARIANT, run=lambda seed: run_rates(random.Random(seed)), smoke_examples=800
)
CANARY = Target(
    name="rate_limiter_canary",
    invariant="a rate limiter that forgets what it gave is found out",
    run=lambda seed: run_rates(random.Random(seed), GreedyCore),
    smoke_examples=100,
    must_fail=True,
)
