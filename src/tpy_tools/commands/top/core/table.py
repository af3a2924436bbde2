"""Rows as lines that fit the width of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tpy.echo import printable
from tpy.units import MIB
from tpy_tools.commands.explain.core.units import duration, three_digits
from tpy_tools.commands.top.core.metrics import ScrapedMetrics
from tpy_tools.commands.top.core.rows import LatencySource, ModelRow

NAME_WIDTH_MIN: Final = 12
NAME_WIDTH_MAX: Final = 40


class TableColumn(NamedTuple):
    """A column: those of a higher `rank` are the first to go where the terminal is narrow."""

    title: str
    width: int
    rank: int
    cell: Callable[[ModelRow], str]


def _busy(row: ModelRow) -> str:
    if row.instances is None:
        return f"{row.executing:.1f}"
    dead = "" if row.alive == row.instances else "!"
    return f"{row.executing:.1f}/{row.instances}{dead}"


def _time(ns: float | None) -> str:
    return "-" if ns is None else duration(ns).replace(" ", "")


COLUMNS: Final = (
    TableColumn("VER", 4, 7, lambda row: row.version),
    TableColumn("STATE", 7, 2, lambda row: _STATES.get(row.state, row.state[:7])),
    TableColumn("REQ/S", 8, 0, lambda row: number(row.rate)),
    TableColumn("ERR/S", 6, 6, lambda row: number(row.errors)),
    TableColumn("QUEUE", 6, 1, lambda row: "-" if row.queued is None else number(row.queued)),
    TableColumn("BATCH", 6, 5, lambda row: "-" if row.batch is None else f"{row.batch:.1f}"),
    TableColumn("MEAN", 8, 4, lambda row: _time(row.mean_ns)),
    TableColumn("P50", 8, 9, lambda row: _time(row.p50_ns)),
    TableColumn("P99", 8, 3, lambda row: _time(row.p99_ns)),
    TableColumn("BUSY", 8, 8, _busy),
    TableColumn("MEMORY", 8, 10, lambda row: f"{row.memory_bytes / MIB:.0f} MiB" if row.memory_bytes else "-"),
    TableColumn("LIMIT", 14, 11, lambda row: printable(row.waits_for.replace("_", " "))[:14] or "-"),
)
_STATES: Final[Mapping[str, str]] = {"UNAVAILABLE": "UNAVAIL", "UNLOADING": "UNLOAD"}


def columns_for(width: int) -> list[TableColumn]:
    """The columns that fit beside a name."""
    chosen = list(COLUMNS)
    while chosen and NAME_WIDTH_MIN + sum(column.width + 1 for column in chosen) > width:
        chosen.remove(max(chosen, key=lambda column: column.rank))
    return chosen


def header(width: int, sort: str) -> str:
    """The titles, that of the column that rows are sorted by in brackets where there is one."""
    titles = {"rate": "REQ/S", "errors": "ERR/S"}
    columns = columns_for(width)
    cells = [f"[{each.title}]" if each.title == titles.get(sort, sort.upper()) else each.title for each in columns]
    return _line("MODEL" if sort != "name" else "[MODEL]", cells, columns, width)


def line(row: ModelRow, width: int) -> str:
    """A row. One of a model that does not serve has its reason in place of numbers."""
    columns = columns_for(width)
    if row.reason and row.state != "READY":
        name_width = _name_width(columns, width)
        return f"{_fitted(printable(row.name), name_width)} {row.state}: {printable(row.reason)}"[:width]
    return _line(printable(row.name), [column.cell(row) for column in columns], columns, width)


def summary(rows: Sequence[ModelRow], latencies: LatencySource, metrics: ScrapedMetrics | None, trouble: str) -> list[str]:
    """The lines above the table: of the whole server, of its machine, and where latencies come from."""
    ready = sum(row.state == "READY" for row in rows)
    rate, errors = sum(row.rate for row in rows), sum(row.errors for row in rows)
    queued = [row.queued for row in rows if row.queued is not None]
    waiting = f", {number(sum(queued))} waiting" if queued else ""
    lines = [f"{len(rows)} models, {ready} ready; {number(rate)} requests/s, {number(errors)} errors/s{waiting}"]
    if metrics is not None and (machine := _machine(metrics)):
        lines.append(machine)
    lines.append(f"{trouble}; latencies are averages" if trouble else latencies.value)
    return lines


def number(value: float) -> str:
    """A number in at most five characters."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            divisor = size if letter != "k" else 1e3
            return f"{three_digits(value / divisor)}{letter}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _machine(metrics: ScrapedMetrics) -> str:
    parts = []
    if "cpu" in metrics.host:
        parts.append(f"CPU {metrics.host['cpu']:.0%}")
    if "memory_used" in metrics.host and "memory_total" in metrics.host:
        parts.append(f"memory {metrics.host['memory_used'] / MIB:.0f} of {metrics.host['memory_total'] / MIB:.0f} MiB")
    for index, gpu in enumerate(metrics.gpus.values()):
        use = f" {gpu['utilization']:.0%}" if "utilization" in gpu else ""
        memory = f", {gpu['memory_used'] / MIB:.0f} of {gpu['memory_total'] / MIB:.0f} MiB" if len(gpu) == 3 else ""
        parts.append(f"GPU {index}{use}{memory}")
    return "; ".join(parts)


def _line(name: str, cells: Sequence[str], columns: Sequence[TableColumn], width: int) -> str:
    numbers = " ".join(f"{cell:>{column.width}}" for cell, column in zip(cells, columns, strict=True))
    return f"{_fitted(name, _name_width(columns, width))} {numbers}"[:width].rstrip()


def _name_width(columns: Sequence[TableColumn], width: int) -> int:
    rest = width - sum(column.width + 1 for column in columns)
    return max(1, min(NAME_WIDTH_MAX, rest))


def _fitted(name: str, width: int) -> str:
    return name.ljust(width) if len(name) <= width else f"{name[: max(0, width - 1)]}~"
