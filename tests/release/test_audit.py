"""The summary that `make audit` makes of the report of pip-audit."""

from __future__ import annotations

import msgspec
import pytest

from release.audit import Report, main, summary

KNOWN = {"name": "a", "version": "1.0", "vulns": []}
FLAWS = [{"id": "PYSEC-1", "fix_versions": ["2.1", "3.0"]}, {"id": "CVE-2", "fix_versions": []}]
BAD = {"name": "b", "version": "2.0", "vulns": FLAWS}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "lines", "code"),
    [
        ([KNOWN], ["1 packages looked up, 0 vulnerabilities; 0 packages could not be looked up"], 0),
        (
            [KNOWN, BAD, SKIPPED],
            [
                "b 2.0: PYSEC-1, fixed in 2.1, 3.0",
                "b 2.0: CVE-2, fixed in no version yet",
                "2 packages looked up, 2 vulnerabilities; 1 packages could not be looked up",
                "not looked up: c",
            ],
            1,
        ),
        ([SKIPPED], ["0 packages looked up, 0 vulnerabilities; 1 packages could not be looked up", "not looked up: c"], 2),
    ],
)
def test_the_summary(packages: list[object], lines: list[str], code: int) -> None:
    report = msgspec.convert({"dependencies": packages, "fixes": []}, Report)
    assert summary(report) == (lines, code)


def test_without_pip_audit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/bin/false"]) == 2
    assert "pip-audit failed with 1" in capsys.readouterr().err
