"""The curves as Markdown: tables, and the plots beside them."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.growth.curves import CURVES, GrowthReport, series_of

BEGIN = "<!-- growth: written by python -m benchmarks.growth -->"
END = "<!-- end of growth -->"


def markdown(report: GrowthReport, plots: Mapping[str, str]) -> str:
    """One table for each curve that was measured, between BEGIN and END. `plots`: curve -> path of its plot, if it has one."""
    machine = report.machine
    circumstances = (
        f"{machine.date}; {machine.cores} cores of {machine.processor}, {machine.memory_gb} GB, Linux {machine.kernel}, "
        f"Python {machine.python}, commit {machine.versions.get('tpy commit', 'unknown')}; load average "
        f"{machine.load_before:.1f} before, {machine.load_after:.1f} after. "
        f"Medians of {report.rounds} interleaved rounds of {report.seconds} s."
    )
    parts = [BEGIN, circumstances]
    for curve in CURVES:
        series = series_of(report.points, curve.name)
        if not series:
            continue
        parts.append(f"**{curve.title}** ({curve.y})")
        if curve.name in plots:
            parts.append(f"![{curve.title}: {curve.y}, against {curve.x}]({plots[curve.name]})")
        places = sorted({x for line in series.values() for x in line})
        rows = [[curve.x, *(f"{x:,}" for x in places)], ["---", *("--:" for _ in places)]]
        rows += [[name, *(_number(line.get(x)) for x in places)] for name, line in series.items()]
        parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join([*parts, *report.failures, END]) + "\n"


def with_growth(page: str, text: str) -> str:
    """`page` with what stands between its BEGIN and END replaced. Raises ValueError when it has no such place."""
    begin, end = page.find(BEGIN), page.find(END)
    if begin < 0 or end < begin:
        raise ValueError(f"the page has no place for curves: expected a line {BEGIN!r} and, below it, a line {END!r}")
    return page[:begin] + text.rstrip("\n") + page[end + len(END) :]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
