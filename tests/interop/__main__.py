"""`python -m tests.interop [TRIAL ...]`: run tools that were written for Triton against a running server; a row for each trial.

Exit status 1: something failed that is not known to. Tools that are not installed are skipped, with the reason. Servers are on
loopback.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.servers.peers import peers_folder
from tests.e2e.server import ServerProcess

from .registry import NO_SERVER, SERVERS, TRIALS
from .repository import write_models
from .tools import Tools
from .trial import COLUMNS, Outcome, Setting, Trial, missing, row, run


def main() -> int:
    """Run what the command line names, or all, until the time is up."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the trials")
    parser.add_argument(
        "--tools", type=Path, default=Path(".interop"), help="where `make interop` installs tools (default: .interop)"
    )
    parser.add_argument(
        "--examples",
        type=Path,
        default=os.environ.get("TPY_TRITON_CLIENT"),
        help="a work tree or git directory of Triton's client repository (default: $TPY_TRITON_CLIENT)",
    )
    parser.add_argument("--seconds", type=float, default=900.0, help="begin no trial later than this (default: 900)")
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help="only these, or those whose name begins so")
    arguments = parser.parse_args()
    chosen = [trial for trial in TRIALS if not arguments.trials or any(trial.name.startswith(name) for name in arguments.trials)]
    if not chosen:
        parser.error("there is no such trial; --list names them")
    if arguments.list:
        print("\n".join(f"{trial.name}: {trial.version.tool}, {trial.ran}" for trial in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="tpy-interop-", ignore_cleanup_errors=True) as scratch:
        examples = arguments.examples.resolve() if arguments.examples else None
        tools = Tools(folder=arguments.tools.resolve(), peers=peers_folder(), scratch=Path(scratch), examples=examples)
        return run_all(chosen, tools, seconds_max=arguments.seconds)


def run_all(trials: Sequence[Trial], tools: Tools, *, seconds_max: float) -> int:
    """Run the trials, those of a server together, print the table and return the exit status."""
    began = time.monotonic()
    models = tools.scratch / "models"
    write_models(models)
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    able: list[Trial] = []
    for trial in trials:
        lacks = missing(trial, tools)
        if lacks:
            print(row(trial, Outcome(skipped=lacks), tools), flush=True)
        else:
            able.append(trial)
    failed: list[str] = []
    left_out: list[str] = []
    for name in dict.fromkeys(trial.server for trial in able):
        with ExitStack() as stack:
            server = None if name == NO_SERVER else stack.enter_context(_serving(name, models))
            for trial in (trial for trial in able if trial.server == name):
                if time.monotonic() - began > seconds_max:
                    left_out.append(trial.name)
                    continue
                outcome = _run(trial, _setting(trial, tools, models, server))
                print(row(trial, outcome, tools), flush=True)
                if outcome.failed:
                    failed.append(trial.name)
    print(f"\n{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {time.monotonic() - began:.0f} s")
    for names, what in ((failed, "failed"), (left_out, "not tried, the time was up")):
        if names:
            print(f"{what}: {', '.join(names)}")
    return 1 if failed or left_out else 0


def _serving(name: str, models: Path) -> ServerProcess:
    folders, flags = SERVERS[name]
    return ServerProcess(*flags, repositories=[models / folder for folder in folders])


def _setting(trial: Trial, tools: Tools, models: Path, server: ServerProcess | None) -> Setting:
    folder = tools.scratch / trial.name
    folder.mkdir()
    if server is None:
        return Setting(tools, folder, models)
    return Setting(tools, folder, models, http=server.http, grpc=server.grpc, metrics=server.metrics)


def _run(trial: Trial, setting: Setting) -> Outcome:
    try:
        return run(trial, setting)
    except Exception as error:
        traceback.print_exc(limit=-1, chain=False)
        return Outcome(failed=[f"the trial itself failed: {type(error).__name__}"])


if __name__ == "__main__":
    sys.exit(main())
