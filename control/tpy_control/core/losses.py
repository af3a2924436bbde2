"""Losses: a repository that loses most of its models at once has lost its disk or its bucket, more likely than its models.

What is gone is held back, and served on, until that has been so for two poll intervals, or somebody says that it is meant.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class LossEvent(enum.Enum):
    """The change of a loss by a poll."""

    NONE = "none"
    BEGUN = "begun"
    CONFIRMED = "confirmed"
    OVER = "over"
    """Most of the models are there again."""


class Poll(msgspec.Struct, frozen=True):
    """The outcome of a poll of one repository: the names that count as there although they are gone."""

    held: frozenset[str]
    event: LossEvent
    known: int
    """The number of models before the loss."""


class _Repository(msgspec.Struct):
    known: frozenset[str] = frozenset()
    lost_since_ns: int | None = None
    held: frozenset[str] = frozenset()


class Losses:
    """Keeps, per repository, the names that it had, and since when most of them are gone."""

    def __init__(self, hold_ns: int) -> None:
        """A loss is confirmed when it has lasted for `hold_ns`; 0 holds nothing."""
        self._hold_ns = hold_ns
        self._repositories: dict[str, _Repository] = {}

    def repositories(self) -> set[str]:
        """All repositories that had models."""
        return set(self._repositories)

    def held(self) -> Mapping[str, int]:
        """The number of names that are held, by repository."""
        return {name: len(repository.held) for name, repository in self._repositories.items()}

    def confirm(self) -> None:
        """Take as gone what is held: somebody has said that it is meant."""
        for repository in self._repositories.values():
            repository.known -= repository.held
            repository.lost_since_ns, repository.held = None, frozenset()

    def poll(self, repository: str, names: frozenset[str], now_ns: int) -> Poll:
        """Record the models that a repository has now."""
        state = self._repositories.setdefault(repository, _Repository())
        known, was_held = state.known, state.lost_since_ns is not None
        gone = known - names
        if self._hold_ns and len(known) > 1 and 2 * len(gone) > len(known):
            since_ns = now_ns if state.lost_since_ns is None else state.lost_since_ns
            if now_ns - since_ns < self._hold_ns:
                # Models that are new meanwhile make the loss no smaller.
                state.lost_since_ns, state.held = since_ns, gone
                return Poll(gone, LossEvent.NONE if was_held else LossEvent.BEGUN, len(known))
            event = LossEvent.CONFIRMED
        else:
            event = LossEvent.OVER if was_held else LossEvent.NONE
        state.known, state.lost_since_ns, state.held = names, None, frozenset()
        return Poll(frozenset(), event, len(known))
