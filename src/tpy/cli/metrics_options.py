"""--metrics-config."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tpy.cli.parsing import UsageError
from tpy.limits import SUMMARY_QUANTILES_MAX
from tpy.telemetry.latencies import LatencyOptions

_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_NAMES = ("counter_latencies", "histogram_latencies", "summary_latencies", "summary_quantiles")


def read_metrics_config(pairs: Sequence[str]) -> tuple[bool, LatencyOptions]:
    """Returns whether there are counters of latencies, and the distributions. Raises UsageError for a pair that means nothing."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--metrics-config: expected <name>=<value>, got '{pair}'")
        if name not in _NAMES:
            raise UsageError(f"--metrics-config {pair}: expected one of {', '.join(_NAMES)}")
        if name != "summary_quantiles" and text.lower() not in _TRUTHS:
            raise UsageError(f"--metrics-config {pair}: expected true or false")
        found[name] = text
    truths = {name: _TRUTHS[text.lower()] for name, text in found.items() if name != "summary_quantiles"}
    latencies = LatencyOptions(
        histograms=truths.get("histogram_latencies", False), summaries=truths.get("summary_latencies", False)
    )
    if "summary_quantiles" in found:
        latencies = msgspec.structs.replace(latencies, quantiles=_quantiles(found["summary_quantiles"]))
    return truths.get("counter_latencies", True), latencies


def _quantiles(text: str) -> tuple[float, ...]:
    """The quantiles, each with the error that may be made in finding it: none is made here."""
    found = []
    for part in text.split(","):
        quantile, colon, error = part.partition(":")
        try:
            numbers = float(quantile), float(error)
        except ValueError:
            numbers = (-1.0, -1.0)
        if not colon or not all(0 <= number <= 1 for number in numbers):
            raise UsageError(
                f"--metrics-config summary_quantiles: expected <quantile>:<error>, two numbers from 0 to 1, got '{part}', as in "
                "summary_quantiles=0.5:0.05,0.99:0.001"
            )
        found.append(numbers[0])
    if len(found) > SUMMARY_QUANTILES_MAX:
        raise UsageError(
            f"--metrics-config summary_quantiles: {len(found)} quantiles, at most {SUMMARY_QUANTILES_MAX} are allowed"
        )
    return tuple(dict.fromkeys(found))
