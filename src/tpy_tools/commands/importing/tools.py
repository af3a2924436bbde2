"""Programs of other projects that an import runs: Python modules, installed beside tpy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from tpy_tools.commands.importing.core.plan import Unimportable


def run_module(module: str, *arguments: str, failure: str, environment: Mapping[str, str] | None = None) -> None:
    """Run `python -m MODULE ARGUMENT...` to its end. Raises Unimportable with `failure` and the last line that it wrote."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unimportable(f"{failure}: {lines[-1].strip() if lines else f'status {done.returncode}'}")
