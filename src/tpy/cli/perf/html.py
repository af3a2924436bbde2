"""The results of a run as one HTML page with plots."""

from __future__ import annotations

from html import escape

from tpy.cli.perf.results import Parts, Run, level_text, level_value, render_table
from tpy.load import Result
from tpy.plots import SERIES_MAX, Series, line_plot, page, stacked_plot

_CURVE_POINTS = 200
_PARTS = ("send", "network", "queue", "compute_input", "compute_infer", "compute_output")


def render_html(run: Run) -> str:
    """The page."""
    results = [result for result in run.results if result.requests]
    parts = [f"<h1>{escape(run.title)}</h1>", f"<pre>{escape(render_table(run))}</pre>"]
    if len(results) > 1:
        parts += _over_levels(run, results)
    curves = [Series(name=level_text(each.level), points=_curve(each)) for each in results[:SERIES_MAX]]
    if curves:
        title = "Distribution of the latency"
        parts.append(line_plot(title, curves, across="microseconds", up="percent of requests", logarithmic=True))
    if any(result.server for result in results):
        rows = [(level_text(each.level), [getattr(Parts.of(each), name) for name in _PARTS]) for each in results]
        names = [name.replace("_", " ") for name in _PARTS]
        parts.append(stacked_plot("Parts of an average request", rows, names, unit="us"))
    return page(f"tpy perf: {run.model}", parts)


def _over_levels(run: Run, results: list[Result]) -> list[str]:
    """The plots of several levels."""
    level = "requests per second asked for" if run.is_rate else "concurrency"
    throughput = [Series(name="infer/s", points=[(level_value(each.level), each.inferences_per_s) for each in results])]
    latencies = [
        Series(name=f"p{percent}", points=[(level_value(each.level), _us(each, percent)) for each in results])
        for percent in run.percentiles
    ]
    trade = [
        Series(name=f"p{percent}", points=[(each.inferences_per_s, _us(each, percent)) for each in results])
        for percent in (50, 99)
    ]
    return [
        line_plot("Throughput", throughput, across=level, up="inferences per second"),
        line_plot("Latency", latencies, across=level, up="microseconds"),
        line_plot("Latency against throughput", trade, across="inferences per second", up="microseconds"),
    ]


def _us(result: Result, percent: float) -> float:
    return result.latencies.percentile_ns(percent) / 1e3


def _curve(result: Result) -> list[tuple[float, float]]:
    values, shares = result.latencies.curve()
    step = max(1, len(values) // _CURVE_POINTS)
    kept = sorted({*range(0, len(values), step), len(values) - 1})
    return [(max(values[at], 1.0) / 1e3, shares[at] * 100) for at in kept]
