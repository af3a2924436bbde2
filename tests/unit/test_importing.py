"""Imports of `tpy serve` without garbage collections, which would walk all modules again and again."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tpy.cli.importing import uncollected

_START = """
import gc, os

def stop():
    print(gc.isenabled(), gc.get_stats()[2]["collections"] - before, flush=True)
    os._exit(0)

before = gc.get_stats()[2]["collections"]
gc.freeze = stop  # the first thing that a server does when all is imported
from tpy.cli import main
main()
"""


def test_a_server_starts_without_walking_its_modules(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _START, "serve", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.split() == ["True", "0"], done.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
