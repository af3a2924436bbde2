"""Watches folders for changes, by the operating system's events.

The folders that scans found are watched one by one, so their number is bounded. A recursive watch would follow every link, and
need not end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio
from watchfiles import watch

_DEBOUNCE_MS = 400  # groups the events of one copy; the poll that follows costs a stat per file
_STEP_MS = 50
_LOOK_MS = 250
"""The first look that finds nothing says that the watch has begun."""

_GATHER_S = 0.2  # while many folders are found one after the other, as at the start


async def watch_folders(
    folders: Callable[[], Sequence[str]], changed: Callable[[], None], wait_other_folders: Callable[[], Awaitable[None]]
) -> None:
    """Call `changed` after something in the folders has changed, and when the watch has been restarted: there are no events for
    changes in between. It is restarted after each change, and when `wait_other_folders` returns. Runs until cancelled; raises
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

    def watch_in_thread() -> None:
        present = [folder for folder in folders if os.path.isdir(folder)]
        has_begun = False
        with suppress(FileNotFoundError):  # one was removed just now
            for changes in watch(
                *present,
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                stop_event=stopped,
                rust_timeout=_LOOK_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=False,
                ignore_permission_denied=True,
            ):
                if changes or not has_begun:
                    has_begun = True
                    anyio.from_thread.run_sync(started)
                if changes:
                    return

    try:
        # Not awatch: it asks the system for every folder on the loop, which a network file system that hangs would stop.
        await anyio.to_thread.run_sync(watch_in_thread, abandon_on_cancel=True)
    finally:
        stopped.set()
