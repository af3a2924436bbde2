"""Bounds of the load generator: `tpy perf`, and what else sends requests to measure; and of a search for a configuration."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

LOAD_LEVELS_MAX: Final = 10_000
"""Levels of one range: more than anyone measures, so a slip of the pen."""

LOAD_INTERVALS_MAX: Final = 1_000_000
"""Intervals of one file of them, which every worker gets: 10 MB."""

LOAD_FILES_MAX: Final = 10_000
"""Files of a folder that become requests; what comes after them is left out. All of them are kept in memory."""

LOAD_SLOTS_MAX: Final = 512
"""Connections of an open loop over HTTP, and calls over gRPC, of all workers: half of what a process may usually open."""

LOAD_HEAD_BYTES_MAX: Final = 64 * KIB
"""The head of an HTTP answer: eight times what servers allow themselves."""

LOAD_HEADS_REMEMBERED_MAX: Final = 64
"""Different heads of HTTP answers that are read once for a connection: a model's answers have a few lengths."""

LOAD_CREDIT_BYTES: Final = 16 * MIB
"""Windows of HTTP/2 are given back in lots of so much: small beside the window, and seldom."""

LOAD_LATENCIES_KEPT_MAX: Final = 65_536
"""Latencies are kept as they are up to this many, then counted by numpy: 512 KiB, and some ten nanoseconds for each."""

LOAD_RECORDS_KEPT_MAX: Final = 2_000_000
"""Requests whose times are kept for --profile-export-file: 100 MB in a file. Later ones are not recorded, and counted as such."""

LOAD_ERRORS_MAX: Final = 20
"""Different errors that are told apart; all others count together."""

LOAD_CONNECT_S_MAX: Final = 10.0
"""Seconds for one connection: longer than three lost packets."""

LOAD_ANSWER_S_MAX: Final = 60.0
"""Seconds without any answer, with requests in flight, after which a server counts as lost; and for one question to it beside the
load. As long as clients of Triton wait."""

LOAD_REPORT_S_MAX: Final = 30.0
"""Seconds for a worker's report, which takes it milliseconds: room for a machine that is busy with the measurement."""

LOAD_BODIES_BYTES_MAX: Final = 16 * MIB
"""Contents of different responses that a worker keeps for --profile-export-file in one window; of further ones only the times are
recorded."""

LOAD_METRICS_S_MAX: Final = 5.0
"""Seconds for a metrics page, which is read beside the load."""

LOAD_METRICS_BYTES_MAX: Final = 64 * MIB
"""A metrics page: that of thousands of models has some megabytes."""


ANALYZE_POINTS_MAX: Final = 10_000
"""Measurements of an exhaustive search: half a day at four seconds each. More is a slip of the pen."""
