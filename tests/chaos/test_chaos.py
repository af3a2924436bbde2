"""The quick scenarios as tests; `python -m tests.chaos` runs all and prints the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from .registry import SCENARIOS, Scenario
from .skipped import Skipped


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario.quick], ids=lambda scenario: scenario.name)
def test_promises_hold(scenario: Scenario, tmp_path: Path) -> None:
    try:
        figures = scenario.run(tmp_path)
    except Skipped as skipped:
        pytest.skip(str(skipped))
    print(figures)
    assert figures, scenario.promise
