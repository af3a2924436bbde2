"""Models under a memory budget of GPUs, on fake ones: the machines that run these tests have none."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.engine.fakes import Rig, ScriptedBackend, ScriptedInstance, ScriptedModel, config, request, rig, values
from tests.engine.test_on_demand import failure, figures, loaded, write
from tests.unit.fake_nvml import GIB, A, B, FakeNvml
from tpy.backend import BackendCapabilities, InstancePlacement, LoadedModel, ModelContext, ModelInstance
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelParameter
from tpy.errors import Internal, Unavailable
from tpy.messages import ModelState
from tpy.units import NS_PER_S
from tpy_data import gpus
from tpy_data.engine import MemoryBudgetOptions
from tpy_data.engine.budget.gpus import GpuBudget, GpuProcesses, gpu_budgets
from tpy_data.engine.loading.placing import Machine
from tpy_data.gpus import Gpu, GpuInventory, GpuMemory

MACHINE = Machine(inventory=GpuInventory(gpus=tuple(Gpu(id=number, uuid=uuid) for number, uuid in enumerate((A, B)))))
UNITS = 6
"""The budget of each GPU, in GiB."""


class GpuBackend(ScriptedBackend):
    """Its models take 4 GiB of each of their GPUs when they are loaded."""

    capabilities = BackendCapabilities(
        name="fake",
        default_model_filename="model.fake",
        devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_GPU}),
    )

    def __init__(self) -> None:
        super().__init__()
        self.used = {0: GIB, 1: GIB}
        """Of the devices; others have some of it."""

    def load(self, context: ModelContext) -> LoadedModel:
        self.on_load(context)
        return _Model(self, context)

    def memory(self, device_id: int) -> GpuMemory:
        return GpuMemory(used=self.used[device_id], total=80 * GIB)


class _Model(ScriptedModel):
    def __init__(self, backend: GpuBackend, context: ModelContext) -> None:
        super().__init__(backend, (context.name, context.version, context.generation))
        self._used = backend.used
        self._is_of_workers = context.name.startswith("worker")
        on_gpus = [each.device_id for each in context.placements if each.kind is InstanceKind.KIND_GPU]
        self._devices = [] if self._is_of_workers else on_gpus
        self._take(4 * GIB)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        self.backend.on_create(placement)
        return (_Worker if self._is_of_workers else ScriptedInstance)(self.backend, placement.name)

    def unload(self) -> None:
        super().unload()
        self._take(-4 * GIB)

    def _take(self, size: int) -> None:
        for device in self._devices:
            self._used[device] += size


class _Worker(ScriptedInstance):
    pid = 4711

    def host_memory_bytes(self) -> int:
        return 1 << 20


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> GpuBackend:
    found = GpuBackend()
    monkeypatch.setattr(gpus, "memory", found.memory)
    return found


@pytest.fixture(autouse=True)
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    found = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found


def on_gpus(name: str, *devices: int, **parameters: str) -> ModelConfig:
    given = {key: ModelParameter(string_value=value) for key, value in parameters.items()}
    groups = (InstanceGroup(kind=InstanceKind.KIND_GPU, gpus=devices),)
    return config(name, parameters=given, instance_group=groups)


@asynccontextmanager
async def budget_of(
    folder: Path, backend: GpuBackend, *models: ModelConfig, file: Path | None = None, wait_s: int = 60, **options: Any
) -> AsyncIterator[Rig]:
    """Models with files of 4 GiB, where they have none already."""
    budget = MemoryBudgetOptions(
        bytes=100 * GIB, gpus=dict.fromkeys((0, 1), UNITS * GIB), wait_ns_max=wait_s * NS_PER_S, all_on_demand=True, file=file
    )
    async with rig(memory_budget=budget, load_ms=100, backend=backend, machine=MACHINE, **options) as r:
        for each in models:
            if not (folder / each.name).exists():
                write(folder / each.name)
            r.want(each, directory=folder / each.name)
        for each in models:
            await r.wait_state(1, 1, ModelState.READY, each.name)
        yield r


def on_gpu(r: Rig, number: int) -> float:
    return figures(r)[f"gpu_used_bytes/{number}/{(A, B)[number]}"] / GIB


async def test_room_is_made_on_the_gpu_that_is_short(
    autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with budget_of(tmp_path, backend, on_gpus("a", 0), on_gpus("b", 1), on_gpus("c", 0), on_gpus("both", 0, 1)) as r:
        for name in "bac":
            assert values(await r.submit(request(model=name)).wait()) == [1, 1]
            await trio.sleep(1)
        assert loaded(r) == ["b", "c"], "b was used longer ago than a, and is on the other GPU"
        assert (on_gpu(r, 0), on_gpu(r, 1)) == (4, 4)
        assert figures(r)["unloads_total/room"] == 1
        await r.submit(request(model="both")).wait()
        assert loaded(r) == ["both"]
        assert (on_gpu(r, 0), on_gpu(r, 1)) == (4, 4)
    [line] = [each for each in caplog.messages if each.startswith("unloading 'a:1'")]
    assert line.endswith("in use; GPU 0: 4096.0 MiB, 4096.0 MiB of 6144.0 MiB in use")


async def test_what_cannot_fit_on_a_gpu_is_refused_with_its_figures(
    autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend
) -> None:
    write(tmp_path / "large", units=8)
    async with budget_of(tmp_path, backend, on_gpus("large", 1), on_gpus("stays", 0, load="at_start"), on_gpus("a", 0)) as r:
        of_gpu = "--model-gpu-memory-budget of GPU"
        pinned = "of which models that stay loaded have 4096.0 MiB"
        for name, text in (
            ("large", f"model 'large:1' needs 8192.0 MiB, {of_gpu} 1 is 6144.0 MiB"),
            ("a", f"model 'a:1' needs 4096.0 MiB, {of_gpu} 0 is 6144.0 MiB, {pinned}"),
        ):
            with pytest.raises(Unavailable) as refused:
                r.submit(request(model=name))
            assert refused.value.message == text
            assert refused.value.wait_s
        assert figures(r)["refusals_total/cannot_fit"] == 2
        assert loaded(r) == ["stays"]


async def test_a_model_that_turns_out_larger_displaces_others_on_its_gpu(
    autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend
) -> None:
    for name in ("a", "b", "other"):
        write(tmp_path / name, units=1)
    async with budget_of(tmp_path, backend, on_gpus("a", 0), on_gpus("b", 0), on_gpus("other", 1)) as r:
        for name in ("other", "a", "b"):
            await r.submit(request(model=name)).wait()
            await trio.sleep(1)
        assert loaded(r) == ["b", "other"]
        assert figures(r)["unloads_total/over"] == 1


async def test_sizes_on_gpus_outlive_the_server(autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend) -> None:
    file = tmp_path / "sizes.json"
    for name in "ab":
        write(tmp_path / name, units=1)
    async with budget_of(tmp_path, backend, on_gpus("a", 0), file=file) as r:
        await r.submit(request(model="a")).wait()
        await trio.testing.wait_all_tasks_blocked(0.1)
    assert json.loads(file.read_text())["models"]["a:1"]["gpus"] == {"0": 4 * GIB}
    async with budget_of(tmp_path, backend, on_gpus("a", 0), on_gpus("b", 0, load="at_start"), file=file) as r:
        assert loaded(r) == ["b"]
        with pytest.raises(Unavailable, match=r"model 'a:1' needs 4096\.0 MiB, --model-gpu-memory-budget of GPU 0"):
            r.submit(request(model="a"))


async def test_what_others_take_meanwhile_is_a_models_only_while_it_is_loaded(
    autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend
) -> None:
    """The model seems larger than the budget, is unloaded, and loaded again, also by the next server, whose models may stay."""
    file = tmp_path / "sizes.json"
    write(tmp_path / "a", units=1)
    others = 3 * GIB

    def take(context: ModelContext) -> None:
        backend.used[0] += others

    backend.on_load = take
    async with budget_of(tmp_path, backend, on_gpus("a", 0), file=file) as r:
        await r.submit(request(model="a")).wait()
        assert on_gpu(r, 0) == 7
        await trio.sleep(1)
        assert (loaded(r), on_gpu(r, 0)) == ([], 0)
        await r.submit(request(model="a")).wait()
        await trio.sleep(0.05)
        assert figures(r)["models/draining"] == 1
        others = 0
        await r.submit(request(model="a")).wait()
        await trio.sleep(1)
        assert (loaded(r), on_gpu(r, 0)) == (["a"], 5), "4 GiB, which are less than those of the budget, and count half"
        await trio.testing.wait_all_tasks_blocked(0.1)
    others = 3 * GIB
    stays = on_gpus("a", 0, load="at_start")
    for _ in range(2):
        async with budget_of(tmp_path, backend, stays, file=file) as r:
            assert (loaded(r), on_gpu(r, 0)) == (["a"], 7)
            await trio.testing.wait_all_tasks_blocked(0.1)


async def test_a_gpu_whose_driver_fails_has_models_of_the_size_of_their_files(
    autojump_clock: MockClock,
    tmp_path: Path,
    backend: GpuBackend,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def memory(device_id: int) -> GpuMemory:
        if failures:
            raise Internal(failures.pop())
        return backend.memory(device_id)

    failures = ["lost", "CUDA error 999"]
    monkeypatch.setattr(gpus, "memory", memory)
    write(tmp_path / "a", units=1)
    async with budget_of(tmp_path, backend, on_gpus("a", 0)) as r:
        await r.submit(request(model="a")).wait()
        assert on_gpu(r, 0) == 1
        assert not failures
    [said] = [each for each in caplog.messages if each.startswith("GPU ")]
    assert said == "GPU 0 does not tell its memory in use, models on it count as their files: CUDA error 999"


async def test_a_model_that_stays_and_whose_files_are_larger_than_its_gpus_budget_is_not_loaded(
    autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend
) -> None:
    write(tmp_path / "large", units=8)
    async with budget_of(tmp_path, backend) as r:
        r.want(on_gpus("large", 1, load="at_start"), directory=tmp_path / "large")
        await r.wait_state(1, 1, ModelState.UNAVAILABLE, "large")
        [(_, reason)] = r.states("large").values()
        assert reason == "Unavailable: model 'large:1' needs 8192.0 MiB, --model-gpu-memory-budget of GPU 1 is 6144.0 MiB"


async def test_a_request_that_is_late_is_told_how_full_the_gpu_is(
    autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend
) -> None:
    async with budget_of(tmp_path, backend, on_gpus("a", 0), on_gpus("b", 0), wait_s=4, latency_ms=60_000) as r:
        slow = r.submit(request(model="a"))
        await trio.sleep(1)
        text = await failure(r.submit(request(model="b")))
        assert text.endswith(", on GPU 0 4096.0 MiB, and 4096.0 MiB of --model-gpu-memory-budget 6144.0 MiB are in use")
        await slow.wait()


async def test_the_memory_of_workers_is_that_of_their_processes(
    autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend, nvml: FakeNvml
) -> None:
    """Others take memory of the GPU meanwhile. A worker on the CPU may have memory on a GPU, too."""
    nvml.processes = {A: [(1, 20 * GIB), (_Worker.pid, 3 * GIB)], B: [(_Worker.pid, None)]}
    on_cpu = config("worker_on_cpu", instance_group=(InstanceGroup(kind=InstanceKind.KIND_CPU, count=1),))

    def grow(placement: InstancePlacement) -> None:
        backend.used[0] += 5 * GIB

    backend.on_create = grow
    async with budget_of(tmp_path, backend, on_gpus("worker", 0), on_cpu) as r:
        await r.submit(request(model="worker")).wait()
        assert backend.used[0] == 6 * GIB
        assert (on_gpu(r, 0), on_gpu(r, 1)) == (3, 0), "neither its files, nor what the GPU has grown by"
        await r.submit(request(model="worker_on_cpu")).wait()
        assert loaded(r) == ["worker", "worker_on_cpu"]
        assert (on_gpu(r, 0), on_gpu(r, 1)) == (6, 0)


async def test_a_worker_that_nvml_does_not_list_has_what_its_gpu_grows_by(
    autojump_clock: MockClock, tmp_path: Path, backend: GpuBackend
) -> None:
    def grow(placement: InstancePlacement) -> None:
        backend.used[0] += 5 * GIB

    backend.on_create = grow
    async with budget_of(tmp_path, backend, on_gpus("worker", 0)) as r:
        await r.submit(request(model="worker")).wait()
        assert on_gpu(r, 0) == 5


def test_processes_that_nvml_does_not_tell_of_have_nothing_that_is_known(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml()
    nvml.processes = {A: [(5, 7)], B: [(5, 8), (6, 9)]}
    budgets = gpu_budgets({0: 1, 1: 1}, MACHINE)
    asked = GpuProcesses(budgets, nvml)
    assert asked.of_process(5) == {0: 7, 1: 8}
    assert asked.of_process(7) == {}
    nvml.broken.add(("*", A))
    assert asked.of_process(5) == asked.of_process(5) == {1: 8}
    fresh = GpuProcesses(budgets, nvml)
    assert fresh.of_process(5) == fresh.of_process(5) == {1: 8}, "the other GPU is asked"
    nvml.broken.add(("nvmlInit", ""))
    assert GpuProcesses(budgets, nvml).of_process(5) == {}
    text = "the memory of worker processes on GPUs is not told, it is estimated"
    assert caplog.messages == [f"{text}: {reason}" for reason in ("GPU is lost", "GPU 0: GPU is lost", "Driver Not Loaded")]


def test_without_nvml_it_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    asked = GpuProcesses([GpuBudget(0, A, 1)])
    assert asked.of_process(5) == asked.of_process(5) == {}
    [said] = caplog.messages
    assert "pip install nvidia-ml-py" in said


@pytest.mark.parametrize(
    ("machine", "there"),
    [
        (MACHINE, "only 0, 1"),
        (Machine(), "no GPUs"),
        (Machine(inventory=GpuInventory(trouble="CUDA error 803")), r"no GPUs \(CUDA error 803\)"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(machine: Machine, there: str) -> None:
    with pytest.raises(Unavailable, match=f"^--model-gpu-memory-budget: there is no GPU 7 to use, this server has {there}$"):
        gpu_budgets({0: 1, 7: 1} if machine.gpus else {7: 1}, machine)
