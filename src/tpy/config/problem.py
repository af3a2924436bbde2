"""A problem in a configuration, located, and the error that carries all of them."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tpy.errors import InvalidArgument


class Severity(enum.Enum):
    """An error keeps a model from being served, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


class Location(NamedTuple):
    """A place in a text; both count from 1, columns in characters. (0, 0) when the place is not known."""

    line: int
    column: int


NOWHERE = Location(0, 0)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a configuration.

    `field` is the path of the field, such as `input[0].dims` or `parameters["key"].string_value`; "" is the whole
    configuration. `path` is the file ("" when it did not come from one). `line` and `column` count from 1; 0 is unknown.
    `message` says what is wrong, in Triton's words where it has some; `expected` what would be right, when that adds to it.
    """

    message: str
    path: str = ""
    line: int = 0
    column: int = 0
    field: str = ""
    expected: str = ""
    severity: Severity = Severity.ERROR

    @property
    def is_error(self) -> bool:
        """True if this problem keeps the model from being served."""
        return self.severity is Severity.ERROR

    def __str__(self) -> str:
        """One line: `path:line:column: field: message; expected ...`, without what is not known; a warning says so."""
        place = ":".join(str(part) for part in (self.path, self.line, self.column) if part)
        expected = f"; expected {self.expected}" if self.expected else ""
        warning = "" if self.is_error else "warning"
        text = ": ".join(part for part in (place, warning, self.field, self.message) if part)
        return " ".join(f"{text}{expected}".split("\n"))


class ConfigError(InvalidArgument):
    """A configuration cannot be used. `problems` has all that was found, errors and warnings; the sentence for the caller is
    `message`, else one line for each error."""

    def __init__(self, problems: Iterable[Problem], *, message: str | None = None) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        lines = "\n".join(str(problem) for problem in self.problems if problem.is_error)
        super().__init__(lines if message is None else message)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a configuration: the file and the positions of its fields."""

    path: str = ""
    locations: Mapping[str, Location] = msgspec.field(default_factory=dict)

    def locate(self, field: str) -> Location:
        """The place of the field, else of the nearest enclosing one that the text has."""
        while field:
            place = self.locations.get(field)
            if place is not None:
                return place
            field = _enclosing(field)
        return self.locations.get("", NOWHERE)

    def problem(self, field: str, message: str, *, expected: str = "", severity: Severity = Severity.ERROR) -> Problem:
        """A problem with `field`, at its place."""
        place = self.locate(field)
        return Problem(
            message=message,
            path=self.path,
            line=place.line,
            column=place.column,
            field=field,
            expected=expected,
            severity=severity,
        )


NO_SOURCE = Source()


def entry(path: str, key: str | int) -> str:
    """The path of a map's entry: `parameters["key"]`, `priority_queue_policy[1]`."""
    return f"{path}[{json.dumps(key)}]"


def errors_of(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems that keep the model from being served."""
    return tuple(problem for problem in problems if problem.is_error)


def _enclosing(field: str) -> str:
    """The path one step up: `a[0].b` -> `a[0]` -> `a` -> "". Map keys are quoted and may hold any character."""
    if field.endswith("]"):
        return field[: _bracket(field)]
    dot = field.rfind(".")
    return field[:dot] if dot >= 0 else ""


def _bracket(field: str) -> int:
    """The index of the last `[...]` of a path."""
    if field.endswith('"]'):
        return field.rindex('["')
    return field.rindex("[")
