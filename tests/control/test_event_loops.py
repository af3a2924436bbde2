"""The whole control plane under each event loop that anyio has: Trio, and asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from tests.control.disk import PATIENCE_S, Disk, make_model, write
from tests.control.folders import scratch_files
from tests.control.world import CONFIG_JSON, World, load
from tpy.clock import SystemClock
from tpy.errors import InvalidArgument, Unavailable
from tpy_control import ControlMode

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's coroutine function under one of the event loops."""

    def run_under(test: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            with anyio.fail_after(PATIENCE_S):
                await test()

        anyio.run(bounded, backend=request.param)

    return run_under


def test_a_polled_directory(run: Run, tmp_path: Path) -> None:
    """Reads in threads, change events, timers."""

    async def test() -> None:
        (tmp_path / "repo").mkdir()
        disk = Disk(tmp_path / "repo")
        model = make_model(disk.repository)
        async with disk.running(ControlMode.POLL):
            await disk.wait_ready({1})
            write(model / "2" / "model.bin", "weights")
            await disk.wait_ready({2})
            write(model / "2" / "model.bin", "other weights")
            await disk.wait_ready({2}, generation=3)
            model.rename(tmp_path / "elsewhere")
            await disk.store.wait_for(lambda snapshot: not snapshot.desired)

    run(test)


def test_polling_without_events(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(28, "no watches left")

    monkeypatch.setattr("tpy_control.sources.disk.watch", refuse)

    async def test() -> None:
        (tmp_path / "repo").mkdir()
        disk = Disk(tmp_path / "repo")
        async with disk.running(ControlMode.POLL, settle_ms=20, poll_ms=20):
            make_model(disk.repository)
            await disk.wait_ready({1})

    run(test)


def test_calls(run: Run, tmp_path: Path) -> None:
    """Loads of one name take turns, files of an override come and go, an unload is waited for."""

    async def test() -> None:
        world = World(SystemClock())
        world.put("m", 1)
        world.put("broken", 1, config="nonsense: 3")
        async with world.running(scratch_directory=tmp_path) as control:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(control.load, load("m"))
                tasks.start_soon(control.load, load("m"))
            assert await control.model_ready("m", 1)
            with pytest.raises(Exception, match="nonsense"):
                await control.load(load("broken"))
            with pytest.raises(InvalidArgument, match="path traversal"):
                await control.load(load("../m"))
            await control.load(load("m", config_json=CONFIG_JSON, files={"3/model.bin": b"three"}))
            assert await control.model_ready("m", 3)
            assert scratch_files(tmp_path) == ["1/m/3/model.bin"]
            await control.unload("m")
            assert not await control.model_ready("m")
            while scratch_files(tmp_path):
                await anyio.wait_all_tasks_blocked()

    run(test)


def test_shutdown(run: Run) -> None:
    """A load that waits is answered, one that is cancelled ends, and so does the plane."""

    async def test() -> None:
        world = World(SystemClock())
        world.put("slow", 1)
        world.data.load_seconds["slow"] = 1000
        async with world.running() as control:
            with anyio.move_on_after(0.01) as scope:
                await control.load(load("slow"))
            assert scope.cancelled_caught
            async with anyio.create_task_group() as tasks:

                async def refused() -> None:
                    with pytest.raises(Unavailable, match="stopping"):
                        await control.load(load("slow"))

                tasks.start_soon(refused)
                await anyio.wait_all_tasks_blocked()
                control.stop()

    run(test)
