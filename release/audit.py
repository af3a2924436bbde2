"""Looks up the packages of constraints.txt among the known vulnerabilities, by pip-audit: `make audit`.

Exit code 1: some have one. 2: pip-audit failed, or knows none of the packages, as where its data cannot be fetched.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
FOUND, NO_DATA = 1, 2


class Vulnerability(msgspec.Struct):
    """One that is known, and the versions that do not have it."""

    id: str
    fix_versions: list[str] = []


class Package(msgspec.Struct):
    """A package as pip-audit reports it; with `skip_reason` it could not be looked up."""

    name: str
    version: str = ""
    vulns: list[Vulnerability] = []
    skip_reason: str = ""


class Report(msgspec.Struct):
    """The report of pip-audit."""

    dependencies: list[Package]


def summary(report: Report) -> tuple[list[str], int]:
    """Lines for people, and the exit code."""
    lines = [
        f"{package.name} {package.version}: {each.id}, fixed in {', '.join(each.fix_versions) or 'no version yet'}"
        for package in report.dependencies
        for each in package.vulns
    ]
    skipped = [package.name for package in report.dependencies if package.skip_reason]
    known = len(report.dependencies) - len(skipped)
    lines.append(f"{known} packages looked up, {len(lines)} vulnerabilities; {len(skipped)} packages could not be looked up")
    if skipped:
        lines.append(f"not looked up: {', '.join(sorted(skipped))}")
    if not known:
        return lines, NO_DATA
    return lines, FOUND if any(package.vulns for package in report.dependencies) else 0


def main(arguments: Sequence[str]) -> int:
    """`arguments` are the interpreter that has pip-audit."""
    options = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json", "--requirement")
    command = [*arguments, "-m", "pip_audit", *options, str(ROOT / "constraints.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = msgspec.json.decode(done.stdout, type=Report)
    except msgspec.MsgspecError:
        sys.stderr.write(f"{done.stderr}\npip-audit failed with {done.returncode}\n")
        return NO_DATA
    lines, code = summary(report)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable]))
