"""A run of `tpy perf`: the levels that the flags say, one after another, then the files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import click

from tpy.cli.parsing import UsageError
from tpy.limits.loading import LOAD_INTERVALS_MAX
from tpy_tools.commands.perf.options import PerfOptions
from tpy_tools.commands.perf.planning import headers_of, inputs_of, load_of, members_of, raw_load, rules_of, target_of, tls_of
from tpy_tools.commands.perf.profile import left_out, render_profile
from tpy_tools.commands.perf.results import Run, level_text, render_csv, render_html, render_json, render_table
from tpy_tools.load import Level, LevelResult, MeasuredServer, Meter, ModelFacts, ServerError, Target, Workload
from tpy_tools.load.core.ranges import BadRange, LevelRange, parse_range
from tpy_tools.load.core.searching import BinarySearch, LinearSearch, Search
from tpy_tools.load.data import DataError
from tpy_tools.load.gpus import GpuMetricsPage, GpuWatch, MeasuredGpu, MetricsError, use_of
from tpy_tools.load.local import LocalServer
from tpy_tools.load.shared_memory import CudaMemory, NoSharedMemory, SharedTensors, SystemMemory
from tpy_tools.load.workers import WorkerFailed


class Levels:
    """The levels of a run, one after another. Raises UsageError."""

    def __init__(self, options: PerfOptions) -> None:
        given = [bool(options.concurrency), bool(options.rate), options.request_intervals is not None]
        if sum(given) > 1:
            raise UsageError("expected one of --concurrency-range, --request-rate-range and --request-intervals")
        self._poisson = options.request_distribution == "poisson"
        self.is_rate = bool(options.rate)
        self._intervals = _read_intervals(options.request_intervals) if options.request_intervals else None
        levels = _range(options)
        if not levels.end and not options.latency_threshold:
            raise UsageError("an end of 0 goes on until --latency-threshold, which is not given")
        self._search: Search = LinearSearch(levels)
        try:
            self.count = len(levels.levels()) if levels.end and self._intervals is None else 1
        except BadRange as error:
            raise UsageError(str(error)) from None
        if options.binary_search:
            self._search = _bisection(options, levels)
            self.count = 0
        self._done = False

    def next(self, *, met: bool) -> Level | None:
        """The next level, None at the end. `met`: the latency of the one before is not above the threshold."""
        if self._intervals is not None:
            level, self._done = (None if self._done else Level(intervals_ns=self._intervals)), True
            return level
        value = self._search.next(met=met)
        if value is None:
            return None
        return Level(rate=value, poisson=self._poisson) if self.is_rate else Level(concurrency=int(value))


def _bisection(options: PerfOptions, levels: LevelRange) -> BinarySearch:
    if ":" not in (options.rate or options.concurrency) or not levels.end:
        raise UsageError("--binary-search needs a --concurrency-range or --request-rate-range with a start and an end")
    if levels.factor:
        raise UsageError("--binary-search: the step is how near the result has to be: a number, no factor")
    if not options.latency_threshold:
        raise UsageError("--binary-search looks for the highest level that meets --latency-threshold, which is not given")
    return BinarySearch(levels, whole=not options.rate)


def _range(options: PerfOptions) -> LevelRange:
    name = "--request-rate-range" if options.rate else "--concurrency-range"
    try:
        return parse_range(options.rate or options.concurrency or "1", whole=not options.rate)
    except BadRange as error:
        raise UsageError(f"{name}: {error}") from None


def _read_intervals(path: Path) -> tuple[int, ...]:
    try:
        lines = path.read_text(encoding="utf-8").split()
        found = tuple(round(float(line) * 1e3) for line in lines)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"--request-intervals: {path}: expected a number of microseconds in each line: {error}") from None
    if not found or len(found) > LOAD_INTERVALS_MAX or min(found) < 0 or not sum(found):
        raise UsageError(
            f"--request-intervals: {path}: expected 1 to {LOAD_INTERVALS_MAX} intervals, none below 0, and not all 0"
        )
    return found


DONE, UNSTABLE, FAILED, INTERRUPTED = 0, 2, 3, 130
_METRICS_PORT = 8002
_STANDARD_OUTPUT = "-"


def run(options: PerfOptions) -> int:
    """Measure, and show and write the results. Returns the exit status. Raises UsageError when nothing can be measured."""
    for path in (options.csv_file, _json_file(options), options.html_file, options.profile_file):
        if path is not None:
            _require_writable(path)
    target = target_of(options)
    levels = Levels(options)
    page = _metrics_page(options)
    try:
        with ExitStack() as regions:
            meter, model = _meter(options, target, regions)
            results, gpus = _measure(meter, levels, options, page)
    except (ServerError, DataError, NoSharedMemory, WorkerFailed) as error:
        raise UsageError(str(error)) from error
    found = Run(
        model=options.model,
        target=target,
        batch=options.batch,
        percentile=options.percentile,
        is_rate=levels.is_rate,
        results=results,
        decoupled=options.streaming and (model is None or model.decoupled),
        service_kind=options.service_kind,
        endpoint=options.endpoint if options.service_kind == "openai" else "",
        verbose=options.verbose_csv,
        gpus=gpus,
    )
    problems = _write(found, options, model)
    click.echo(render_json(found) if options.json_file == _STANDARD_OUTPUT else render_table(found))
    if problems:
        raise UsageError("; ".join(problems))
    return _status(results)


def _metrics_page(options: PerfOptions) -> GpuMetricsPage | None:
    """The page of --metrics-url, which has been read once. Raises UsageError."""
    if not options.collect_metrics:
        return None
    parts = urlsplit(options.metrics_url if "://" in options.metrics_url else f"http://{options.metrics_url}")
    try:
        port = parts.port or _METRICS_PORT
    except ValueError:
        port = 0
    if not parts.hostname or not port or parts.scheme not in ("http", "https"):
        raise UsageError(f"--metrics-url: expected HOST:PORT/PATH, got {options.metrics_url!r}")
    page = GpuMetricsPage(parts.hostname, port, parts.path or "/metrics", tls_of(options) if parts.scheme == "https" else None)
    try:
        if not page.gpus():
            _progress("the metrics page shows no GPUs")
    except MetricsError as error:
        raise UsageError(f"--collect-metrics: {error}") from None
    return page


def _meter(options: PerfOptions, target: Target, regions: ExitStack) -> tuple[Meter, ModelFacts | None]:
    local = LocalServer.listening_at(target.host, target.port)
    if options.service_kind != "triton":
        return Meter(raw_load(options, target), rules_of(options), local=local, progress=_progress), None
    server = MeasuredServer(target, headers_of(options))
    model = server.model(options.model, options.model_version)
    if model.decoupled and target.protocol != "grpc-stream":
        raise UsageError(f"{model.name} is decoupled: it answers over streams: -i grpc --streaming")
    shared = None
    if options.shared_memory != "none":
        memory = SystemMemory() if options.shared_memory == "system" else CudaMemory.of_gpu(0)
        outputs = [tensor.name for tensor in model.outputs]
        shared = SharedTensors(memory, server, outputs, options.output_shared_memory_size * options.batch)
    load: Workload = load_of(options, target, model, shared)
    if shared is not None:
        regions.enter_context(shared)
    _set_tracing(options, server)
    members = members_of(options, model)
    return Meter(load, rules_of(options), server=server, members=members, local=local, progress=_progress), model


def _set_tracing(options: PerfOptions, server: MeasuredServer) -> None:
    """As the trace flags say, if there are any."""
    numbers = {"trace_rate": options.trace_rate, "trace_count": options.trace_count, "log_frequency": options.log_frequency}
    settings = {name: [str(value)] for name, value in numbers.items() if value is not None}
    if options.trace_levels:
        settings["trace_level"] = list(options.trace_levels)
    if settings:
        server.set_tracing(options.model, settings)


def _measure(
    meter: Meter, levels: Levels, options: PerfOptions, page: GpuMetricsPage | None
) -> tuple[list[LevelResult], list[dict[str, MeasuredGpu]]]:
    """The results of the levels, until one of them says that there is no use in going on; and the GPUs meanwhile."""
    results: list[LevelResult] = []
    gpus: list[dict[str, MeasuredGpu]] = []
    met = True
    while (level := levels.next(met=met)) is not None:
        number = len(results) + 1
        _progress(f"{level_text(level)} ({number} of {levels.count})" if levels.count > 1 else level_text(level))
        if page is None:
            result = meter.measure(level)
        else:
            with GpuWatch(page.gpus, options.metrics_interval / 1e3) as watch:
                result = meter.measure(level, watch.start)
            gpus.append(use_of(watch.samples, result.boundaries_ns))
            if watch.trouble:
                _progress(f"metrics are missing: {watch.trouble}")
        results.append(result)
        met = not options.latency_threshold or result.latency_ns(options.percentile) <= options.latency_threshold * 1e6
        if not met:
            _progress(f"the latency is above {options.latency_threshold} ms")
        if not _goes_on(result):
            break
    return results, gpus


def _goes_on(result: LevelResult) -> bool:
    """True if another level can be measured; says why not."""
    if result.lost:
        _progress(f"the server was lost: {result.lost}; what was measured until then:")
    elif result.interrupted:
        _progress("interrupted; what was measured until then:")
    else:
        return bool(result.requests)
    return False


def _status(results: Sequence[LevelResult]) -> int:
    if any(result.interrupted for result in results):
        return INTERRUPTED
    if any(result.lost or result.errors or not result.requests for result in results):
        return FAILED
    return DONE if all(result.stable for result in results) else UNSTABLE


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _require_writable(path: Path) -> None:
    """Raise UsageError when the file could not be written after the run: it is opened, and is as before."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    existed = path.exists()
    try:
        path.open("ab").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _write(found: Run, options: PerfOptions, model: ModelFacts | None) -> list[str]:
    """Write the files that were asked for. Returns what could not be written."""
    files = ((options.csv_file, render_csv), (_json_file(options), render_json), (options.html_file, render_html))
    problems = [_write_file(path, render(found)) for path, render in files if path is not None]
    if options.profile_file is not None:
        problems.append(_write_file(options.profile_file, render_profile(found, inputs_of(options, model))))
        if missing := left_out(found):
            _progress(f"{options.profile_file}: {missing} requests are not in it: there were too many")
    return [problem for problem in problems if problem]


def _json_file(options: PerfOptions) -> Path | None:
    return Path(options.json_file) if options.json_file not in ("", _STANDARD_OUTPUT) else None


def _write_file(path: Path, text: str) -> str:
    """Write a file. Returns why it could not be written, "" if it was."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""
