"""The legal messages of each side in each state: one table.

    SPAWNED --LOAD--> STARTING --HELLO--> LOADING --READY--> SERVING --FINALIZE--> FINALIZING --FINALIZED--> ENDED
                                             |
                                           FAILED --> ENDED           (while it serves, too: it can run nothing any more)

Beside these moves a worker may ask for something and notify of something from LOADING on; while it serves come batches,
responses, and calls of its model, of which all but batches may go on while it finalizes. Whether a batch, a request, or a call
is open is for those to check who keep them. A message that is not in the table is a ProtocolViolation: the session is then
BROKEN and nothing more is sent.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from .frames import FrameKind, ProtocolViolation


class SessionState(enum.Enum):
    """The state of a session."""

    SPAWNED = "spawned"
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    FINALIZING = "finalizing"
    ENDED = "ended"
    BROKEN = "broken"


_FROM_LOADING_ON = (FrameKind.QUERY, FrameKind.REPLY, FrameKind.NOTIFICATION)
_FROM_SERVING_ON = (
    *_FROM_LOADING_ON,
    FrameKind.RESPONSE,
    FrameKind.PROGRESS,
    FrameKind.CALL,
    FrameKind.ANSWER,
    FrameKind.CALL_PROGRESS,
    FrameKind.READY_CHECK,
)
WHILE_SERVING = frozenset((*_FROM_SERVING_ON, FrameKind.EXECUTE, FrameKind.RESULT, FrameKind.NOT_STARTED))
"""Messages that are legal while it serves, and change no state then."""

LEGAL_MOVES: Mapping[tuple[SessionState, FrameKind], SessionState] = MappingProxyType(
    {
        (SessionState.SPAWNED, FrameKind.LOAD): SessionState.STARTING,
        (SessionState.STARTING, FrameKind.HELLO): SessionState.LOADING,
        (SessionState.LOADING, FrameKind.READY): SessionState.SERVING,
        (SessionState.LOADING, FrameKind.FAILED): SessionState.ENDED,
        (SessionState.SERVING, FrameKind.FAILED): SessionState.ENDED,
        (SessionState.SERVING, FrameKind.FINALIZE): SessionState.FINALIZING,
        (SessionState.FINALIZING, FrameKind.FINALIZED): SessionState.ENDED,
        **{(SessionState.LOADING, kind): SessionState.LOADING for kind in _FROM_LOADING_ON},
        **{(SessionState.SERVING, kind): SessionState.SERVING for kind in WHILE_SERVING},
        **{(SessionState.FINALIZING, kind): SessionState.FINALIZING for kind in _FROM_SERVING_ON},
    }
)

_MOVES_OF = {state: {kind: after for (before, kind), after in LEGAL_MOVES.items() if before is state} for state in SessionState}
"""The same by state: a message costs one look at a table whose keys are numbers."""


class WorkerSession:
    """The state of one connection, seen from the server."""

    def __init__(self) -> None:
        self.state = SessionState.SPAWNED
        self._moves = _MOVES_OF[SessionState.SPAWNED]

    def may(self, kind: FrameKind) -> bool:
        """Returns True if this may be sent now."""
        return kind in self._moves

    def apply(self, kind: FrameKind) -> None:
        """A message was sent or received. Raises ProtocolViolation when it may not be now."""
        after = self._moves.get(kind)
        if after is None:
            before = self.state
            self._enter(SessionState.BROKEN)
            raise ProtocolViolation(f"{kind.name} while {before.value}")
        if after is not self.state:  # what changes nothing may be sent while another thread of the same end changes it
            self._enter(after)

    def break_off(self) -> None:
        """The peer is gone or not to be trusted."""
        self._enter(SessionState.BROKEN)

    def _enter(self, state: SessionState) -> None:
        self.state = state
        self._moves = _MOVES_OF[state]
