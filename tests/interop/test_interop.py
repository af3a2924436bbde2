"""The program that runs tools, without any of them: programs that end in each way take their place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .__main__ import run_all
from .registry import NO_SERVER, SERVERS, TRIALS
from .repository import EXAMPLES, MORE, SEVEN, write_models
from .tools import MissingTool, Tools
from .trial import Command, Setting, Trial, Version


def test_the_models_are_ones_that_the_server_takes(tmp_path: Path) -> None:
    write_models(tmp_path)
    for folder, count in ((EXAMPLES, 8), (SEVEN, 7), (MORE, 9)):
        command = [sys.executable, "-m", "tpy", "check", str(tmp_path / folder)]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert checked.returncode == 0, checked.stderr
        assert f"{count} models checked, 0 with errors" in checked.stdout


def test_each_trial_has_a_name_and_a_server_of_its_own_or_a_shared_one() -> None:
    names = [trial.name for trial in TRIALS]
    assert len(set(names)) == len(names)
    assert {trial.server for trial in TRIALS} == {NO_SERVER, *SERVERS}


def test_tools_that_are_not_installed_are_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_all(TRIALS, _tools(tmp_path), seconds_max=60) == 0
    table = capsys.readouterr().out
    assert table.count("| skipped |") == len(TRIALS)
    assert "TPY_TRITON_CLIENT names no copy" in table
    assert "tritony is in no environment 'tritony' of tools or the peers" in table
    assert "perf_analyzer is neither on the PATH nor among the peers" in table


@pytest.mark.parametrize(
    ("programs", "status", "result"),
    [
        (("print('PASS')",), 0, "works"),
        (("print('PASS')", "print('PASS')"), 0, "works (2 of 2)"),
        (("print('PASS')", "print('wrong')"), 1, "**1 of 2 fail** | 2.py: exit 0, wrong"),
        (("print('PASS'); raise SystemExit(3)",), 1, "**1 of 1 fail** | 1.py: exit 3, PASS"),
        (("print('waits', flush=True); import signal; signal.pause()",), 1, "**1 of 1 fail** | 1.py: ran out of time, waits"),
        (("raise SystemExit('it is switched off')",), 0, "not there yet: 1 of 1 | for a reason"),
        (
            ("raise SystemExit('it is switched off')", "raise SystemExit('broken')"),
            1,
            "**1 of 2 fail** | 2.py: exit 1, broken; for a reason",
        ),
    ],
)
def test_how_commands_end_is_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], programs: Sequence[str], status: int, result: str
) -> None:
    def commands(setting: Setting) -> list[Command]:
        written = [setting.folder / f"{number}.py" for number in range(1, len(programs) + 1)]
        for path, program in zip(written, programs, strict=True):
            path.write_text(program)
        return [Command((sys.executable, path), "PASS", 2.0 if "pause" in path.read_text() else 60.0) for path in written]

    trial = Trial("one", Version("a tool", lambda tools: "1.2"), "this", NO_SERVER, commands, "switched off", "for a reason")
    assert run_all([trial], _tools(tmp_path), seconds_max=60) == status
    assert f"| a tool | 1.2 | this | {result}" in capsys.readouterr().out


def test_trials_that_the_time_does_not_suffice_for_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial("late", Version("a tool", lambda tools: "1.2"), "this", NO_SERVER, lambda setting: [])
    assert run_all([trial], _tools(tmp_path), seconds_max=-1) == 1
    assert "not tried, the time was up: late" in capsys.readouterr().out


def test_examples_are_read_out_of_a_work_tree(tmp_path: Path) -> None:
    folder = tmp_path / "client" / "src" / "python" / "examples"
    folder.mkdir(parents=True)
    tools = Tools(folder=tmp_path, peers=tmp_path, scratch=tmp_path, examples=tmp_path / "client")
    assert tools.client_examples() == folder
    with pytest.raises(MissingTool, match="nor is it a git directory"):
        Tools(folder=tmp_path, peers=tmp_path, scratch=tmp_path / "scratch", examples=tmp_path).client_examples()


def _tools(folder: Path) -> Tools:
    scratch = folder / "scratch"
    scratch.mkdir()
    return Tools(folder=folder / "tools", peers=folder / "peers", scratch=scratch)
