"""Reads a recording as a stream, in bounded memory: once to learn the order in which its requests arrived, and then, in that
order, a little ahead of what is sent."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from tpy.recording.core.entries import RecordedRequest
from tpy.recording.core.file_format import RecordingReader, UnreadableRecording, read_entry
from tpy.units import MIB
from tpy_tools.load import PlannedCall
from tpy_tools.replay.arrivals import EntryPlace, SortedArrivals
from tpy_tools.replay.requests import Calls

_BLOCK_BYTES: Final = MIB

HELD_BYTES_MAX: Final = 64 * MIB
"""Entries of the file that are read and not yet compared; their calls and answers take some times as much. A larger entry is
held alone."""
HELD_REQUESTS: Final = 4096
"""As many at most, beside those in flight."""


class RecordingError(Exception):
    """The file cannot be read (any more). `str()` is one sentence."""


class Names(NamedTuple):
    """The models that were asked, and the outputs of their answers."""

    models: set[str]
    outputs: set[str]


def scan(path: Path, reader: RecordingReader, arrivals: SortedArrivals) -> Names:
    """Read the file once: `arrivals` learns the places of the requests, `reader` how the file ended. Raises RecordingError."""
    names = Names(set(), set())
    try:
        with path.open("rb") as file:
            while (block := file.read(_BLOCK_BYTES)) and not reader.problem:
                for at, size, request in reader.feed_placed(block):
                    arrivals.add(EntryPlace(request.arrived_ns, at, size))
                    names.models.add(request.model)
                    names.outputs.update(tensor.name for response in request.responses for tensor in response.outputs)
        reader.finish()
    except OSError as error:
        raise RecordingError(f"{error.strerror or error}") from None
    except (UnreadableRecording, OverflowError) as error:
        raise RecordingError(str(error)) from None
    return names


class Loaded(NamedTuple):
    """A request that is to be sent. `number` is its place in the order of arrival, `size` that of its entry."""

    number: int
    request: RecordedRequest
    call: PlannedCall
    size: int


class _Budget:
    """Bounds the entries that are held at a time."""

    def __init__(self, requests_max: int) -> None:
        self._changed = threading.Condition()
        self._requests_max = requests_max
        self._requests = self._bytes = 0
        self._closed = False
        self.bytes_most = self.requests_most = 0

    def take(self, size: int) -> bool:
        """Wait until there is room for an entry of `size` bytes; False: it is closed."""
        with self._changed:
            while not self._closed and self._requests and not self._fits(size):
                self._changed.wait()
            self._requests += 1
            self._bytes += size
            self.bytes_most = max(self.bytes_most, self._bytes)
            self.requests_most = max(self.requests_most, self._requests)
            return not self._closed

    def give_back(self, size: int) -> None:
        """The entry is done with."""
        with self._changed:
            self._requests -= 1
            self._bytes -= size
            self._changed.notify()

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _fits(self, size: int) -> bool:
        return self._requests < self._requests_max and self._bytes + size <= HELD_BYTES_MAX


class RequestLoader:
    """Loads requests in a separate thread while the block runs: `next_nowait` gives them, and each is to be told `done` once it
    is compared. After the last one `ended` is True, with the `problem` where one is: the file was changed meanwhile."""

    def __init__(self, path: Path, arrivals: SortedArrivals, calls: Calls, *, in_flight_max: int) -> None:
        self._path = path
        self._arrivals = arrivals
        self._calls = calls
        self._budget = _Budget(HELD_REQUESTS + in_flight_max)
        self._ready: queue.SimpleQueue[Loaded | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.ended = False
        self.problem = ""

    def __enter__(self) -> RequestLoader:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._budget.close()
        self._thread.join()

    @property
    def held_most(self) -> tuple[int, int]:
        """The most requests, and bytes of their entries, that were held at a time."""
        return self._budget.requests_most, self._budget.bytes_most

    def next_nowait(self) -> Loaded | None:
        """The next request; None: no request now, or no more at all."""
        try:
            found = self._ready.get_nowait()
        except queue.Empty:
            return None
        if found is None:
            self.ended = True
        return found

    def wait_first(self) -> Loaded | None:
        """The first request; None for a recording without one that can be sent."""
        found = self._ready.get()
        self.ended = found is None
        return found

    def done(self, loaded: Loaded) -> None:
        """Its memory may be used for others."""
        self._budget.give_back(loaded.size)

    def _run(self) -> None:
        try:
            self._load()
        except (OSError, UnreadableRecording) as error:
            self.problem = f"{self._path}: {(error.strerror or error) if isinstance(error, OSError) else error}"
        finally:
            self._ready.put(None)

    def _load(self) -> None:
        with self._path.open("rb", buffering=0) as file:
            for number, place in enumerate(self._arrivals):
                if not self._budget.take(place.size):
                    return
                request = read_entry(os.pread(file.fileno(), place.size, place.at))
                call = self._calls.make(request)
                if call is None:
                    self._budget.give_back(place.size)
                else:
                    self._ready.put(Loaded(number, request, call, place.size))
