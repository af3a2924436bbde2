"""Who may say what when: one table, used by both ends.

    SPAWNED --LOAD--> STARTING --HELLO--> LOADING --READY--> IDLE <--RESULT-- EXECUTING <--+
                                             |                |  --EXECUTE-->  |  IS_CANCELLED / CANCELLED
                                          FAILED          FINALIZE             +-----------+
                                             v                v
                                           ENDED <--FINALIZED-- FINALIZING

A RUN is several batches of one request each, executed one after the other:

    IDLE --RUN--> RUNNING --RESULT (of the last one) or NOT_BEGUN (of how many, because it is over before)--> IDLE
                   |   ^  PART (a result that is not the last), IS_CANCELLED / CANCELLED
                   +---+

With a decoupled model the worker says RESPONSE at any time from IDLE to FINALIZING, also between batches, and the server PROGRESS
(what became of responses, which requests nobody waits for); nobody asks IS_CANCELLED then.

A message that is not in the table is a ProtocolViolation: the session is then BROKEN and says nothing more.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from .frames import Kind, ProtocolViolation


class State(enum.Enum):
    """Where a session is."""

    SPAWNED = "spawned"
    STARTING = "starting"
    LOADING = "loading"
    IDLE = "idle"
    EXECUTING = "executing"
    ASKED = "asked"
    """Executing, and the worker waits to hear whether a request was cancelled."""
    RUNNING = "running"
    ASKED_RUNNING = "asked while running"
    FINALIZING = "finalizing"
    ENDED = "ended"
    BROKEN = "broken"


LEGAL_MOVES: Mapping[tuple[State, Kind], State] = MappingProxyType(
    {
        (State.SPAWNED, Kind.LOAD): State.STARTING,
        (State.STARTING, Kind.HELLO): State.LOADING,
        (State.LOADING, Kind.READY): State.IDLE,
        (State.LOADING, Kind.FAILED): State.ENDED,
        (State.IDLE, Kind.EXECUTE): State.EXECUTING,
        (State.EXECUTING, Kind.IS_CANCELLED): State.ASKED,
        (State.ASKED, Kind.CANCELLED): State.EXECUTING,
        (State.EXECUTING, Kind.RESULT): State.IDLE,
        (State.IDLE, Kind.RUN): State.RUNNING,
        (State.RUNNING, Kind.PART): State.RUNNING,
        (State.RUNNING, Kind.IS_CANCELLED): State.ASKED_RUNNING,
        (State.ASKED_RUNNING, Kind.CANCELLED): State.RUNNING,
        (State.RUNNING, Kind.RESULT): State.IDLE,
        (State.RUNNING, Kind.NOT_BEGUN): State.IDLE,
        (State.IDLE, Kind.FINALIZE): State.FINALIZING,
        (State.FINALIZING, Kind.FINALIZED): State.ENDED,
    }
)


_ASKING = (Kind.IS_CANCELLED, Kind.CANCELLED)
_AT_ANY_TIME = (Kind.RESPONSE, Kind.PROGRESS)
_OF_RUNS = (State.RUNNING, State.ASKED_RUNNING)

STREAMING_MOVES: Mapping[tuple[State, Kind], State] = MappingProxyType(
    {
        **{move: after for move, after in LEGAL_MOVES.items() if move[1] not in _ASKING and not {move[0], after} & {*_OF_RUNS}},
        **{(state, kind): state for state in (State.IDLE, State.EXECUTING, State.FINALIZING) for kind in _AT_ANY_TIME},
    }
)
"""Of a worker with a decoupled model."""


class Session:
    """The state of one conversation, seen from the server."""

    def __init__(self, *, streaming: bool = False) -> None:
        self.state = State.SPAWNED
        self._moves = STREAMING_MOVES if streaming else LEGAL_MOVES

    def apply(self, kind: Kind) -> None:
        """A message was sent or received. Raises ProtocolViolation when it may not be said now."""
        after = self._moves.get((self.state, kind))
        if after is None:
            before, self.state = self.state, State.BROKEN
            raise ProtocolViolation(f"{kind.name} while {before.value}")
        if after is not self.state:  # what changes nothing may be said while another thread of the same end changes it
            self.state = after

    def break_off(self) -> None:
        """The peer is gone or not to be trusted."""
        self.state = State.BROKEN
