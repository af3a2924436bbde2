"""StartDelay: schedulers that hold back until enough waits, so that tests of batching do not depend on time."""

from __future__ import annotations

import msgspec


class StartDelay(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler starts no batch until `queued` requests wait, and with the sequence strategy direct, where they are counted
    in slots, `backlogged` in the backlog; from then on it works as ever. 0: it starts at once. `backlogged` counts only where
    `queued` is set, and with the strategy oldest each instance counts what is ready for it: all as in Triton."""

    queued: int = 0
    backlogged: int = 0


NO_START_DELAY = StartDelay()
