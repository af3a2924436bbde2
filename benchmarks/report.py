"""The results as people read them: a table in the terminal, and the same in Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.measurement import Cell, Line, Measurement

BEGIN = "<!-- results: written by python -m benchmarks -->"
END = "<!-- end of results -->"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report as JSON: everything that was measured, and how it is summed up."""

    machine: Machine
    rounds: int
    seconds: int
    summary: Sequence[Line]
    measurements: Sequence[Measurement]


def grouped(lines: Iterable[Line]) -> list[tuple[str, list[Line], list[str]]]:
    """Per row: its name, its lines, its contenders with the baseline first, else in the order of measurement."""
    groups = []
    for row, members in itertools.groupby(lines, key=lambda line: line.row):
        own = list(members)
        names = list(dict.fromkeys(cell.contender for line in own for cell in line.cells))
        names.sort(key=lambda name: name != own[0].baseline)
        groups.append((row, own, names))
    return groups


def print_tables(console: Console, lines: Iterable[Line]) -> None:
    """One table for each row; ratios to the baseline in brackets."""
    for row, members, contenders in grouped(lines):
        table = Table(title=row, title_justify="left", title_style="bold")
        table.add_column("case")
        table.add_column("metric")
        for contender in contenders:
            table.add_column(contender, justify="right")
        for line in members:
            table.add_row(line.case, _metric(line), *(cell_text(line.cell(name), line.baseline) for name in contenders))
        console.print(table)


def markdown(report: Report, *, begin: str = BEGIN, end: str = END) -> str:
    """Tables and the circumstances, between `begin` and `end`."""
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    circumstances = (
        f"{machine.date}; {machine.cores} cores of {machine.processor}, {machine.memory_gb} GB, Linux {machine.kernel}, "
        f"Python {machine.python}; load average {machine.load_before:.1f} before, {machine.load_after:.1f} after. "
        f"Medians of {report.rounds} interleaved rounds of {report.seconds} s. Versions: {versions}."
    )
    parts = [begin, circumstances]
    for row, members, contenders in grouped(report.summary):
        parts.append(f"**{row}** (in brackets: ratio to {members[0].baseline})")
        rows = [["case", "metric", *contenders], ["---", "---", *("--:" for _ in contenders)]]
        rows += [
            [line.case, _metric(line), *(cell_text(line.cell(name), line.baseline) for name in contenders)] for line in members
        ]
        parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join([*parts, end]) + "\n"


def with_results(page: str, results: str, *, begin: str = BEGIN, end: str = END) -> str:
    """`page` with what stands between its `begin` and `end` replaced. Raises ValueError when it has no such place."""
    first, last = page.find(begin), page.find(end)
    if first < 0 or last < first:
        raise ValueError(f"the page has no place for results: expected a line {begin!r} and, below it, a line {end!r}")
    return page[:first] + results.rstrip("\n") + page[last + len(end) :]


def _metric(line: Line) -> str:
    return f"{line.metric}, {line.unit}"


def cell_text(cell: Cell | None, baseline: str) -> str:
    """The median, and its ratio unless the cell is the baseline."""
    if cell is None:
        return "-"
    text = _number(cell.median)
    return text if cell.ratio is None or cell.contender == baseline else f"{text} ({cell.ratio:.2f})"


def _number(value: float) -> str:
    """About three digits that mean something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"
