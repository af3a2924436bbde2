"""Running a load generator's process: its output and its CPU time."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.load import LoadFailed

_ROOT = Path(__file__).parents[2]
"""The folder in which `python -m benchmarks...` finds this package."""


def run_child(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, cores: Sequence[int] | None = None
) -> tuple[str, float]:
    """Run `command` to its end, on `cores` only when given. Returns what it printed and the CPU seconds it used.

    Raises LoadFailed, with what it wrote, when it fails.
    """
    if cores is not None:
        command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        raise LoadFailed(f"{command[0]} ended with status {process.returncode}:\n{text[-3000:]}")
    return text, usage.ru_utime + usage.ru_stime
