"""The quick attacks as tests; `python -m tests.attack` runs all and prints what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from .arena import Outcome
from .registry import ATTACKS, BASELINE, Attack
from .verdict import cells, problems

_BUSY_MS = 1000.0
"""Time that a machine with other tests may add to the slowest answer: a loop that is held up is so for longer."""


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Without an attack."""
    return BASELINE.run(tmp_path_factory.mktemp("baseline"))


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.quick], ids=lambda attack: attack.name)
def test_it_holds(attack: Attack, baseline: Outcome, tmp_path: Path) -> None:
    outcome = attack.run(tmp_path)
    print(cells(attack, outcome, baseline))
    assert problems(attack, outcome, baseline, live_ms_more=_BUSY_MS) == [], outcome
