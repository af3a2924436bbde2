"""A short run of the fuzz targets, so that a change that breaks one is seen here first."""

from __future__ import annotations

import pytest

from fuzz.grpc import targets
from fuzz.target import Target, Violation


@pytest.mark.parametrize(
    ("target", "histories"),
    [(targets.HOSTILE, 150), (targets.CONVERSATION, 30), (targets.FRAMING, 300)],
    ids=lambda value: value.name if isinstance(value, Target) else "",
)
def test_the_invariant_holds(target: Target, histories: int) -> None:
    assert sum(target.run(seed) for seed in range(histories)) > histories


def test_the_canary_is_found() -> None:
    target = targets.FRAMING_CANARY
    with pytest.raises(Violation):
        sum(target.run(seed) for seed in range(target.smoke_examples))
