"""Lifetime: when a connection must get ready, ask its peer to leave, and end."""

from __future__ import annotations

import enum


class LifetimeStep(enum.Enum):
    """A step that is due."""

    CLOSE_UNSETTLED = "the client did not complete the connection's set-up"
    BEGIN_GOAWAY = "the connection is old"
    FINISH_GOAWAY = "the client did not answer in time that it read the GOAWAY"
    CLOSE_OLD = "the grace of an old connection is over"


class Lifetime:
    """Deadlines of one connection, in nanoseconds. Each step is due once."""

    def __init__(self, *, now_ns: int, setup_ns: int, age_ns: int | None, grace_ns: int | None, goaway_ns: int) -> None:
        self._grace_ns = grace_ns
        self._goaway_ns = goaway_ns
        self._due: dict[LifetimeStep, int] = {LifetimeStep.CLOSE_UNSETTLED: now_ns + setup_ns}
        if age_ns is not None:
            self._due[LifetimeStep.BEGIN_GOAWAY] = now_ns + age_ns

    def settled(self) -> None:
        """The set-up is complete. Idempotent."""
        self._due.pop(LifetimeStep.CLOSE_UNSETTLED, None)

    def goaway_begun(self, now_ns: int) -> None:
        """The peer has been asked to leave, for whatever reason."""
        self._due.pop(LifetimeStep.BEGIN_GOAWAY, None)
        self._due[LifetimeStep.FINISH_GOAWAY] = now_ns + self._goaway_ns

    def next_deadline_ns(self) -> int | None:
        """Returns the time at which to call `advance`."""
        return min(self._due.values(), default=None)

    def advance(self, now_ns: int) -> list[LifetimeStep]:
        """Returns the steps that are due now."""
        due = [step for step, at_ns in self._due.items() if at_ns <= now_ns]
        for step in due:
            del self._due[step]
            if step is LifetimeStep.BEGIN_GOAWAY and self._grace_ns is not None:
                self._due[LifetimeStep.CLOSE_OLD] = now_ns + self._grace_ns
        return due
