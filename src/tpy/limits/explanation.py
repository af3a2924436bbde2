"""Bounds of what a server says of itself."""

from __future__ import annotations

from typing import Final

from tpy.units import MIB, NS_PER_S

RECENT_BATCHES_MAX: Final = 64
"""Batches that an instance remembers, for a timeline: seconds of a slow model, and 20 KB of memory."""

RECENT_NS_MAX: Final = 2 * NS_PER_S
"""The time that counts as recent: long enough for a share of it to be steady, and so short that two seconds of load are enough
to be told what binds."""

LATENCY_SLICE_NS: Final = 2 * NS_PER_S
"""Percentiles of latencies are of the newest five such slices (SUMMARY_SLICES), ten seconds, and move on by one at a time."""

LATENCIES_KEPT_NS: Final = 30 * NS_PER_S
"""The time after an explanation for which latencies are still kept: then nobody looks, and they cost nothing any more."""

TRACE_FILE_READ_BYTES_MAX: Final = 64 * MIB
"""The end of a trace file that is searched for a request: some 100,000 traces, read and parsed in a second."""
