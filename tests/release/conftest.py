"""The last line of a run with the tests of the wheels: the interpreters on which they served, and those that were not here."""

from __future__ import annotations

import re
from typing import Any

import pytest

_TEST = re.compile(r"::test_the_wheels_serve_on_every_python_that_is_here\[(.+)\]$")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    served, missing = (_pythons(terminalreporter.stats.get(outcome, [])) for outcome in ("passed", "skipped"))
    if served or missing:
        terminalreporter.line(f"the wheels served on: {served or 'none'}; not tried: {missing or 'none'}")


def _pythons(reports: list[Any]) -> str:
    """Of the reports of these tests; a skip with its reason."""
    found = []
    for report in reports:
        name = _TEST.search(report.nodeid)
        if name:
            why = f" ({report.longrepr[2].removeprefix('Skipped: ')})" if report.skipped else ""
            found.append(f"{name[1]}{why}")
    return ", ".join(found)
