"""Bounds of a search for a configuration."""

from __future__ import annotations

from typing import Final

ANALYZE_POINTS_MAX: Final = 10_000
"""Measurements of an exhaustive search: half a day at four seconds each. More is a slip of the pen."""
