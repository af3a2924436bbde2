"""A data plane to test: a scripted backend, sinks that remember, models on short notice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from tests.submitting import submit_to
from tests.virtual_executor import VirtualExecutor
from tpy.backend import (
    Backend,
    BackendCapabilities,
    ExecutionBatch,
    ExecutionResult,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    ServerCalls,
)
from tpy.config import ModelConfig, RequestTimeout
from tpy.config.model_config import (
    DynamicBatching,
    InstanceGroup,
    InstanceKind,
    ModelInput,
    ModelOutput,
)
from tpy.errors import InvalidArgument
from tpy.ids import Generation, ModelId, Version
from tpy.messages import DataType, InferenceRequest, InferenceResponse, ModelState, Tensor
from tpy.observers import RequestObservers
from tpy.services import RequestHandle, ResponseSink
from tpy.state import DesiredModel, DesiredVersion, ModelStateStore
from tpy.state.store import DesiredWriter
from tpy.testing.trio_clock import TrioClock
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.engine import DataPlane, DataPlaneOptions, open_data_plane
from tpy_data.engine.channels.channel import BatchJob
from tpy_data.engine.rollouts.kept import read_kept
from tpy_data.executors.executor import Executor, Job

Execute = Callable[[ExecutionBatch], Sequence[ExecutionResult]]


def identity(batch: ExecutionBatch) -> list[ExecutionResult]:
    """OUT is IN."""
    return [
        ExecutionResult([Tensor("OUT", tensor.datatype, tensor.array) for tensor in request.inputs.values()])
        for request in batch.requests
    ]


class ScriptedBackend:
    """Does what the test says: `execute` per batch, `on_load` and `on_create` may raise. Counts what is alive."""

    capabilities = BackendCapabilities(name="fake", default_model_filename="model.fake")

    def __init__(self, execute: Execute = identity) -> None:
        self.execute = execute
        self.any_thread = False
        self.server: ServerCalls | None = None
        """The server, as the models loaded last see it."""
        self.on_load: Callable[[ModelContext], None] = lambda context: None
        self.on_create: Callable[[InstancePlacement], None] = lambda placement: None
        self.loaded: list[tuple[str, int, int]] = []
        self.instances: list[str] = []
        self.batches: list[ExecutionBatch] = []
        self.log: list[str] = []

    def folders_of(self, backend: str) -> tuple[Path, ...]:
        return ()

    def for_model(self, config: ModelConfig, folders: Sequence[Path] = ()) -> Backend:
        """This backend is the registry, too."""
        if config.backend != "fake":
            raise InvalidArgument(f"unable to find backend library for backend '{config.backend}'")
        return self

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return context.config

    def load(self, context: ModelContext) -> LoadedModel:
        self.server = context.server
        self.on_load(context)
        return ScriptedModel(self, (context.name, context.version, context.generation))

    def close(self) -> None:
        pass


class ScriptedModel:
    def __init__(self, backend: ScriptedBackend, identity: tuple[str, int, int]) -> None:
        self.backend = backend
        self.identity = identity
        backend.loaded.append(identity)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        self.backend.on_create(placement)
        return ScriptedInstance(self.backend, placement.name)

    def unload(self) -> None:
        self.backend.log.append(f"unload {self.identity[2]}")
        self.backend.loaded.remove(self.identity)


class ScriptedInstance:
    def __init__(self, backend: ScriptedBackend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.any_thread = backend.any_thread
        backend.instances.append(name)

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        self.backend.batches.append(batch)
        return self.backend.execute(batch)

    def close(self) -> None:
        self.backend.instances.remove(self.name)


class RecordingSink:
    """Remembers the answer and when it came."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.at_ms: float = -1
        self.answered = trio.Event()

    def deliver(self, response: InferenceResponse) -> None:
        self.responses.append(response)
        self.at_ms = round(trio.current_time() * 1000, 6)
        self.answered.set()

    @property
    def response(self) -> InferenceResponse:
        assert len(self.responses) == 1, self.responses
        return self.responses[0]

    @property
    def error(self) -> str:
        assert self.response.error is not None
        return self.response.error.reason()

    async def wait(self) -> InferenceResponse:
        await self.answered.wait()
        return self.response


def config(name: str = "m", **changes: Any) -> ModelConfig:
    """IN and OUT, FP32 [2], batches up to 8."""
    fields: dict[str, Any] = {
        "name": name,
        "backend": "fake",
        "max_batch_size": 8,
        "input": (ModelInput(name="IN", data_type=DataType.FP32, dims=(2,)),),
        "output": (ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,)),),
    }
    return ModelConfig(**{**fields, **changes})


def dynamic(delay_ms: int = 0, **changes: Any) -> DynamicBatching:
    return DynamicBatching(max_queue_delay_microseconds=delay_ms * 1000, **changes)


def instances(count: int) -> tuple[InstanceGroup, ...]:
    return (InstanceGroup(kind=InstanceKind.KIND_CPU, count=count),)


def tensor(*shape: int, name: str = "IN", datatype: DataType = DataType.FP32, value: float = 1) -> Tensor:
    if datatype is DataType.BYTES:
        return Tensor(name, datatype, np.full(shape, b"a", dtype=object))
    return Tensor(name, datatype, np.full(shape, value, datatype.numpy))


def request(*shape: int, model: str = "m", value: float = 1, **fields: Any) -> InferenceRequest:
    return InferenceRequest(model_name=model, inputs=(tensor(*(shape or (1, 2)), value=value),), **fields)


class Rig:
    """A running data plane with the writer of its desired half."""

    def __init__(
        self,
        plane: DataPlane,
        store: ModelStateStore,
        writer: DesiredWriter,
        backend: ScriptedBackend,
        observers: RequestObservers,
    ) -> None:
        self.plane = plane
        self.store = store
        self.writer = writer
        self.backend = backend
        self.observers = observers
        self.revision = 0

    def want(
        self,
        model_config: ModelConfig,
        versions: Mapping[int, int] | Sequence[int] = (1,),
        *,
        directory: Path = Path("repository/m"),
        namespace: str = "",
        content: str = "",
    ) -> int:
        """Desire these versions; a mapping gives their generations, else they get a new one. Returns the newest. `content` is
        that of their files."""
        model = ModelId(model_config.name, namespace)
        if not isinstance(versions, Mapping):
            generation = self.writer.next_generation(model) if versions else 0
            versions = dict.fromkeys(versions, generation)
        self.revision += 1
        wanted = {
            Version(version): DesiredVersion(
                version=Version(version),
                generation=Generation(generation),
                directory=directory / str(version),
                content=frozenset({(content,)}),
            )
            for version, generation in versions.items()
        }
        self.writer.put(
            DesiredModel(id=model, directory=directory, config=model_config, config_revision=self.revision, versions=wanted)
        )
        return max(versions.values(), default=0)

    @property
    def calls(self) -> ServerCalls:
        """The server, as its models call it. A model must have been served."""
        assert self.backend.server is not None
        return self.backend.server

    def states(self, model: str = "m") -> dict[tuple[int, int], tuple[str, str]]:
        """(version, generation) to (state, reason)."""
        return {
            (key.version, key.generation): (observed.state.value, observed.reason)
            for key, observed in sorted(self.store.snapshot().observed.items(), key=lambda item: item[0])
            if key.model.name == model
        }

    async def wait_state(self, version: int, generation: int, state: ModelState, model: str = "m") -> None:
        def reached(_: object) -> bool:
            return self.states(model).get((version, generation), ("", ""))[0] == state.value

        await self.store.wait_for(reached)

    async def serve(self, model_config: ModelConfig, **fields: Any) -> None:
        """Desire version 1 anew and wait until it is READY."""
        generation = self.want(model_config, **fields)
        await self.wait_state(1, generation, ModelState.READY, model_config.name)

    def submit(self, sent: InferenceRequest | None = None) -> RecordingSink:
        sink = RecordingSink()
        self.submit_for(sink, sent)
        return sink

    def submit_for(self, sink: ResponseSink, sent: InferenceRequest | None = None) -> RequestHandle:
        """Submit as frontends do: with a record while requests are observed."""
        sent = sent or request()
        record = self.observers.open("http")
        return submit_to(self.plane.inference, sent if record is None else replace(sent, record=record), sink)


@asynccontextmanager
async def rig(
    *,
    backend: ScriptedBackend | None = None,
    latency_ms: Callable[[str], int] | int = 0,
    executor: Executor | None = None,
    exit_timeout_ms: int = 30_000,
    load_ms: Callable[[str], int] | int = 0,
    request_timeout: RequestTimeout = RequestTimeout.ENFORCE,
    **options: Any,
) -> AsyncIterator[Rig]:
    """A data plane in virtual time: batches take `latency_ms` (of their instance), other work `load_ms` (of its worker). Timeouts
    of requests are deadlines unless `request_timeout` says otherwise."""
    backend = backend or ScriptedBackend()
    if (rollout_file := options.pop("rollout_file", None)) is not None:
        options["rollouts"] = read_kept(rollout_file)

    def latency_ns(worker: str, job: Job) -> int:
        chosen = latency_ms if isinstance(job, BatchJob) else load_ms
        return (chosen(worker) if callable(chosen) else chosen) * NS_PER_MS

    async with trio.open_nursery() as nursery:
        clock = TrioClock(trio.lowlevel.current_clock())
        store = ModelStateStore(clock)
        observers = RequestObservers()
        async with open_data_plane(
            DataPlaneOptions(exit_timeout_ns=exit_timeout_ms * NS_PER_MS, request_timeout=request_timeout, **options),
            store,
            store.observed_writer(),
            backend,
            clock,
            executor=executor or VirtualExecutor(nursery, latency_ns),
            observers=observers,
        ) as plane:
            yield Rig(plane, store, store.desired_writer(), backend, observers)
        nursery.cancel_scope.cancel()


def values(response: InferenceResponse) -> list[Any]:
    """The first output."""
    assert response.error is None, response.error
    return list(response.outputs[0].array.ravel().tolist())


SECOND = NS_PER_S
replace = msgspec.structs.replace
