"""VirtualExecutor: the executor of simulations. Work takes scripted virtual time, because MockClock does not wait for threads."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from tpy.units import NS_PER_S
from tpy_data.executors.executor import Job

Latency = Callable[[str, Job], int]
"""The time that a job takes on the worker of this name, in nanoseconds."""


class VirtualExecutor:
    """Runs jobs on the Trio thread, in tasks of `nursery`, each after its latency. `run` of a job must not block for long."""

    def __init__(self, nursery: trio.Nursery, latency_ns: Latency = lambda worker, job: 0) -> None:
        self._nursery = nursery
        self._latency_ns = latency_ns

    def open_worker(self, name: str, *, threads_max: int = 1) -> VirtualWorker:
        """A worker with `threads_max` tasks in the nursery; they end when it is closed."""
        worker = VirtualWorker(name, self._latency_ns)
        for _ in range(threads_max):
            self._nursery.start_soon(worker.work, name=name)
        return worker


class VirtualWorker:
    """The worker of a VirtualExecutor. The queue is unbounded as that of a thread is: its user bounds it."""

    def __init__(self, name: str, latency_ns: Latency) -> None:
        self._name = name
        self._latency_ns = latency_ns
        self._send, self._receive = trio.open_memory_channel[Job](math.inf)

    def put(self, job: Job, *, anywhere: bool = False) -> None:
        """Queue the job."""
        self._send.send_nowait(job)

    def run_sync_soon(self, call: Callable[[], None]) -> None:
        """In a turn of its own: a job runs on the Trio thread here, and is not to be disturbed."""
        trio.lowlevel.current_trio_token().run_sync_soon(call)

    def close(self) -> None:
        """Its tasks end after the jobs that are there."""
        self._send.close()

    async def work(self) -> None:
        """Take jobs until closed. Started by VirtualExecutor, in the nursery it was given."""
        async for job in self._receive:
            has_more = True
            while has_more:
                job.begin()
                await trio.sleep(self._latency_ns(self._name, job) / NS_PER_S)
                if job.run():
                    job.finished()
                has_more = job.has_more
            del job  # as in a thread: it holds what it worked on
