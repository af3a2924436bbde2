"""The terminal of a live table: another screen, keys without Enter, and everything as it was at the end."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

_ENTER = "\x1b[?1049h\x1b[?25l"
"""Another screen, without cursor: what was on the terminal is there again afterwards."""
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_READ_BYTES_MAX = 64


class Screen:
    """A context manager; leaving it by whatever way restores the terminal, also when the process is told to end or to stop for a
    while (Ctrl-Z)."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._before: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(self._input)
        self._begin()
        for number, handler in ((signal.SIGTERM, _end), (signal.SIGHUP, _end), (signal.SIGTSTP, self._pause)):
            self._handlers[number] = signal.signal(number, handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._restore()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, now: not those of the environment, which a change of the window leaves as they were."""
        found = os.get_terminal_size(sys.stdout.fileno())
        if not found.columns or not found.lines:  # a serial line, say
            found = shutil.get_terminal_size()
        return found.columns, found.lines

    def draw(self, lines: Sequence[str], *, bold: int) -> None:
        """Show these lines; number `bold` is the head of the table."""
        styled = [f"{_BOLD}{text}{_PLAIN}" if index == bold else text for index, text in enumerate(lines)]
        _write(_HOME + f"{_END_OF_LINE}\n".join(styled) + _END_OF_LINE + _BELOW)

    def key(self, wait_s: float) -> str:
        """The key that is pressed within this time, "" for none."""
        try:
            ready, _, _ = select.select([self._input], [], [], max(0.0, wait_s))
        except InterruptedError:
            return ""
        if not ready:
            return ""
        read = os.read(self._input, _READ_BYTES_MAX).decode(errors="replace")
        return read if read.startswith("\x1b") else (read[:1] or "q")  # nothing: the terminal is gone

    def _begin(self) -> None:
        tty.setcbreak(self._input)
        _write(_ENTER)

    def _restore(self) -> None:
        _write(_LEAVE)
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._begin()  # it was continued


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
