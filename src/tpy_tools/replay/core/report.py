"""The report of a replay: counts, differences, and latencies beside those of the recording."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from tpy.echo import printable
from tpy_tools.replay.core.comparison import Difference

_NS_PER_MS = 1e6
_QUANTILES = (0.5, 0.9, 0.99)
_DIFFERENCES_SHOWN = 10
_TIME_BITS = 13


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds."""

    p50: float
    p90: float
    p99: float


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one model. `recorded` is the time in the server, `replayed` that at the client."""

    model: str
    sent: int
    equal: int
    different: int
    recorded: Latencies | None
    replayed: Latencies | None


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """A replay. `left_out` counts requests that were not sent, by the reason; `problem` is why a replay ended early,
    `file_problem` why the file is not whole."""

    file: str
    url: str
    requests: int
    sent: int
    answered: int
    equal: int
    different: int
    seconds: float
    left_out: dict[str, int]
    models: list[ModelReport]
    differences: list[Difference]
    shapes_only: int = 0
    """Answers of which the recording has no elements: names, datatypes and shapes were compared."""
    held_requests: int = 0
    held_bytes: int = 0
    """The most that was read of the file and not yet compared, at a time."""
    file_problem: str = ""
    problem: str = ""


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request: its latencies, then and now, and the difference. `whole`: elements or hashes of all were recorded."""

    model: str
    recorded_ns: int
    replayed_ns: int
    difference: Difference | None
    whole: bool = True


class Results:
    """Takes what becomes of each request, and makes the report. Keeps a limited number of differences, and counts the others."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._sent: Counter[str] = Counter()
        self._equal: Counter[str] = Counter()
        self._different: Counter[str] = Counter()
        self._recorded: dict[str, _Times] = {}
        self._replayed: dict[str, _Times] = {}
        self._shapes_only = 0
        self.differences: list[Difference] = []

    def sent(self, model: str) -> None:
        """A request was sent."""
        self._sent[model] += 1

    def answered(self, outcome: RequestOutcome) -> None:
        """A request was answered."""
        model = outcome.model
        self._recorded.setdefault(model, _Times()).add(outcome.recorded_ns)
        self._replayed.setdefault(model, _Times()).add(outcome.replayed_ns)
        self._shapes_only += not outcome.whole
        if outcome.difference is None:
            self._equal[model] += 1
            return
        self._different[model] += 1
        if len(self.differences) < self._kept_max:
            self.differences.append(outcome.difference)

    def report(
        self,
        *,
        file: str,
        url: str,
        requests: int,
        left_out: dict[str, int],
        seconds: float,
        file_problem: str = "",
        problem: str = "",
        held_requests: int = 0,
        held_bytes: int = 0,
    ) -> ReplayReport:
        """All of it."""
        models = [
            ModelReport(
                model=model,
                sent=self._sent[model],
                equal=self._equal[model],
                different=self._different[model],
                recorded=_latencies(self._recorded.get(model)),
                replayed=_latencies(self._replayed.get(model)),
            )
            for model in sorted(self._sent)
        ]
        return ReplayReport(
            file=file,
            url=url,
            requests=requests,
            sent=self._sent.total(),
            answered=self._equal.total() + self._different.total(),
            equal=self._equal.total(),
            different=self._different.total(),
            seconds=round(seconds, 3),
            left_out=left_out,
            models=models,
            differences=sorted(self.differences, key=lambda each: each.number),
            shapes_only=self._shapes_only,
            held_requests=held_requests,
            held_bytes=held_bytes,
            file_problem=file_problem,
            problem=problem,
        )


def render(report: ReplayReport) -> str:
    """The report for people."""
    lines = [f"{report.file} to {report.url}: {report.sent} of {report.requests} requests sent in {report.seconds:.1f} s"]
    lines += [f"  left out: {count} {reason}" for reason, count in report.left_out.items()]
    if report.models:
        lines += ["", f"{'':24} {'':>8} {'':>8} {'':>9}   {'recorded ms (server)':^26}   {'replayed ms (client)':^26}"]
        heads = "".join(f"{name:>9}" for name in ("p50", "p90", "p99"))
        lines.append(f"{'model':24} {'sent':>8} {'equal':>8} {'different':>9}  {heads}  {heads}")
        for row in report.models:
            lines.append(
                f"{row.model:24} {row.sent:>8} {row.equal:>8} {row.different:>9}  {_row(row.recorded)}  {_row(row.replayed)}"
            )
    if report.differences:
        lines.append("")
        lines += [str(each) for each in report.differences[:_DIFFERENCES_SHOWN]]
        hidden = report.different - min(len(report.differences), _DIFFERENCES_SHOWN)
        if hidden:
            lines.append(f"and {hidden} more")
    if report.shapes_only:
        lacking = "by names, datatypes and shapes alone: the recording lacks elements"
        lines += ["", f"{report.shapes_only} answers were compared {lacking}"]
    if report.file_problem:
        lines += ["", f"the recording: {report.file_problem}"]
    lines += ["", _verdict(report)]
    return "\n".join(map(printable, lines))


def _verdict(report: ReplayReport) -> str:
    if report.problem:
        return f"ended early, {report.answered} answered, {report.different} of them different: {report.problem}"
    if report.file_problem:
        return f"the recording is not whole; of {report.answered} answers {report.different} are different"
    if report.different:
        return f"{report.different} of {report.answered} answers are different"
    return f"all {report.answered} answers are equal"


def _row(latencies: Latencies | None) -> str:
    if latencies is None:
        return f"{'-':>9}" * len(_QUANTILES)
    return "".join(f"{value:9.2f}" for value in (latencies.p50, latencies.p90, latencies.p99))


class _Times:
    """Counts of times, each to 13 bits, so that any number of them takes bounded memory."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, time_ns: int) -> None:
        """Count one."""
        dropped = max(0, time_ns.bit_length() - _TIME_BITS)
        self._counts[time_ns >> dropped << dropped] += 1

    def quantiles(self, quantiles: Sequence[float]) -> list[int]:
        """The times that so large parts of all do not exceed."""
        ordered = sorted(self._counts.items())
        totals = list(accumulate(count for _, count in ordered))
        return [ordered[bisect_right(totals, min(totals[-1] - 1, int(each * totals[-1])))][0] for each in quantiles]


def _latencies(times: _Times | None) -> Latencies | None:
    if times is None:
        return None
    p50, p90, p99 = (time_ns / _NS_PER_MS for time_ns in times.quantiles(_QUANTILES))
    return Latencies(p50=round(p50, 3), p90=round(p90, 3), p99=round(p99, 3))
