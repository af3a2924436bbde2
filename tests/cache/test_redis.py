"""The Redis cache against a real Redis: what is shared, what is not believed, and what happens while it is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
import trio

from tests.cache.hostile_redis import hostile_redis
from tests.cache.redis_server import RedisServer, redis_server
from tests.cache.waiting import KEY, Waiter, insert, lookup
from tests.e2e.waiting import wait_until
from tests.engine.fakes import Rig, ScriptedBackend, request, rig, values
from tests.engine.test_cache import CACHED, Counting, counts
from tpy.clock import SystemClock
from tpy_data.cache.options import StoreOptions
from tpy_data.cache.redis_kind import REDIS
from tpy_data.cache.redis_options import RedisCacheOptions
from tpy_data.cache.redis_store import RedisStore, make_client
from tpy_data.cache.stored import StoredCache
from tpy_data.executors.executor import ThreadExecutor


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path, password="secret, with=signs") as running:
        yield running


def options(server: RedisServer) -> RedisCacheOptions:
    return RedisCacheOptions(host="127.0.0.1", port=server.port, password=server.password)


@asynccontextmanager
async def opened(chosen: RedisCacheOptions) -> AsyncIterator[StoredCache]:
    cache = StoredCache(RedisStore(chosen), ThreadExecutor(), SystemClock())
    try:
        yield cache
    finally:
        cache.close()


async def test_what_is_inserted_is_found_by_all(server: RedisServer) -> None:
    async with opened(options(server)) as one, opened(options(server)) as other:
        assert await lookup(one) is None
        await insert(one)
        found = await lookup(other)
        assert found is not None
        assert (found.outputs[0].array.tolist(), found.parameters) == ([1.0, 1.0], {"p": "q"})
        assert (one.statistics().misses, other.statistics().hits) == (1, 1)


async def test_hostile_content_is_a_miss(server: RedisServer) -> None:
    async with opened(options(server)) as cache:
        await insert(cache)
        with server.client() as client:
            (name,) = client.keys("*")  # type: ignore[misc]
            sound = client.get(name)
            assert isinstance(sound, bytes)
            for hostile in (b"", b"x", sound[:-1], sound + b"x", sound.replace(b"FP32", b"FP64"), b"\xff" * 5000):
                client.set(name, hostile)
                assert await lookup(cache) is None
            other = name[:-2] + b"ff"
            client.set(other, sound)
            assert await lookup(cache, KEY[:-1] + b"\xff") is None, "the answer to another request"
            client.delete(name)
            client.lpush(name, "a list")
            assert await lookup(cache) is None
    assert cache.statistics().hits == 0


async def test_requests_run_while_redis_is_away_and_it_is_used_when_it_is_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("tpy_data.cache.stored.CACHE_PAUSE_NS_MIN", 50_000_000)
    async with opened(options(server)) as cache:
        await insert(cache)
        server.stop()
        for _ in range(20):
            assert await lookup(cache) is None
            await insert(cache)
        told = sum("does not answer" in record.message for record in caplog.records)
        assert 1 <= told <= 3
        server.start()
        with trio.fail_after(20):
            found = None
            while found is None:
                await insert(cache)
                found = await lookup(cache)
    assert any("answers again" in record.message for record in caplog.records)


async def test_a_silent_redis_delays_requests_by_a_bounded_time() -> None:
    listener = trio.socket.socket()
    with listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen()
        chosen = RedisCacheOptions(
            host="127.0.0.1", port=listener.getsockname()[1], socket_timeout_ms=200, connect_timeout_ms=200, pool_size=1
        )
        async with opened(chosen) as cache:
            waiters = [Waiter() for _ in range(200)]
            for waiter in waiters:
                cache.lookup(KEY, waiter)
            with trio.fail_after(20):
                for waiter in waiters:
                    await waiter.done.wait()


async def test_a_slow_redis_delays_requests_by_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    """A byte each 50 ms: no read waits for long, all of them together would take 50 seconds."""
    with hostile_redis("drips") as server:
        chosen = RedisCacheOptions(host="127.0.0.1", port=server.port, socket_timeout_ms=300, connect_timeout_ms=300)
        async with opened(chosen) as cache:
            began_s = trio.current_time()
            assert await lookup(cache) is None
            assert 0.3 < trio.current_time() - began_s < 25
    assert any("does not answer" in record.message for record in caplog.records)


async def test_a_wrong_password_is_as_good_as_no_redis(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    wrong = RedisCacheOptions(host="127.0.0.1", port=server.port, password="wrong")
    async with opened(wrong) as cache:
        assert await lookup(cache) is None
    reasons = [vars(record)["context"]["reason"] for record in caplog.records]
    assert len(reasons) == 1
    assert "invalid username-password pair" in reasons[0]


@asynccontextmanager
async def serving(chosen: RedisCacheOptions, directory: Path, backend: ScriptedBackend) -> AsyncIterator[Rig]:
    store = StoreOptions(name="redis", kind=REDIS, options=chosen, server_token="t")
    async with rig(backend=backend, executor=ThreadExecutor(), cache=store) as r:
        await r.serve(CACHED, directory=directory)
        yield r


async def test_servers_of_the_same_files_share_answers_and_others_do_not(server: RedisServer, tmp_path: Path) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "weights").write_bytes(b"one")
    first, second, third = Counting(), Counting(), Counting()
    async with serving(options(server), model, first) as r:
        answer = await r.submit().wait()
        await _settled(server, 1)
        assert (values(answer), counts(r)["miss"]) == ([1, 1], 1)
    async with serving(options(server), model, second) as r:
        answer = await r.submit().wait()
        assert (values(answer), answer.parameters, counts(r)["hit"], second.executed) == ([1, 1], {"n": 1}, 1, 0)
    (model / "1" / "weights").write_bytes(b"two")
    async with serving(options(server), model, third) as r:
        await r.submit().wait()
        assert (third.executed, counts(r)["miss"]) == (1, 1)


async def test_equal_requests_wait_for_one_lookup_and_one_execution(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    backend = Counting()
    async with serving(options(server), tmp_path, backend) as r:
        for value in range(3):
            sinks = [r.submit(request(value=value)) for _ in range(10)]
            for sink in sinks:
                await sink.wait()
        assert counts(r)["success"] == 30
        assert backend.executed == 3


async def _settled(server: RedisServer, entries: int) -> None:
    with server.client() as client:
        await trio.to_thread.run_sync(lambda: wait_until(lambda: client.dbsize() == entries, within_s=10))


def test_the_client_gives_up_at_once() -> None:
    client = make_client(RedisCacheOptions(host="127.0.0.1", port=1))
    with pytest.raises(redis.ConnectionError):
        client.get("x")
