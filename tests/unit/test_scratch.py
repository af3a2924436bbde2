"""Scratch directories: those of processes that were killed are removed, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tpy.scratch import ScratchDirectory, remove_abandoned

MAKE = """
import sys
from pathlib import Path
from tpy.scratch import ScratchDirectory
made = ScratchDirectory("tpy-x-", Path(sys.argv[1]))
(made.path / "secret").write_text("")
print(made.path.name, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    others = [tmp_path / "tpy-x-ab12-old", tmp_path / "y-locked"]
    for folder in others:
        folder.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "tpy-x-link-locked"
    link.symlink_to(target)
    ours = ScratchDirectory("tpy-x-", tmp_path)
    with subprocess.Popen([sys.executable, "-c", MAKE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        theirs = tmp_path / process.stdout.readline().decode().strip()
        try:
            remove_abandoned(parent=tmp_path)
            assert (theirs / "secret").exists()
        finally:
            process.kill()
    remove_abandoned(parent=tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*others, target, link, ours.path])
    ours.remove()
    ours.remove()
    assert not ours.path.exists()


def test_a_new_one_takes_the_place_of_an_abandoned_one(tmp_path: Path) -> None:
    (tmp_path / "tpy-x-ab12-locked").mkdir()
    made = ScratchDirectory("tpy-x-", tmp_path)
    assert list(tmp_path.iterdir()) == [made.path]
    assert list(made.path.iterdir()) == []
    made.remove()


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    remove_abandoned(parent=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
