"""Keepalive (our pings) and PingGuard (theirs), with gRPC's rules for both."""

from __future__ import annotations

import enum

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
