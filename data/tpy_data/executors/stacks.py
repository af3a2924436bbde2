"""The stack of a thread of the server, as text."""

from __future__ import annotations

import sys
import threading
import traceback


def thread_stack(name: str) -> str:
    """Returns the calls that the thread of this name is in, innermost call last; a line that says so if no such thread exists."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.name == name and thread.ident in frames:
            return "".join(traceback.format_stack(frames[thread.ident])).rstrip()
    return "its thread is not there"
