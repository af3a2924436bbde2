"""Memory of models: whose a growth is."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.messages import MemoryUsage
from tpy.units import MIB
from tpy_data.backends.python.environment.process import memory_bytes
from tpy_data.engine.loading.memory_meter import Growth, MemoryMeter, host_bytes, total

_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""New memory of the system, none that others have freed."""


def test_growth_of_loads_one_after_the_other() -> None:
    growth = Growth()
    first = growth.begin(100)
    assert growth.end(first, 130) == 30
    second = growth.begin(150)  # the server itself took 20 in between
    assert growth.end(second, 155) == 5


def test_growth_of_loads_at_the_same_time() -> None:
    growth = Growth()
    first = growth.begin(100)
    second = growth.begin(110)  # 10: of the first alone
    assert growth.end(first, 140) == 25  # 30: of both
    assert growth.end(second, 141) == 16


def test_a_place_that_shrinks_takes_nothing_back() -> None:
    growth = Growth()
    first = growth.begin(100)
    second = growth.begin(60)
    assert growth.end(second, 70) == 5
    assert growth.end(first, 70) == 5


def test_a_place_that_cannot_be_read_has_not_shrunk_to_nothing() -> None:
    growth = Growth()
    first = growth.begin(None)
    assert growth.end(first, 500) == 0, "others may have it"
    second = growth.begin(500)
    third = growth.begin(None)
    assert growth.end(second, 520) == 10
    assert growth.end(third, None) == 10
    fourth = growth.begin(None)
    assert growth.end(fourth, 700) == 0, "these 180 may be from before"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3))))
def test_the_sum_of_all_is_what_the_place_grew_by(steps: list[tuple[int, int]]) -> None:
    growth, reading, grown, found = Growth(), 1000, 0, 0
    open_numbers: dict[int, int] = {}
    for more, slot in [*steps, *((0, slot) for slot in range(4))]:
        reading += more
        grown += more if open_numbers else 0
        if slot in open_numbers:
            found += growth.end(open_numbers.pop(slot), reading)
        else:
            open_numbers[slot] = growth.begin(reading)
    for number in open_numbers.values():
        found += growth.end(number, reading)
    assert abs(found - grown) <= len(steps) + 4  # each is rounded


def test_places_of_a_measurement() -> None:
    readings = {-1: 10, 0: 5, 2: 7}
    meter = MemoryMeter(host=lambda: readings[-1], device=lambda number: readings[number])
    with meter.measure(devices=[2, 0, 2]) as measured:
        readings.update({-1: 1000, 2: 107})
    cpu = MemoryUsage(kind="CPU", id=0, byte_size=990, is_growth=True)
    gpu = MemoryUsage(kind="GPU", id=2, byte_size=100, is_growth=True)
    assert measured.usage() == (cpu, gpu)
    assert measured.usage(host_bytes=3) == (MemoryUsage(kind="CPU", id=0, byte_size=3), gpu)
    assert measured.usage(host_bytes=0) == (gpu,)
    known = MemoryUsage(kind="GPU", id=2, byte_size=70)
    assert measured.usage(gpu_bytes={2: 70}) == (cpu, known), "no growth"
    assert total([(cpu, known), (cpu,), ()]) == (MemoryUsage(kind="CPU", id=0, byte_size=1980, is_growth=True), known)
    assert total([(known,), (gpu,)]) == (MemoryUsage(kind="GPU", id=2, byte_size=170, is_growth=True),)


def test_a_load_that_fails_is_over() -> None:
    readings = [0]
    meter = MemoryMeter(host=lambda: readings[0])
    with pytest.raises(ValueError, match="no model"), meter.measure():
        raise ValueError("no model")
    with meter.measure() as measured:
        readings[0] = 8
    assert measured.usage() == (MemoryUsage(kind="CPU", id=0, byte_size=8, is_growth=True),)


def test_a_gpu_whose_driver_does_not_answer_has_nothing() -> None:
    with MemoryMeter().measure(devices=[77]) as measured:
        pass
    assert all(usage.kind == "CPU" for usage in measured.usage())


def test_threads_at_the_same_time() -> None:
    meter = MemoryMeter()
    kept: list[object] = []
    sizes: list[int] = []

    def load() -> None:
        with meter.measure() as measured:
            block = np.frombuffer(mmap.mmap(-1, 32 * MIB, flags=_OWN), np.uint8)
            block.fill(1)
            kept.append(block)
        sizes.extend(usage.byte_size for usage in measured.usage())

    threads = [threading.Thread(target=load) for _ in range(3)]
    gc.collect()
    before = host_bytes()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 90 * MIB < sum(sizes) < 130 * MIB
    assert host_bytes() - before > 90 * MIB


def test_memory_of_another_process() -> None:
    code = "block = b'x' * (64 << 20); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 64 * MIB < memory_bytes(process.pid) < 128 * MIB
        process.communicate(b"\n")
    assert memory_bytes(process.pid) == 0
    assert memory_bytes(os.getpid()) > MIB
