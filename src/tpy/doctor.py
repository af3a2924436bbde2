"""The lines of `tpy doctor`, for packages that add some: each check is an entry point in the group `tpy.doctor`, NAME =
module:attribute, the attribute a function without arguments that yields findings.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

GROUP: Final = "tpy.doctor"


class Verdict(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    """A server would not start, or not serve."""


class DoctorFinding(msgspec.Struct, frozen=True):
    """One line: what was looked at, what was found, and what to do about it where something is wrong."""

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""
