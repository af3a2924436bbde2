"""Processes as /proc shows them (Linux): families, CPU time, resident memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BYTES_PER_KB = 1024


class ProcessTimes(msgspec.Struct, frozen=True):
    """From /proc/PID/stat: who the parent is, in which session the process is, user plus system time of all its threads."""

    parent: int
    session: int
    cpu_s: float


class Memory(msgspec.Struct, frozen=True):
    """From /proc/PID/status, bytes: resident now, the highest since the start or the last `reset_peak`, and how much of what is
    resident now is shared memory, which other processes may have mapped as well."""

    resident: int
    peak: int
    shared: int


def parse_stat(text: str) -> ProcessTimes:
    """Read the text of /proc/PID/stat. The command's name may hold spaces and brackets, so fields count from the last bracket."""
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessTimes(parent=int(fields[1]), session=int(fields[3]), cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S)


def parse_status(text: str) -> Memory:
    """Read the text of /proc/PID/status. A process that has no memory (a zombie) counts as zero."""
    sizes = {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}
    return Memory(resident=_size(sizes.get("VmRSS")), peak=_size(sizes.get("VmHWM")), shared=_size(sizes.get("RssShmem")))


def _size(value: str | None) -> int:
    return 0 if value is None else int(value.split()[0]) * _BYTES_PER_KB


def family(pid: int) -> tuple[int, ...]:
    """`pid`, its descendants, and whoever shares the session that it leads; `pid` first. Processes that vanish are left out."""
    return family_of(pid, _all_times())


def family_of(pid: int, processes: Mapping[int, ProcessTimes]) -> tuple[int, ...]:
    """The same, among `processes`."""
    members = {pid}
    grown = True
    while grown:
        more = {other for other, times in processes.items() if times.parent in members or times.session == pid} - members
        members |= more
        grown = bool(more)
    return (pid, *sorted(members - {pid}))


def _all_times() -> dict[int, ProcessTimes]:
    found = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = parse_stat((entry / "stat").read_text())
            except OSError:
                continue  # ended meanwhile
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that the processes have used so far, to 1/100 s; ended processes count as zero."""
    total = 0.0
    for pid in pids:
        try:
            total += parse_stat((_PROC / str(pid) / "stat").read_text()).cpu_s
        except OSError:
            continue
    return total


def age_s(pid: int) -> float:
    """Seconds since the process was started. Raises OSError when it has ended."""
    text = (_PROC / str(pid) / "stat").read_text()
    started_ticks = int(text[text.rindex(")") + 2 :].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / _TICKS_PER_S


def memory(pid: int) -> Memory:
    """Raises OSError when the process has ended."""
    return parse_status((_PROC / str(pid) / "status").read_text())


def rise(before: Memory, after: Memory) -> int:
    """Bytes by which the peak `after` is above what was resident `before`."""
    return max(0, after.peak - before.resident)


def joint_rise(before: Sequence[Memory], after: Sequence[Memory]) -> int:
    """The same for processes that share memory with each other, in the same order: what all of them have mapped counts once.

    Assumes that the memory they share is in the process that has most of it, and that it stays mapped after the peak.
    """
    shared = [max(0, late.shared - early.shared) for early, late in zip(before, after, strict=True)]
    return sum(map(rise, before, after)) - sum(shared) + max(shared)


def reset_peak(pid: int) -> bool:
    """Set the peak to what is resident now. Returns False where the system does not allow it."""
    try:
        (_PROC / str(pid) / "clear_refs").write_text("5")
    except OSError:
        return False
    return True
