"""A scenario that cannot be had on this machine."""

from __future__ import annotations


class Skipped(Exception):
    """Says what the machine lacks."""
