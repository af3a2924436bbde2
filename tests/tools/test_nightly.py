"""The report of a night: every stage ran, whatever the others did."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.nightly import STAGES, run

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def test_a_stage_that_fails_or_hangs_keeps_no_other_from_running(tmp_path: Path) -> None:
    stages = {
        "wrong words": "sh -c 'echo what was wrong; exit 3'",
        "hangs": "sh -c 'sleep 600 & echo $!; wait'",
        "good": "echo fine",
    }
    assert run(stages, tmp_path, minutes_max=0.02) == 1
    told = (tmp_path / "report.md").read_text()
    assert told.startswith("# 1 of 3 stages passed\n")
    assert re.search(r"^\| wrong words \| \*\*failed \(3\)\*\* \| 0\.0 \|$", told, re.MULTILINE)
    assert re.search(r"^\| hangs \| \*\*its time was over\*\* \|", told, re.MULTILINE)
    assert re.search(r"^\| good \| passed \|", told, re.MULTILINE)
    assert "## wrong words\n\n```text\nwhat was wrong\n```" in told
    assert (tmp_path / "good.log").read_text() == "fine\n"
    child = (tmp_path / "hangs.log").read_text().strip()
    assert not Path(f"/proc/{child}/stat").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text()


def test_all_stages_passed(tmp_path: Path) -> None:
    assert run({"good": "true"}, tmp_path) == 0
    assert (tmp_path / "report.md").read_text().startswith("# 1 of 1 stages passed\n")


def test_the_stages_are_targets_that_exist() -> None:
    for command in STAGES.values():
        words = [word for word in command.split() if "=" not in word]
        if words[0] == "make":
            done = subprocess.run(["make", "-n", *words[1:]], cwd=MAKEFILE.parent, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        else:
            assert (MAKEFILE.parent / words[0]).exists()
