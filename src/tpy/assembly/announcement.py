"""Writes the start into the log, as Triton does: tables of backends, models and options, then the addresses."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence

import orjson

from tpy.assembly.options import ServerOptions
from tpy.assembly.tables import table
from tpy.frontends.table import frontends
from tpy.frontends.transport import BoundAddress
from tpy.messages import IndexEntry, ModelState
from tpy_control import ControlMode
from tpy_data.registry import BackendRegistry

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
