"""A server as a simulation: instances that share two cores, a dynamic batcher, and clients that wait for their answers.

The times of executions are those of two real networks, measured with ONNX Runtime 1.31 on two cores of a Xeon at 2.8 GHz: the
smallest CPU time of many, which other load does not change. A second thread takes the share of the time that it took on a quiet
machine.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Mapping

import msgspec

from tpy.config import ModelConfig
from tpy_tools.analyze.core.goal import Figures
from tpy_tools.analyze.core.space import OFF, read

CORES = 2
_CLIENT_MS = 0.1
"""From an answer to the arrival of the client's next request."""

_LOOP_MS = 0.02
"""Of the server's event loop for each request, one after another."""

_WARM = 0.2
"""The share of the requests that does not count."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of an execution on one thread by its rows, and the share of that with two threads."""

    alone_ms: Mapping[int, float]
    two_threads: float
    megabytes: float

    def work_ms(self, rows: int) -> float:
        """The time on one thread, between measured numbers of rows in proportion."""
        if rows in self.alone_ms:
            return self.alone_ms[rows]
        above = min(known for known in self.alone_ms if known > rows)
        below = max(known for known in self.alone_ms if known < rows)
        share = (rows - below) / (above - below)
        return self.alone_ms[below] * (1 - share) + self.alone_ms[above] * share


EFFICIENTNET = Network(alone_ms={1: 5.85, 2: 11.37, 4: 23.67, 8: 53.37}, two_threads=0.55, megabytes=60)
SILERO = Network(alone_ms={1: 0.074, 2: 0.105, 4: 0.163, 8: 0.287, 16: 0.523}, two_threads=1.04, megabytes=12)


def measure(network: Network, config: ModelConfig, clients: int) -> Figures:
    """The figures of a configuration with so many clients."""
    simulation = _Simulation(network, config, clients)
    simulation.run(requests=max(120, 20 * clients))
    times = sorted(simulation.latencies)

    def at(percent: int) -> float:
        return times[min(len(times) - 1, len(times) * percent // 100)]

    return Figures(
        throughput=simulation.per_s,
        avg_ms=sum(times) / len(times),
        p50_ms=at(50),
        p90_ms=at(90),
        p95_ms=at(95),
        p99_ms=at(99),
        memory_mb=network.megabytes * simulation.instances,
    )


class _Execution:
    __slots__ = ("left_ms", "requests", "threads")

    def __init__(self, requests: list[float], left_ms: float, threads: int) -> None:
        self.requests = requests
        self.left_ms = left_ms
        self.threads = threads


class _Simulation:
    """Time goes from event to event; executions progress by their share of the cores in between."""

    def __init__(self, network: Network, config: ModelConfig, clients: int) -> None:
        self._network = network
        self.instances = int(str(read(config, "instances")))
        self._chance = random.Random(0)
        self._threads = int(str(read(config, "parameter:intra_op_thread_count") or 1))
        delay = read(config, "delay_us")
        self._rows_max = 1 if delay == OFF else config.max_batch_size
        self._delay_ms = 0.0 if delay == OFF else int(str(delay)) / 1e3
        self._now_ms = self._loop_free_ms = 0.0
        self._arrivals = [number * 1e-3 for number in range(clients)]
        self._queue: deque[float] = deque()
        self._running: list[_Execution] = []
        self.latencies: list[float] = []
        self.per_s = 0.0

    def run(self, requests: int) -> None:
        done, begun_ms, counted = 0, 0.0, 0
        while done < requests:
            self._advance()
            for execution in [one for one in self._running if one.left_ms <= 1e-9]:
                self._running.remove(execution)
                for sent_ms in execution.requests:
                    done += 1
                    if done > requests * _WARM:
                        counted += 1
                        self.latencies.append(self._now_ms - sent_ms)
                    else:
                        begun_ms = self._now_ms
                    heapq.heappush(self._arrivals, self._now_ms + self._chance.expovariate(1 / _CLIENT_MS))
            self._start()
        self.per_s = counted / (self._now_ms - begun_ms) * 1e3

    def _speed(self, threads: int) -> float:
        """The progress of an execution per millisecond."""
        busy = sum(one.threads for one in self._running)
        share = min(1.0, CORES / busy)
        return share * (1.0 if threads == 1 else 1 / self._network.two_threads)

    def _advance(self) -> None:
        """Go on to the next arrival, the next end, or the end of a queue delay."""
        nexts = [one.left_ms / self._speed(one.threads) + self._now_ms for one in self._running]
        if self._arrivals:
            nexts.append(max(self._arrivals[0], self._loop_free_ms))
        if self._queue and len(self._running) < self.instances:
            nexts.append(self._queue[0] + _LOOP_MS + self._delay_ms)
        until_ms = max(self._now_ms, min(nexts))
        for one in self._running:
            one.left_ms -= (until_ms - self._now_ms) * self._speed(one.threads)
        self._now_ms = until_ms
        while self._arrivals and max(self._arrivals[0], self._loop_free_ms) <= self._now_ms:
            sent_ms = heapq.heappop(self._arrivals)
            self._loop_free_ms = max(sent_ms, self._loop_free_ms) + _LOOP_MS
            self._queue.append(sent_ms)

    def _start(self) -> None:
        while self._queue and len(self._running) < self.instances:
            waited_ms = self._now_ms - self._queue[0] - _LOOP_MS
            if len(self._queue) < self._rows_max and waited_ms < self._delay_ms - 1e-9:
                return
            taken = [self._queue.popleft() for _ in range(min(self._rows_max, len(self._queue)))]
            self._running.append(
                _Execution(taken, self._network.work_ms(len(taken)) * self._chance.uniform(1, 1.1), self._threads)
            )
