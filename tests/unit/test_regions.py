"""Regions of shared memory: what can be registered, and that nothing that clients do to their segments hurts."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

from tpy import limits
from tpy.devices import DeviceArray, Devices
from tpy.errors import AlreadyExists, Internal, InvalidArgument, NotFound, TpyError, Unavailable, Unsupported
from tpy.messages import CudaRegistration, MemoryType, Place, RegionKind, SystemRegistration
from tpy.regions import (
    DISABLED,
    CountedRegion,
    DeviceRegion,
    Region,
    RegionArray,
    RegionCopies,
    RegionRegistry,
    registered,
    reopen_segment,
)
from tpy.regions import region as region_module
from tpy.regions import registry as registry_module
from tpy.testing import FakeDevice

FOLDER = Path("/dev/shm")
PAGE = os.sysconf("SC_PAGE_SIZE")
GPU = Place(MemoryType.GPU, 0)

Make = Callable[..., Path]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes segments that are gone after the test."""
    made: list[Path] = []

    def segment(content: bytes = bytes(64), name: str = "") -> Path:
        path = FOLDER / f"tpy_test_{os.getpid()}_{len(made)}{name}"
        path.write_bytes(content)
        made.append(path)
        return path

    yield segment
    for path in made:
        path.unlink(missing_ok=True)


async def register(
    registry: RegionRegistry, path: Path | str, name: str = "r", *, offset: int = 0, byte_size: int = 64
) -> Region:
    key = path if isinstance(path, str) else f"/{path.name}"
    await registry.register(SystemRegistration(name=name, key=key, offset=offset, byte_size=byte_size))
    return registry.regions[name]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_what_is_written_is_read(make: Make) -> None:
    path = make(bytes(PAGE) + bytes(range(64)))
    region = await register(RegionRegistry(), path, offset=PAGE)
    assert bytes(region.read(8, 8)) == bytes(range(8, 16))
    region.write(60, b"abcd")
    assert path.read_bytes()[PAGE + 60 :] == b"abcd"
    assert bytes(region.read(56, 8)) == bytes(range(56, 60)) + b"abcd"


async def test_an_array_in_a_region_is_read_to_where_it_is_wanted(make: Make) -> None:
    region = await register(RegionRegistry(), make(np.arange(16, dtype=np.float32).tobytes()))
    array = RegionArray(CountedRegion(region, 24), (2, 3), np.dtype(np.float32), 8)
    expected = [[2, 3, 4], [5, 6, 7]]
    assert array.to_host().tolist() == expected
    target = np.zeros((2, 3), np.float32)
    array.read_into(target.reshape(-1).view(np.uint8))
    assert target.tolist() == expected


@pytest.mark.parametrize(
    ("takes", "room", "copies"),
    [((GPU,), 1 << 20, (0, 1)), ((Place(MemoryType.GPU, 1),), 1 << 20, (1, 0)), ((), 1 << 20, (1, 0)), ((GPU,), 0, (1, 0))],
    ids=["there", "elsewhere", "on the host", "no memory there"],
)
async def test_an_array_in_a_gpus_memory_is_copied_to_where_it_is_taken(
    takes: tuple[Place, ...], room: int, copies: tuple[int, int]
) -> None:
    client, server = FakeDevice(0), FakeDevice(0, memory_bytes=room)
    memory = client.allocate(16)
    client.copy_in(memory.address, np.arange(4, dtype=np.float32).view(np.uint8))
    registry = RegionRegistry(Devices([server], cuda_pool_bytes={0: 0}))
    handle = client.export_ipc(memory.address).handle
    await registry.register(CudaRegistration(name="r", raw_handle=handle, device_id=0, byte_size=16))
    array = RegionArray(CountedRegion(registry.regions["r"], 8), (1, 2), np.dtype(np.float32), 8)
    assert (array.gpu, array.place) == (0, Place(MemoryType.REGION))
    found: object = array.within_reach(frozenset(takes))
    client.copy_in(memory.address, np.zeros(16, np.uint8))
    assert isinstance(found, DeviceArray if copies[1] else np.ndarray)
    assert (found.to_host() if isinstance(found, DeviceArray) else found).tolist() == [[2, 3]]
    assert (server.counts["out"] - copies[1], server.counts["within"]) == copies


async def test_an_output_of_another_gpu_goes_by_the_host() -> None:
    client, here, there = FakeDevice(0), FakeDevice(0), FakeDevice(1)
    memory = client.allocate(8)
    devices = Devices([here, there])
    registry = RegionRegistry(devices)
    handle = client.export_ipc(memory.address).handle
    await registry.register(CudaRegistration(name="r", raw_handle=handle, device_id=0, byte_size=8))
    region = registry.regions["r"]
    assert isinstance(region, DeviceRegion)
    for device_id, value in ((0, 5), (1, 7)):
        region.take(4, devices.to_device(np.full(1, value, np.float32), device_id))
        assert region.read(4, 4).view(np.float32) == [value]
    assert (here.counts["within"], there.counts["out"]) == (1, 1)


async def test_a_copy_does_not_change_with_the_segment(make: Make) -> None:
    path = make(b"a" * 64)
    copy = (await register(RegionRegistry(), path)).read(0, 64)
    path.write_bytes(b"b" * 64)
    assert bytes(copy) == b"a" * 64


@pytest.mark.parametrize("size", [0, 1, 63])
async def test_a_segment_that_becomes_shorter_is_an_error(make: Make, size: int) -> None:
    path = make()
    region = await register(RegionRegistry(), path)
    os.truncate(path, size)
    for use in (lambda: region.read(0, 64), lambda: region.write(60, b"abcd")):
        with pytest.raises(InvalidArgument, match=r"^shared memory region 'r' is shorter now .* was truncated$"):
            use()
    assert path.stat().st_size == size


async def test_a_region_is_usable_until_the_last_user_lets_go_of_it(make: Make) -> None:
    registry, before = RegionRegistry(), open_files()
    path = make(b"x" * 64)
    region = await register(registry, path)
    path.unlink()
    await registry.unregister(RegionKind.SYSTEM, "r")
    assert not registry.regions
    region.write(0, b"y")
    assert bytes(region.read(0, 2)) == b"yx"
    assert open_files() == before + 1
    del region
    assert open_files() == before


async def test_files_are_counted(make: Make) -> None:
    """One of a region; none of what was refused; no maps without the guard."""
    registry, before = RegionRegistry(), open_files()
    paths = [make() for _ in range(8)]
    for number, path in enumerate(paths):
        await register(registry, path, str(number))
    for bad in ({"byte_size": 65}, {"offset": 8, "byte_size": 8}, {"byte_size": 0}):
        with pytest.raises(InvalidArgument):
            await register(registry, paths[0], **bad)
    assert open_files() == before + len(paths)
    assert paths[0].name not in await trio.Path("/proc/self/maps").read_text()
    await registry.unregister(RegionKind.CUDA)
    assert len(registry.regions) == 8
    await registry.unregister(RegionKind.SYSTEM)
    assert open_files() == before


async def test_regions_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, path = RegionRegistry(), make()
    monkeypatch.setattr(registry_module, "REGIONS_MAX", 3)
    for number in range(3):
        await register(registry, path, str(number))
    with pytest.raises(Unavailable, match=r"^3 shared memory regions are registered, at most 3 are accepted$"):
        await register(registry, path, "more")
    await registry.unregister(RegionKind.SYSTEM, "1")
    await register(registry, path, "more")


async def test_regions_leave_files_for_connections(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, path = RegionRegistry(), make()
    monkeypatch.setattr(registry_module.resource, "getrlimit", lambda _: (8, 8))
    for name in ("a", "b"):
        await register(registry, path, name)
    with pytest.raises(Unavailable, match="at most 2 are accepted"):
        await register(registry, path, "c")


async def test_names_are_bounded(make: Make) -> None:
    registry, path = RegionRegistry(), make()
    await register(registry, path, "n" * limits.REGION_NAME_CHARACTERS_MAX)
    for name in ("n" * (limits.REGION_NAME_CHARACTERS_MAX + 1), ""):
        with pytest.raises(InvalidArgument):
            await register(registry, path, name)


async def refusal(key: str) -> TpyError:
    registry, before = RegionRegistry(), open_files()
    with pytest.raises(TpyError) as caught:
        await register(registry, key)
    assert not registry.regions
    assert open_files() <= before  # what earlier tests left open may be closed meanwhile
    return caught.value


@pytest.mark.parametrize(
    "key",
    [
        ".",
        "..",
        "/./",
        "/../shm/x",
        "a/b",
        "/proc/self/mem",
        "../../etc/passwd",
        "x\0",
        "\ud800",
        "k" * 256,
        "k" * 100_000,
        "nosuch",
    ],
)
async def test_keys_lead_nowhere_else(key: str) -> None:
    error = await refusal(key)
    assert isinstance(error, Internal)
    assert error.message.startswith("Unable to open shared memory region: '")
    assert len(error.message) < 2000


async def test_what_is_no_segment_is_not_opened(make: Make) -> None:
    target = make()
    for kind in ("link", "loop", "pipe", "folder"):
        path = FOLDER / f"{target.name}_{kind}"
        try:
            match kind:
                case "link":
                    path.symlink_to("/etc/passwd")
                case "loop":
                    path.symlink_to(target)
                case "pipe":
                    os.mkfifo(path)
                case _:
                    path.mkdir()
            assert isinstance(await refusal(f"/{path.name}"), Internal)
        finally:
            path.rmdir() if kind == "folder" else path.unlink()


@pytest.mark.parametrize("key", ["", "/", "////"])
async def test_a_key_has_a_name(key: str) -> None:
    assert (await refusal(key)).message == f"cannot register shared memory region 'r' - invalid shm key '{key}'"


@pytest.mark.parametrize("slashes", ["", "/", "///"])
@pytest.mark.parametrize("rest", ["", "_identity_0", "f00-ba5"])
async def test_keys_of_a_servers_own_are_refused(slashes: str, rest: str) -> None:
    """CVE-2025-23320 and CVE-2025-23334: whoever knew the key of a worker's segment could register it and write there."""
    path = FOLDER / f"triton_python_backend_shm_region_{rest}"
    path.write_bytes(bytes(64))
    try:
        error = await refusal(f"{slashes}{path.name}")
    finally:
        path.unlink()
    assert error.message == (
        f"cannot register shared memory region 'r' with key '{slashes}{path.name}' as the key contains the reserved prefix "
        "'triton_python_backend_shm_region_'"
    )


async def test_a_name_is_taken_once(make: Make) -> None:
    registry, path = RegionRegistry(), make()
    await register(registry, path)
    with pytest.raises(AlreadyExists, match=r"^shared memory region 'r' already in manager$"):
        await register(registry, path)
    with pytest.raises(AlreadyExists):
        await registry.register(CudaRegistration(name="r", raw_handle=bytes(64), device_id=0, byte_size=8))
    with pytest.raises(InvalidArgument, match=r"^failed to register shared memory region: invalid args$"):
        await registry.register(CudaRegistration(name="gpu", raw_handle=bytes(64), device_id=0, byte_size=8))


async def test_a_registry_that_is_off_registers_nothing(make: Make) -> None:
    registry, path = RegionRegistry(enabled=False), make()
    for call in (registry.unregister(RegionKind.SYSTEM), registry.unregister(RegionKind.CUDA, "x"), register(registry, path)):
        with pytest.raises(Unsupported) as caught:
            await call
        assert caught.value.message == DISABLED
    assert registered(registry.regions, RegionKind.SYSTEM) == []
    with pytest.raises(NotFound):
        registered(registry.regions, RegionKind.CUDA, "x")


def test_copies_are_bounded_until_they_are_forgotten() -> None:
    copies = RegionCopies(capacity=100)
    first = copies.allocate(60)
    rows = first.view(np.float32).reshape(3, 5)[1:]
    with pytest.raises(
        Unavailable, match=r"holds 60 bytes of tensors from shared memory regions, at most 100 .* room for 41 more"
    ):
        copies.allocate(41)
    second = copies.allocate(40)
    del first
    assert copies.held_bytes == 100  # the rows are a view of it
    del rows, second
    assert copies.held_bytes == 0


def test_a_copy_that_memory_cannot_hold_is_refused() -> None:
    copies = RegionCopies(capacity=2**63)
    with pytest.raises(Unavailable, match="there is no memory for a tensor of 1152921504606846976 bytes"):
        copies.allocate(2**60)
    assert copies.held_bytes == 0


async def test_a_sparse_segment_costs_what_is_read(make: Make) -> None:
    path = make()
    os.truncate(path, 2**40)
    region = await register(RegionRegistry(), path, byte_size=2**40)
    assert not region.read(2**40 - 64, 64).any()
    with pytest.raises(Unavailable):
        region.read(0, 2**40)


async def test_a_segment_is_opened_again_by_what_it_is(make: Make) -> None:
    path = make(b"x" * 64)
    region = await register(RegionRegistry(), path)
    path.unlink()
    again = reopen_segment(os.getpid(), region.descriptor, region.identity)
    assert os.pread(again, 64, 0) == b"x" * 64
    os.close(again)
    before = open_files()
    with pytest.raises(OSError, match="No such file"):
        reopen_segment(os.getpid(), region.descriptor, (0, 0))
    assert open_files() == before


async def test_a_status_is_of_one_kind(make: Make) -> None:
    registry = RegionRegistry()
    region = await register(registry, make())
    assert (
        registered(registry.regions, RegionKind.SYSTEM) == registered(registry.regions, RegionKind.SYSTEM, "r") == [region.facts]
    )
    assert registered(registry.regions, RegionKind.CUDA) == []
    with pytest.raises(NotFound, match=r"^The region named 'r' is registered as system shared memory, not CUDA shared memory$"):
        registered(registry.regions, RegionKind.CUDA, "r")


def test_copies_may_be_collected_while_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector runs where it likes: also while the bytes are being counted."""
    copies = RegionCopies(capacity=100)
    circle: list[object] = [copies.allocate(100)]
    circle.append(circle)
    del circle

    class Collecting(Unavailable):
        def __init__(self, message: str) -> None:
            gc.collect()
            super().__init__(message)

    monkeypatch.setattr(region_module, "Unavailable", Collecting)
    ended = threading.Event()

    def ask() -> None:
        with pytest.raises(Unavailable):
            copies.allocate(1)
        ended.set()

    threading.Thread(target=ask, daemon=True).start()
    assert ended.wait(20)
    assert copies.held_bytes == 0
