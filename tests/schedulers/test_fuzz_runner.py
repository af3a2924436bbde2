"""The fuzz runner: histories follow from their seed, failures are found and say how to repeat them."""

from __future__ import annotations

import pytest

from fuzz.registry import TARGETS
from fuzz.runner import run_target
from fuzz.target import Target, Violation


def run_odd_seeds_only(seed: int) -> int:
    if seed % 2 == 0:
        raise Violation("an even seed")
    return 1


def test_a_failure_prints_seed_and_replay_command(capsys: pytest.CaptureFixture[str]) -> None:
    target = Target(name="odd", invariant="seeds are odd", run=run_odd_seeds_only, smoke_examples=1)
    assert not run_target(target, seed=7, examples=5, seconds=None)
    printed = capsys.readouterr().out
    assert printed.startswith("odd: seeds are odd")
    assert "FAILED at seed 8: an even seed" in printed
    assert "python -m fuzz --target odd --replay 8" in printed


def test_a_canary_that_holds_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    canary = Target(name="canary", invariant="never", run=lambda _: 1, smoke_examples=1, must_fail=True)
    assert not run_target(canary, seed=0, examples=3, seconds=None)
    assert "must fail and did not" in capsys.readouterr().out


@pytest.mark.parametrize("target", [target for target in TARGETS if not target.must_fail], ids=lambda target: target.name)
def test_a_history_follows_from_its_seed(target: Target) -> None:
    assert target.run(5) == target.run(5) > 0


@pytest.mark.parametrize("target", [target for target in TARGETS if target.must_fail], ids=lambda target: target.name)
def test_the_canary_is_found_out(target: Target) -> None:
    assert run_target(target, seed=0, examples=target.smoke_examples, seconds=None)
