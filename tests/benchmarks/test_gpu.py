"""`make test-gpu` and `make bench-gpu` where there is no GPU: what they say, and that everything is gone through in a
rehearsal."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import card, obstacle
from tests.gpu.__main__ import WHEELS, main, missing
from tpy.errors import Unavailable

ROOT = Path(__file__).parents[2]


def test_without_a_driver_both_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        raise Unavailable("there is no usable CUDA driver: no file")

    assert main(load) == 0
    assert "test-gpu: skipped: there is no usable CUDA driver: no file" in capsys.readouterr().out


def test_missing_wheels_are_named() -> None:
    assert missing(lambda name: None) == list(WHEELS.values())
    assert missing(lambda name: name != "tensorrt") == []
    assert missing(lambda name: name not in ("tensorrt", "tensorrt_rtx")) == ["tensorrt, or tensorrt-rtx-cu13"]


def test_an_unknown_card_is_said_to_be_one() -> None:
    assert card()


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: make setup-torch")
def test_a_rehearsal_measures_every_line() -> None:
    assert obstacle(rehearse=True) == ""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--rehearse"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert [row[0].strip() for row in rows] == [
        *("plain loop", "served, two instances, 4 clients") * 2,
        *("dynamic batching, requests of one picture",) * 2,
        *("copies beside computation",) * 2,
        *("tensors, batch 1, 1 client",) * 2,
    ]
    assert all(float(row[2]) > 0 for row in rows)
    assert "a rehearsal on the CPU" in done.stdout
