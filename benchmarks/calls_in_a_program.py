"""Calls of `tpy.Server` in a program: microseconds a call, wall clock and CPU time, by who asks.

Run: python -m benchmarks.calls_in_a_program. The model is a function that returns its input, 16 numbers. `best` is the quickest
call, which is what a call costs when nothing else runs; the others are means, medians of rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable

import numpy as np
import trio

import tpy
from tpy.units import NS_PER_US

_ROUNDS = 5
_CALLS = 2_000


def main() -> None:
    """Print a line for each kind of caller."""
    server = tpy.Server()
    server.add_model("echo", lambda **inputs: inputs["X"], inputs=[("X", "FP32", [-1])], outputs=[("Y", "FP32", [-1])])
    array = np.zeros(16, np.float32)
    with server:
        model = server.model("echo")

        def ask() -> None:
            model.infer({"X": array})

        async def ask_in_task() -> None:
            await model.infer_async({"X": array})

        print(f"{'caller':24} {'wall':>7} {'CPU':>7} {'best':>7}")
        for name, run in {
            "main thread": lambda: _repeat(ask, _CALLS),
            "another thread": lambda: _in_threads(ask, 1),
            "10 threads": lambda: _in_threads(ask, 10),
            "asyncio, 1 task": lambda: asyncio.run(_in_tasks_of_asyncio(ask_in_task, 1)),
            "asyncio, 10 tasks": lambda: asyncio.run(_in_tasks_of_asyncio(ask_in_task, 10)),
            "Trio, 1 task": lambda: trio.run(_in_tasks_of_trio, ask_in_task, 1),
            "Trio, 10 tasks": lambda: trio.run(_in_tasks_of_trio, ask_in_task, 10),
        }.items():
            run()
            rounds = [_timed(run) for _ in range(_ROUNDS)]
            wall, cpu = (statistics.median(times) / _CALLS / NS_PER_US for times in list(zip(*rounds, strict=True))[:2])
            print(f"{name:24} {wall:7.1f} {cpu:7.1f} {min(best for _, _, best in rounds) / NS_PER_US:7.1f}")


def _timed(run: Callable[[], int]) -> tuple[int, int, int]:
    """Wall clock and CPU time of a round, and its quickest call, in nanoseconds."""
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    best_ns = run()
    return time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns, best_ns


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
