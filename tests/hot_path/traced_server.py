"""Runs `tpy` with the arguments behind a file name, and records the Python functions that the loop's thread calls.

Signal SIGRTMIN + 5 begins a record. SIGRTMIN + 6 ends it and writes it to the file: JSON, `[[file, function, line], ...]` in the
order of the calls. Files are those of this project, relative to it. Beside it there is a file `.begun` while calls are recorded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
PARTS = tuple(f"{ROOT / part}{os.sep}" for part in ("src", "control", "data"))

BEGIN, END = int(signal.SIGRTMIN) + 5, int(signal.SIGRTMIN) + 6


def main() -> None:
    """Run the command."""
    target = Path(sys.argv[1])
    calls: list[CodeType] = []

    def record(frame: FrameType, event: str, argument: Any) -> None:
        # Nothing more, for the server looks at the time: a request that takes long goes another way.
        if event == "call":
            calls.append(frame.f_code)

    def begin(number: int, frame: FrameType | None) -> None:
        calls.clear()
        target.with_suffix(".begun").touch()
        sys.setprofile(record)

    def end(number: int, frame: FrameType | None) -> None:
        sys.setprofile(None)
        partial = target.with_suffix(".partial")
        ours = [code for code in calls if code.co_filename.startswith(PARTS)]
        partial.write_text(
            json.dumps([(os.path.relpath(code.co_filename, ROOT), code.co_qualname, code.co_firstlineno) for code in ours])
        )
        partial.rename(target)

    handlers = {BEGIN: begin, END: end}
    install = signal.signal
    for number, handler in handlers.items():
        install(number, handler)
    # The server takes every signal, to say which of them mean nothing to it.
    signal.signal = lambda number, handler: install(number, handlers.get(int(number), handler))
    sys.argv[:] = ["tpy", *sys.argv[2:]]
    from tpy.__main__ import main as tpy

    tpy()


if __name__ == "__main__":
    main()
