"""Calls of `tpy.Server` in a program: microseconds a call, wall clock and CPU time, by who asks.

Run: python -m benchmarks.calls_in_a_program [ROUNDS]. The model is a function that returns its input, 16 numbers. The quickest
call is what one costs when nothing else runs; the others are means of a round. Prints a table and, as the last line, JSON.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import numpy as np
import trio

import tpy
from benchmarks.load.child import run_child
from tpy.units import NS_PER_US

_CALLS = 2_000


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of a call in one round, whose quickest call took `best_us`."""

    wall_us: float
    cpu_us: float
    best_us: float


def drive(rounds: int) -> Mapping[str, Sequence[Round]]:
    """Measures in its own program. Returns the rounds by caller. Raises LoadFailed."""
    text, _ = run_child([sys.executable, "-m", "benchmarks.calls_in_a_program", str(rounds)])
    return msgspec.json.decode(text.splitlines()[-1], type=dict[str, list[Round]])


def measure(rounds: int) -> Mapping[str, Sequence[Round]]:
    """Rounds over all callers, interleaved."""
    server = tpy.Server()
    server.add_model("echo", lambda **inputs: inputs["X"], inputs=[("X", "FP32", [-1])], outputs=[("Y", "FP32", [-1])])
    array = np.zeros(16, np.float32)
    with server:
        model = server.model("echo")

        def ask() -> None:
            model.infer({"X": array})

        async def ask_in_task() -> None:
            await model.infer_async({"X": array})

        callers: dict[str, Callable[[], int]] = {
            "main thread": lambda: _repeat(ask, _CALLS),
            "another thread": lambda: _in_threads(ask, 1),
            "10 threads": lambda: _in_threads(ask, 10),
            "asyncio, 1 task": lambda: asyncio.run(_in_tasks_of_asyncio(ask_in_task, 1)),
            "asyncio, 10 tasks": lambda: asyncio.run(_in_tasks_of_asyncio(ask_in_task, 10)),
            "Trio, 1 task": lambda: trio.run(_in_tasks_of_trio, ask_in_task, 1),
            "Trio, 10 tasks": lambda: trio.run(_in_tasks_of_trio, ask_in_task, 10),
        }
        for run in callers.values():
            run()
        found: dict[str, list[Round]] = {name: [] for name in callers}
        for _ in range(rounds):
            for name, run in callers.items():
                found[name].append(_timed(run))
    return found


def main() -> None:
    """Print a line for each kind of caller."""
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    print(f"{'caller':24} {'wall':>7} {'CPU':>7} {'best':>7}")
    for name, rounds in found.items():
        wall_us, cpu_us = (
            statistics.median(values) for values in zip(*((one.wall_us, one.cpu_us) for one in rounds), strict=True)
        )
        print(f"{name:24} {wall_us:7.1f} {cpu_us:7.1f} {min(one.best_us for one in rounds):7.1f}")
    print(msgspec.json.encode(found).decode())


def _timed(run: Callable[[], int]) -> Round:
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    best_ns = run()
    wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns
    calls_us = _CALLS * NS_PER_US
    return Round(wall_us=wall_ns / calls_us, cpu_us=cpu_ns / calls_us, best_us=best_ns / NS_PER_US)


def _repeat(ask: Callable[[], None], calls: int) -> int:
    best_ns = 1 << 62
    for _ in range(calls):
        began_ns = time.perf_counter_ns()
        ask()
        best_ns = min(best_ns, time.perf_counter_ns() - began_ns)
    return best_ns


def _in_threads(ask: Callable[[], None], count: int) -> int:
    best_ns: list[int] = []
    threads = [threading.Thread(target=lambda: best_ns.append(_repeat(ask, _CALLS // count))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(best_ns)


async def _repeat_in_task(ask: Callable[[], Awaitable[None]], calls: int, best_ns: list[int]) -> None:
    for _ in range(calls):
        began_ns = time.perf_counter_ns()
        await ask()
        best_ns.append(time.perf_counter_ns() - began_ns)


async def _in_tasks_of_asyncio(ask: Callable[[], Awaitable[None]], count: int) -> int:
    best_ns: list[int] = []
    await asyncio.gather(*(_repeat_in_task(ask, _CALLS // count, best_ns) for _ in range(count)))
    return min(best_ns)


async def _in_tasks_of_trio(ask: Callable[[], Awaitable[None]], count: int) -> int:
    best_ns: list[int] = []
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(_repeat_in_task, ask, _CALLS // count, best_ns)
    return min(best_ns)


if __name__ == "__main__":
    main()
