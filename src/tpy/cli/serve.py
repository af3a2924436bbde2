"""Runs the server in this process: logs, signals, exit code."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from tpy import limits
from tpy.assembly import ServerOptions, Stop, run_server
from tpy.errors import TpyError
from tpy.regions import maps
from tpy.telemetry.logs import LogController
from tpy_data.gpus import compute_capability

_log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_SWITCH_INTERVAL_S = 0.0005
"""Time for which a thread may hold the interpreter while others wait: a python model that computes in this process keeps the loop
waiting for that long at a time. CPU time per request over HTTP, 16 connections, at 5 / 0.5 / 0.05 ms: built-in identity model
118 / 113 / 127 us, python model in a thread 150 / 140 / 126, in a worker 375 / 357 / 356; with one connection no difference."""


def serve(options: ServerOptions) -> int:
    """Serve until a signal; returns the exit code. The second signal ends the process at once."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # The modules stay: the garbage collector, which stops the process while it walks, is to leave them alone. Not the models that
    # are loaded later: what is frozen is freed by reference counts only, and model code may leave cycles.
    gc.freeze()
    raise_open_files_limit()
    try:
        logs = LogController(options.log)
    except OSError as error:
        return _complain(f"--log-file: cannot write '{options.log.log_file}': {error.strerror}")
    logs.install()
    try:
        with maps.guarded() if options.allow_client_shm else contextlib.nullcontext():
            # Not on the loop: the first question to a GPU's driver takes a while.
            return trio.run(_serve, options, logs, usable_gpus(options.compute_capability_min))
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        if not all(isinstance(error, TpyError) for error in errors):
            raise
        return _complain("; ".join(str(error) for error in errors), log_file=bool(options.log.log_file))
    except TpyError as error:
        return _complain(str(error), log_file=bool(options.log.log_file))
    finally:
        logs.remove()


async def _serve(options: ServerOptions, logs: LogController, gpus: tuple[int, ...]) -> int:
    stop = Stop()
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, stop)
        outcome = await run_server(options, logs=logs, announce=_announce, stop=stop, gpus=gpus)
        nursery.cancel_scope.cancel()
    return outcome.value


async def _watch_signals(stop: Stop, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(*_SIGNALS) as received:
        task_status.started()
        async for number in received:
            if stop.asked.is_set():
                # Workers see the end of their connection and end themselves; nothing else outlives the process.
                os._exit(128 + number)
            stop.ask(signal.Signals(number).name)


def raise_open_files_limit() -> None:
    """Let this process open as many files as it may, up to OPEN_FILES_WANTED. Where that is not allowed nothing changes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(limits.OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def visible_gpus() -> tuple[int, ...]:
    """The device ids that backends may use: CUDA_VISIBLE_DEVICES where it is set, else one per NVIDIA device file."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    if chosen is not None:
        present = min(present, len([part for part in chosen.split(",") if part.strip() and not part.startswith("-")]))
    return tuple(range(present))


def usable_gpus(compute_capability_min: float) -> tuple[int, ...]:
    """Those of `visible_gpus` that are not too old; the others are left alone. One that its driver says nothing of is used."""
    usable = []
    for device in visible_gpus():
        try:
            major, minor = compute_capability(device)
        except TpyError:
            usable.append(device)
            continue
        if major + minor / 10 >= compute_capability_min - 0.01:  # Triton's tolerance, as 7.5 is no exact number
            usable.append(device)
    return tuple(usable)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _announce(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads standard error any more: no reason not to serve
        print(text, file=sys.stderr, flush=True)


def _complain(message: str, *, log_file: bool = False) -> int:
    if log_file:
        _log.error("%s", message)
    _announce(f"tpy: error: {message}")
    return 1
