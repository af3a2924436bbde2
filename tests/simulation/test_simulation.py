"""The simulation keeps its promises on a few seeds, tells the same story twice, and sees a server that breaks them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import simulate
from tests.simulation.witness import Observed
from tpy.messages import InferenceResponse

_ROOT = Path(__file__).parents[2]


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
