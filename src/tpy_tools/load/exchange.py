"""The messages between a parent and the workers that send its requests."""

from __future__ import annotations

from struct import Struct
from typing import Any

import msgspec

from tpy_tools.load.calls import Template
from tpy_tools.load.checking import Expected
from tpy_tools.load.core.histogram import SparseCounts
from tpy_tools.load.links import Target
from tpy_tools.load.records import RecordBatch

LENGTH = Struct("<I")
SNAPSHOT = b"s"
STOP = b"q"


class SequenceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The making of sequences. `length` 0: as long as the stream of data."""

    length: int = 20
    variation: float = 20.0
    first_id: int = 1
    step: int = 1
    ids_end: int = 2**63 - 1


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one worker, the `number`th of `workers`.

    `concurrency` above 0: a closed loop. Else an open loop from `begin_ns` on: `rate` requests per second of all workers
    together, evenly or `poisson`, or `intervals_ns` again and again. Each worker begins every `workers`th of them.
    """

    target: Target
    streams: list[list[Template]]
    expected: list[list[Expected | None]] | None = None
    number: int = 0
    workers: int = 1
    concurrency: int = 0
    rate: float = 0.0
    poisson: bool = False
    intervals_ns: list[int] | None = None
    begin_ns: int = 0
    requests: int | None = None
    slots: int = 1
    slots_max: int = 1
    sequences: SequenceSettings | None = None
    seed: int = 0
    records: bool = False
    """Single requests are recorded."""


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one worker. `latencies`: of requests without an error; of requests with several responses also
    the time to the `first` one and those `between` two. `late`: how long requests waited for a free connection. `per_token`: of
    requests whose tokens were counted, the average time between two of them.

    `done`: the last one. `lost`: the server cannot be reached any more, and how.
    """

    begin_ns: int
    end_ns: int
    latencies: SparseCounts
    first: SparseCounts
    between: SparseCounts
    late: SparseCounts
    per_token: SparseCounts
    responses: int
    errors: dict[str, int]
    send_ns: int
    cpu_ns: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    done: bool = False
    lost: str = ""
    records: RecordBatch | None = None

    @property
    def requests(self) -> int:
        """Requests that were answered without an error."""
        return sum(self.latencies.counts)


def write_message(file: Any, content: bytes) -> None:
    """Write a message with its length in front."""
    file.write(LENGTH.pack(len(content)) + content)
    file.flush()
