"""Times at which something is due for a connection or a call: Keepalive (our pings) and PingGuard (theirs), with gRPC's rules
for both, Lifetime (when a connection must get ready, ask its peer to leave, and end) and DeadlineQueue (which call must end
when)."""

from __future__ import annotations

import enum
import heapq

import msgspec

from tpy.units import NS_PER_S

PING_WITHOUT_CALLS_NS = 7200 * NS_PER_S
"""The least interval of a client's pings while it has no calls, unless they are permitted: gRPC's number."""


class PingRules(msgspec.Struct, frozen=True, kw_only=True):
    """The ping options of GrpcOptions, in nanoseconds."""

    keepalive_time_ns: int
    keepalive_timeout_ns: int
    permit_without_calls: bool
    pings_without_data_max: int
    receive_interval_ns_min: int
    strikes_max: int


class KeepaliveStep(enum.Enum):
    """The action that is due."""

    NOTHING = "nothing"
    PING = "ping"
    CLOSE = "close"


class Keepalive:
    """Finds out whether a silent peer is still there."""

    def __init__(self, rules: PingRules, now_ns: int) -> None:
        self._rules = rules
        self._received_ns = now_ns
        self._armed_ns = now_ns
        self._pinged_ns: int | None = None
        self._pings_without_data = 0
        self._seen_sent = 0

    def received(self, now_ns: int) -> None:
        """Bytes have arrived, whatever they say."""
        self._received_ns = now_ns
        self._pinged_ns = None

    def next_deadline_ns(self) -> int:
        """Returns the time at which to call `advance`; it moves later when something is received."""
        if self._pinged_ns is not None:
            return self._pinged_ns + self._rules.keepalive_timeout_ns
        return max(self._received_ns, self._armed_ns) + self._rules.keepalive_time_ns

    def advance(self, now_ns: int, *, calls: bool, frames_sent: int) -> KeepaliveStep:
        """`frames_sent`: how many HEADERS and DATA frames have been sent in all. PING: a ping must be sent now."""
        if now_ns < self.next_deadline_ns():
            return KeepaliveStep.NOTHING
        if self._pinged_ns is not None:
            return KeepaliveStep.CLOSE
        self._armed_ns = now_ns
        if frames_sent != self._seen_sent:
            self._seen_sent = frames_sent
            self._pings_without_data = 0
        allowed = self._rules.pings_without_data_max
        if not (calls or self._rules.permit_without_calls) or (allowed and self._pings_without_data >= allowed):
            return KeepaliveStep.NOTHING
        self._pings_without_data += 1
        self._pinged_ns = now_ns
        return KeepaliveStep.PING


class PingGuard:
    """Counts the pings of a peer that come too early."""

    def __init__(self, rules: PingRules) -> None:
        self._rules = rules
        self._last_ns: int | None = None
        self._strikes = 0
        self._seen_sent = 0

    def allows(self, now_ns: int, *, calls: bool, frames_sent: int) -> bool:
        """A ping has arrived. False: one too many, the connection must end. `frames_sent` as for Keepalive."""
        if frames_sent != self._seen_sent:
            self._seen_sent = frames_sent
            self._strikes = 0
            self._last_ns = None
        rules = self._rules
        interval_ns = rules.receive_interval_ns_min if calls or rules.permit_without_calls else PING_WITHOUT_CALLS_NS
        if self._last_ns is not None and now_ns < self._last_ns + interval_ns:
            self._strikes += 1
        self._last_ns = now_ns
        return not rules.strikes_max or self._strikes <= rules.strikes_max


class DeadlineQueue:
    """Deadlines of calls by stream id. What has ended is discarded lazily: memory stays within a small multiple of what lives."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._live: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def entries(self) -> int:
        """Entries of the heap, also of calls that have ended. For tests of its bound."""
        return len(self._heap)

    def add(self, stream_id: int, deadline_ns: int) -> None:
        """A call has a deadline. One for each stream."""
        self._live[stream_id] = deadline_ns
        heapq.heappush(self._heap, (deadline_ns, stream_id))

    def discard(self, stream_id: int) -> None:
        """The call has ended, or had no deadline."""
        if self._live.pop(stream_id, None) is not None and len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [(deadline_ns, live) for live, deadline_ns in self._live.items()]
            heapq.heapify(self._heap)

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of a call that has not ended."""
        heap = self._heap
        while heap and heap[0][1] not in self._live:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def advance(self, now_ns: int) -> list[int]:
        """The streams whose deadline has come; they are forgotten."""
        expired: list[int] = []
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= now_ns:
            _, stream_id = heapq.heappop(self._heap)
            del self._live[stream_id]
            expired.append(stream_id)
        return expired


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
