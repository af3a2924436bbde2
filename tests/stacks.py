"""The stacks of everything that runs: Trio's tasks as a tree, threads, and server processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import trio

_FRAMES_MAX = 40
_SERVER_LOG_CHARACTERS = 20_000
_SERVER_ENDS_S = 2.0


def trio_runs() -> Iterator[tuple[int, Any]]:
    """The Trio runs of this process, each with the id of its thread. Trio does not tell another thread; its frames do."""
    for thread_id, frame in sys._current_frames().items():
        at: FrameType | None = frame
        while at is not None:
            runner = at.f_locals.get("runner") if at.f_code.co_filename.endswith("trio/_core/_run.py") else None
            if runner is not None and runner.init_task is not None:
                yield thread_id, runner
                break
            at = at.f_back


def describe_tasks(task: trio.lowlevel.Task, depth: int = 0) -> Iterator[str]:
    """The lines of a task, where it waits, and of all tasks below it."""
    indent = "  " * depth
    yield f"{indent}task {task.name}"
    try:
        stack = traceback.StackSummary.extract(task.iter_await_frames())
    except RuntimeError as error:  # it runs meanwhile
        yield f"{indent}  {error!r}"
        stack = traceback.StackSummary()
    for frame in stack[-_FRAMES_MAX:]:
        yield f"{indent}  {frame.filename}:{frame.lineno} {frame.name}: {frame.line}"
    for nursery in list(task.child_nurseries):
        for child in list(nursery.child_tasks):
            yield from describe_tasks(child, depth + 1)


def describe_threads() -> Iterator[str]:
    """The lines of every thread's stack but the caller's."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for thread_id, frame in sys._current_frames().items():
        if thread_id == threading.get_ident():
            continue
        yield f"thread {names.get(thread_id, thread_id)}"
        for each in traceback.extract_stack(frame)[-_FRAMES_MAX:]:
            yield f"  {each.filename}:{each.lineno} {each.name}: {each.line}"


def describe_servers() -> Iterator[str]:
    """The ends of the logs of the servers that tests have started. They are ended with SIGABRT, on which Python writes the stacks
    of all threads; their Trio tasks cannot be seen from outside."""
    server_module = sys.modules.get("tests.e2e.server")
    servers: Iterable[Any] = list(server_module.running_servers) if server_module else ()
    for server in servers:
        for pid in (*server.children(), server.process.pid):
            os.kill(pid, signal.SIGABRT)
    deadline = time.monotonic() + _SERVER_ENDS_S
    for server in servers:
        while server.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        yield f"server {server.process.pid}: the end of its log"
        yield from (f"  {line}" for line in server.log[-_SERVER_LOG_CHARACTERS:].splitlines())


def describe_all() -> Iterator[str]:
    """Everything."""
    for _, runner in trio_runs():
        yield from describe_tasks(runner.init_task)
    yield from describe_threads()
    yield from describe_servers()
