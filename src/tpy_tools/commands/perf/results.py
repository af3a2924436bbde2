"""The results of a run as a table, as perf_analyzer's CSV, as JSON, and as one HTML page with plots."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape

import msgspec
import orjson

from tpy import __version__
from tpy_tools.load import LatencyHistogram, Level, LevelResult, ServerStatistics, Target
from tpy_tools.load.gpus import MeasuredGpu
from tpy_tools.plots import SERIES_MAX, Series, line_plot, page, stacked_plot

PERCENTILES = (50, 90, 95, 99)
_NS_PER_US = 1e3
_MIB = 1 << 20


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All results of one run. `decoupled`: requests have several responses, whose times are of interest."""

    model: str
    target: Target
    batch: int
    percentile: int
    is_rate: bool
    results: list[LevelResult]
    decoupled: bool = False
    service_kind: str = "triton"
    endpoint: str = ""
    verbose: bool = False
    gpus: list[dict[str, MeasuredGpu]] = []
    """Of each result, where metrics are collected."""

    @property
    def percentiles(self) -> tuple[int, ...]:
        """The percentiles that are reported, in order."""
        return tuple(sorted({*PERCENTILES, *((self.percentile,) if self.percentile > 0 else ())}))

    @property
    def is_token_stream(self) -> bool:
        """True if answers come token by token."""
        return self.decoupled and self.target.counts_tokens

    @property
    def title(self) -> str:
        """One line that says what was measured."""
        names = {"http": "HTTP", "grpc": "gRPC", "grpc-stream": "gRPC streams", "sse": "server-sent events"}
        return f"{self.model} at {self.target.authority} over {names[self.target.protocol]}, batch size {self.batch}"


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an average request, in microseconds, as perf_analyzer names them."""

    send: float
    network: float
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    receive: float = 0.0

    @classmethod
    def of(cls, result: LevelResult) -> Parts:
        """From the server's statistics and the client's own times."""
        server = result.server or ServerStatistics()
        count = max(1, server.success.count)
        queue, before, inside, after = (
            part.ns / count / _NS_PER_US
            for part in (server.queue, server.compute_input, server.compute_infer, server.compute_output)
        )
        send = result.send_ns / max(1, result.requests) / _NS_PER_US
        average = result.latencies.mean_ns / _NS_PER_US
        rest = max(0.0, average - send - queue - before - inside - after)
        return cls(send=send, network=rest, queue=queue, compute_input=before, compute_infer=inside, compute_output=after)


def level_text(level: Level) -> str:
    """The level in words."""
    if level.concurrency:
        return f"concurrency {level.concurrency}"
    if level.intervals_ns is not None:
        return "intervals of the file"
    return f"{level.rate:g} requests per second" + (", Poisson" if level.poisson else "")


def level_value(level: Level) -> float:
    """The level as a number."""
    if level.intervals_ns is not None:
        return round(len(level.intervals_ns) / sum(level.intervals_ns) * 1e9, 3)
    return level.concurrency or level.rate


def render_table(run: Run) -> str:
    """The table for people."""
    rows = [_headings(run), *(_row(run, result) for result in run.results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [run.title, "latencies and parts in microseconds", ""]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    for number, result in enumerate(run.results):
        lines += _notes(run, result)
        lines += _gpu_notes(result, run.gpus[number] if run.gpus else {})
    return "\n".join(lines)


def _headings(run: Run) -> list[str]:
    percentiles = [f"p{percent}" for percent in run.percentiles]
    level = "concurrency" if any(result.level.concurrency for result in run.results) else "requests/s"
    found = [level, "infer/s", "average", *percentiles]
    if run.is_token_stream:
        found += ["first token p50", "first token p99", "between tokens p50", "between tokens p99"]
    elif run.decoupled:
        found += ["first p50", "first p99", "between p50", "responses/s"]
    if run.target.counts_tokens:
        found += ["tokens/s"]
    return [*found, "queue", "compute", "network", "server CPU", "server MiB", "client CPU"]


def _row(run: Run, result: LevelResult) -> list[str]:
    parts = Parts.of(result)
    found = [f"{level_value(result.level):g}", f"{result.inferences_per_s:.1f}", _us(result.latencies.mean_ns)]
    found += [_us(result.latencies.percentile_ns(percent)) for percent in run.percentiles]
    if run.decoupled:
        found += [_us(result.first.percentile_ns(percent)) for percent in (50, 99)]
        if run.is_token_stream:
            found += [_us(result.per_token.percentile_ns(percent)) for percent in (50, 99)]
        else:
            found += [_us(result.between.percentile_ns(50)), f"{result.responses_per_s:.1f}"]
    if run.target.counts_tokens:
        found.append(f"{result.tokens_per_s:.1f}")
    if result.server is None:
        found += ["-", "-", "-"]
    else:
        compute = parts.compute_input + parts.compute_infer + parts.compute_output
        found += [f"{each:.0f}" for each in (parts.queue, compute, parts.network)]
    if result.usage is None:
        found += ["-", "-"]
    else:
        found += [f"{result.usage.cpu_s / max(1, result.requests) * 1e6:.0f}", f"{result.usage.resident_bytes / _MIB:.0f}"]
    return [*found, f"{result.cpu_us_per_request:.0f}"]


def _us(ns: float) -> str:
    return f"{ns / _NS_PER_US:.0f}"


def _notes(run: Run, result: LevelResult) -> list[str]:
    """Remarks on the figures of a level."""
    where = level_text(result.level)
    notes = []
    if not result.stable and not result.interrupted and not result.lost:
        notes.append(f"{where}: not stable after {len(result.windows)} windows")
    if result.lost:
        notes.append(f"{where}: the server was lost: {result.lost}")
    if result.interrupted:
        notes.append(f"{where}: interrupted")
    notes += [f"{where}: {count} requests failed: {text}" for text, count in result.errors.most_common(5)]
    if result.late.count and result.late.percentile_ns(99) > result.latencies.percentile_ns(50):
        late = result.late.percentile_ns(99) / _NS_PER_US
        notes.append(
            f"{where}: 1 % of the requests began {late:.0f} us late or more; their latency counts from when they were due"
        )
    for name, counts in result.members.items():
        each = max(1, counts.success.count)
        compute = counts.compute_input.ns + counts.compute_infer.ns + counts.compute_output.ns
        notes.append(
            f"{where}: {name}: {counts.inferences} inferences in {counts.executions} executions, "
            f"queue {counts.queue.ns / each / _NS_PER_US:.0f}, compute {compute / each / _NS_PER_US:.0f}"
        )
    return notes


def _gpu_notes(result: LevelResult, gpus: Mapping[str, MeasuredGpu]) -> list[str]:
    """Remarks on the GPUs."""
    notes = []
    for uuid, use in gpus.items():
        figures = [] if use.utilization is None else [f"{use.utilization * 100:.0f} % busy"]
        figures += [] if use.power_w is None else [f"{use.power_w:.0f} W"]
        figures += [] if use.memory_used_bytes is None else [f"{use.memory_used_bytes / _MIB:.0f} MiB"]
        if use.energy_j is not None and result.requests:
            figures.append(f"{use.energy_j / result.requests:.3g} J per request")
        notes.append(f"{level_text(result.level)}: {uuid}: {', '.join(figures)}")
    return notes


def render_csv(run: Run) -> str:
    """perf_analyzer's CSV: its columns, one row for a level, the lowest throughput first."""
    shown = all(result.server is not None for result in run.results)
    server = ["Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output"]
    headings = ["Concurrency" if not run.is_rate else "Request Rate", "Inferences/Second"]
    headings += ["Response Throughput"] if run.decoupled else []
    headings += ["Client Send", *(["Network+Server Send/Recv", *server] if shown else []), "Client Recv"]
    headings += [f"p{percent} latency" for percent in run.percentiles]
    if run.verbose:
        headings += ["Avg latency", "request/response", "response wait"]
        headings += ["Avg GPU Utilization", "Avg GPU Power Usage", "Max GPU Memory Usage", "Total GPU Memory"] if run.gpus else []
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(headings)
    for number, result in sorted(enumerate(run.results), key=lambda each: each[1].inferences_per_s):
        writer.writerow(_csv_row(run, result, run.gpus[number] if run.gpus else None, shown=shown))
    return file.getvalue()


def _csv_row(run: Run, result: LevelResult, gpus: Mapping[str, MeasuredGpu] | None, *, shown: bool) -> list[str]:
    """A line. Latencies of requests with several responses are those of the first one, as perf_analyzer has them."""
    parts = Parts.of(result)
    latencies = result.first if run.decoupled and result.first.count else result.latencies
    row = [f"{level_value(result.level):g}", f"{result.inferences_per_s:.6g}"]
    row += [f"{result.responses_per_s:.6g}"] if run.decoupled else []
    row.append(_rounded(parts.send))
    if shown:
        row += map(_rounded, (parts.network, parts.queue, parts.compute_input, parts.compute_infer, parts.compute_output))
    row += [_rounded(parts.receive), *(_us(latencies.percentile_ns(percent)) for percent in run.percentiles)]
    if run.verbose:
        row += [_us(latencies.mean_ns), _rounded(parts.send + parts.receive), _us(latencies.mean_ns - parts.send * _NS_PER_US)]
        if gpus is not None:
            row += [_of_gpus(gpus, name) for name in ("utilization", "power_w", "memory_used_bytes", "memory_total_bytes")]
    return row


def _of_gpus(gpus: Mapping[str, MeasuredGpu], name: str) -> str:
    """A figure of each GPU, in perf_analyzer's form."""
    return "".join(f"{uuid}:{getattr(use, name):g};" for uuid, use in gpus.items() if getattr(use, name) is not None)


def _rounded(value: float) -> str:
    return f"{value:.0f}"


def render_json(run: Run) -> str:
    """All figures."""
    document = {
        "tool": f"tpy perf {__version__}",
        "model": run.model,
        "server": run.target.authority,
        "protocol": run.target.protocol,
        "batch_size": run.batch,
        "results": [_document(run, number, result) for number, result in enumerate(run.results)],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"


def _document(run: Run, number: int, result: LevelResult) -> dict[str, object]:
    found: dict[str, object] = {
        "level": level_text(result.level),
        "concurrency": result.level.concurrency or None,
        "requests_per_second_asked": result.level.rate or None,
        "seconds": result.seconds,
        "requests": result.requests,
        "responses": result.responses,
        "inferences_per_second": result.inferences_per_s,
        "latency_us": _distribution(result.latencies, run.percentiles),
        "errors": dict(result.errors),
        "stable": result.stable,
        "interrupted": result.interrupted,
        "server_lost": result.lost or None,
        "windows": [{"inferences_per_second": each.per_s, "latency_us": each.latency_ns / _NS_PER_US} for each in result.windows],
        "client_cpu_us_per_request": result.cpu_us_per_request,
        "parts_us": msgspec.to_builtins(Parts.of(result)) if result.server else None,
        "server_statistics": msgspec.to_builtins(result.server) if result.server else None,
        "members": {name: msgspec.to_builtins(counts) for name, counts in result.members.items()},
        "server_cpu_s": result.usage.cpu_s if result.usage else None,
        "server_resident_bytes": result.usage.resident_bytes if result.usage else None,
    }
    if run.gpus:
        found["gpus"] = {uuid: msgspec.to_builtins(use) for uuid, use in run.gpus[number].items()}
    if result.late.count:
        found["late_us"] = _distribution(result.late, run.percentiles)
    if result.prompt_tokens or result.completion_tokens:
        found["prompt_tokens"] = result.prompt_tokens
        found["completion_tokens"] = result.completion_tokens
        found["tokens_per_second"] = result.tokens_per_s
    if result.per_token.count:
        found["time_to_first_token_us"] = _distribution(result.first, run.percentiles)
        found["inter_token_latency_us"] = _distribution(result.per_token, run.percentiles)
    if result.first.count:
        found["first_response_us"] = _distribution(result.first, run.percentiles)
        found["between_responses_us"] = _distribution(result.between, run.percentiles)
    return found


def _distribution(histogram: LatencyHistogram, percentiles: Sequence[int]) -> dict[str, float]:
    shown = {f"p{percent}": histogram.percentile_ns(percent) / _NS_PER_US for percent in percentiles}
    return {
        "average": histogram.mean_ns / _NS_PER_US,
        "deviation": histogram.deviation_ns / _NS_PER_US,
        "min": histogram.smallest_ns / _NS_PER_US,
        **shown,
        "p99.9": histogram.percentile_ns(99.9) / _NS_PER_US,
        "max": histogram.largest_ns / _NS_PER_US,
    }


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


def _over_levels(run: Run, results: list[LevelResult]) -> list[str]:
    """The plots of several levels."""
    level = "requests per second asked for" if run.is_rate else "concurrency"
    throughput = [Series(name="infer/s", points=[(level_value(each.level), each.inferences_per_s) for each in results])]
    latencies = [
        Series(name=f"p{percent}", points=[(level_value(each.level), _micros(each, percent)) for each in results])
        for percent in run.percentiles
    ]
    trade = [
        Series(name=f"p{percent}", points=[(each.inferences_per_s, _micros(each, percent)) for each in results])
        for percent in (50, 99)
    ]
    return [
        line_plot("Throughput", throughput, across=level, up="inferences per second"),
        line_plot("Latency", latencies, across=level, up="microseconds"),
        line_plot("Latency against throughput", trade, across="inferences per second", up="microseconds"),
    ]


def _micros(result: LevelResult, percent: float) -> float:
    return result.latencies.percentile_ns(percent) / 1e3


def _curve(result: LevelResult) -> list[tuple[float, float]]:
    values, shares = result.latencies.curve()
    step = max(1, len(values) // _CURVE_POINTS)
    kept = sorted({*range(0, len(values), step), len(values) - 1})
    return [(max(values[at], 1.0) / 1e3, shares[at] * 100) for at in kept]
