"""The newest lines of the log: bounded in number and length, numbered, as they were written."""

from __future__ import annotations

import io
import logging

from tpy import limits
from tpy.messages import LogSettings
from tpy.telemetry.logs import LogController, LogTail


async def test_the_newest_lines_are_kept() -> None:
    tail = LogTail(lines_max=3)
    assert await tail.lines_after(0) == []
    for number in range(1, 6):
        tail.append(f"line {number}")
    assert [line.text for line in await tail.lines_after(0)] == ["line 3", "line 4", "line 5"]
    assert [line.number for line in await tail.lines_after(4)] == [5]
    assert await tail.lines_after(5) == await tail.lines_after(10**17) == []


async def test_a_long_line_is_cut() -> None:
    tail = LogTail()
    tail.append("x" * 100_000)
    (line,) = await tail.lines_after(0)
    assert len(line.text) < limits.LOG_TAIL_LINE_CHARACTERS_MAX + 10


async def test_what_is_written_is_kept_and_nothing_else() -> None:
    stream = io.StringIO()
    controller = LogController(LogSettings(log_info=False, log_format="json"), stream=stream)
    controller.install()
    try:
        log = logging.getLogger("tpy.test")
        log.info("not shown")
        log.warning("shown")
        controller.apply(LogSettings(log_format="plain"))
        log.warning("shown, too")
    finally:
        controller.remove()
    assert [f"{line.text}\n" for line in await controller.tail.lines_after(0)] == stream.getvalue().splitlines(keepends=True)
