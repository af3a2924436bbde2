"""Command line: `python -m benchmarks --help`.

Exit status: 0 measured, 1 a server or a load generator failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.bench import Bench, Effort
from benchmarks.load import LoadFailed
from benchmarks.machine import describe_machine
from benchmarks.measurement import summarise
from benchmarks.report import Report, markdown, print_tables, with_results
from benchmarks.rows.registry import QUICK_ROWS, ROWS, Row, rows_named
from benchmarks.servers.peers import Peers, find_peers
from benchmarks.servers.process import ServerFailed
from benchmarks.tensors import WrongAnswer

_ROOT = Path(__file__).parents[1]
_RESULTS = _ROOT / ".bench" / "results.json"
_TERMINATED = 128 + signal.SIGTERM
_FULL = Effort(rounds=5, seconds=3, quick=False)
_QUICK = Effort(rounds=1, seconds=1, quick=True)


def _arguments() -> argparse.Namespace:
    names = ", ".join(f"{row.name} ({row.about})" for row in ROWS).replace("%", "%%")  # argparse formats it
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Compare the speed and memory of tpy with the peers that are installed."
    )
    parser.add_argument("--quick", action="store_true", help="one round, one second each, fewer rows and cases: under 3 minutes")
    parser.add_argument("--rows", metavar="ROW[,ROW]", type=_rows, help=f"only these rows: {names}")
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"rounds over all contenders (default: {_FULL.rounds})")
    parser.add_argument("--seconds", type=_positive, metavar="S", help=f"for each value (default: {_FULL.seconds})")
    parser.add_argument("--without", metavar="PEER[,PEER]", default="", help="leave out peers: triton, mlserver, perf_analyzer")
    parser.add_argument("--json", metavar="FILE", type=Path, default=_RESULTS, help="results (default: .bench/results.json)")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="also write the tables in Markdown")
    parser.add_argument("--page", metavar="FILE", type=Path, help="also replace the tables inside this Markdown page")
    parser.add_argument("--models", metavar="DIRECTORY", type=Path, default=_ROOT / "demo" / "models", help="demo repository")
    return parser.parse_args()


def _rows(text: str) -> tuple[Row, ...]:
    try:
        return rows_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _without(peers: Peers, names: str) -> Peers:
    unwanted = {name for name in names.split(",") if name}
    unknown = unwanted - {"triton", "mlserver", "perf_analyzer"}
    if unknown:
        raise SystemExit(f"--without: no peer {', '.join(sorted(unknown))!r}; peers: triton, mlserver, perf_analyzer")
    return msgspec.structs.replace(peers, **dict.fromkeys(unwanted))


def _build_models(folder: Path) -> None:
    """The demo repository; what is there already is kept."""
    subprocess.run([sys.executable, str(_ROOT / "docs" / "examples" / "demo" / "build.py"), str(folder)], check=True)


def _measure(bench: Bench, rows: Sequence[Row]) -> bool:
    """Every row. One that fails is reported, and the others still run. Returns whether all succeeded."""
    succeeded = True
    for row in rows:
        try:
            row.measure(bench)
        except (ServerFailed, LoadFailed, WrongAnswer, OSError) as error:
            succeeded = False
            bench.say(f"row {row.name} failed (--without leaves a peer out): {error}")
    return succeeded


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    found = find_peers()
    for sentence in found.missing():
        print(f"note: {sentence}", file=sys.stderr)
    peers = _without(found, arguments.without)
    usual = _QUICK if arguments.quick else _FULL
    effort = Effort(rounds=arguments.rounds or usual.rounds, seconds=arguments.seconds or usual.seconds, quick=usual.quick)
    rows = arguments.rows or (QUICK_ROWS if arguments.quick else ROWS)
    if any(row.needs_models for row in rows):
        _build_models(arguments.models)
    machine = describe_machine(peers)
    with tempfile.TemporaryDirectory(prefix="tpy-bench-") as scratch:
        bench = Bench(effort=effort, peers=peers, folder=Path(scratch), models=arguments.models)
        succeeded = _measure(bench, rows)
    report = Report(
        machine=msgspec.structs.replace(machine, load_after=os.getloadavg()[0]),
        rounds=effort.rounds,
        seconds=effort.seconds,
        summary=summarise(bench.measurements),
        measurements=bench.measurements,
    )
    _write(report, arguments)
    return 0 if succeeded else 1


def _write(report: Report, arguments: argparse.Namespace) -> None:
    print_tables(Console(width=None if sys.stdout.isatty() else 180), report.summary)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(f"results: {arguments.json}")
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(report), encoding="utf-8")
    if arguments.page is not None:
        page = arguments.page.read_text(encoding="utf-8")
        arguments.page.write_text(with_results(page, markdown(report)), encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # unwinds, which ends the servers
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
