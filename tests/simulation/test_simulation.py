"""The simulation keeps its promises on a few seeds, tells the same story twice, and sees a server that breaks them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.rollouts import simulate_rollout
from tests.simulation.run import simulate
from tests.simulation.witness import Observed
from tpy.messages import InferenceResponse
from tpy_data.engine.rollouts.core.rollout import RolloutCore

_ROOT = Path(__file__).parents[2]

ROLLOUTS = {"none": 5, "crashes": 3, "fails": 9}
"""Seeds by the fault of the new version."""


@pytest.mark.parametrize("seed", range(10))
def test_every_promise_holds(seed: int) -> None:
    report = simulate(seed)
    assert not report.violations, f"python -m tests.simulation --first {seed} --seeds 1 --journal"
    assert report.counts["stopped in time"] + report.counts["stopped at the exit time-out"] == 1


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--first", "3", "--seeds", "1", "--journal"]
    journals = []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=True)
        # The last lines tell how long it took.
        journals.append(done.stdout.partition("seeds from")[0].rpartition("\n")[0])
    assert journals[0] == journals[1]
    assert journals[0].count("\n") > 100


def test_different_seeds_give_different_runs() -> None:
    assert simulate(1).digest != simulate(2).digest


def test_an_answer_of_another_request_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: answers whose ids are swapped."""
    deliver = Observed.deliver

    def swapped(self: Observed, response: InferenceResponse) -> None:
        deliver(self, InferenceResponse(model_name=response.model_name, model_version=1, id="another", error=response.error))

    monkeypatch.setattr(Observed, "deliver", swapped)
    assert any("got the response of" in violation for violation in simulate(1).violations)


@pytest.mark.parametrize("fault", ROLLOUTS)
def test_every_promise_of_a_rollout_holds(fault: str) -> None:
    seed = ROLLOUTS[fault]
    report = simulate_rollout(seed)
    assert f" rollout {fault} " in report.journal[0]
    assert not report.violations, f"python -m tests.simulation --rollouts --first {seed} --seeds 1 --journal"
    assert report.counts["requests in a rollout"] > 50


def test_gates_that_see_no_failure_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: a version that fails is promoted."""
    monkeypatch.setattr(RolloutCore, "_too_many", lambda *given: "")
    found = simulate_rollout(ROLLOUTS["fails"]).violations
    assert any("a version with the fault 'fails' is promoted" in violation for violation in found)
    assert any("requests had failed before the decision" in violation for violation in found)


def test_a_lost_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: an answer that never leaves the engine."""
    deliver = Observed.deliver
    lost: list[str] = []

    def losing(self: Observed, response: InferenceResponse) -> None:
        if lost or response.error is not None:
            deliver(self, response)
        lost.append(response.id)

    monkeypatch.setattr(Observed, "deliver", losing)
    assert any("answer" in violation for violation in simulate(2).violations)
