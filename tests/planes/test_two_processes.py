"""A control plane here, a data plane in another process: models are loaded, replaced, refused and unloaded, and the only things
that cross are what is desired, what was observed, and requests."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from tests.control.disk import PATIENCE_S, make_model, write
from tests.control.world import CONFIG as CONTROL_CONFIG
from tests.control.world import load
from tpy.clock import SystemClock
from tpy.errors import TpyError
from tpy.ids import ModelId
from tpy.messages import ModelState
from tpy.state import DesiredModel, ModelStateStore, ObservedWriter
from tpy_control import ControlMode, ControlOptions, ControlPlane, run_control_plane

ROOT = Path(__file__).parents[2]
CONFIG = CONTROL_CONFIG.replace('"IN"', '"INPUT0"').replace('"OUT"', '"OUTPUT0"')
NUMBERS = [1.0, 2.0, 3.0, 4.0]


class Planes:
    """The control plane, its store, and the other process at the end of a pipe."""

    def __init__(self, repository: Path, pipe: Connection) -> None:
        self.store = ModelStateStore(SystemClock())
        self.control: ControlPlane
        self._options = ControlOptions(repositories=(repository,), mode=ControlMode.EXPLICIT)
        self._pipe = pipe
        self._told, self._answers = anyio.create_memory_object_stream[Any](1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._told, self._answers, anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell)
            tasks.start_soon(self._listen, self.store.observed_writer())

            async def run(*, task_status: anyio.abc.TaskStatus[ControlPlane]) -> None:
                await run_control_plane(self._options, self.store, self.store.desired_writer(), task_status=task_status)

            self.control = await tasks.start(run)
            await self.control.wait_startup_settled()
            yield
            assert await self.ask("end") == [], "the process of the data plane has imported the control plane"
            tasks.cancel_scope.cancel()

    async def ask(self, *order: object) -> Any:
        """Returns what the other process answers."""
        self._pipe.send(order)
        return await self._answers.receive()

    async def infer(self) -> tuple[int, list[float]]:
        """The version that answers a request, and the answer."""
        answer: tuple[int, list[float]] = await self.ask("infer", "m", NUMBERS)
        return answer

    async def _tell(self) -> None:
        before: list[DesiredModel] = []
        async for snapshot in self.store.watch():
            wanted = list(snapshot.desired.values())
            if wanted != before:
                before = wanted
                self._pipe.send(("desire", wanted))

    async def _listen(self, writer: ObservedWriter) -> None:
        while True:
            what, *said = await anyio.to_thread.run_sync(self._pipe.recv, abandon_on_cancel=True)
            if what in ("move", "forget", "answer"):
                getattr(writer, what)(*said)
            else:
                await self._told.send(*said)


def _data_process(pipe: Connection) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.planes.data_process", str(pipe.fileno())]
    return subprocess.Popen(command, pass_fds=[pipe.fileno()], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


@asynccontextmanager
async def planes(repository: Path) -> AsyncIterator[Planes]:
    ours, theirs = multiprocessing.Pipe()
    with _data_process(theirs) as process:
        theirs.close()
        try:
            with anyio.fail_after(PATIENCE_S):
                both = Planes(repository, ours)
                async with both.running():
                    yield both
        finally:
            ours.close()
            process.kill()


async def test_models_come_and_go_with_the_planes_in_two_processes(tmp_path: Path) -> None:
    write(make_model(tmp_path, "m", 1, 2) / "config.pbtxt", CONFIG)
    async with planes(tmp_path) as both:
        await both.control.load(load("m"))
        assert await both.infer() == (2, NUMBERS)
        description = both.store.snapshot().versions_of(ModelId("m"))[0].description
        assert description is not None, "it comes from the data plane"
        write(tmp_path / "m" / "3" / "model.bin", "weights")
        await both.control.load(load("m"))
        assert await both.infer() == (3, NUMBERS)
        await both.control.unload("m", unload_dependents=False)
        snapshot = await both.store.wait_for(
            lambda snapshot: all(o.state is ModelState.UNAVAILABLE for o in snapshot.versions_of(ModelId("m")))
        )
        assert {o.reason for o in snapshot.versions_of(ModelId("m"))} == {"unloaded"}


async def test_the_reason_of_a_load_that_fails_comes_from_the_other_process(tmp_path: Path) -> None:
    model = make_model(tmp_path, "m")
    write(model / "config.pbtxt", CONFIG.replace("identity", "nowhere"))
    async with planes(tmp_path) as both:
        with pytest.raises(TpyError, match="nowhere"):
            await both.control.load(load("m"))
        write(model / "config.pbtxt", CONFIG)
        await both.control.load(load("m"))
        assert await both.infer() == (1, NUMBERS)
