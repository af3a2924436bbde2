"""The targets of the protocol between engine and frontend processes."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.remote import hostile, trial
from fuzz.target import Target
from tpy.remote.core.caller import Caller, PendingRequest
from tpy.services import ResponseSink


class _Eager(PendingRequest):
    """Wrong on purpose: what comes while it is paused overtakes what waits."""

    __slots__ = ()

    def resume(self) -> None:
        self._held.reverse()
        super().resume()


class _EagerCaller(Caller):
    def begin(self, sink: ResponseSink) -> PendingRequest:
        pending = super().begin(sink)
        self._requests[pending.number] = eager = _Eager(self, pending.number, sink)
        return eager


def _canary(chance: Chance) -> int:
    return trial.converse(chance, _EagerCaller)


RULES = ("submit", "hear up", "hear down", "model acts", "client acts", "release")
PROTOCOL = Target(name="remote_protocol", invariant=trial.INVARIANT, run=trial.converse, smoke_examples=600, rules=RULES)
HOSTILE = Target(name="remote_protocol_hostile", invariant=hostile.INVARIANT, run=hostile.run, smoke_examples=1500)
CANARY = Target(
    name="remote_protocol_canary",
    invariant="a frontend that delivers in another order after a pause is found out",
    run=_canary,
    smoke_examples=60,
    must_fail=True,
)
