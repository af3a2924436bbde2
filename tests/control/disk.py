"""A control plane on a directory, with a fake data plane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from tests.control.world import CONFIG, FakeDataPlane
from tpy.clock import SystemClock
from tpy.ids import ModelId
from tpy.messages import ModelState
from tpy.state import ModelStateStore, Snapshot
from tpy.units import NS_PER_MS
from tpy_control import ControlMode, ControlOptions, ControlPlane, run_control_plane

PATIENCE_S = 20  # a deadline for events of the operating system, never reached on a healthy machine


def write(path: Path, content: str | bytes = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def make_model(repository: Path, name: str = "m", *versions: int) -> Path:
    write(repository / name / "config.pbtxt", CONFIG)
    for version in versions or (1,):
        write(repository / name / str(version) / "model.bin", "weights")
    return repository / name


class Disk:
    """A control plane on a directory, in real time."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.store = ModelStateStore(SystemClock())
        self.data = FakeDataPlane(self.store)
        self.control: ControlPlane

    @asynccontextmanager
    async def running(
        self, mode: ControlMode, *, settle_ms: int = 100, poll_ms: int = 3_600_000, **more: Any
    ) -> AsyncIterator[ControlPlane]:
        options = ControlOptions(
            repositories=(self.repository,),
            mode=mode,
            settle_ns=settle_ms * NS_PER_MS,
            poll_interval_ns=poll_ms * NS_PER_MS,
            **more,
        )
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.data.run)

                async def run(*, task_status: anyio.abc.TaskStatus[ControlPlane]) -> None:
                    await run_control_plane(options, self.store, self.store.desired_writer(), task_status=task_status)

                self.control = await tasks.start(run)
                await self.control.wait_startup_settled()
                yield self.control
                tasks.cancel_scope.cancel()

    async def wait_ready(self, versions: set[int], *, generation: int = 0) -> None:
        """Wait until exactly these versions of `m` are READY, the newest of at least this generation."""

        def holds(snapshot: Snapshot) -> bool:
            ready = [o.key for o in snapshot.versions_of(ModelId("m")) if o.state is ModelState.READY]
            return {int(key.version) for key in ready} == versions and max(
                (key.generation for key in ready), default=0
            ) >= generation

        await self.store.wait_for(holds)
