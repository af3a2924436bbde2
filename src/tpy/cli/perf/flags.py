"""perf_analyzer's flags that are not `tpy perf`'s, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpy.cli.parsing import UsageError

_OWN_SERVER = "it measures servers that run"

REFUSED = {
    "--model-repository": _OWN_SERVER,
    "--periodic-concurrency-range": "use --concurrency-range or --request-intervals",
    "--request-period": "it belongs to --periodic-concurrency-range",
    "--triton-server-directory": _OWN_SERVER,
}
"""Flags of perf_analyzer 2.51 that are refused by name, with what to do instead."""


def refuse(arguments: Sequence[str]) -> None:
    """Raise UsageError for a flag of perf_analyzer that is not supported."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in REFUSED:
            raise UsageError(f"perf_analyzer's {name} is not supported: {REFUSED[name]}")


def without_old(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the flags, those of deprecated ones as their successors have them. Raises UsageError."""
    found = {name: value for name, value in given.items() if not name.startswith(("ignored_", "old_"))}
    concurrency, highest = given["old_concurrency"], given["old_concurrency_max"]
    if concurrency or highest or given["old_dynamic"]:
        if found["concurrency"]:
            raise UsageError("-t, -c and -d are old forms of --concurrency-range: expected one of both")
        found["concurrency"] = f"{concurrency or 1}:{highest}:1" if given["old_dynamic"] else str(concurrency or 1)
    data = (*(["zero"] if given["old_zero"] else []), *([given["old_folder"]] if given["old_folder"] else []))
    if data:
        if found["input_data"] or len(data) > 1:
            raise UsageError("-z and --data-directory are old forms of --input-data: expected one of them")
        found["input_data"] = data
    return found
