"""The results of an analysis as text: a table, CSV, JSON, and the winner's config.pbtxt with the reason in front."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import orjson

from tpy.config import ModelConfig, format_pbtxt, parse_pbtxt
from tpy_tools.analyze.core.goal import METRICS, Figures, Goal, Row
from tpy_tools.analyze.core.space import CandidateConfig, changed
from tpy_tools.analyze.html_report import page
from tpy_tools.analyze.running import AnalysisOutcome

_ROWS_SHOWN = 15
_TITLE = 20
_FIELDS = tuple(field for field in Figures.__struct_fields__)


def table(outcome: AnalysisOutcome) -> str:
    """The ranked configurations for a terminal."""
    goal = outcome.plan.goal
    ranked = goal.ranked(outcome.rows)
    level = "requests/s" if outcome.plan.by_rate else "clients"
    head = ("", "configuration", level, "infer/s", "p50 ms", "p99 ms", "queue ms", "batch", "memory MB", "")
    lines: list[tuple[str, ...]] = [head]
    for number, row in enumerate(ranked[:_ROWS_SHOWN], 1):
        lines += _lines(number, row, goal)
    default = outcome.default
    if default is not None and default not in ranked[:_ROWS_SHOWN]:
        lines += _lines(ranked.index(default) + 1, default, goal)
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = []
    for line in lines:
        cells = [
            cell.ljust(width) if column in (1, len(head) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
    if len(ranked) > _ROWS_SHOWN:
        text.append(f"... {len(ranked)} configurations in all")
    return "\n".join(text)


def _lines(number: int, row: Row, goal: Goal) -> list[tuple[str, ...]]:
    """The line of a row; where several models were measured, one more for each of them."""
    place = (str(number), str(row.point.candidate), str(row.point.concurrency))
    note = "; ".join(goal.broken(row))
    if row.figures is not None and not row.figures.stable:
        note = f"{note}; not stable" if note else "not stable"
    models = [("", f"  {name}", "", *_cells(figures), "") for name, figures in row.parts.items()]
    return [(*place, *_cells(row.figures), note), *models]


def _cells(figures: Figures | None) -> tuple[str, ...]:
    if figures is None:
        return ("-",) * 6
    memory = "-" if figures.memory_mb is None else f"{figures.memory_mb:.0f}"
    times = (figures.p50_ms, figures.p99_ms, figures.queue_ms)
    return (f"{figures.throughput:.1f}", *(f"{value:.2f}" for value in times), f"{figures.batch:.1f}", memory)


def winner(outcome: AnalysisOutcome) -> Row | None:
    """The best row that meets the constraints."""
    ranked = outcome.plan.goal.ranked(outcome.rows)
    return ranked[0] if ranked and outcome.plan.goal.meets(ranked[0]) else None


def comparison(outcome: AnalysisOutcome, best: Row) -> list[str]:
    """The winner's figures beside the default's, and the settings that differ."""
    default = outcome.default
    lines = [f"{'':<{_TITLE}}{'this':>12}{'default':>12}"]
    parts: dict[str, tuple[Figures | None, Figures | None]]
    parts = {name: (figures, None if default is None else default.parts.get(name)) for name, figures in best.parts.items()}
    pairs = parts or {"": (best.figures, None if default is None else default.figures)}
    for model, (here, there) in pairs.items():
        lines += [f"{model}:"] * bool(model) + _compared(here, there)
    clients = "-" if default is None else str(default.point.concurrency)
    level = "requests per second" if outcome.plan.by_rate else "clients"
    lines.append(f"{level:<{_TITLE}}{best.point.concurrency:>12}{clients:>12}")
    for one in outcome.space.dimensions:
        value = dict(best.point.candidate.settings).get(one.label, one.default)
        if value != one.default:
            lines.append(f"{one.label}: {value} instead of {'none' if one.default is None else one.default}")
    return lines


def _compared(here: Figures | None, there: Figures | None) -> list[str]:
    """Each metric of a row and of the default."""
    lines = []
    for name, metric in METRICS.items():
        value = None if here is None else metric.of(here)
        before = None if there is None else metric.of(there)
        if value is None:
            continue
        title = f"{name.removeprefix('perf_').replace('_', ' ')}, {metric.unit}"
        gain = f"{(value / before - 1) * 100:+10.0f} %" if before else ""
        lines.append(f"{title:<{_TITLE}}{value:>12.2f}{'-' if before is None else f'{before:.2f}':>12}{gain}")
    return lines


def configurations(outcome: AnalysisOutcome, best: Row, repositories: Sequence[Path]) -> dict[str, str]:
    """The winner's config.pbtxt of each model, with the reason as a comment: the files' own fields and the settings."""
    found = {}
    chosen = dict(best.point.candidate.settings)
    head = (
        f"By tpy analyze: the best of {len(outcome.plan.goal.ranked(outcome.rows))} configurations "
        f"({len(outcome.rows)} measurements) for {outcome.plan.goal}."
    )
    reason = [head, *comparison(outcome, best)]
    for name, complete in outcome.base.items():
        config = _file_config(name, repositories) or complete
        if outcome.base[name].ensemble_scheduling is not None:
            continue
        for one in outcome.space.dimensions:
            if one.model == name:
                config = changed(config, one.knob, chosen.get(one.label, one.default))
        found[name] = "".join(f"# {line}".rstrip() + "\n" for line in reason) + format_pbtxt(config)
    return found


def _file_config(name: str, repositories: Sequence[Path]) -> ModelConfig | None:
    for repository in repositories:
        file = repository / name / "config.pbtxt"
        if file.is_file():
            return parse_pbtxt(file.read_text(encoding="utf-8"), path=str(file)).config
    return None


def csv_text(outcome: AnalysisOutcome) -> str:
    """Every measured point, the best first, in columns; a line for each model that was measured."""
    plan = outcome.plan
    labels = [one.label for one in outcome.space.dimensions]
    text = io.StringIO()
    writer = csv.writer(text)
    level = "requests_per_s" if plan.by_rate else "concurrency"
    writer.writerow(["model", *labels, level, *_FIELDS, "meets_constraints", "problem"])
    for row in sorted(outcome.rows, key=plan.goal.score, reverse=True):
        settings = _settings(outcome, row.point.candidate)
        met = str(plan.goal.meets(row)).lower()
        parts: Mapping[str, Figures | None] = row.parts or {plan.name: row.figures}
        for model, measured in parts.items():
            figures = {} if measured is None else msgspec.structs.asdict(measured)
            values = [_shown(figures.get(field)) for field in _FIELDS]
            writer.writerow([model, *settings.values(), row.point.concurrency, *values, met, row.problem])
    return text.getvalue()


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value).lower()


def _settings(outcome: AnalysisOutcome, candidate: CandidateConfig) -> Mapping[str, object]:
    chosen = dict(candidate.settings)
    return {one.label: chosen.get(one.label, one.default) for one in outcome.space.dimensions}


def json_text(outcome: AnalysisOutcome) -> bytes:
    """The same as JSON, with goal and end."""
    best, goal = winner(outcome), outcome.plan.goal
    document = {
        "models": [profile.model for profile in outcome.plan.profiles],
        "search": outcome.plan.search,
        "goal": msgspec.to_builtins(goal),
        "interrupted": outcome.interrupted,
        "lost": outcome.lost,
        "notes": outcome.space.notes,
        "best": None if best is None else _document(outcome, best),
        "default": None if outcome.default is None else _document(outcome, outcome.default),
        "rows": [_document(outcome, row) for row in sorted(outcome.rows, key=goal.score, reverse=True)],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _document(outcome: AnalysisOutcome, row: Row) -> Mapping[str, object]:
    return {
        "settings": _settings(outcome, row.point.candidate),
        "concurrency": row.point.concurrency,
        "figures": None if row.figures is None else msgspec.to_builtins(row.figures),
        "models": msgspec.to_builtins(row.parts),
        "meets_constraints": outcome.plan.goal.meets(row),
        "problem": row.problem,
    }


def write_files(outcome: AnalysisOutcome, repositories: Sequence[Path]) -> list[Path]:
    """Write all results. Returns the files."""
    folder, best = outcome.plan.output, winner(outcome)
    files: dict[str, bytes] = {"results.csv": csv_text(outcome).encode(), "results.json": json_text(outcome)}
    files["report.html"] = page(outcome, best).encode()
    if best is not None:
        configs = configurations(outcome, best, repositories)
        for name, text in configs.items():
            files["config.pbtxt" if len(configs) == 1 else f"{name}/config.pbtxt"] = text.encode()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return [folder / name for name in files]
