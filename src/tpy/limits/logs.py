"""Bounds of the log and the access log."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

LOG_WAITING_CHARACTERS_MAX: Final = 8 * MIB
"""Lines of one log that wait for the thread that writes them: 40,000 usual ones, seconds of a disk that hangs. Others are
dropped and counted: no request waits for whoever reads a log."""

LOG_PIECE_CHARACTERS_MAX: Final = 4 * KIB
"""Whole lines are written together up to so many characters: a pipe takes 4 KiB in one piece, so that the lines of several
processes do not mix."""

LOG_PAUSE_S: Final = 0.01
"""From one write to the next: lines that come meanwhile are written together, which costs a tenth of a wake-up for each."""

LOST_LINES_TOLD_S: Final = 1.0
"""From one report of a frontend process about the lines of its log that were lost to the next."""

LOG_CLOSE_S_MAX: Final = 1.0
"""At the end the lines that wait may take so long; a pipe that nobody reads keeps no server."""
