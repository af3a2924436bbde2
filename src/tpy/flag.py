"""A flag of `tpy serve`: how it is written, what its value may be, and what giving it does."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar, Unpack

import msgspec


class Kind(enum.Enum):
    """The syntax of a value."""

    TEXT = "text"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    LIST = "list"
    """Repeatable; in the environment variable, values are separated by `Flag.separator`."""


class Support(enum.Enum):
    """The effect of a flag."""

    HONOURED = "honoured"
    IGNORED = "accepted, no effect"


PORT_MAX = 65_535
INT_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
"""The ranges of Triton's integers; counts of bytes are the wide ones."""

Value = str | int | bool | tuple[str, ...]


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """One flag. `name` without dashes in front; `minimum` and `maximum` bound INTEGER; `choices` is for CHOICE; `aliases` are
    other spellings; `why` is the reason why a flag is IGNORED, `successor` the flag in place of a deprecated one. `switches`:
    an INTEGER that also takes true, for 1, and false. `secret`: its values end in `=<key>`, which logs must not show."""

    name: str
    group: str
    kind: Kind
    default: Value
    help: str
    support: Support = Support.HONOURED
    why: str = ""
    successor: str = ""
    choices: Sequence[str] = ()
    minimum: int | None = None
    maximum: int = INT_MAX
    aliases: Sequence[str] = ()
    metavar: str = ""
    switches: bool = False
    secret: bool = False

    @property
    def field(self) -> str:
        """The key of the flag's value in the parsed options."""
        return self.name.replace("-", "_")

    @property
    def environment(self) -> str:
        """The variable that gives the value when the command line does not."""
        return "TPY_" + self.name.upper().replace("-", "_")

    @property
    def separator(self) -> str:
        """The separator of the values of a LIST in that variable: a semicolon where values have commas themselves."""
        return ";" if "," in self.metavar else ","


def kind_of(default: Value, choices: Sequence[str]) -> Kind:
    if choices:
        return Kind.CHOICE
    # bool before int: True is an int in Python.
    for python_type, kind in ((bool, Kind.BOOLEAN), (int, Kind.INTEGER), (tuple, Kind.LIST)):
        if isinstance(default, python_type):
            return kind
    return Kind.TEXT


class _Rest(TypedDict, total=False):
    support: Support
    why: str
    successor: str
    minimum: int
    maximum: int
    aliases: Sequence[str]
    metavar: str
    switches: bool
    secret: bool


def new_flag(group: str, name: str, default: Value, about: str, *, choices: Sequence[str] = (), **rest: Unpack[_Rest]) -> Flag:
    """A flag whose kind follows from its default."""
    kind = kind_of(default, choices)
    return Flag(group=group, name=name, kind=kind, default=default, help=about, choices=choices, **rest)


_Values = TypeVar("_Values", bound=msgspec.Struct)


def read_values(values: Mapping[str, Value], into: type[_Values]) -> _Values:
    """Some of the values of all flags with their types: `into` is a msgspec.Struct with a field per flag, as `Flag.field` names
    it."""
    return msgspec.convert({name: values[name] for name in into.__struct_fields__}, into)
