"""Runs `tpy` with the arguments behind a file name, and records the Python functions that it calls.

Signal SIGRTMIN + 5 begins a record. SIGRTMIN + 6 ends it, and so does the end of the program, and writes it to the file: JSON,
`[[file, function, line], ...]` in the order of the calls. Files are those of this project, relative to it. Beside it there is a
file `.begun` while calls are recorded. Calls are those of the loop's thread; with `--all-threads` before the file name those of
all threads, each with the file that it is called from.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
PARTS = tuple(f"{ROOT / part}{os.sep}" for part in ("src", "control", "data", "docs/examples/backend"))
ALL_THREADS = "--all-threads"

BEGIN, END = int(signal.SIGRTMIN) + 5, int(signal.SIGRTMIN) + 6


def main() -> None:
    """Run the command."""
    all_threads = sys.argv[1] == ALL_THREADS
    name, *command = sys.argv[1 + all_threads :]
    target = Path(name)
    calls: list[tuple[CodeType, ...]] = []
    records = False

    def record(frame: FrameType, event: str, argument: Any) -> None:
        # Nothing more, for the server looks at the time: a request that takes long goes another way.
        if event == "call":
            calls.append((frame.f_code,))

    def record_with_caller(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and records:
            calls.append((frame.f_code,) if frame.f_back is None else (frame.f_code, frame.f_back.f_code))

    def begin(number: int, frame: FrameType | None) -> None:
        nonlocal records
        calls.clear()
        target.with_suffix(".begun").touch()
        records = True
        sys.setprofile(record_with_caller if all_threads else record)

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal records
        sys.setprofile(None)
        records = False
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps([_described(*call) for call in calls if call[0].co_filename.startswith(PARTS)]))
        partial.rename(target)

    handlers = {BEGIN: begin, END: end}
    install = signal.signal
    for number, handler in handlers.items():
        install(number, handler)
    # The server takes every signal, to say which of them mean nothing to it.
    signal.signal = lambda number, handler: install(number, handlers.get(int(number), handler))
    sys.argv[:] = ["tpy", *command]
    from tpy.__main__ import main as tpy

    if all_threads:
        threading.setprofile(record_with_caller)  # a thread takes it when it starts
    try:
        tpy()
    finally:
        if records:
            end(END, None)


def _described(code: CodeType, *callers: CodeType) -> tuple[str | int, ...]:
    """A row of the record."""
    files = (os.path.relpath(each.co_filename, ROOT) for each in callers)
    return os.path.relpath(code.co_filename, ROOT), code.co_qualname, code.co_firstlineno, *files


if __name__ == "__main__":
    main()
