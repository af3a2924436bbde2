"""The regions that clients registered, in a frontend process: the same segments, opened once more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from tpy.regions import Region, RegionCopies, SegmentRegion, reopen_segment
from tpy.remote.core.replica import RegionEntry

_log = logging.getLogger(__name__)


class RegionReplicas:
    """`opened` is what is registered, by name."""

    def __init__(self) -> None:
        self._copies = RegionCopies()
        self._regions: dict[str, Region] = {}
        self.opened: Mapping[str, Region] = MappingProxyType(self._regions)

    def update(self, changed: Mapping[str, RegionEntry | None]) -> None:
        """Take what has changed. A region that cannot be opened is not there: it was unregistered meanwhile, or there are no open
        files left, which the log says."""
        for name, entry in changed.items():
            self._regions.pop(name, None)
            if entry is not None:
                try:
                    descriptor = reopen_segment(entry.pid, entry.descriptor, entry.identity)
                except OSError as error:
                    _log.warning(
                        "shared memory region '%(region)s' cannot be opened: %(reason)s", {"region": name, "reason": error}
                    )
                    continue
                self._regions[name] = SegmentRegion(entry.facts, descriptor, self._copies)
