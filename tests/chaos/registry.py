"""The scenarios."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import clients, disk, files, processes

Run = Callable[[Path], str]
"""Given an empty folder: breaks something, checks what was promised, and returns the figures. Raises AssertionError, or Skipped
when this machine cannot do it."""


class Scenario(NamedTuple):
    """One way of breaking things."""

    name: str
    promise: str
    run: Run
    quick: bool
    """True if it is part of `make test`."""


SCENARIOS = (
    Scenario(
        "workers", "a worker that is killed costs the requests that it had, and is started again", processes.kill_workers, True
    ),
    Scenario("sigterm", "a stopping server answers everything that it began", processes.stop_under_load, True),
    Scenario(
        "files-explicit", "a load of a broken file is refused with the reason, the old model serves on", files.explicit, True
    ),
    Scenario("files-poll", "a file that breaks on disk changes nothing, one that is good again is served", files.polled, False),
    Scenario("disk-full", "a full disk refuses what needs it, and nothing else", disk.full, True),
    Scenario("descriptors", "without file descriptors new connections wait, the others are served", clients.descriptors, True),
    Scenario("half-requests", "clients that send half of a request and stay disturb nobody", clients.half_requests, True),
    Scenario("idle", "2,000 idle connections cost memory and nothing else", clients.idle, False),
)
