"""When a directory is quiet enough to be used: after it has looked the same for a while.

Copies grow file by file; whoever loads at the first event loads a part. A directory that keeps changing waits, the others do not.
"""

from __future__ import annotations

import msgspec

from tpy.ids import ModelId
from tpy_control.core.picture import Glance, ModelLocation


class Sight(msgspec.Struct, frozen=True):
    """What one look shows of a model: its one directory, or () when it is gone, or several (a duplicate name)."""

    locations: tuple[ModelLocation, ...] = ()
    glance: Glance | None = None


class _Pending(msgspec.Struct, frozen=True):
    sight: Sight
    since_ns: int


class Settling:
    """Remembers, per model, the sight last used and one that waits."""

    def __init__(self, settle_ns: int) -> None:
        self._settle_ns = settle_ns
        self._used: dict[ModelId, Sight] = {}
        self._pending: dict[ModelId, _Pending] = {}

    def models(self) -> set[ModelId]:
        """All models that were seen and are not forgotten."""
        return self._used.keys() | self._pending.keys()

    def look(self, model: ModelId, sight: Sight, now_ns: int) -> bool:
        """Whether this sight is to be used now: it is new, and has been the same for the settling time."""
        if self._used.get(model, Sight()) == sight:
            self._pending.pop(model, None)
            return False
        pending = self._pending.get(model)
        if pending is None or pending.sight != sight:
            pending = self._pending[model] = _Pending(sight, now_ns)
        return now_ns - pending.since_ns >= self._settle_ns

    def use(self, model: ModelId, sight: Sight) -> None:
        """The sight was used (which may be newer than the one that was looked at)."""
        self._pending.pop(model, None)
        if sight.locations:
            self._used[model] = sight
        else:
            self._used.pop(model, None)

    def next_deadline_ns(self) -> int | None:
        """When the first waiting sight will have settled; None when nothing waits."""
        return min((pending.since_ns + self._settle_ns for pending in self._pending.values()), default=None)
