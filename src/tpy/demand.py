"""Demand: what who reads bytes wants next."""

from __future__ import annotations

import enum


class Demand(enum.Enum):
    """Said after a read. In a module that workers import, too, which do without Trio."""

    READ = "what arrives next"
    CONTINUE = "to continue in a later turn of the loop with what has arrived"
    PAUSE = "nothing, until its owner asks again"
