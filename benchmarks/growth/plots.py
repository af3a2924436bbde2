"""The curves as SVG files. Needs matplotlib (the extra `bench`); the same points give the same bytes."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from benchmarks.growth.curves import CURVES, Curve, GrowthReport, series_of

_SIZE_INCHES = (6.4, 4.0)


def can_draw() -> bool:
    """Returns True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(report: GrowthReport, folder: Path) -> Mapping[str, Path]:
    """Write one file for each curve that was measured. Returns curve -> file."""
    import matplotlib as mpl

    mpl.use("svg")
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for curve in CURVES:
        series = series_of(report.points, curve.name)
        if series:
            files[curve.name] = folder / f"{curve.name}.svg"
            with mpl.rc_context(
                {
                    "svg.hashsalt": "tpy",
                    "svg.fonttype": "none",
                    "font.family": "sans-serif",
                    "font.size": 9,
                    "axes.spines.top": False,
                    "axes.spines.right": False,
                    "axes.grid": True,
                    "grid.alpha": 0.3,
                    "path.simplify": True,
                }
            ):
                _draw_one(curve, series, files[curve.name])
    return files


def _draw_one(curve: Curve, series: Mapping[str, Mapping[int, float]], file: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    for name, line in series.items():
        axes.plot(list(line), list(line.values()), marker="o", markersize=3, linewidth=1.2, label=name)
    axes.set_xscale("log")
    places = sorted({x for line in series.values() for x in line})
    axes.set_xticks(places)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short(int(x))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    if curve.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.x)
    axes.set_ylabel(curve.y)
    axes.set_title(curve.title, loc="left")
    figure.legend(loc="outside lower left", frameon=False, fontsize=8)
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


def _short(number: int) -> str:
    """With a unit where it is a round number of them: 16384 is 16Ki, 20000 is 20k."""
    for step, units in ((1024, ("", "Ki", "Mi")), (1000, ("", "k", "M"))):
        power = 0
        rest = number
        while rest and rest % step == 0 and power < len(units) - 1:
            rest //= step
            power += 1
        if power:
            return f"{rest}{units[power]}"
    return str(number)
