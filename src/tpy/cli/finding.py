"""A finding of `tpy doctor`."""

from __future__ import annotations

import enum

import msgspec


class Verdict(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    """A server would not start, or not serve."""


class Finding(msgspec.Struct, frozen=True):
    """One line: what was looked at, what was found, and what to do about it where something is wrong."""

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""
