"""The patterns of --http-header-forward-pattern and --grpc-header-forward-pattern."""

from __future__ import annotations

import re2

from tpy import limits
from tpy.errors import InvalidArgument


class HeaderPattern:
    """A regular expression as Triton reads it: RE2's syntax, found anywhere in a name, ignoring case unless it says `(?-i)`.

    RE2 takes linear time whatever the pattern and the name are. Raises InvalidArgument, naming the flag, for an invalid
    expression."""

    def __init__(self, text: str, *, flag: str) -> None:
        options = re2.Options()
        options.case_sensitive = False
        options.log_errors = False
        try:
            self._pattern = re2.compile(text, options)
        except re2.error as error:
            why = error.args[0] if error.args else b""
            shown = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
            raise InvalidArgument(f"--{flag} is not a regular expression: {shown}") from None
        self.known: dict[str, bool] = {}
        """Names that were matched, with the result. Bounded, see `tpy.limits`."""

    def matches(self, name: str) -> bool:
        """Returns True if the header of this name becomes a parameter."""
        known = self.known.get(name)
        if known is None:
            known = self._pattern.search(name) is not None
            short = len(name) <= limits.HEADER_NAME_REMEMBERED_CHARACTERS_MAX
            if short and len(self.known) < limits.HEADER_NAMES_REMEMBERED_MAX:
                self.known[name] = known
        return known


def checked_pattern(text: str, *, flag: str) -> str:
    """`text` if it is a pattern. Raises InvalidArgument as HeaderPattern: said at the start, before models are loaded."""
    HeaderPattern(text, flag=flag)
    return text
