"""`python -m tests.attack.soak --minutes N`: mixed traffic with updates, kills and full disks, and figures of what came of it:
half of the time against a server in one process, half against one with frontend processes.

Exit status 1: an answer was wrong or none came, or the server did not end with 0.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.chaos.disk import mounted
from tests.chaos.load import Load, loading
from tests.chaos.models import python_config, write_models
from tests.chaos.skipped import Skipped
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess, child_processes, is_template

from .arena import Arena
from .probe import PAUSE_S, probing

_FACTORS = (2.0, 3.0)
_STEP_S = 1.0
_DISK_KIB = 16_384
_MIB = 1024 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The memory of a server's processes over time, by their roles."""

    def __init__(self) -> None:
        self._seen: dict[str, list[tuple[float, int]]] = {}

    def look(self, pid: int) -> None:
        """Note what all take now."""
        now_s, found = time.monotonic(), dict.fromkeys(self._seen, 0)
        for each in (pid, *_descendants(pid)):
            with suppress(OSError):
                role = "server" if each == pid else _role(each)
                found[role] = found.get(role, 0) + _private(each)
        for role, size in found.items():
            self._seen.setdefault(role, []).append((now_s, size))

    def rows(self) -> Iterator[str]:
        """Yields a line for each role: its memory when all had started and at the end, and the growth in the second half."""
        for role, seen in self._seen.items():
            middle = len(seen) // 2
            begin, half, end = seen[min(5, len(seen) - 1)], seen[middle], seen[-1]
            minutes = max((end[0] - half[0]) / 60, 1e-9)
            slope = (_median(seen[-10:]) - _median(seen[middle : middle + 10])) / _MIB / minutes
            sizes = f"{begin[1] / _MIB:.0f} to {end[1] / _MIB:.0f} MiB"
            yield f"  memory of {role}: {sizes}, {slope:+.2f} MiB a minute in the second half"


def _median(seen: list[tuple[float, int]]) -> int:
    return sorted(size for _, size in seen)[len(seen) // 2]


def _descendants(pid: int) -> Iterator[int]:
    for child in child_processes(pid):
        yield child
        yield from _descendants(child)


def _role(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return "frontends" if b"frontend_process" in words else "workers"


def _private(pid: int) -> int:
    """Resident bytes that no file backs and nobody shares."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * _PAGE


def soak(folder: Path, *, seconds: float, frontends: int, pause_s: float) -> bool:
    """Returns True if it held. Each client waits `pause_s` between two requests."""
    write_models(folder / "models")
    small = folder / "small"
    small.mkdir()
    flags = (
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--frontend-processes={frontends}",
        f"--log-file={small / 'log'}",
    )
    server = ServerProcess(
        *flags, repositories=[folder / "models"], environment={"TMPDIR": str(small)}, launcher=mounted(small, _DISK_KIB)
    )
    server.__enter__()
    memory, pid = Memory(), server.process.pid
    inside = Path(f"/proc/{pid}/root{small}")
    try:
        with (
            probing(server.http, pid, pause_s=pause_s or PAUSE_S) as felt,
            loading(server, _FACTORS.__contains__, pause_s=pause_s) as load,
        ):
            done = _disturb(server, folder / "models", inside, load, memory, time.monotonic() + seconds)
        log = (inside / "log").read_text(errors="replace")
    finally:
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(90)
    ledger = load.ledger
    tracebacks = log.count("Traceback (most") + server.log.count("Traceback (most")
    print(f"--frontend-processes={frontends}, {seconds:.0f} s: exit status {code}, {done}")
    print(f"  {ledger.sent:,} requests, {ledger.answered.total():,} answered, {len(ledger.wrong)} wrong, {ledger.lost} lost")
    for (model, text), count in ledger.refused.most_common(20):
        print(f"  {count:,} of {model}: {text[:150]}")
    print(f"  {ledger.cut.total()} connections cut, {len(ledger.overdue)} overdue, {tracebacks} tracebacks in the log")
    print(f"  worst health {felt.live_ms_max:.0f} ms, {felt.unanswered} of {felt.asked} without an answer")
    print(*memory.rows(), sep="\n", flush=True)
    for line in re.findall(r"(?m)^.*(?:Exit timeout|failed unexpectedly).*$", log)[:5]:
        print(f"  log: {line[:300]}")
    return not (ledger.wrong or ledger.overdue or ledger.lost or code)


def _disturb(server: ServerProcess, models: Path, disk: Path, load: Load, memory: Memory, until: float) -> str:
    """Something every second, until the time is up. Returns what, in words."""
    chance, arena = random.Random(27), Arena(server, models)
    affine, copy = ModelFolder(models, "affine"), ModelFolder(models, "copy")
    updates = refused = kills = fills = 0
    for turn in itertools.count():
        if time.monotonic() > until:
            break
        memory.look(server.process.pid)
        match turn % 6:
            case 0 | 3:
                affine.config(f"{AFFINE_CONFIG}dynamic_batching {{ }}\n# {turn}\n").affine(1, _FACTORS[turn // 3 % 2])
                refused += arena.ask("POST", "/v2/repository/models/affine/load", {})[0] != 200
                updates += 1
            case 1:
                copy.config(python_config(more=f"dynamic_batching {{ }}\n# {turn}\n"))
                refused += arena.ask("POST", "/v2/repository/models/copy/load", {})[0] != 200
                updates += 1
            case 2:
                found = [each for each in _descendants(server.process.pid) if _is_victim(each)]
                if found:
                    os.kill(chance.choice(found), signal.SIGKILL)
                    kills += 1
            case 4:
                _fill(disk)
                fills += 1
            case _:
                (disk / "filler").unlink(missing_ok=True)
        time.sleep(_STEP_S)
    (disk / "filler").unlink(missing_ok=True)
    load.ledger.wait_answered(5, "affine", "copy", "chain", "sum", "count")
    return f"{updates} updates ({refused} refused), {kills} kills, {fills} times a full disk"


def _is_victim(pid: int) -> bool:
    """A worker, or a frontend process; not what workers are forked from."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return (b"worker" in words or b"frontend_process" in words) and not is_template(pid)
    return False


def _fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(65_536))


def main() -> int:
    """Soak."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--requests-per-second", type=float, default=0.0, help="of each client, about; 0 (default): as many as it can"
    )
    arguments = parser.parse_args()
    pause_s = 1 / arguments.requests_per_second if arguments.requests_per_second else 0.0
    held = []
    for frontends in (0, 2):
        with tempfile.TemporaryDirectory(prefix="tpy-soak-", ignore_cleanup_errors=True) as folder:
            try:
                held.append(soak(Path(folder), seconds=arguments.minutes * 30, frontends=frontends, pause_s=pause_s))
            except Skipped as reason:
                parser.error(str(reason))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
