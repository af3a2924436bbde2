"""What the server says when it has started, in Triton's manner: tables of backends, models and options, then the addresses."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from tpy.assembly.options import ServerOptions
from tpy.assembly.tables import table
from tpy.messages import IndexEntry, ModelState
from tpy_data.registry import BackendRegistry


def tables(options: ServerOptions, registry: BackendRegistry, models: Iterable[IndexEntry]) -> str:
    """The three tables, one after the other."""
    backends = [(b.name, b.path, orjson.dumps(dict(b.config)).decode()) for b in registry.available()]
    return "\n\n".join(
        (
            table(("Backend", "Path", "Config"), backends),
            table(("Model", "Version", "Status"), [_model_row(entry) for entry in models]),
            table(("Option", "Value"), options.shown),
        )
    )


def failures(models: Iterable[IndexEntry]) -> list[str]:
    """One line for each model that did not load."""
    return [f"{_name(entry)}{_of_version(entry)}: {entry.reason or _state(entry)}" for entry in models]


def _model_row(entry: IndexEntry) -> tuple[str, str, str]:
    status = _state(entry)
    return _name(entry), _version(entry), f"{status}: {entry.reason}" if entry.reason else status


def _name(entry: IndexEntry) -> str:
    return f"{entry.namespace}::{entry.name}" if entry.namespace else entry.name


def _version(entry: IndexEntry) -> str:
    return "-" if entry.version is None else str(entry.version)


def _of_version(entry: IndexEntry) -> str:
    return "" if entry.version is None else f" version {entry.version}"


def _state(entry: IndexEntry) -> str:
    return (entry.state or ModelState.UNAVAILABLE).value
