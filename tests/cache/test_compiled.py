"""Compiled caches: a table in C, in this process and in one of its own, that behaves and misbehaves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.cache.waiting import KEY, insert, lookup
from tests.e2e.waiting import wait_until
from tests.native.compiled import cache_library, library
from tpy.backend import Isolation
from tpy.clock import SystemClock
from tpy.errors import Internal, InvalidArgument, NotFound, TpyError, Unsupported
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_data.cache.stored import StoredCache
from tpy_data.executors.executor import ThreadExecutor
from tpy_native.caches.compiled import CacheInProcess, CacheLibrary
from tpy_native.caches.options import CompiledCacheOptions

OTHER = bytes(reversed(KEY))


class Opened:
    """A cache in front of the store of tests/native/plugins."""

    def __init__(self, folder: Path, behaviour: str = "", isolation: Isolation = Isolation.PROCESS) -> None:
        self.metrics = CustomMetrics()
        path = cache_library(folder)
        settings = {"behaviour": behaviour}
        if isolation is Isolation.PROCESS:
            options = CompiledCacheOptions(name="table", library=path, settings=settings)
            self.store: CacheInProcess | CacheLibrary = CacheInProcess(options, self.metrics)
        else:
            self.store = CacheLibrary("table", path, settings, self.metrics)
        self.cache = StoredCache(self.store, ThreadExecutor(), SystemClock())

    @property
    def pid(self) -> int | None:
        assert isinstance(self.store, CacheInProcess)
        return self.store.pid

    def shown(self) -> dict[str, float]:
        return {family.name: family.samples[0].value for family in self.metrics.families()}


@asynccontextmanager
async def opened(folder: Path, behaviour: str = "", isolation: Isolation = Isolation.PROCESS) -> AsyncIterator[Opened]:
    it = Opened(folder, behaviour, isolation)
    try:
        yield it
    finally:
        it.cache.close()
        if isinstance(it.store, CacheInProcess):
            store = it.store
            await trio.to_thread.run_sync(lambda: wait_until(lambda: store.is_ended, within_s=20))


@pytest.mark.parametrize("isolation", list(Isolation))
async def test_hits_misses_and_metrics(tmp_path: Path, isolation: Isolation) -> None:
    async with opened(tmp_path, isolation=isolation) as it:
        assert await lookup(it.cache) is None
        await insert(it.cache)
        await insert(it.cache, value=2)  # the key is there: what was first stays
        await insert(it.cache, OTHER, value=3, elements=100_000)
        found, other = await lookup(it.cache), await lookup(it.cache, OTHER)
        assert found is not None
        assert other is not None
        assert (found.outputs[0].array.tolist(), found.parameters) == ([1.0, 1.0], {"p": "q"})
        assert (other.outputs[0].array.size, other.outputs[0].array[-1]) == (100_000, 3.0)
        assert (it.cache.statistics().hits, it.cache.statistics().misses) == (2, 1)
        assert it.shown() == {"nv_cache_num_entries": 2}


@pytest.mark.parametrize(
    ("behaviour", "kind", "said"),
    [
        ("fails-initialize", Internal, "^CacheInitialize was told to fail$"),
        ("gives-nothing", Internal, "^Failed to initialize cache implementation$"),
        ("newer", Unsupported, r"^this cache needs a newer server \(this server has TRITONCACHE API 0\.1; "),
        ("crashes-initialize", Internal, "^the process of cache 'table' was ended by SIGABRT$"),
    ],
)
def test_a_cache_that_cannot_be_initialised(tmp_path: Path, behaviour: str, kind: type[TpyError], said: str) -> None:
    with pytest.raises(kind, match=said):
        Opened(tmp_path, behaviour)


def test_libraries_that_are_no_caches(tmp_path: Path) -> None:
    text = tmp_path / "libtritoncache_text.so"
    text.write_text("text")
    for path, kind, said in (
        (library("empty"), NotFound, "unable to find required entrypoint 'TRITONCACHE_CacheInitialize' in cache library"),
        (text, InvalidArgument, "unable to load cache library '.*': it is not a shared library"),
        (tmp_path / "none.so", NotFound, "unable to load cache library '.*': No such file"),
    ):
        with pytest.raises(kind, match=said):
            CacheInProcess(CompiledCacheOptions(name="x", library=path), CustomMetrics())


@pytest.mark.parametrize(
    ("behaviour", "said", "isolation"),
    [
        ("fails", "CacheInsert was told to fail", Isolation.PROCESS),
        ("fails", "CacheInsert was told to fail", Isolation.THREAD),
        ("fails-lookup", "CacheLookup was told to fail", Isolation.THREAD),
        ("finds-nothing", "", Isolation.THREAD),
        ("garbage", "", Isolation.THREAD),
        ("endless", "the cache entry is larger than the 67108864 bytes that one may have", Isolation.THREAD),
        ("on-gpu", "Only buffers in CPU memory are allowed in cache currently", Isolation.THREAD),
    ],
)
async def test_what_a_cache_says_or_gives_wrongly_is_a_miss(
    tmp_path: Path, isolation: Isolation, behaviour: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path, behaviour, isolation) as it:
        for _ in range(2):
            await insert(it.cache)
            assert await lookup(it.cache) is None
        assert not it.cache.failing, "it answers"
    told = [record.getMessage() for record in caplog.records if "response cache" in record.getMessage()]
    assert len(told) == bool(said), "once"
    assert said in "".join(told)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("crashes", "the process of cache 'table' was ended by SIGSEGV"), ("hangs", "cache 'table' did not answer in time")],
)
async def test_a_cache_that_crashes_or_hangs_is_started_again(
    tmp_path: Path, behaviour: str, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpy_data.cache.stored.CACHE_PAUSE_NS_MIN", 20_000_000)
    async with opened(tmp_path, behaviour) as it:
        first = it.pid
        assert it.shown() == {"nv_cache_num_entries": 0}
        await insert(it.cache)
        assert await lookup(it.cache) is None
        assert [vars(record)["context"]["reason"] for record in caplog.records] == [reason]
        with trio.fail_after(30):
            while it.pid in (first, None) or it.cache.failing:
                assert await lookup(it.cache, OTHER) is None
                await trio.sleep(0.01)  # on another process
        assert it.shown() == {"nv_cache_num_entries": 0}, "the metrics of the dead one are gone"
        await insert(it.cache, OTHER)
        assert it.shown() == {"nv_cache_num_entries": 1}


async def test_a_cache_that_leaks_does_so_in_its_own_process(tmp_path: Path) -> None:
    async with opened(tmp_path, "leaks") as it:
        before, pid = _resident("self"), it.pid
        for number in range(30):
            await insert(it.cache, number.to_bytes(32, "little"))
        assert _resident("self") - before < 10 << 20
        assert _resident(str(pid)) > 30 << 20


def test_a_cache_that_hangs_at_the_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpy_native.process.plugin_process._END_S_MAX", 0.2)
    options = CompiledCacheOptions(name="table", library=cache_library(tmp_path), settings={"behaviour": "hangs-finalize"})
    store = CacheInProcess(options, CustomMetrics())
    pid = store.pid
    store.close()
    assert not os.path.exists(f"/proc/{pid}")


def _resident(process: str) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096
