"""Memory of models, measured while they are loaded: the growth of a place, shared out among the models that were loading just
then."""

from __future__ import annotations

import ctypes
import logging
import resource
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from tpy.backend import HasProcess
from tpy.errors import TpyError
from tpy.messages import MemoryUsage
from tpy_data import gpus

_log = logging.getLogger(__name__)

_HOST = -1
"""In place of a device's number."""

NO_GPUS: Mapping[int, int] = MappingProxyType({})
"""For what is not known of any device."""

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()


class Growth:
    """The growth of one place. Whatever it grows by while several load is theirs in equal shares, so that the sum of all is what
    it has grown, counted once. Pure: readings are arguments, None where there could not be one: what it grows by is told by the
    readings before and after."""

    def __init__(self) -> None:
        self._last_bytes: int | None = None
        self._open: dict[int, float] = {}
        self._numbers = 0

    def begin(self, reading_bytes: int | None) -> int:
        """Something begins to load; returns its number."""
        self._settle(reading_bytes)
        self._numbers += 1
        self._open[self._numbers] = 0.0
        return self._numbers

    def end(self, number: int, reading_bytes: int | None) -> int:
        """It is loaded. Returns its bytes."""
        self._settle(reading_bytes)
        return round(self._open.pop(number))

    def _settle(self, reading_bytes: int | None) -> None:
        if reading_bytes is None:
            if not self._open:
                self._last_bytes = None  # nobody knows what others have taken since
            return
        grown = 0 if self._last_bytes is None else reading_bytes - self._last_bytes
        self._last_bytes = reading_bytes
        if grown > 0:
            for number in self._open:
                self._open[number] += grown / len(self._open)


class Measured:
    """The result of a measurement: bytes by place, once it is over."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def add(self, place: int, size: int) -> None:
        self._bytes[place] = self._bytes.get(place, 0) + size

    def usage(self, *, host_bytes: int | None = None, gpu_bytes: Mapping[int, int] = NO_GPUS) -> tuple[MemoryUsage, ...]:
        """By place; `host_bytes`, and `gpu_bytes` by device, are what it has where that is known better, as that of another
        process."""
        known = dict(gpu_bytes) if host_bytes is None else {_HOST: host_bytes, **gpu_bytes}
        return tuple(
            MemoryUsage(kind="CPU" if place == _HOST else "GPU", id=max(0, place), byte_size=size, is_growth=place not in known)
            for place, size in sorted({**self._bytes, **known}.items())
            if size > 0
        )


def host_bytes() -> int:
    """Memory of this process that no file is behind. 0 where the system does not say."""
    try:
        _, resident, shared, *_ = _STATM.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


def device_bytes(device_id: int) -> int:
    """Memory in use on a device. Raises TpyError where its driver does not say."""
    return gpus.memory(device_id).used


class MemoryMeter:
    """Measures loads, several at a time. Any thread. `of_process` returns the memory of a process by device, as far as it is
    known; None: nobody needs to know. On devices of `budgeted` it matters what loads take: a warning says once of each that its
    driver does not tell."""

    def __init__(self, host: Callable[[], int] = host_bytes, device: Callable[[int], int] = device_bytes) -> None:
        self._host = host
        self._device = device
        self._lock = threading.Lock()
        self._places: dict[int, Growth] = {}
        self.of_process: Callable[[int], Mapping[int, int]] | None = None
        self.budgeted: Collection[int] = ()
        self._untold: set[int] = set()

    def gpu_bytes(self, instance: object) -> Mapping[int, int]:
        """The memory by device of an instance in a separate process, where that is known."""
        if self.of_process is None or not isinstance(instance, HasProcess) or instance.pid is None:
            return NO_GPUS
        return self.of_process(instance.pid)

    @contextmanager
    def measure(self, devices: Sequence[int] = ()) -> Iterator[Measured]:
        """Measures the block: what it makes this process grow by, and these devices. The result is there after it."""
        measured = Measured()
        with ExitStack() as places:
            for place in (_HOST, *sorted(set(devices))):
                places.enter_context(self._measure_place(place, measured))
            yield measured

    @contextmanager
    def _measure_place(self, place: int, measured: Measured) -> Iterator[None]:
        with self._lock:
            growth = self._places.setdefault(place, Growth())
            number = growth.begin(self._read(place))
        try:
            yield
        finally:
            with self._lock:
                measured.add(place, growth.end(number, self._read(place)))

    def _read(self, place: int) -> int | None:
        if place == _HOST:
            return self._host()
        try:
            return self._device(place)
        except TpyError as error:
            if place in self.budgeted and place not in self._untold:
                self._untold.add(place)
                text = "GPU %(gpu)s does not tell its memory in use, models on it count as their files: %(reason)s"
                _log.warning(text, {"gpu": place, "reason": error.message})
            return None


def total(usages: Sequence[Sequence[MemoryUsage]]) -> tuple[MemoryUsage, ...]:
    """The sum, by place, the host first."""
    sizes: dict[tuple[str, int], tuple[int, bool]] = {}
    for usage in (usage for group in usages for usage in group):
        size, is_growth = sizes.get((usage.kind, usage.id), (0, False))
        sizes[usage.kind, usage.id] = size + usage.byte_size, is_growth or usage.is_growth
    return tuple(
        MemoryUsage(kind=kind, id=number, byte_size=size, is_growth=is_growth)
        for (kind, number), (size, is_growth) in sorted(sizes.items())
    )


def _find_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_trim = _find_trim()


def give_back() -> None:
    """Have the allocator return free memory to the system: what a model had is there for others, and the next measurement shows
    what the next model takes. Blocks for some milliseconds."""
    if _trim is not None:
        _trim(0)
