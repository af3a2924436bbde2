"""Times and names as people read them."""

from __future__ import annotations

from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US


def duration(ns: float) -> str:
    """A duration with three digits, in the unit that fits."""
    for size, unit in ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "us")):
        if ns >= size:
            return f"{three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def three_digits(value: float) -> str:
    """A number from 1 on with at least three digits, and never an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
