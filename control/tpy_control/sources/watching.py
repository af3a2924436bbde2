"""Watches folders for changes, by the operating system's events.

The folders that scans found are watched one by one, so their number is bounded. A recursive watch would follow every link, and
need not end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Sequence

import anyio
from watchfiles._rust_notify import RustNotify

_DEBOUNCE_MS = 400  # groups the events of one copy; the poll that follows costs a stat per file
_STEP_MS = 50
_GATHER_S = 0.2  # while many folders are found one after the other, as at the start


async def watch_folders(
    folders: Callable[[], Sequence[str]], changed: Callable[[], None], wait_other_folders: Callable[[], Awaitable[None]]
) -> None:
    """Call `changed` after something in the folders has changed, and whenever the watch has been restarted: there are no events
    for changes in between. It is restarted after each change, and when `wait_other_folders` returns. Runs until cancelled; raises
    OSError or RuntimeError, in exception groups, where the system cannot watch."""
    while True:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_after_change, wait_other_folders, tasks.cancel_scope)
            await _watch_once(folders(), changed)
            tasks.cancel_scope.cancel()


async def _cancel_after_change(wait_other_folders: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
    await wait_other_folders()
    await anyio.sleep(_GATHER_S)
    scope.cancel()


async def _watch_once(folders: Sequence[str], started: Callable[[], None]) -> None:
    """Watch until something has changed."""
    stopped = threading.Event()  # the thread looks at it every _STEP_MS: cancellation cannot reach it

    def watch() -> None:
        present = [folder for folder in folders if os.path.isdir(folder)]
        try:
            watcher = RustNotify(present, False, False, 0, False, True)
        except FileNotFoundError:
            return  # one was removed just now
        with watcher:
            anyio.from_thread.run_sync(started)
            watcher.watch(_DEBOUNCE_MS, _STEP_MS, 0, stopped)

    try:
        await anyio.to_thread.run_sync(watch, abandon_on_cancel=True)
    finally:
        stopped.set()
