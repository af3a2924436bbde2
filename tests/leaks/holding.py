"""The resources of a server, as the kernel sees them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.disk import mounted
from tests.chaos.skipped import Skipped
from tests.e2e.server import ServerProcess

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Holding:
    """Of the server process; `workers_bytes` of its children together."""

    resident_bytes: int
    workers_bytes: int
    threads: int
    """Those excepted that Trio keeps for ten seconds after their work."""

    descriptors: int
    """Those of timers excepted."""

    timers: int
    segments: int
    """Mappings of shared memory: files in /dev/shm and anonymous ones (memfd)."""

    shm_files: int
    """Files in /dev/shm, where the server has one of its own (see `private_shm`), else 0."""

    children: int

    def counts(self) -> tuple[int, ...]:
        """All but memory and timers: what must end exactly where it began."""
        return self.threads, self.descriptors, self.segments, self.shm_files, self.children

    def __str__(self) -> str:
        return (
            f"{self.resident_bytes / _MIB:.1f} MiB resident, workers {self.workers_bytes / _MIB:.1f} MiB, "
            f"{self.threads} threads, {self.descriptors} descriptors, {self.timers} timers, {self.segments} shared segments, "
            f"{self.shm_files} files in /dev/shm, "
            f"{self.children} children"
        )


def private_shm() -> tuple[str, ...]:
    """A launcher that gives the server a /dev/shm of its own, so that all that is there is its; none without the right to."""
    try:
        return mounted(Path("/dev/shm"), size_kib=1024 * 1024)
    except Skipped:
        return ()


def measure(server: ServerProcess) -> Holding:
    """The resources held now."""
    process = Path(f"/proc/{server.process.pid}")
    children = server.children()
    shm = process / "root" / "dev" / "shm"
    maps = (process / "maps").read_text().splitlines()
    return Holding(
        resident_bytes=resident_bytes(server.process.pid),
        workers_bytes=sum(resident_bytes(child) for child in children),
        threads=sum(not _name(task).startswith("Trio thread ") for task in process.glob("task/*")),
        descriptors=server.open_files().total(),
        timers=server.timers(),
        segments=sum("/dev/shm/" in line or "/memfd:" in line for line in maps),
        shm_files=len(os.listdir(shm)) if os.stat(shm).st_dev != os.stat("/dev/shm").st_dev else 0,
        children=len(children),
    )


def _name(task: Path) -> str:
    """That of a thread; one that has just ended counts as Trio's, which come and go."""
    try:
        return (task / "comm").read_text()
    except OSError:
        return "Trio thread "


def resident_bytes(pid: int) -> int:
    """0 when the process has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
