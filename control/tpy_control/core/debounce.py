"""Debouncing: a changed directory is used only after its fingerprint has been the same for a while.

Copies grow file by file: a load at the first event would load a part. A directory that keeps changing waits, the others do not.
"""

from __future__ import annotations

import msgspec

from tpy.ids import ModelId
from tpy_control.core.scan import DirectoryFingerprint, ModelLocation


class PollResult(msgspec.Struct, frozen=True):
    """The directories of a model at one poll: normally one, () when it is gone, several for a duplicate name."""

    locations: tuple[ModelLocation, ...] = ()
    fingerprint: DirectoryFingerprint | None = None


class _Pending(msgspec.Struct, frozen=True):
    result: PollResult
    since_ns: int


class Debouncer:
    """Keeps, per model, the result last used and one that waits."""

    def __init__(self, settle_ns: int) -> None:
        self._settle_ns = settle_ns
        self._used: dict[ModelId, PollResult] = {}
        self._pending: dict[ModelId, _Pending] = {}

    def models(self) -> set[ModelId]:
        """All models that have been polled and are not gone."""
        return self._used.keys() | self._pending.keys()

    def observe(self, model: ModelId, result: PollResult, now_ns: int) -> bool:
        """Record a poll. Returns True if the result is to be used now: it is new, and has been the same for `settle_ns`."""
        if self._used.get(model, PollResult()) == result:
            self._pending.pop(model, None)
            return False
        pending = self._pending.get(model)
        if pending is None or pending.result != result:
            pending = self._pending[model] = _Pending(result, now_ns)
        return now_ns - pending.since_ns >= self._settle_ns

    def keep(self, model: ModelId) -> None:
        """Forget what was polled of a model since it was used: that is not to be."""
        self._pending.pop(model, None)

    def mark_used(self, model: ModelId, result: PollResult) -> None:
        """Record that a result was used, which may be newer than the one observed."""
        self._pending.pop(model, None)
        if result.locations:
            self._used[model] = result
        else:
            self._used.pop(model, None)

    def next_deadline_ns(self) -> int | None:
        """The time at which the first waiting result is to be used; None when nothing waits."""
        return min((pending.since_ns + self._settle_ns for pending in self._pending.values()), default=None)
