"""Services that a test scripts: an engine that answers at once or when told, and a repository of one model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import trio

from tpy.config import ModelConfig
from tpy.config_forms import ConfigForms
from tpy.errors import InvalidArgument, NotFound, TpyError, Unavailable
from tpy.messages import (
    ConfigCheck,
    ConfigProblem,
    DataType,
    ExecutedBatch,
    GraphNode,
    GraphTensor,
    IndexEntry,
    InferenceRequest,
    InferenceResponse,
    InstanceActivity,
    InstanceState,
    LoadRequest,
    LogSettings,
    ModelCounters,
    ModelDescription,
    ModelExplanation,
    ModelGraph,
    ModelState,
    ModelStatistics,
    Moment,
    RolloutArm,
    RolloutStatus,
    ServerMetadata,
    Tensor,
    TensorDescription,
    TracedPart,
    TracedRequest,
)
from tpy.messages.statistics import BatchStatistics, Duration, InferenceStatistics, MemoryUsage
from tpy.regions import RegionRegistry
from tpy.services import RequestHandle, ResponseSink, Services, TraceTexts, TraceUpdates
from tpy.telemetry.traces.options import TraceOptions
from tpy.telemetry.traces.tracer import Tracer


def describe(name: str, *, datatype: DataType = DataType.FP32, decoupled: bool = False) -> ModelDescription:
    """A batching model with INPUT0 and OUTPUT0 of any length."""
    inputs = (TensorDescription(name="INPUT0", datatype=datatype, shape=(-1, -1)),)
    outputs = (TensorDescription(name="OUTPUT0", datatype=datatype, shape=(-1, -1), labels=("zero", "one", "two")),)
    return ModelDescription(
        name=name,
        version=1,
        platform="identity",
        max_batch_size=8,
        decoupled=decoupled,
        inputs=inputs,
        outputs=outputs,
        input_by_name={tensor.name: tensor for tensor in inputs},
        output_by_name={tensor.name: tensor for tensor in outputs},
    )


class Submitted:
    """One submitted request, and its handle."""

    def __init__(self, request: InferenceRequest, sink: ResponseSink, model: FakeModel) -> None:
        self.request = request
        self.model = model
        self.sink = sink
        self.cancelled = self.answered = False
        self.paused = False
        self.ended = trio.Event()

    def cancel(self) -> None:
        self.cancelled = True
        self.ended.set()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def answer(self, error: TpyError | None = None) -> None:
        """Answer with the inputs as outputs, with those that the test has set, or with `error`."""
        if self.cancelled:
            return
        self.answered = True
        outputs = self.model.outputs or tuple(
            Tensor(tensor.name.replace("INPUT", "OUTPUT"), tensor.datatype, tensor.array) for tensor in self.request.inputs
        )
        self.sink.deliver(
            InferenceResponse(
                model_name=self.request.model_name,
                model_version=1,
                id=self.request.id,
                outputs=() if error else outputs,
                error=error,
            )
        )


class FakeModel:
    """A copy of a model, its number that of its description. Whoever holds it is counted by the description's."""

    def __init__(self, inference: FakeInference, description: ModelDescription) -> None:
        self.copy = inference.copy_of(description)
        self.description = description
        self._inference = inference

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self._inference.outputs

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> RequestHandle:
        return self._inference.submit(request, sink, self)

    def hold(self) -> None:
        self._inference.holds[self.copy] += 1

    def release(self) -> None:
        self._inference.holds[self.copy] -= 1


class FakeInference:
    """Models m, text (BYTES), and flow (decoupled). With `immediate` requests are answered inside `submit`. `room`: requests
    that may wait for an answer at a time; None: all."""

    def __init__(self) -> None:
        self.immediate = True
        self.submitted: list[Submitted] = []
        self.arrived = trio.Event()
        self.raises: Exception | None = None
        self.outputs: tuple[Tensor, ...] = ()
        self.room: int | None = None
        self.refused = 0
        self.holds = Counter[int]()
        self._copies: list[ModelDescription] = []
        self.models = {
            "m": describe("m"),
            "text": describe("text", datatype=DataType.BYTES),
            "flow": describe("flow", decoupled=True),
        }

    def resolve(self, model_name: str, version: int | None = None) -> FakeModel:
        if model_name not in self.models:
            raise NotFound(f"Request for unknown model: '{model_name}' is not found")
        if version not in (None, 1):
            raise NotFound(f"Request for unknown model: '{model_name}' version {version} is not found")
        return FakeModel(self, self.models[model_name])

    def ready_versions(self, model_name: str) -> tuple[int, ...]:
        self.resolve(model_name)
        return (1,)

    def config(self, model_name: str, version: int | None = None) -> ModelConfig:
        self.resolve(model_name, version)
        return ModelConfig(name=model_name, backend="identity", max_batch_size=8)

    def config_forms(self, model_name: str, version: int | None = None) -> ConfigForms:
        return ConfigForms(self.config(model_name, version))

    def copy_of(self, description: ModelDescription) -> int:
        """The number of the copy that has this very description."""
        for number, known in enumerate(self._copies, 1):
            if known is description:
                return number
        self._copies.append(description)
        return len(self._copies)

    def submit(self, request: InferenceRequest, sink: ResponseSink, model: FakeModel) -> RequestHandle:
        if self.raises is not None:
            raise self.raises
        if self.room is not None and sum(not each.answered for each in self.submitted) >= self.room:
            self.refused += 1
            raise Unavailable("Exceeds maximum queue size")
        submitted = Submitted(request, sink, model)
        self.submitted.append(submitted)
        if self.immediate:
            submitted.answer()
        self.arrived.set()
        self.arrived = trio.Event()
        return submitted

    async def wait_submitted(self, count: int) -> None:
        """Wait until `count` requests have been submitted."""
        while len(self.submitted) < count:
            await self.arrived.wait()


class FakeRepository:
    """Records loads; `load` waits while `gate` is set to an event that is not."""

    def __init__(self) -> None:
        self.live = self.ready = self.model_is_ready = True
        self.rows = [
            IndexEntry(name="broken", version=1, state=ModelState.UNAVAILABLE, reason="Internal: no"),
            IndexEntry(name="m", version=1, state=ModelState.READY),
            IndexEntry(name="never"),
        ]
        self.loads: list[LoadRequest] = []
        self.unloads: list[tuple[str, bool]] = []
        self.gate: trio.Event | None = None
        self.load_began = trio.Event()
        self.raises: Exception | None = None

    def server_live(self) -> bool:
        return self.live

    def server_ready(self) -> bool:
        return self.ready

    async def model_ready(self, model_name: str, version: int | None = None) -> bool:
        return model_name == "m" and self.model_is_ready

    async def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        return [entry for entry in self.rows if entry.state is ModelState.READY or not ready_only]

    async def load(self, request: LoadRequest) -> None:
        self.load_began.set()
        if self.raises is not None:
            raise self.raises
        if self.gate is not None:
            await self.gate.wait()
        self.loads.append(request)

    async def unload(self, model_name: str, *, unload_dependents: bool = False) -> None:
        self.unloads.append((model_name, unload_dependents))


class FakeDiagnostics:
    def __init__(self) -> None:
        self.settings = LogSettings()
        self.tracer = Tracer(TraceOptions(), None)

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata(name="triton", version="1.2.3", extensions=("statistics", "logging"))

    async def statistics(self, model_name: str = "", version: int | None = None) -> Sequence[ModelStatistics]:
        if model_name not in ("", "m"):
            raise InvalidArgument(f"requested model '{model_name}' is not available")
        some = Duration(count=2, ns=7)
        return [
            ModelStatistics(
                name="m",
                version=1,
                last_inference_ms=123,
                inference_count=3,
                execution_count=2,
                inference=InferenceStatistics(success=some, queue=some),
                batches=(BatchStatistics(batch_size=2, compute_input=some, compute_infer=some, compute_output=some),),
                memory_usage=(MemoryUsage(kind="CPU", id=0, byte_size=9),),
            )
        ]

    async def rollout(self, model_name: str, action: str = "", plan: str = "") -> RolloutStatus:
        if model_name != "m":
            raise NotFound(f"no version of model '{model_name}' is rolled out")
        if plan and action != "start":
            raise InvalidArgument(f"unexpected plan with action '{action}' for a rollout, expected it with start only")
        old, new = (RolloutArm(version=version, ended=9, failed=version - 1, p99_ns=7) for version in (1, 2))
        state, percent = ("rolled back", 0.0) if action == "roll_back" else ("running", 12.5)
        return RolloutStatus(
            model="m",
            state=state,
            percent=percent,
            step=1,
            steps=3,
            reason=action,
            old=old,
            new=new,
            compared=5,
            plan=json.loads(plan) if plan else {},
            plan_from="call" if plan else "parameter",
        )

    async def counters(self) -> Sequence[ModelCounters]:
        return [ModelCounters(name="m", version=1, requests=2, latency_ns=7, queue_ns=7, executions=2, memory_bytes=9)]

    async def explain(self, model_name: str, version: int | None = None) -> Sequence[ModelExplanation]:
        if model_name != "m":
            raise InvalidArgument(f"requested model '{model_name}' is not available")
        batch = ExecutedBatch(begin_ns=5, end_ns=7, batch_size=2)
        instance = InstanceActivity(name="m_0", kind="KIND_CPU", state=InstanceState.EXECUTING, held=1, recent=(batch,))
        return [ModelExplanation(name="m", version=1, instances=(instance,), batch_sizes={2: 3}, advice=("Do less.",))]

    async def graph(self, model_name: str, version: int | None = None) -> ModelGraph:
        if model_name != "m":
            raise InvalidArgument(f"requested model '{model_name}' is not available")
        tensor = GraphTensor(name="OUTPUT0", datatype="FP32", shape=("N", 3, -1))
        node = GraphNode(
            operator="If", inputs=("INPUT0", "w"), outputs=(tensor, GraphTensor(name="y")), subgraphs=("then_branch",)
        )
        return ModelGraph(file="model.onnx", outputs=(tensor,), nodes=(node,), node_count=2)

    def log_settings(self) -> LogSettings:
        return self.settings

    async def update_log_settings(self, settings: LogSettings) -> None:
        self.settings = settings

    async def trace_settings(self, model_name: str = "", updates: TraceUpdates | None = None) -> TraceTexts:
        if updates is not None:
            self.tracer.update(model_name, updates)
        return self.tracer.settings(model_name)


class FakeServices(Services):
    """All four, with their own types."""

    inference: FakeInference
    repository: FakeRepository
    diagnostics: FakeDiagnostics

    def __init__(self, *, shared_memory: bool = False) -> None:
        super().__init__(
            inference=FakeInference(),
            repository=FakeRepository(),
            diagnostics=FakeDiagnostics(),
            shared_memory=RegionRegistry(enabled=shared_memory),
        )


class FakeChecks:
    """Finds one problem in each configuration, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []

    async def check_config(self, model_name: str, config: str | None = None) -> ConfigCheck:
        self.asked.append((model_name, config))
        problem = ConfigProblem(severity="error", message="too few", field="input[0].dims", line=3, column=4)
        return ConfigCheck(problems=(problem,), text="{}", config_json='{"name": "m"}', versions=(1, 2), selected=(2,))


class FakeTraces:
    """Two traces."""

    async def recent_after(self, number: int) -> Sequence[TracedRequest]:
        part = TracedPart(
            id=1,
            parent_id=0,
            model_name="m",
            model_version=1,
            request_id="7",
            protocol="http",
            status="OK",
            error="",
            timestamps=(Moment("QUEUE_START", 10),),
        )
        return [TracedRequest(number=each, parts=(part,)) for each in (1, 2) if each > number]


def floats(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """0, 1, 2, ... as FP32."""
    return np.arange(count, dtype=np.float32)
