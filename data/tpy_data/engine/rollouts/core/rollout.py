"""RolloutCore: which version a request gets while a new one is rolled out, and when that goes on, ends, or is taken back.

Sans-IO: told of the requests' ends and of the time, it decides. One step follows the other; after the last one the new version
has everything. All numbers of the gates are those of the present step. A plan with a shadow has one step more, the first, in
which the new version gets only copies of requests.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final

import msgspec

from tpy.config.rollout import RolloutPlan, RolloutShadow
from tpy.telemetry.latencies import QuantileWindow, quantiles_of
from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US

_P99: Final = 0.99
_WHOLE_STEP_NS: Final = 2**62


class Arm(enum.Enum):
    """The version that a request gets."""

    OLD = "old"
    NEW = "new"


class RolloutState(enum.Enum):
    """The state of a rollout."""

    RUNNING = "running"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled back"


class Decision(msgspec.Struct, frozen=True):
    """A change: the state and the share from now on, and why."""

    state: RolloutState
    percent: float
    reason: str


class ArmCounts:
    """The requests of one version that have ended in the present step. Latencies in nanoseconds."""

    __slots__ = ("_latencies", "ended", "failed")

    def __init__(self) -> None:
        self.ended = 0
        self.failed = 0
        self._latencies = QuantileWindow("", slice_ns=_WHOLE_STEP_NS)

    def count(self, *, failed: bool, latency_ns: int) -> None:
        """One more."""
        self.ended += 1
        self.failed += failed
        self._latencies.add(latency_ns, 0)

    def p99_ns(self) -> int:
        """The 99th percentile of latency, within 0.4 % or a microsecond; 0 of no requests."""
        summary = self._latencies.snapshot((_P99,), 0).summary
        [(_, found_us)] = quantiles_of(summary) if summary is not None and self.ended else [(_P99, 0.0)]
        return round(found_us * NS_PER_US)


class RolloutCore:
    """One rollout. `step` is where it begins: a restarted server goes on with the step that it had. Of the present step,
    `compared` answers of both versions to one request were compared, and `differed` of them were not the same. `begun` counts the
    steps that have begun: a request is told with the number that it began in, and counts in that step only."""

    def __init__(self, plan: RolloutPlan, now_ns: int, *, step: int = 0) -> None:
        self._plan_by(plan)
        self.state = RolloutState.RUNNING
        self.reason = ""
        self.step = min(step, self.steps - 1)
        self.counts = {Arm.OLD: ArmCounts(), Arm.NEW: ArmCounts()}
        self.compared = self.differed = 0
        self.begun = 1
        self._since_ns = now_ns
        self._owed = 0.0

    def _plan_by(self, plan: RolloutPlan) -> None:
        self.plan = plan
        self.steps = len(plan.steps) + (plan.shadow is not None)

    @property
    def percent(self) -> float:
        """The share of requests that the new version answers."""
        if self.state is RolloutState.RUNNING:
            return 0.0 if self.shadow is not None else self.plan.steps[self.step - self.steps].percent
        return 100.0 if self.state is RolloutState.PROMOTED else 0.0

    @property
    def shadow(self) -> RolloutShadow | None:
        """The comparison that the present step is; None: it is another one."""
        return self.plan.shadow if not self.step and self.state is RolloutState.RUNNING else None

    def copies(self) -> bool:
        """Returns whether the new version gets a copy of a request, too: of every n-th in a row."""
        return self.shadow is not None and self._owe(self.shadow.percent)

    def choose(self, key: bytes | None = None) -> Arm:
        """The version for a request: for all of one `key` the same, and where the share grows none goes back. Without key every
        n-th request in a row gets the new one, so that few requests are shared out as exactly as many."""
        percent = self.percent
        if key is not None:
            share = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest()) / 2**32
            return Arm.NEW if share * 100 < percent else Arm.OLD
        return Arm.NEW if self._owe(percent) else Arm.OLD

    def ended(self, arm: Arm, begun: int, *, failed: bool, latency_ns: int) -> Decision | None:
        """A request of this version has ended. The decision, if that makes one: the new version has failed too often."""
        if self.state is not RolloutState.RUNNING or begun != self.begun:
            return None
        counts = self.counts[arm]
        counts.count(failed=failed, latency_ns=latency_ns)
        if arm is not Arm.NEW or not failed:
            return None
        reason = self._too_many(counts.failed, counts.ended, "requests failed", self.plan.max_error_percent)
        return self.roll_back(reason) if reason else None

    def answers_compared(self, difference: str, begun: int) -> Decision | None:
        """Both versions have answered a copied request; `difference` is the first one, "" for none. The decision, if that makes
        one: the versions disagree too often."""
        shadow = self.shadow
        if shadow is None or begun != self.begun:
            return None
        self.compared += 1
        self.differed += bool(difference)
        if not difference:
            return None
        reason = self._too_many(self.differed, self.compared, "answers differ", shadow.max_disagreement_percent)
        return self.roll_back(f"{reason}; the last one: {difference}") if reason else None

    def tick(self, now_ns: int) -> Decision | None:
        """The decision that is due at this time."""
        if self.state is not RolloutState.RUNNING or now_ns < self._due_ns():
            return None
        new = self.counts[Arm.NEW]
        if (new.ended if self.shadow is None else self.compared) < self.plan.min_requests:
            return None
        if reason := self._too_slow():
            return self.roll_back(reason)
        said = f"{new.ended} requests of the new version ended, {new.failed} of them failed"
        return self._advance(
            now_ns, said if self.shadow is None else f"{said}, {self.differed} of {self.compared} answers differ"
        )

    def due_ns(self) -> int | None:
        """The time of the next look; None: nothing more will be decided."""
        return self._due_ns() if self.state is RolloutState.RUNNING else None

    def restart(self, now_ns: int, reason: str, plan: RolloutPlan | None = None) -> Decision:
        """The first step begins again, whatever was decided; that of `plan`, if there is one."""
        if plan is not None:
            self._plan_by(plan)
        self.state, self.reason, self.step = RolloutState.RUNNING, "", 0
        return self._begin_step(now_ns, reason)

    def promote(self, reason: str) -> Decision:
        """The new version gets everything."""
        return self._end(RolloutState.PROMOTED, reason)

    def roll_back(self, reason: str) -> Decision:
        """The old version gets everything."""
        return self._end(RolloutState.ROLLED_BACK, reason)

    def _too_many(self, bad: int, seen: int, what: str, most: float | None) -> str:
        """The reason to roll back if `bad` of `seen` are more than `most` percent; "" if not. They are too many of all that the
        gate asks for, however good the rest will be."""
        of = max(seen, self.plan.min_requests)
        if most is None or bad * 100 <= most * of:
            return ""
        return f"{bad} of {seen} {what} ({100 * bad / seen:.3g} %); at most {most:g} % of {of} are allowed"

    def _owe(self, percent: float) -> bool:
        """Returns whether it is this request's turn, if that comes to `percent` of all requests."""
        self._owed += percent
        if self._owed < 100:
            return False
        self._owed -= 100
        return True

    def _due_ns(self) -> int:
        step = self.shadow or self.plan.steps[self.step - self.steps]
        return self._since_ns + int(step.seconds * NS_PER_S)

    def _too_slow(self) -> str:
        """The reason why the latencies of the new version are too high; "" if they are not."""
        old_ns, new_ns = self.counts[Arm.OLD].p99_ns(), self.counts[Arm.NEW].p99_ns()
        plan, shown = self.plan, f"its p99 is {new_ns / NS_PER_MS:.3g} ms"
        if plan.max_p99_ms is not None and new_ns > plan.max_p99_ms * NS_PER_MS:
            return f"{shown}; at most {plan.max_p99_ms:g} ms are allowed"
        ratio = plan.max_p99_ratio
        if ratio is not None and self.counts[Arm.OLD].ended >= plan.min_requests and new_ns > ratio * old_ns:
            return f"{shown}, the old version's is {old_ns / NS_PER_MS:.3g} ms; at most {ratio:g} times that is allowed"
        return ""

    def _advance(self, now_ns: int, reason: str) -> Decision:
        if self.step + 1 == self.steps:
            return self.promote(reason)
        self.step += 1
        return self._begin_step(now_ns, reason)

    def _begin_step(self, now_ns: int, reason: str) -> Decision:
        self.begun += 1
        self._since_ns = now_ns
        self._owed = 0.0
        self.compared = self.differed = 0
        self.counts = {Arm.OLD: ArmCounts(), Arm.NEW: ArmCounts()}
        return Decision(self.state, self.percent, reason)

    def _end(self, state: RolloutState, reason: str) -> Decision:
        self.state, self.reason = state, reason
        return Decision(state, self.percent, reason)
