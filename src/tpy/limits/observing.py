"""Bounds of metrics, those of models among them, of traces, logs and the access log, of what a server says of itself, and of
recordings of requests."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB, NS_PER_S

GPU_METRIC_FAILURES_MAX: Final = 3
"""Samples in a row in which a GPU does not tell a value, after which it is not asked for it any more: Triton's number."""

CUSTOM_METRIC_FAMILIES_MAX: Final = 1_000
"""Metric families that models make. A dashboard has tens; a model that makes one per request is stopped here."""

CUSTOM_METRICS_MAX: Final = 20_000
"""Series of models' metric families, all together: a scrape shows every one. Labels from user input are how it grows."""

CUSTOM_METRICS_OF_FAMILY_MAX: Final = 5_000
"""Series of one family: what one model that takes labels from requests can use up of them. Prometheus advises against more than a
few thousand; each takes a kilobyte here, and more in whoever scrapes."""

CUSTOM_METRIC_LABELS_MAX: Final = 32
"""Labels of one such series."""

CUSTOM_METRIC_BUCKETS_MAX: Final = 256
"""Buckets of one histogram of a model; each is a line of every scrape."""

HISTOGRAM_BUCKETS_MAX: Final = 256
"""Buckets of one histogram of latencies, by `model_metrics`; each is a line of every scrape, for each version."""

SUMMARY_QUANTILES_MAX: Final = 32
"""Quantiles in --metrics-config summary_quantiles: each is seven lines of every scrape, for each version."""

SUMMARY_WINDOW_S: Final = 60
"""Quantiles of summaries are those of the newest minute, as in Triton."""

SUMMARY_SLICES: Final = 5
"""The window moves on by a fifth of it at a time, as in Triton."""

CUSTOM_METRIC_TEXT_MAX: Final = 1024
"""Characters of a name, description, label or label value."""


LOG_WAITING_CHARACTERS_MAX: Final = 8 * MIB
"""Lines of one log that wait for the thread that writes them: 40,000 usual ones, seconds of a disk that hangs. Others are
dropped and counted: no request waits for whoever reads a log."""

LOG_PIECE_CHARACTERS_MAX: Final = 4 * KIB
"""Whole lines are written together up to this many characters: a pipe takes 4 KiB in one piece, so that the lines of several
processes do not mix."""

LOG_PAUSE_S: Final = 0.01
"""From one write to the next: lines that come meanwhile are written together, which costs a tenth of a wake-up for each."""

LOST_LINES_TOLD_S: Final = 1.0
"""From one report of a frontend process about the lines of its log that were lost to the next."""

AUDIT_WRITE_S_MAX: Final = 5.0
"""With --audit-log-required an action waits so long for its line to be written; a disk that hangs longer refuses it."""

AUDIT_REFUSALS_PER_S_MAX: Final = 20
"""Lines in a second about calls that were refused for who sent them; the others are counted in the next line. Those without a key
are not to fill the disk, nor to push lines of others out of the queue."""

AUDIT_ERROR_CHARACTERS_MAX: Final = 500
"""Of an error in the audit log: enough for what was refused and why, little of what a client or a model has put into it."""

AUDIT_NAMES_MAX: Final = 20
"""Files, models or values that a line of the audit log lists."""

LOG_CLOSE_S_MAX: Final = 1.0
"""At the end the lines that wait may take so long; a pipe that nobody reads keeps no server."""


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


RECORDING_BYTES_DEFAULT: Final = 256 * MIB
"""A recording's file: some minutes of a busy server with small tensors, and no disk's end."""

RECORDING_BYTES_MAX: Final = 1024 * 1024 * MIB
"""As large at most, whatever a client asks for: a terabyte."""

RECORDING_REQUESTS_DEFAULT: Final = 100_000
"""Requests in it: some minutes of a busy server."""

RECORDING_REQUESTS_MAX: Final = 100_000_000
"""As many at most."""

RECORDING_SECONDS_DEFAULT: Final = 3600
"""A recording that was forgotten stops by itself."""

RECORDING_SECONDS_MAX: Final = 7 * 24 * 3600
"""As long at most."""

RECORDING_FILES_SHOWN_MAX: Final = 100
"""Files of the directory that a status lists, the newest."""

RECORDING_FILES_LOOKED_AT_MAX: Final = 10_000
"""Entries of the directory that are looked at for it: some 30 ms, in a thread."""

RECORDING_ENTRY_BYTES_MAX: Final = 64 * MIB
"""One request with its answers, which the loop copies, some 10 ms at this size; a larger one is left out and counted. A file that
names a larger one is damaged."""

RECORDING_HELD_BYTES_MAX: Final = 256 * MIB
"""Copies of tensors of requests that are under way or wait for the disk; what comes on top is left out and counted, so that a
disk that hangs costs requests of the recording and no memory."""

RECORDING_HELD_REQUESTS_MAX: Final = 100_000
"""The same as a number: requests without tensors take memory, too."""

RECORDING_SEQUENCES_MAX: Final = 10_000
"""Live sequences that are recorded; steps of further ones are left out and counted."""

RECORDING_PATTERNS_MAX: Final = 100
"""Patterns of models of one recording; each is tried for every request."""

RECORDING_CLOSE_S_MAX: Final = 5.0
"""A server that stops waits so long for the disk, which may hang."""

MEMORY_LOOK_S: Final = 60.0
"""Seconds between two readings of the memory of the server and of its workers: 60 in the hour that shows a leak. One takes the
kernel about a millisecond per GiB of the process."""

LEAK_WARNING_S: Final = 3600.0
"""A leak that goes on is told in the log again after so long."""

TRACE_TENSOR_BYTES_MAX: Final = MIB
"""A tensor that a trace has, copied by the loop and written as text, several times as large: larger ones are left out."""

TRACES_COLLECTED_MAX: Final = 10_000
"""Traces that are kept in memory for one file, whatever --trace-config says: some 20 MB without tensors."""

TRACES_HELD_BYTES_MAX: Final = 64 * MIB
"""Tensors of all traces that are not written yet; tensors beyond it are left out."""

TRACES_CLOSE_S_MAX: Final = 5.0
"""A server that stops waits so long for traces to be written or sent."""

TRACES_RECENT_MAX: Final = 64
"""The newest traces that are kept in memory, to be looked at: without tensors, some 2 KB each."""

TRACE_PARTS_RECENT_MAX: Final = 200
"""Steps and calls that such a trace has at most; the trace file has all."""

TRACES_WAITING_MAX: Final = 1000
"""Writes that wait for the disk; what comes on top is lost, so that a disk that hangs costs traces and no memory."""
