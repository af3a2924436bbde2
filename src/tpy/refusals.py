"""Refusals: counts requests for inference that a port refused before a model had them: no model counts those."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tpy.errors import ErrorCode

TOO_LARGE = "TOO_LARGE"
"""The reason of a body that is larger than a port takes: there is no error code for it."""

REASONS = (
    *(
        code.name
        for code in ErrorCode
        if code not in (ErrorCode.UNKNOWN, ErrorCode.CANCELLED, ErrorCode.ALREADY_EXISTS)  # nothing is refused for these
    ),
    TOO_LARGE,
)
"""All reasons, in the order of the page of metrics."""


class Refusals:
    """The counts of the server. In a frontend process `send` tells them to the engine, where they are kept."""

    def __init__(self, send: Callable[[str], None] | None = None) -> None:
        self._counts = dict.fromkeys(REASONS, 0)
        self._send = send

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of refusals for each reason."""
        return self._counts

    def count(self, reason: str) -> None:
        """One more, for this reason. No-op for an unknown reason."""
        if reason not in self._counts:
            return
        if self._send is not None:
            self._send(reason)
        else:
            self._counts[reason] += 1
