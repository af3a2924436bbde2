"""CPU time and memory of a server on this machine, as /proc shows them (Linux)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LISTENING = "0A"


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """CPU seconds of the server's processes, and their memory that is resident now, or was at the end."""

    cpu_s: float
    resident_bytes: int

    def since(self, before: ProcessUsage) -> ProcessUsage:
        """The CPU time since then, and the memory now."""
        return ProcessUsage(cpu_s=self.cpu_s - before.cpu_s, resident_bytes=self.resident_bytes)

    def plus(self, later: ProcessUsage) -> ProcessUsage:
        """CPU time of both, and the memory of the later."""
        return ProcessUsage(cpu_s=self.cpu_s + later.cpu_s, resident_bytes=later.resident_bytes)


class LocalServer:
    """A process and its descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @classmethod
    def listening_at(cls, host: str, port: int) -> LocalServer | None:
        """The server that listens at an address of this machine, None: it is not here, or may not be looked at."""
        try:
            addresses = {entry[4][0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        except OSError:
            return None
        if not any(str(address).startswith("127.") or address == "::1" for address in addresses):
            return None
        sockets = {inode for table in ("tcp", "tcp6") for inode in _listening(_PROC / "net" / table, port)}
        pids = sorted(pid for pid in _pids() if sockets & _sockets_of(pid))
        return cls(pids[0]) if pids else None

    def usage(self) -> ProcessUsage | None:
        """The resources that its processes have used so far, None: the server has ended."""
        if not (_PROC / str(self.pid)).exists():
            return None
        parents = {pid: parent for pid in _pids() if (parent := _stat(pid)[0])}
        family = _family(self.pid, parents)
        return ProcessUsage(cpu_s=sum(_stat(pid)[1] for pid in family), resident_bytes=sum(_private_bytes(pid) for pid in family))


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _family(pid: int, parents: Mapping[int, int]) -> set[int]:
    found = {pid}
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


def _stat(pid: int) -> tuple[int, float]:
    """The parent and the CPU seconds of a process; zeros when it has gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0, 0.0
    fields = text[text.rindex(")") + 2 :].split()  # the command's name may hold spaces and brackets
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _private_bytes(pid: int) -> int:
    """Resident memory that is not shared with other processes."""
    try:
        _, resident, shared = (_PROC / str(pid) / "statm").read_text().split()[:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _listening(table: Path, port: int) -> list[str]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]


def _sockets_of(pid: int) -> set[str]:
    found: set[str] = set()
    try:
        for entry in (_PROC / str(pid) / "fd").iterdir():
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if target.startswith("socket:"):
                found.add(target)
    except OSError:
        return found
    return found
