"""The verdict about an attack, and its row of the table."""

from __future__ import annotations

from .arena import Outcome
from .registry import Attack

_MIB = 1024 * 1024
COLUMNS = ("attack", "worst live, ms", "RSS before, MiB", "peak", "after", "wrong", "lost", "alive", "held")


def problems(attack: Attack, outcome: Outcome, baseline: Outcome, *, live_ms_more: float = 0.0) -> list[str]:
    """The bounds that were exceeded. What the machine costs without an attack is allowed for, and `live_ms_more` besides."""
    felt = outcome.felt
    kept = (felt.resident_end - felt.resident_begin) / _MIB
    peak = (felt.resident_peak - felt.resident_begin) / _MIB
    found = {
        "live": felt.live_ms_max > attack.live_ms_max + baseline.felt.live_ms_max + live_ms_more,
        "kept": kept > attack.kept_mib_max,
        "peak": peak > attack.peak_mib_max,
        "wrong": outcome.wrong > 0,
        "lost": outcome.lost > 0,
        "unanswered": felt.unanswered > 0,
        "alive": not outcome.alive,
    }
    return [name for name, broken in found.items() if broken]


def cells(attack: Attack, outcome: Outcome, baseline: Outcome) -> str:
    """The row."""
    felt = outcome.felt
    broken = problems(attack, outcome, baseline)
    resident = [f"{each / _MIB:,.0f}" for each in (felt.resident_begin, felt.resident_peak, felt.resident_end)]
    row = [
        attack.name,
        f"{felt.live_ms_max:,.0f}",
        *resident,
        str(outcome.wrong),
        str(outcome.lost),
        "yes" if outcome.alive else "no",
        "; ".join([f"no ({', '.join(broken)})" if broken else "yes", *outcome.notes]),
    ]
    return "| " + " | ".join(row) + " |"
