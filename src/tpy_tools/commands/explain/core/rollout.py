"""A rollout, in words."""

from __future__ import annotations

from tpy.messages import RolloutArm, RolloutStatus
from tpy.units import NS_PER_MS

RUNNING = "running"
ROLLED_BACK = "rolled back"
OF_CALL = "call"


def words_of(status: RolloutStatus) -> str:
    """The state of a rollout in a line: the new version's share and how its requests ended, or the decision and its reason."""
    new = f"version {status.new.version}"
    reason = f": {status.reason}" if status.reason else ""
    plan = "; its plan was given with a call" if status.plan_from == OF_CALL else ""
    if status.state == ROLLED_BACK:
        return f"{new} is rolled back, version {status.old.version} gets all requests{reason}{plan}"
    if status.state != RUNNING:
        return f"{new} gets all requests{reason}"
    text = f"{new} gets {status.percent:g} % of the requests, step {status.step} of {status.steps}{reason}"
    if status.compared:
        text += f"; {status.compared} answers compared, {status.differed} differ"
    return f"{text}; {_arm(status.new)}; {_arm(status.old)}{plan}"


def _arm(arm: RolloutArm) -> str:
    return f"version {arm.version}: {arm.ended} ended, {arm.failed} failed, p99 {arm.p99_ns / NS_PER_MS:.3g} ms"
