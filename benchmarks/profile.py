"""Command line: `python -m benchmarks.profile --help`: draws where the loop's time goes while a server answers requests.

Exit status: 0 drawn, 1 a server, wrk or py-spy failed, 2 wrong usage or something is missing.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.load import LoadFailed, wrk
from benchmarks.rows.tiny import VALUES, WARM_UP_S
from benchmarks.servers.models import IDENTITY_INPUT, write_builtin_identity, write_python_identity
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import ServerFailed, running
from benchmarks.tensors import json_request

_ROOT = Path(__file__).parents[1]
_RATE_HZ = 500
_MODELS = {"worker": write_python_identity, "builtin": write_builtin_identity}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profile",
        description="Drive a tiny model over HTTP, sample the server by py-spy, and draw a flame graph of its processes.",
    )
    parser.add_argument(
        "--model", choices=_MODELS, default="worker", help="a Python model in a worker (default), or a built-in one"
    )
    parser.add_argument("--connections", metavar="N", type=int, default=16, help="connections that wrk keeps busy (default: 16)")
    parser.add_argument("--seconds", metavar="S", type=int, default=10, help="sampled so long (default: 10)")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="the flame graph (default: .bench/profile-MODEL-N.svg)")
    return parser.parse_args()


def main() -> int:
    """Returns the exit status."""
    given = _arguments()
    tools = {"wrk": shutil.which("wrk"), "py-spy": shutil.which("py-spy", path=str(Path(sys.executable).parent))}
    if missing := [name for name, found in tools.items() if found is None]:
        print(f"not installed: {', '.join(missing)} (apt-get install wrk; make .venv/.tpy-bench-setup)", file=sys.stderr)
        return 2
    svg: Path = given.svg or _ROOT / ".bench" / f"profile-{given.model}-{given.connections}.svg"
    svg.parent.mkdir(parents=True, exist_ok=True)
    request = json_request(given.model, IDENTITY_INPUT, VALUES)
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch) / "models"
        _MODELS[given.model](repository, given.model)
        try:
            with running(TpyPlan(repository=repository), Path(scratch) / "log") as server:

                def drive(seconds: int) -> float:
                    program = Path(str(tools["wrk"]))
                    return wrk.drive(program, server.ports.http, request, connections=given.connections, seconds=seconds).per_s

                drive(WARM_UP_S)
                sample = ["record", "--pid", str(server.pid), "--subprocesses", "--rate", str(_RATE_HZ), "--output", str(svg)]
                sampler = subprocess.Popen([str(tools["py-spy"]), *sample, "--duration", str(given.seconds)])
                per_s = drive(given.seconds + 1)
                if sampler.wait(timeout=60):
                    return 1
        except (ServerFailed, LoadFailed) as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{per_s:,.0f} requests/s with {given.connections} connections, while sampled; open {svg}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
