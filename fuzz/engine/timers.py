"""Deadlines beside a naive list that is sorted anew each time."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.deadlines import Deadlines

INVARIANT = (
    "tickets come due in the order of their times, equal ones as they were added, each once and none before its time; discarded"
    " ones never, and they are not held; the first time is the smallest that is left"
)


def run(chance: Chance, deadlines_of: type[Deadlines] = Deadlines) -> int:
    """A random history; returns its number of steps."""
    core = deadlines_of()
    naive: list[tuple[int, int, Ticket]] = []
    known: list[Ticket] = []
    now_ns = added = steps = 0
    for _ in chance.rounds((50, 100, 400)):
        steps += 1
        rule = chance.random()
        if rule < 0.5:
            ticket = Ticket(batch_size=1, signature="a", priority=0, timeout_ns=0, deadline_ns=None)
            at_ns = now_ns + chance.choice((0, 1, 1, 5, 100))
            core.add(ticket, at_ns)
            naive.append((at_ns, added, ticket))
            known.append(ticket)
            added += 1
            chance.took("add")
        elif rule < 0.75 and known:
            ticket = chance.choice(known[-20:])
            core.discard(ticket)
            naive = [entry for entry in naive if entry[2] is not ticket]
            chance.took("discard")
        else:
            now_ns += chance.choice((0, 1, 3))
            due = core.pop_due(now_ns)
            naive.sort(key=lambda entry: entry[:2])
            should = naive.pop(0)[2] if naive and naive[0][0] <= now_ns else None
            if due is not should:
                raise Violation(f"at {now_ns} {due} is due, expected {should}")
            chance.took("nothing due" if due is None else "due")
        first_ns = min((entry[0] for entry in naive), default=None)
        if core.first_ns() != first_ns or len(core) != len(naive):
            raise Violation(f"the first of {len(core)} at {core.first_ns()}, expected {len(naive)} at {first_ns}")
        if core.entries > 2 * len(naive) + 65:
            raise Violation(f"{core.entries} entries for {len(naive)} tickets")
    return steps
