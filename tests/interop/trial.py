"""A trial: commands of one tool against one server, and how it went."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from .tools import MissingTool, Tools

_COMMAND_S_MAX = 60.0
_NOTE_CHARACTERS_MAX = 160

COLUMNS = ("tool", "version", "what was run", "result", "note")


class Command(NamedTuple):
    """A command of a tool. It went well when it exits with 0 and its output has a match of `expected`."""

    arguments: Sequence[str | Path]
    expected: str = ""
    seconds_max: float = _COMMAND_S_MAX
    environment: Mapping[str, str] = MappingProxyType({})

    @property
    def name(self) -> str:
        """Its name in notes: the program, without the Python or shell that runs it."""
        words = [Path(word).name for word in self.arguments]
        if words[0] == "sh":
            return words[3]
        return words[1] if words[0].startswith("python") else words[0]


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of commands: the tools, the addresses of the server (none for tools that start one), and a folder of their
    own."""

    tools: Tools
    folder: Path
    models: Path
    http: str = ""
    grpc: str = ""
    metrics: str = ""


class Version(NamedTuple):
    """Finds a tool's version; `of` raises `MissingTool` when it, or what it needs, is not there."""

    tool: str
    of: Callable[[Tools], str]


@dataclass(frozen=True, slots=True)
class Trial:
    """Commands of a tool. `open_point` matches the output of commands that fail for a reason that is known, `reason`."""

    name: str
    version: Version
    ran: str
    server: str
    commands: Callable[[Setting], Sequence[Command]]
    open_point: str = ""
    reason: str = ""
    note: str = ""


@dataclass(slots=True)
class Outcome:
    """Of one trial: how many commands went well, and what the others said."""

    well: int = 0
    failed: list[str] = field(default_factory=list)
    not_yet: int = 0
    skipped: str = ""
    seconds: float = 0.0

    @property
    def result(self) -> str:
        """In one or two words."""
        if self.skipped:
            return "skipped"
        if self.failed:
            return f"**{len(self.failed)} of {self.well + len(self.failed) + self.not_yet} fail**"
        if self.not_yet:
            return f"not there yet: {self.not_yet} of {self.well + self.not_yet}"
        return f"works ({self.well} of {self.well})" if self.well > 1 else "works"


def missing(trial: Trial, tools: Tools) -> str:
    """The requirements of the trial that are not installed."""
    try:
        trial.version.of(tools)
    except MissingTool as error:
        return str(error)
    return ""


def run(trial: Trial, setting: Setting) -> Outcome:
    """Run a trial's commands one after another."""
    outcome = Outcome()
    began = time.monotonic()
    for command in trial.commands(setting):
        _run(trial, command, setting, outcome)
    outcome.seconds = time.monotonic() - began
    return outcome


def row(trial: Trial, outcome: Outcome, tools: Tools) -> str:
    """The trial's row of the table."""
    notes = [outcome.skipped, *outcome.failed, trial.reason if outcome.not_yet else "", "" if outcome.skipped else trial.note]
    note = "; ".join(note for note in notes if note).replace("|", "\\|")
    version = "" if outcome.skipped else trial.version.of(tools)
    return f"| {trial.version.tool} | {version} | {trial.ran} | {outcome.result} | {note} |"


def _run(trial: Trial, command: Command, setting: Setting, outcome: Outcome) -> None:
    code, output = _finish(command, setting)
    if code == 0 and re.search(command.expected, output):
        outcome.well += 1
    elif trial.open_point and re.search(trial.open_point, output):
        outcome.not_yet += 1
    else:
        log = setting.folder / f"{command.name}.{len(outcome.failed)}.log"
        log.write_text(output)
        said = (output.strip().splitlines() or ["nothing"])[-1][:_NOTE_CHARACTERS_MAX]
        end = "ran out of time" if code is None else f"exit {code}"
        outcome.failed.append(f"{command.name}: {end}, {said}")


def _finish(command: Command, setting: Setting) -> tuple[int | None, str]:
    """Exit status (none when the time was up) and output. What a command started ends with it."""
    process = subprocess.Popen(
        [str(argument) for argument in command.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**setting.tools.environment(), **command.environment},
        cwd=setting.folder,
        start_new_session=True,
    )
    try:
        return _communicate(process, command.seconds_max)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _communicate(process: subprocess.Popen[str], seconds_max: float) -> tuple[int | None, str]:
    try:
        output, _ = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, output
