"""Imports of the programs: without garbage collections, and interrupted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "tpy.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
import tpy.cli
"""


_START = """
import gc

def stop():
    print(gc.isenabled(), [each["collections"] for each in gc.get_stats()] == before)
    raise SystemExit

gc.freeze = stop  # the first thing that a command does when all is imported
from tpy.__main__ import {program}
before = [each["collections"] for each in gc.get_stats()]
{program}()
"""


@pytest.mark.parametrize(("program", "command"), [("main", ["serve"]), ("tritonserver", []), ("main", ["doctor"])])
def test_modules_are_not_walked_while_they_are_imported(program: str, command: list[str], tmp_path: Path) -> None:
    code = _START.format(program=program)
    ended = subprocess.run(
        [sys.executable, "-c", code, *command, *([] if "doctor" in command else ["--model-repository", str(tmp_path)])],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.stdout.split() == ["False", "True"], ended.stderr


def test_a_command_collects_garbage(tmp_path: Path) -> None:
    code = (
        "import gc, atexit, sys; atexit.register(lambda: print('enabled', gc.isenabled())); from tpy.__main__ import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "check", str(tmp_path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert ended.stdout.splitlines()[-1] == "enabled True"


def test_an_interrupt_during_the_imports_is_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")
