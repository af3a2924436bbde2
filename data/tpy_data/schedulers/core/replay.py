"""Replay: what the requests of an execution would have lost or gained, had its batch waited for company."""

from __future__ import annotations

from typing import NamedTuple

from tpy_data.schedulers.core.arrivals import Arrivals
from tpy_data.schedulers.core.cost_curve import CostCurve


class Alone(NamedTuple):
    """A batch that does not wait is over after `alone_ns`, the next one, of the `company` that came meanwhile, after `both_ns`,
    and all their requests together are there for `time_ns`."""

    alone_ns: int
    company: int
    both_ns: int
    time_ns: int


def alone(curve: CostCurve, rows: int, arrivals: Arrivals) -> Alone:
    """A batch of `rows` that does not wait."""
    alone_ns = curve.time_ns(rows)
    company = arrivals.rows_by(alone_ns)
    both_ns = alone_ns + curve.time_ns(company)
    return Alone(alone_ns, company, both_ns, rows * alone_ns + company * both_ns)


def beside(curve: CostCurve, rows: int, arrivals: Arrivals, next_ns: int) -> Alone:
    """The same beside busy instances, one of which is free after `next_ns` and gets the requests that came until then."""
    alone_ns = curve.time_ns(rows)
    company = arrivals.rows_by(next_ns)
    both_ns = next_ns + curve.time_ns(company)
    return Alone(alone_ns, company, both_ns, rows * alone_ns + company * both_ns)


def lost_beside_ns(
    curve: CostCurve, rows: int, arrivals: Arrivals, without: Alone, wait_ns: int, goal: int, next_ns: int, behind: int = 0
) -> int:
    """As `lost_ns`, beside busy instances: requests that do not join the first batch are served at `next_ns`, as without a wait,
    and no wait is longer. The `behind` are served later by as much as both instances together are busy for longer."""
    if goal <= rows:
        return 0
    if arrivals.rows_by(wait_ns) >= goal - rows:
        wait_ns = arrivals.time_of(goal - rows)
    wait_ns = min(wait_ns, next_ns)
    joined = min(arrivals.rows_by(wait_ns), curve.batch_size_max - rows)
    left = without.company - joined
    first_ns = wait_ns + curve.time_ns(rows + joined)
    second_ns = next_ns + curve.time_ns(left)
    first_lost_ns = rows * (first_ns - without.alone_ns) + joined * (first_ns - without.both_ns)
    busy_ns = (first_ns - without.alone_ns) + (second_ns - without.both_ns)
    return first_lost_ns + left * (second_ns - without.both_ns) + behind * busy_ns


def lost_ns(curve: CostCurve, rows: int, arrivals: Arrivals, without: Alone, wait_ns: int, goal: int, behind: int = 0) -> int:
    """The time by which all requests together are there longer, if the batch waits for `wait_ns` or until it has `goal` rows.

    Some of the company is in the first batch then, the rest in the second. The `behind`, who come later and while the instance is
    still busy, are served later, or sooner, by as much as the second batch is over later, or sooner.
    """
    if goal <= rows:
        return 0  # nobody is expected, so nobody is waited for
    if arrivals.rows_by(wait_ns) >= goal - rows:
        wait_ns = arrivals.time_of(goal - rows)
    joined = min(arrivals.rows_by(wait_ns), curve.batch_size_max - rows)
    first_ns = wait_ns + curve.time_ns(rows + joined)
    second_ns = first_ns + curve.time_ns(without.company - joined)
    if first_ns > 2 * curve.time_ns(-(-(rows + joined) // 2)):
        # Halving them would be better (OverlapRule), and a wait would hide from it that they come together.
        return without.time_ns
    first_lost_ns = rows * (first_ns - without.alone_ns) + joined * (first_ns - without.both_ns)
    return first_lost_ns + (without.company - joined + behind) * (second_ns - without.both_ns)
