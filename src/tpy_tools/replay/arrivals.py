"""The order in which the requests of a recording arrived: they lie in it in the order in which they ended.

Sorted outside of memory: runs of bounded length are sorted one by one, kept in a temporary file, and merged as they are read.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from heapq import merge
from types import TracebackType
from typing import IO, Final, NamedTuple

import numpy as np

RUN_REQUESTS: Final = 1 << 18
"""A run: 6 MiB in memory, and as many again while it is sorted. A recording with more requests needs the temporary file."""

_ROW_BYTES: Final = 24
_READ_ROWS: Final = 1024
"""Of each run, at a time: 24 KiB. The largest recording has some 400 runs."""


class EntryPlace(NamedTuple):
    """An entry of a file: when its request arrived, the byte at which it begins, and its length with its head."""

    arrived_ns: int
    at: int
    size: int


class SortedArrivals:
    """Takes the places of requests in any order and gives them in that of their arrival. A context manager: its temporary file
    ends with it."""

    def __init__(self, run_requests: int = RUN_REQUESTS) -> None:
        self._run_values = 3 * run_requests
        self._values = array("q")
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        """Begin and end of each in the temporary file."""
        self._stack = ExitStack()
        self.count = 0

    def __enter__(self) -> SortedArrivals:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def add(self, place: EntryPlace) -> None:
        """Another request. Raises OSError when the temporary file cannot be written."""
        self._values.extend(place)
        self.count += 1
        if len(self._values) >= self._run_values:
            self._store()

    def __iter__(self) -> Iterator[EntryPlace]:
        """All of them, those with the same time in the order of the file. Raises OSError."""
        rows = self._sorted()
        runs = [self._stored(begin, end) for begin, end in self._runs]
        return merge(*runs, (EntryPlace(*row.tolist()) for row in rows))

    def _sorted(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        rows = np.frombuffer(self._values, np.int64).reshape(-1, 3)
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def _store(self) -> None:
        if self._file is None:
            self._file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
        begin = self._file.tell()
        self._file.write(self._sorted().tobytes())
        self._file.flush()
        self._runs.append((begin, self._file.tell()))
        self._values = array("q")

    def _stored(self, begin: int, end: int) -> Iterator[EntryPlace]:
        assert self._file is not None
        for at in range(begin, end, _READ_ROWS * _ROW_BYTES):
            data = os.pread(self._file.fileno(), min(_READ_ROWS * _ROW_BYTES, end - at), at)
            for row in np.frombuffer(data, np.int64).reshape(-1, 3).tolist():
                yield EntryPlace(*row)
