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

from .frames import Kind, ProtocolViolation


class State(enum.Enum):
    """The state of a session."""

    SPAWNED = "spawned"
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    FINALIZING = "finalizing"
    ENDED = "ended"
    BROKEN = "broken"


_FROM_LOADING_ON = (Kind.QUERY, Kind.REPLY, Kind.NOTIFICATION)
_FROM_SERVING_ON = (*_FROM_LOADING_ON, Kind.RESPONSE, Kind.PROGRESS, Kind.CALL, Kind.ANSWER, Kind.CALL_PROGRESS, Kind.READY_CHECK)
WHILE_SERVING = frozenset((*_FROM_SERVING_ON, Kind.EXECUTE, Kind.RESULT, Kind.NOT_STARTED))
"""Messages that are legal while it serves, and change no state then."""

LEGAL_MOVES: Mapping[tuple[State, Kind], State] = MappingProxyType(
    {
        (State.SPAWNED, Kind.LOAD): State.STARTING,
        (State.STARTING, Kind.HELLO): State.LOADING,
        (State.LOADING, Kind.READY): State.SERVING,
        (State.LOADING, Kind.FAILED): State.ENDED,
        (State.SERVING, Kind.FAILED): State.ENDED,
        (State.SERVING, Kind.FINALIZE): State.FINALIZING,
        (State.FINALIZING, Kind.FINALIZED): State.ENDED,
        **{(State.LOADING, kind): State.LOADING for kind in _FROM_LOADING_ON},
        **{(State.SERVING, kind): State.SERVING for kind in WHILE_SERVING},
        **{(State.FINALIZING, kind): State.FINALIZING for kind in _FROM_SERVING_ON},
    }
)

_MOVES_OF = {state: {kind: after for (before, kind), after in LEGAL_MOVES.items() if before is state} for state in State}
"""The same by state: a message costs one look at a table whose keys are numbers."""


class Session:
    """The state of one connection, seen from the server."""

    def __init__(self) -> None:
        self.state = State.SPAWNED
        self._moves = _MOVES_OF[State.SPAWNED]

    def may(self, kind: Kind) -> bool:
        """Returns True if this may be sent now."""
        return kind in self._moves

    def apply(self, kind: Kind) -> None:
        """A message was sent or received. Raises ProtocolViolation when it may not be now."""
        after = self._moves.get(kind)
        if after is None:
            before = self.state
            self._enter(State.BROKEN)
            raise ProtocolViolation(f"{kind.name} while {before.value}")
        if after is not self.state:  # what changes nothing may be sent while another thread of the same end changes it
            self._enter(after)

    def break_off(self) -> None:
        """The peer is gone or not to be trusted."""
        self._enter(State.BROKEN)

    def _enter(self, state: State) -> None:
        self.state = state
        self._moves = _MOVES_OF[state]
