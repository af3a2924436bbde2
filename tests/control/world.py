"""A whole control plane with models in memory and a fake data plane, in virtual time unless told otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import trio
from msgspec.structs import replace

from tpy.clock import Clock
from tpy.ids import ModelId
from tpy.messages import LoadRequest, ModelState
from tpy.state import ModelStateStore, ObservedKey, ObservedVersion
from tpy.testing.trio_clock import TrioClock
from tpy_control import ControlMode, ControlOptions, ControlPlane, run_control_plane
from tpy_control.core.scan import ModelLocation
from tpy_control.offload import inline
from tpy_control.sources import RepositorySource
from tpy_control.sources.memory import MemorySource

CONFIG = """
backend: "identity"
input [{ name: "IN" data_type: TYPE_FP32 dims: [4] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [4] }]
"""

CONFIG_JSON = (
    '{"backend": "identity", "max_batch_size": 7,'
    ' "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],'
    ' "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}]}'
)
POLL = "failed to load '{0}', failed to poll from model repository: "


def load(name: str, **more: object) -> LoadRequest:
    return LoadRequest(model_name=name, **more)  # type: ignore[arg-type]


class FakeDataPlane:
    """Writes the observed half as the data plane must: by level, new beside old, a failed update leaves the old one."""

    def __init__(self, store: ModelStateStore) -> None:
        self.failing: dict[tuple[str, int], str] = {}
        self.refusing: dict[str, str] = {}
        self.load_seconds: dict[str, float] = {}
        self.unload_seconds: dict[str, float] = {}
        self.loads: list[tuple[str, int]] = []
        self.loading_at_once_max = 0
        self._store = store
        self._writer = store.observed_writer()
        self.answer = self._writer.answer

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            async for _ in self._store.watch():
                self._reconcile(tasks)

    def state(self, key: ObservedKey) -> ModelState | None:
        entry = self._store.snapshot().observed.get(key)
        return None if entry is None else entry.state

    def _move(self, key: ObservedKey, state: ModelState, reason: str = "") -> None:
        desired = self._store.snapshot().desired.get(key.model)
        revision = 0 if desired is None else desired.config_revision
        config = None if desired is None else desired.config
        self._writer.move(ObservedVersion(key=key, state=state, reason=reason, config=config, config_revision=revision))

    def _resize(self, entry: ObservedVersion, revision: int) -> None:
        error = self.refusing.get(entry.key.model.name, "")
        applied = entry.config_revision if error else revision
        refused = revision if error else entry.refused_revision
        self._writer.move(replace(entry, config_revision=applied, applied_error=error, refused_revision=refused))

    def _reconcile(self, tasks: anyio.abc.TaskGroup) -> None:
        snapshot = self._store.snapshot()
        wanted = {
            ObservedKey(model.id, version.version, version.generation)
            for model in snapshot.desired.values()
            for version in model.versions.values()
        }
        for key in sorted(wanted - snapshot.observed.keys()):
            self._move(key, ModelState.LOADING)
            tasks.start_soon(self._load, key)
        for key, entry in snapshot.observed.items():
            replaced = any(self._replaces(other, key) for other in wanted)
            model = snapshot.desired.get(key.model)
            if key in wanted:
                tried = max(entry.config_revision, entry.refused_revision)
                if entry.state is ModelState.READY and model is not None and tried != model.config_revision:
                    self._resize(entry, model.config_revision)
            elif entry.state is ModelState.READY and (replaced or not any(self._same(key, other) for other in wanted)):
                self._move(key, ModelState.UNLOADING)
                tasks.start_soon(self._unload, key)
            elif entry.state is ModelState.UNAVAILABLE and (replaced or model is None or model.versions):
                self._writer.forget(key)

    def _same(self, key: ObservedKey, other: ObservedKey) -> bool:
        return (key.model, key.version) == (other.model, other.version)

    def _replaces(self, new: ObservedKey, old: ObservedKey) -> bool:
        return self._same(new, old) and new != old and self.state(new) is ModelState.READY

    async def _load(self, key: ObservedKey) -> None:
        self.loads.append((key.model.name, key.version))
        loading = [k for k, entry in self._store.snapshot().observed.items() if entry.state is ModelState.LOADING]
        self.loading_at_once_max = max(self.loading_at_once_max, len({k.model for k in loading}))
        await anyio.sleep(self.load_seconds.get(key.model.name, 0))
        reason = self.failing.get((key.model.name, key.version))
        self._move(key, ModelState.UNAVAILABLE if reason else ModelState.READY, reason or "")

    async def _unload(self, key: ObservedKey) -> None:
        await anyio.sleep(self.unload_seconds.get(key.model.name, 0))
        self._move(key, ModelState.UNAVAILABLE, "unloaded")


class World:
    """Everything of one test. `control` is the service once `running` is entered."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Without a clock, in the (virtual) time of the Trio run."""
        self.clock = TrioClock(trio.lowlevel.current_clock()) if clock is None else clock
        self.source = MemorySource(("repo", "other"))
        self.store = ModelStateStore(self.clock)
        self.data = FakeDataPlane(self.store)
        self.control: ControlPlane

    @classmethod
    def like(cls, other: World) -> World:
        """Another server of the same models, which fail alike."""
        world = cls()
        world.source, world.data.failing = other.source, other.data.failing
        return world

    def put(
        self, name: str, *versions: int, config: str = CONFIG, content: str = "weights", repository: str = ""
    ) -> ModelLocation:
        location = self.source.location(name, repository)
        if config:
            self.source.write(location, "config.pbtxt", config)
        for version in versions:
            self.source.write(location, f"{version}/model.bin", content)
        return location

    def index(self) -> list[tuple[str, int | None, str | None, str]]:
        return [(e.name, e.version, None if e.state is None else e.state.value, e.reason) for e in self.control.index()]

    def generations(self, name: str) -> dict[int, int]:
        desired = self.store.snapshot().desired.get(ModelId(name))
        return {} if desired is None else {int(v): int(d.generation) for v, d in desired.versions.items()}

    def revision(self, name: str) -> int:
        return self.store.snapshot().desired[ModelId(name)].config_revision

    @asynccontextmanager
    async def running(self, mode: str = "explicit", *, settled: bool = True, **changes: object) -> AsyncIterator[ControlPlane]:
        source: RepositorySource = changes.pop("source", self.source)  # type: ignore[assignment]
        options = ControlOptions(repositories=(Path("repo"), Path("other")), mode=ControlMode(mode), **changes)  # type: ignore[arg-type]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.data.run)

            async def run(*, task_status: anyio.abc.TaskStatus[ControlPlane]) -> None:
                await run_control_plane(
                    options,
                    self.store,
                    self.store.desired_writer(),
                    source=source,
                    clock=self.clock,
                    offload=inline,
                    task_status=task_status,
                )

            self.control = await tasks.start(run)
            if settled:
                await self.control.wait_startup_settled()
            yield self.control
            tasks.cancel_scope.cancel()
