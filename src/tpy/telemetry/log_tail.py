"""LogTail: the newest lines of the log, in memory."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice

from tpy.limits import LOG_TAIL_LINE_CHARACTERS_MAX, LOG_TAIL_LINES_MAX
from tpy.messages import LogLine


class LogTail:
    """Implements tpy.services.LogService. Lines come from any thread, one at a time, and are read on the Trio thread."""

    def __init__(self, *, lines_max: int = LOG_TAIL_LINES_MAX) -> None:
        self._lines = deque[LogLine](maxlen=lines_max)
        self._count = 0
        self.lost_count = 0
        """The lines of frontend processes that were lost."""

    def append(self, text: str) -> None:
        """Keep a line; the oldest one goes when there are too many."""
        if len(text) > LOG_TAIL_LINE_CHARACTERS_MAX:
            text = text[:LOG_TAIL_LINE_CHARACTERS_MAX] + " ..."
        self._count += 1
        self._lines.append(LogLine(number=self._count, text=text))

    def lost(self, lines: int) -> None:
        """See LogService."""
        self.lost_count += lines

    async def lines_after(self, number: int) -> list[LogLine]:
        """See LogService."""
        kept = self._lines.copy()  # in one step: another thread may append meanwhile
        if not kept:
            return []
        return list(islice(kept, max(0, number - kept[0].number + 1), None))


class KeepingFormatter(logging.Formatter):
    """Formats as `inner`, and keeps the lines in `tail`. A handler's lock is held meanwhile."""

    def __init__(self, inner: logging.Formatter, tail: LogTail) -> None:
        super().__init__()
        self._inner = inner
        self._tail = tail

    def format(self, record: logging.LogRecord) -> str:
        """The text of `inner`."""
        text = self._inner.format(record)
        self._tail.append(text)
        return text
