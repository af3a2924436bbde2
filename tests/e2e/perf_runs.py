"""Runs of `tpy perf` in this process: only its workers are others."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tpy.cli.parsing import UsageError
from tpy_tools.commands.perf.command import perf

from .server import RunOutcome


def run_perf(*arguments: str) -> RunOutcome:
    """A run to its end."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        perf.main(list(arguments), standalone_mode=False)
    assert isinstance(ended.value.code, int)
    return RunOutcome(ended.value.code, out.getvalue(), err.getvalue())


def results_of(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The results of a run, from its JSON."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "result.json"
        outcome = run_perf("--json", str(report), *arguments)
        assert outcome.code == code, outcome.err + outcome.out
        results: list[dict[str, Any]] = json.loads(report.read_text())["results"]
    return results


def refused(*arguments: str) -> str:
    """The error of a run that measures nothing."""
    with pytest.raises(UsageError) as error:
        perf.main(list(arguments), standalone_mode=False)
    return str(error.value)
