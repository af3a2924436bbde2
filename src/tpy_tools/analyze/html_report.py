"""The results of an analysis as one page of HTML with plots."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from tpy_tools.analyze.core.goal import METRICS, Figures, Goal, Row
from tpy_tools.analyze.core.space import CandidateConfig, SettingRange, Value
from tpy_tools.analyze.running import AnalysisOutcome
from tpy_tools.plots import Bar, Dot, bar_plot, dot_plot, table
from tpy_tools.plots import page as html_page

_KEY = "Each dot is a configuration at some level of load; point at it to see which. Green: the best; orange: the default."


class _View(msgspec.Struct, frozen=True):
    """A model of the analysis, with its goal."""

    model: str
    goal: Goal
    alone: bool

    def figures(self, row: Row | None) -> Figures | None:
        """Its part of a row."""
        return None if row is None else row.figures if self.alone else row.parts.get(self.model)


def page(outcome: AnalysisOutcome, best: Row | None) -> str:
    """The whole page."""
    plan = outcome.plan
    title = f"Configurations of {plan.name}"
    if best is None:
        head = "No configuration meets the constraints."
    else:
        level = plan.level_text(best.point.concurrency)
        head = f"Best: <strong>{escape(str(best.point.candidate))}</strong> with {escape(level)}."
    notes = [
        *outcome.space.notes,
        *(["The run was interrupted."] * outcome.interrupted),
        *([outcome.lost] if outcome.lost else []),
    ]
    views = [_View(profile.model, profile.goal, len(plan.profiles) == 1) for profile in plan.profiles]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>For {escape(str(plan.goal))}. {len(outcome.rows)} measurements. {head}</p>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        f"<p>{_KEY}</p>",
        *(_scatter(outcome, view, best) for view in views),
        "<h2>What each setting did</h2>",
        "<p>The best that was measured with each value. Green: that of the best configuration.</p>",
        *(_bars(outcome, views, dimension, best) for dimension in outcome.space.dimensions),
        f"<h2>Configurations</h2>{_table(outcome)}",
    ]
    return html_page(title, parts)


def _scatter(outcome: AnalysisOutcome, view: _View, best: Row | None) -> str:
    measured = [(row, figures) for row in outcome.rows if (figures := view.figures(row)) is not None]
    if not measured:
        return "<p>Nothing was measured.</p>"
    bounds = [one.maximum for one in view.goal.constraints if one.metric == "perf_latency_p99" and one.maximum]
    order = sorted(measured, key=lambda one: (one[0] == best, one[0].point.candidate == CandidateConfig()))
    dots = [
        Dot(
            x=figures.throughput,
            y=figures.p99_ms,
            label=f"{row.point.candidate}, {outcome.plan.level_text(row.point.concurrency)}: {_summary(figures)}",
            kind="good" if row == best else "other" if row.point.candidate == CandidateConfig() else "",
        )
        for row, figures in order
    ]
    title = "Throughput against latency" + ("" if view.alone else f" of {view.model}")
    return dot_plot(title, dots, across="inferences per second", up="p99, ms", bounds=bounds)


def _bars(outcome: AnalysisOutcome, views: Sequence[_View], dimension: SettingRange, best: Row | None) -> str:
    """For each value of a setting the best that was measured with it: for the model of the setting, or the first."""
    goal = outcome.plan.goal
    view = next((view for view in views if view.model == dimension.model), views[0])
    name = view.goal.objectives[0][0]
    chosen = None if best is None else dict(best.point.candidate.settings).get(dimension.label, dimension.default)
    bars = []
    for value in dimension.values:
        rows = [
            row for row in outcome.rows if dict(row.point.candidate.settings).get(dimension.label, dimension.default) == value
        ]
        top = _top(goal, rows)
        level = "" if top is None else f"{top.point.candidate}, {outcome.plan.level_text(top.point.concurrency)}"
        is_best = best is not None and value == chosen
        bars.append(_bar(value, view.figures(top), name, label=level, is_best=is_best, tried=bool(rows)))
    up = f"{name}, {METRICS[name].unit}" if view.alone else f"{name} of {view.model}"
    return bar_plot(dimension.label, bars, across="", up=up)


def _bar(value: Value, figures: Figures | None, metric: str, *, label: str, is_best: bool, tried: bool) -> Bar:
    shown = "none" if value is None else str(value)
    if figures is None:
        return Bar(name=f"{shown} ({'out of bounds' if tried else 'not measured'})", value=None)
    return Bar(name=shown, value=METRICS[metric].of(figures) or 0.0, label=label, kind="good" if is_best else "")


def _top(goal: Goal, rows: Sequence[Row]) -> Row | None:
    meeting = [row for row in rows if goal.meets(row)]
    return max(meeting, key=goal.score, default=None)


def _summary(figures: Figures) -> str:
    return f"{figures.throughput:.1f} infer/s, p99 {figures.p99_ms:.2f} ms"


def _table(outcome: AnalysisOutcome) -> str:
    goal = outcome.plan.goal
    level = "requests/s" if outcome.plan.by_rate else "clients"
    headings = ("", "configuration", level, "infer/s", "p50 ms", "p99 ms", "memory MB", "")
    lines = []
    for number, row in enumerate(goal.ranked(outcome.rows), 1):
        figures = row.figures
        shown = ["-"] * 4
        if figures is not None:
            memory = "-" if figures.memory_mb is None else f"{figures.memory_mb:.0f}"
            shown = [f"{figures.throughput:.1f}", f"{figures.p50_ms:.2f}", f"{figures.p99_ms:.2f}", memory]
        lines.append([str(number), str(row.point.candidate), str(row.point.concurrency), *shown, "; ".join(goal.broken(row))])
        for name, part in row.parts.items():
            memory = "-" if part.memory_mb is None else f"{part.memory_mb:.0f}"
            lines.append(
                ["", f"\N{EM SPACE}{name}", "", f"{part.throughput:.1f}", f"{part.p50_ms:.2f}", f"{part.p99_ms:.2f}", memory, ""]
            )
    return table(headings, lines, texts=(1, len(headings) - 1))
