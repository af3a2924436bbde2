"""Command line: `python -m benchmarks.growth --help`.

Exit status: 0 measured, 1 a server or a load generator failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from benchmarks.bench import Bench, Effort
from benchmarks.growth import scheduling, served
from benchmarks.growth.curves import GrowthReport, Point
from benchmarks.growth.page import markdown, with_growth
from benchmarks.growth.plots import can_draw, draw
from benchmarks.load import LoadFailed
from benchmarks.machine import describe_machine
from benchmarks.servers.peers import find_peers
from benchmarks.servers.process import ServerFailed
from benchmarks.tensors import WrongAnswer

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / ".bench" / "growth.json"
_PLOTS = _ROOT / "docs" / "explanation" / "plots"
_TERMINATED = 128 + signal.SIGTERM
_FULL = Effort(rounds=3, seconds=1, quick=False)
_QUICK = Effort(rounds=1, seconds=1, quick=True)
_QUEUE = (10, 100, 1_000, 10_000, 50_000)
_SEQUENCES = (64, 100, 1_000, 10_000, 20_000)


def _scheduling(bench: Bench) -> Iterable[Point]:
    for _ in bench.rounds():
        yield from scheduling.drive(
            queue=bench.effort.cases(_QUEUE, (10, 1_000, 50_000)),
            sequences=bench.effort.cases(_SEQUENCES, (64, 1_000, 20_000)),
            seconds=0.2 if bench.effort.quick else 0.3,
        )


MEASURES: Mapping[str, Callable[[Bench], Iterable[Point]]] = {
    "batch": served.batches,
    "concurrency": served.concurrency,
    "size": served.sizes,
    "models": served.models,
    "connections": served.connections,
    "scheduling": _scheduling,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Measure how costs grow with what grows.")
    parser.add_argument("--quick", action="store_true", help="one round, fewer points: about 2 minutes (else about 12)")
    parser.add_argument("--curves", metavar="CURVE[,CURVE]", help=f"only these: {', '.join(MEASURES)}")
    parser.add_argument("--json", metavar="FILE", type=Path, default=_RESULTS, help="results (default: .bench/growth.json)")
    parser.add_argument("--from-json", metavar="FILE", type=Path, help="measure nothing: write page and plots from these results")
    parser.add_argument(
        "--plots", metavar="DIRECTORY", type=Path, help="also draw SVG files; needs matplotlib, pip install matplotlib"
    )
    parser.add_argument("--page", metavar="FILE", type=Path, help="also replace the curves inside this Markdown page, and draw")
    return parser.parse_args()


def _chosen(names: str | None) -> Mapping[str, Callable[[Bench], Iterable[Point]]]:
    if names is None:
        return MEASURES
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = wanted - set(MEASURES)
    if unknown or not wanted:
        print(f"--curves: no curve {', '.join(sorted(unknown))!r}; curves: {', '.join(MEASURES)}", file=sys.stderr)
        raise SystemExit(2)
    return {name: measure for name, measure in MEASURES.items() if name in wanted}


def _measure(measures: Mapping[str, Callable[[Bench], Iterable[Point]]], effort: Effort) -> GrowthReport:
    """A curve that fails keeps the points that it has, and the others still run."""
    peers = find_peers()
    machine = describe_machine(peers)
    points: list[Point] = []
    failures = []
    with tempfile.TemporaryDirectory(prefix="tpy-growth-") as scratch:
        bench = Bench(effort=effort, peers=peers, folder=Path(scratch), models=Path(scratch))
        for name, measure in measures.items():
            try:
                for point in measure(bench):
                    points.append(point)
                    bench.say(f"{point.curve}, {point.series}, {point.x:,}: {point.y:,.2f}")
            except (ServerFailed, LoadFailed, WrongAnswer, OSError) as error:
                failures.append(f"The curve {name} is not complete: {str(error).splitlines()[0]}.")
                bench.say(f"curve {name} failed: {error}")
    return GrowthReport(
        machine=msgspec.structs.replace(machine, load_after=os.getloadavg()[0]),
        rounds=effort.rounds,
        seconds=effort.seconds,
        points=points,
        failures=failures,
    )


def _write(report: GrowthReport, arguments: argparse.Namespace) -> None:
    folder: Path | None = arguments.plots or (_PLOTS if arguments.page is not None else None)
    plots: Mapping[str, Path] = {}
    if folder is not None and can_draw():
        plots = draw(report, folder)
    elif folder is not None:
        print("note: no plots without matplotlib: pip install matplotlib", file=sys.stderr)
    base = arguments.page.parent if arguments.page is not None else Path.cwd()
    text = markdown(report, {name: os.path.relpath(file, base) for name, file in plots.items()})
    if arguments.page is None:
        print(text)
    else:
        page = arguments.page.read_text(encoding="utf-8")
        arguments.page.write_text(with_growth(page, text), encoding="utf-8")


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    if arguments.from_json is not None:
        report = msgspec.json.decode(arguments.from_json.read_bytes(), type=GrowthReport)
    else:
        report = _measure(_chosen(arguments.curves), _QUICK if arguments.quick else _FULL)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        print(f"results: {arguments.json}")
    _write(report, arguments)
    return 1 if report.failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # unwinds, which ends the servers
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
