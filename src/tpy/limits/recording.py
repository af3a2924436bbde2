"""Bounds of recordings of requests."""

from __future__ import annotations

from typing import Final

from tpy.units import MIB

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
