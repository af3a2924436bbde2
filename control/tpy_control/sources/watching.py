"""Tells changes of folders, by the operating system's events.

Folders are watched one by one: those that looking found, which is bounded. A recursive watch would walk by itself, through every
link, and need not end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Sequence

import trio
from watchfiles._rust_notify import RustNotify

_DEBOUNCE_MS = 400  # groups the events of one copy; the look that follows costs a stat per file
_STEP_MS = 50
_GATHER_S = 0.2  # while many folders are found one after the other, as at the start


async def watch_folders(
    folders: Callable[[], Sequence[str]], changed: Callable[[], None], wait_other_folders: Callable[[], Awaitable[None]]
) -> None:
    """Call `changed` after something in the folders has changed, and whenever the watch has begun anew: what happened in between
    is not told. It begins anew after each change, and when `wait_other_folders` says that there are others. Runs until cancelled;
    raises OSError or RuntimeError, in exception groups, where the system cannot watch."""
    while True:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_gathered, wait_other_folders, nursery.cancel_scope)
            await _watch_once(folders(), changed)
            nursery.cancel_scope.cancel()


async def _gathered(wait_other_folders: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    await wait_other_folders()
    await trio.sleep(_GATHER_S)
    scope.cancel()


async def _watch_once(folders: Sequence[str], begun: Callable[[], None]) -> None:
    """Watch until something has changed."""
    stopped = threading.Event()  # the thread looks at it every _STEP_MS: cancellation cannot reach it

    def watch() -> None:
        present = [folder for folder in folders if os.path.isdir(folder)]
        try:
            watcher = RustNotify(present, False, False, 0, False, True)
        except FileNotFoundError:
            return  # one was removed just now
        with watcher:
            trio.from_thread.run_sync(begun)
            watcher.watch(_DEBOUNCE_MS, _STEP_MS, 0, stopped)

    try:
        await trio.to_thread.run_sync(watch, abandon_on_cancel=True)
    finally:
        stopped.set()
