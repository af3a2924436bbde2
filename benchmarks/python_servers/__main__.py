"""Command line: `python -m benchmarks.python_servers --help`.

Exit status: 0 measured, 1 a server or a load generator failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.bench import Bench, Effort
from benchmarks.machine import describe_machine
from benchmarks.measurement import summarise
from benchmarks.python_servers.measuring import measure
from benchmarks.python_servers.peers import PEERS, reason_without
from benchmarks.report import Report, markdown, print_tables, with_results
from benchmarks.servers.peers import find_peers
from tests.ray.serving import is_private

BEGIN = "<!-- python servers: written by python -m benchmarks.python_servers -->"
END = "<!-- end of python servers -->"
_RESULTS = Path(__file__).parents[2] / ".bench" / "python-servers.json"
_TERMINATED = 128 + signal.SIGTERM


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.python_servers", description="Compare tpy with other servers that run a function in Python."
    )
    parser.add_argument("--rounds", type=int, metavar="N", default=5, help="rounds over all servers (default: 5)")
    parser.add_argument("--seconds", type=int, metavar="S", default=3, help="for each value (default: 3)")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, default=_RESULTS, help="results (default: .bench/python-servers.json)"
    )
    parser.add_argument("--page", metavar="FILE", type=Path, help="also replace the table inside this Markdown page")
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    versions = {peer.package: version for peer in PEERS if (version := peer.version())}
    reasons = {peer.name: why for peer in PEERS if (why := reason_without(peer, versions, private=is_private()))}
    for name, why in reasons.items():
        print(f"note: {name} is left out: {why}", file=sys.stderr)
    effort = Effort(rounds=arguments.rounds, seconds=arguments.seconds, quick=False)
    found = find_peers()
    machine = describe_machine(found)
    with tempfile.TemporaryDirectory(prefix="tpy-bench-", ignore_cleanup_errors=True) as scratch:
        bench = Bench(effort=effort, peers=found, folder=Path(scratch), models=Path(scratch))
        succeeded = measure(bench, [peer for peer in PEERS if peer.name not in reasons])
    report = Report(
        machine=msgspec.structs.replace(
            machine,
            load_after=os.getloadavg()[0],
            versions={**machine.versions, **versions},
        ),
        rounds=effort.rounds,
        seconds=effort.seconds,
        summary=summarise(bench.measurements),
        measurements=bench.measurements,
    )
    print_tables(Console(width=None if sys.stdout.isatty() else 180), report.summary)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(f"results: {arguments.json}")
    if arguments.page is not None:
        page = arguments.page.read_text(encoding="utf-8")
        text = markdown(report, begin=BEGIN, end=END)
        arguments.page.write_text(with_results(page, text, begin=BEGIN, end=END), encoding="utf-8")
    return 0 if succeeded else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # unwinds, which ends the servers
    sys.exit(main())
