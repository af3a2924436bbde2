"""Faults of a cluster of three raylets under load: with one retry no request is lost, and no answer is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from .faults import SCENARIOS

_TIMEOUT_S = 900


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("faults")
    command = [sys.executable, "-m", "tests.ray.faults", folder]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"scenario"')]
    assert ended.returncode == 0, ended.stderr[-4000:]
    return {line["scenario"]: line for line in lines}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_request_is_lost_and_no_answer_is_wrong(results: dict[str, dict[str, Any]], scenario: str) -> None:
    found = results[scenario]
    assert found["sent"] > 100
    assert (found["lost"], found["wrong"]) == (0, 0), found
