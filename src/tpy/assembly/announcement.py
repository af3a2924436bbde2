"""Writes the start into the log, as Triton does: tables of backends, models and options (boxes of `+`, `-` and `|`), then the
addresses."""

from __future__ import annotations

import logging
import sys
import textwrap
from collections.abc import Iterable, Sequence

import orjson

from tpy.assembly.options import ServerOptions
from tpy.frontends.table import frontends
from tpy.frontends.transport import BoundAddress
from tpy.messages import IndexEntry, ModelState
from tpy_control import ControlMode
from tpy_data.registry import BackendRegistry

_WRAPPED_CHARACTERS_MIN = 20


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, characters_max: int | None = None) -> str:
    """A boxed table as plain text. A cell has as many lines as its text; control characters are shown as spaces. With
    `characters_max`, the last column is wrapped where its lines would be longer."""
    cells = [[_lines(cell) for cell in row] for row in (columns, *rows)]
    widths = _widths(cells)
    if characters_max is not None:
        room = characters_max - (sum(widths[:-1]) + 3 * len(widths) + 1)
        for row in cells:
            row[-1] = _wrapped(row[-1], max(room, _WRAPPED_CHARACTERS_MIN))
        widths = _widths(cells)
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head, *body = (_shown(row, widths) for row in cells)
    return "\n".join([rule, head, rule, *body, rule])


def _widths(cells: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    return [max(len(line) for row in cells for line in row[column]) for column in range(len(cells[0]))]


def _wrapped(lines: Sequence[str], characters_max: int) -> list[str]:
    return [
        piece
        for line in lines
        for piece in textwrap.wrap(line, characters_max, break_on_hyphens=False, drop_whitespace=True) or [""]
    ]


def _lines(cell: str) -> list[str]:
    return ["".join(c if c.isprintable() else " " for c in line) for line in cell.splitlines()] or [""]


def _shown(row: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    padded = (
        [f" {line:<{width}} " for line in (*lines, *[""] * (max(map(len, row)) - len(lines)))]
        for lines, width in zip(row, widths, strict=True)
    )
    return "\n".join(f"|{'|'.join(line)}|" for line in zip(*padded, strict=True))


_log = logging.getLogger(__name__)

_MODELS_CHARACTERS_MAX = 100
"""Reasons of failures are long; a table that a terminal breaks cannot be read. Elsewhere they are on one line, as Triton's: who
searches the log finds them, with quotes that are not escaped."""


def log_tables(options: ServerOptions, registry: BackendRegistry, models: Iterable[IndexEntry]) -> None:
    """Log the tables, one record each; all options only when the log is verbose."""
    backends = [(b.name, b.path, orjson.dumps(dict(b.config)).decode()) for b in registry.available()]
    _log_table("backends", ("Backend", "Path", "Config"), backends)
    rows = [_model_row(entry) for entry in models]
    characters_max = _MODELS_CHARACTERS_MAX if sys.stderr.isatty() else None
    _log_table("models", ("Model", "Version", "Status"), rows, characters_max=characters_max)
    if not rows and options.control.mode is not ControlMode.EXPLICIT:
        folders = ", ".join(str(repository) for repository in options.control.repositories)
        _log.warning("no models in %s; expected folders such as NAME/1/model.onnx; tpy init makes one", folders)
    everything = options.log.log_verbose_level > 0
    _log_table("options", ("Option", "Value"), [row[:2] for row in options.shown if everything or not row.is_default])


def started(name: str, address: BoundAddress) -> str:
    """The line with the address of a port."""
    service = next(frontend.service for frontend in frontends().values() if frontend.name == name)
    return f"Started {service} at {address}"


def _log_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, characters_max: int | None = None) -> None:
    _log.info(title, extra={"table": table(columns, rows, characters_max=characters_max)})


def failures(models: Iterable[IndexEntry]) -> list[str]:
    """One line for each model that did not load."""
    return [f"{_name(entry)}{_of_version(entry)}: {entry.reason or _state(entry)}" for entry in models]


def _model_row(entry: IndexEntry) -> tuple[str, str, str]:
    status = _state(entry)
    # The whole reason is in the log already, with `failed to load` or `Poll failed`.
    return _name(entry), _version(entry), f"{status}: {entry.reason.splitlines()[0]}" if entry.reason else status


def _name(entry: IndexEntry) -> str:
    return f"{entry.namespace}::{entry.name}" if entry.namespace else entry.name


def _version(entry: IndexEntry) -> str:
    return "-" if entry.version is None else str(entry.version)


def _of_version(entry: IndexEntry) -> str:
    return "" if entry.version is None else f" version {entry.version}"


def _state(entry: IndexEntry) -> str:
    return (entry.state or ModelState.UNAVAILABLE).value
