"""Copies through maps: a segment that is made shorter in the middle of one is an error, in this process too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

from tpy.errors import InvalidArgument
from tpy.limits import REGION_INLINE_BYTES_MAX
from tpy.messages import RegionFacts, RegionKind
from tpy.regions import RegionCopies, SegmentRegion, maps
from tpy.regions.maps import SegmentMap

PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE = 4 * REGION_INLINE_BYTES_MAX


@pytest.fixture
def guard() -> Iterator[None]:
    with maps.guarded():
        yield


@pytest.fixture
def path() -> Iterator[Path]:
    found = Path(f"/dev/shm/tpy_maps_{os.getpid()}")
    found.write_bytes(bytes(PAGE) + np.arange(SIZE // 4, dtype=np.uint32).tobytes())
    yield found
    found.unlink(missing_ok=True)


def region_of(path: Path) -> SegmentRegion:
    facts = RegionFacts(name="r", kind=RegionKind.SYSTEM, key=f"/{path.name}", offset=PAGE, byte_size=SIZE)
    return SegmentRegion(facts, os.open(path, os.O_RDWR), RegionCopies())


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


async def test_large_copies_go_through_a_map_in_threads_only(guard: None, path: Path) -> None:
    region = region_of(path)
    half = SIZE // 2
    assert bytes(region.read(half, half)) == path.read_bytes()[PAGE + half :]  # noqa: ASYNC240  # in memory
    region.write(0, bytes(half))
    assert not is_mapped(path)
    copy = await trio.to_thread.run_sync(region.read, half, half)
    assert is_mapped(path)
    await trio.to_thread.run_sync(region.write, 4, copy.data)
    assert path.read_bytes()[PAGE:] == bytes(4) + bytes(copy) + bytes(copy)[4:]  # noqa: ASYNC240  # in memory
    del region
    assert not is_mapped(path)


async def test_without_the_guard_nothing_is_mapped(path: Path) -> None:
    region = region_of(path)
    copy = await trio.to_thread.run_sync(region.read, 0, SIZE)
    assert copy.view(np.uint32)[-1] == SIZE // 4 - 1
    assert not is_mapped(path)


@pytest.mark.parametrize("action", ["load", "store"])
async def test_a_segment_that_is_gone_costs_the_map(guard: None, path: Path, action: str) -> None:
    descriptor = os.open(path, os.O_RDWR)
    found, other = SegmentMap(descriptor, PAGE, SIZE), np.ones(SIZE, np.uint8)
    os.truncate(path, 2 * PAGE)
    assert found.is_short
    with trio.fail_after(20):
        await trio.to_thread.run_sync(getattr(found, action), 0, SIZE, other.ctypes.data)
    assert found.lost
    assert os.fstat(descriptor).st_size == 2 * PAGE
    if action == "load":
        assert not other[PAGE:].any()
    os.close(descriptor)


@pytest.mark.parametrize("write", [False, True])
async def test_a_region_whose_segment_is_gone_is_an_error(
    guard: None, path: Path, write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it goes after the size was looked at; and the region works again when the segment is as long as before."""
    region = region_of(path)
    use = (lambda: region.write(0, bytes(SIZE))) if write else (lambda: region.read(0, SIZE))
    await trio.to_thread.run_sync(use)
    short = SegmentMap.is_short
    looked: list[bool] = []

    def is_short(self: SegmentMap) -> bool:
        looked.append(True)
        if len(looked) == 1:
            os.truncate(path, PAGE)
            return False
        return bool(short.__get__(self))

    monkeypatch.setattr(SegmentMap, "is_short", property(is_short))
    with trio.fail_after(20), pytest.raises(InvalidArgument, match="was truncated"):
        await trio.to_thread.run_sync(use)
    assert len(looked) > 1
    with pytest.raises(InvalidArgument, match="was truncated"):
        await trio.to_thread.run_sync(use)
    os.truncate(path, PAGE + SIZE)
    await trio.to_thread.run_sync(use)


async def test_memory_that_cannot_be_had_costs_the_map_too(guard: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without room gives the same signal, with a segment as long as ever."""
    descriptor = os.open(path, os.O_RDWR)
    found, target = SegmentMap(descriptor, PAGE, SIZE), np.ones(SIZE, np.uint8)
    monkeypatch.setattr(SegmentMap, "is_short", property(lambda self: False))
    os.truncate(path, PAGE)
    with trio.fail_after(20):
        await trio.to_thread.run_sync(found.load, 0, SIZE, target.ctypes.data)
    assert found.lost
    os.close(descriptor)


async def test_signals_in_the_middle_of_a_repair_are_left_to_it(guard: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread gets the signal again until its map is repaired: faster than the repair is, on a loaded machine."""
    descriptor = os.open(path, os.O_RDWR)
    found, target = SegmentMap(descriptor, PAGE, SIZE), np.ones(SIZE, np.uint8)

    def is_short(self: SegmentMap) -> bool:
        signal.raise_signal(signal.SIGBUS)
        return True

    monkeypatch.setattr(SegmentMap, "is_short", property(is_short))
    os.truncate(path, PAGE)
    with trio.fail_after(20):
        await trio.to_thread.run_sync(found.load, 0, SIZE, target.ctypes.data)
    assert found.lost
    os.close(descriptor)


FULL = """
import os, threading
import numpy as np
import trio
from tpy.errors import TpyError
from tpy.messages import RegionFacts, RegionKind
from tpy.regions import RegionCopies, SegmentRegion, maps

SIZE = 4_000_000

def region_of(name):
    facts = RegionFacts(name=name, kind=RegionKind.SYSTEM, key="/" + name, offset=0, byte_size=SIZE)
    return SegmentRegion(facts, os.open("/dev/shm/" + name, os.O_RDWR), RegionCopies())

for name, size in (("good", SIZE), ("rest", 4_000_000)):
    with open("/dev/shm/" + name, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
with open("/dev/shm/sparse", "wb") as file:
    os.truncate(file.fileno(), SIZE)
good, sparse, stop, said = region_of("good"), region_of("sparse"), threading.Event(), []

def use_good():
    while not stop.is_set():
        good.write(0, bytes(SIZE))
        good.read(0, SIZE)

def use_sparse():
    for write in (True, False) * 5:
        try:
            sparse.write(0, bytes(SIZE)) if write else sparse.read(0, SIZE)
        except TpyError as error:
            said.append(error.message)
    stop.set()

async def main():
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(trio.to_thread.run_sync, use_good)
        nursery.start_soon(trio.to_thread.run_sync, use_sparse)

with maps.guarded():
    trio.run(main)
for each in (len(said), *sorted(set(said))):
    print(each)
"""


def test_a_file_system_without_room_costs_the_copy_that_needs_it_and_no_other() -> None:
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces, for a /dev/shm of its own")
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    said = [f"shared memory region 'sparse' cannot be {action}: No space left on device" for action in ("read", "written")]
    assert done.stdout.splitlines() == ["10", *said], done.stderr


ELSEWHERE = """
import ctypes, mmap, os, sys, trio
from tpy.regions import maps

with open(sys.argv[1], "r+b") as file:
    elsewhere = mmap.mmap(file.fileno(), 0)
os.truncate(sys.argv[1], 0)
buffer = (ctypes.c_char * len(elsewhere)).from_buffer(elsewhere)
target = ctypes.create_string_buffer(len(elsewhere))

async def main():
    await trio.to_thread.run_sync(ctypes.memmove, target, buffer, len(elsewhere))

with maps.guarded():
    trio.run(main)
"""


def test_a_fault_elsewhere_ends_the_process_as_ever(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, str(path)], timeout=60, capture_output=True, check=False)
    assert done.returncode == -signal.SIGBUS, done.stderr


def test_the_guard_leaves_nothing_behind() -> None:
    before = signal.getsignal(signal.SIGBUS)
    with maps.guarded():
        assert signal.getsignal(signal.SIGBUS) is not before
        assert not maps.is_usable()
    assert signal.getsignal(signal.SIGBUS) is before


def test_a_signal_that_comes_late_changes_nothing(guard: None) -> None:
    """Signals are merged: one may be there when its cause is repaired already."""
    handler = signal.getsignal(signal.SIGBUS)
    for _ in range(3):
        signal.raise_signal(signal.SIGBUS)
    assert signal.getsignal(signal.SIGBUS) is handler


def test_the_guard_takes_the_place_of_faulthandler() -> None:
    code = "from tpy.regions import maps\nwith maps.guarded(): pass"
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], timeout=60, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
