"""Bodies of MLflow's scoring protocol: CSV, and JSON with one of four members.

`dataframe_split` and `dataframe_records` are data frames; `inputs` and `instances` are tensors, by name or without. Source:
https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally/
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.json_text import parse_json
from tpy.limits import MLFLOW_RECORD_CELLS_FREE, MLFLOW_RECORD_CELLS_PER_VALUE_MAX

_LINE_END: Final = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
"""Lines keep their ends: those within quotes belong to the cell."""

_FORMS: Final = ("dataframe_split", "dataframe_records", "instances", "inputs")
_BODY: Final = f"the input must be a JSON dictionary with exactly one of the input fields {', '.join(_FORMS)}"
_SPLIT: Final = frozenset({"columns", "data", "index"})


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """`values` by name, or without names as they are: rows of a matrix, or a tensor. `is_frame`: the model would be given a data
    frame. `is_text`: elements are the cells of a CSV file."""

    values: Mapping[str, Any] | Sequence[Any]
    is_frame: bool = False
    is_text: bool = False
    parameters: Mapping[str, Any] = {}


def read_json(body: bytes | bytearray | memoryview) -> Columns:
    """The columns of a JSON body. Raises InvalidArgument."""
    document = parse_json(body)
    if type(document) is not dict:
        raise InvalidArgument(f"{_BODY}, got {_kind(document)}")
    found = [form for form in _FORMS if form in document]
    if len(found) != 1:
        raise InvalidArgument(f"{_BODY}, got {', '.join(map(echo, document)) or 'none'}")
    parameters = document.get("params")
    if parameters is not None and type(parameters) is not dict:
        raise InvalidArgument(f"params must be a dictionary, got {_kind(parameters)}")
    form = found[0]
    values, is_frame = _READERS[form](document[form], form)
    return Columns(values=values, is_frame=is_frame, parameters=parameters or {})


def read_csv(body: bytes | bytearray | memoryview) -> Columns:
    """The columns of a CSV file whose first line has their names. Raises InvalidArgument."""
    try:
        lines = csv.reader(_LINE_END.split(bytes(body).decode("utf-8-sig")), strict=True)
        rows = [row for row in lines if row]
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"expected CSV in UTF-8: {error}") from None
    except csv.Error as error:
        raise InvalidArgument(f"expected CSV as pandas.DataFrame.to_csv() writes it: {error}") from None
    if len(rows) < 2:
        raise InvalidArgument("expected CSV with a line of column names, and a line for each row")
    names, rows = rows[0], rows[1:]
    return Columns(values=_by_name(names, rows, "text/csv"), is_frame=True, is_text=True)


def _split(value: object, form: str) -> tuple[Mapping[str, Any] | Sequence[Any], bool]:
    if type(value) is not dict or "data" not in value or set(value) - _SPLIT:
        got = ", ".join(map(echo, value)) if type(value) is dict else _kind(value)
        raise InvalidArgument(f"{form}: expected 'data', and optionally 'columns' and 'index', got {got}")
    rows, names = value["data"], value.get("columns")
    if type(rows) is not list or not all(type(row) is list for row in rows):
        raise InvalidArgument(f"{form}: 'data' has to be a list of rows, which are lists")
    if names is None:
        return rows, True
    if type(names) is not list or not all(type(name) in (str, int) for name in names):
        raise InvalidArgument(f"{form}: 'columns' has to be a list of names")
    return _by_name([str(name) for name in names], rows, form), True


def _records(value: object, form: str) -> tuple[Mapping[str, Any], bool]:
    if type(value) is not list or not value or not all(type(row) is dict for row in value):
        raise InvalidArgument(f"{form}: expected a list of records, which are objects, got {_kind(value)}")
    return _joined(value, form), True


def _instances(value: object, form: str) -> tuple[Mapping[str, Any] | Sequence[Any], bool]:
    if type(value) is not list or not value:
        raise InvalidArgument(f"{form}: expected a list of rows, got {_kind(value)}")
    if type(value[0]) is not dict:
        return value, False
    if not all(type(row) is dict and row.keys() == value[0].keys() for row in value):
        raise InvalidArgument(f"{form}: every row has to be an object with the same members, or none has to be one")
    return _joined(value, form), False


def _inputs(value: object, form: str) -> tuple[Mapping[str, Any] | Sequence[Any], bool]:
    if type(value) is dict:
        return value, False
    if type(value) is list:
        if value and all(type(row) is dict for row in value):
            return _joined(value, form), False
        return value, False
    if value is None:
        raise InvalidArgument(f"{form}: expected values, got null")
    return [value], False


_READERS: Final = {"dataframe_split": _split, "dataframe_records": _records, "instances": _instances, "inputs": _inputs}


def _by_name(names: Sequence[str], rows: Sequence[Sequence[Any]], form: str) -> dict[str, list[Any]]:
    if len(set(names)) < len(names):
        raise InvalidArgument(f"{form}: two columns have the same name")
    for at, row in enumerate(rows):
        if len(row) != len(names):
            raise InvalidArgument(f"{form}: row {at} has {len(row)} values, there are {len(names)} columns")
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return dict(zip(names, columns, strict=True))


def _joined(rows: Sequence[Mapping[str, Any]], form: str) -> dict[str, list[Any]]:
    """The columns of records; what a record lacks is None. Raises InvalidArgument for a table that is almost empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    given, cells = sum(map(len, rows)), len(names) * len(rows)
    if cells > given * MLFLOW_RECORD_CELLS_PER_VALUE_MAX + MLFLOW_RECORD_CELLS_FREE:
        raise InvalidArgument(
            f"{form}: {len(rows)} records with {len(names)} different members make a table of {cells} cells, and have values for "
            f"{given}: send records with the same members, or dataframe_split"
        )
    return {name: [row.get(name) for row in rows] for name in names}


_KINDS: Final = {list: "a list", dict: "a dictionary", str: "a string", bool: "a boolean", type(None): "null"}


def _kind(value: object) -> str:
    if type(value) is list and not value:
        return "an empty list"
    return _KINDS.get(type(value), "a number")
