"""Ensembles to test: members that do what the test says, steps in short form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import trio

from tests.submitting import submit_to
from tpy.backend import BackendCapabilities, ExecutionBatch, ExecutionRequest, ExecutionResult, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import EnsembleScheduling, EnsembleStep, ModelInput, ModelOutput, TransactionPolicy
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Tensor
from tpy.services import RequestHandle

from .fakes import Rig, ScriptedBackend, ScriptedInstance, ScriptedModel, config, tensor

Answer = Callable[[ExecutionRequest], ExecutionResult]

DECOUPLED = TransactionPolicy(decoupled=True)


class MembersBackend(ScriptedBackend):
    """`answers` is, by model, what it does with a request; one that is decoupled sends and returns nothing. Others are
    identities: outputs named OUT for IN, OUT0 for IN0 and so on."""

    capabilities = BackendCapabilities(name="fake", default_model_filename="model.fake", decoupled=True)

    def __init__(self, answers: Mapping[str, Callable[[ExecutionRequest], ExecutionResult | None]] | None = None) -> None:
        super().__init__()
        self.answers = dict(answers or {})
        self.seen: list[tuple[str, ExecutionRequest]] = []

    def load(self, context: ModelContext) -> ScriptedModel:
        self.on_load(context)
        return _Member(self, (context.name, context.version, context.generation))


class _Member(ScriptedModel):
    def create_instance(self, placement: InstancePlacement) -> _MemberInstance:
        self.backend.on_create(placement)
        return _MemberInstance(self.backend, placement.name, self.identity[0])


class _MemberInstance(ScriptedInstance):
    def __init__(self, backend: ScriptedBackend, name: str, model: str) -> None:
        super().__init__(backend, name)
        self.model = model

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        assert isinstance(self.backend, MembersBackend)
        self.backend.batches.append(batch)
        answer = self.backend.answers.get(self.model, same)
        self.backend.seen.extend((self.model, request) for request in batch.requests)
        results = [answer(request) for request in batch.requests]
        return [result for result in results if result is not None]


def same(request: ExecutionRequest) -> ExecutionResult:
    """The inputs."""
    return ExecutionResult(
        [Tensor(name.replace("IN", "OUT"), each.datatype, each.array) for name, each in request.inputs.items()]
    )


def plus(number: float) -> Answer:
    """Adds to every input."""

    def answer(request: ExecutionRequest) -> ExecutionResult:
        return ExecutionResult(
            [
                Tensor(name.replace("IN", "OUT"), each.datatype, each.array + np.float32(number))
                for name, each in request.inputs.items()
            ]
        )

    return answer


def inputs(*names: str, **changes: Any) -> tuple[ModelInput, ...]:
    fields = {"data_type": DataType.FP32, "dims": (2,), **changes}
    return tuple(ModelInput(name=name, **fields) for name in names)


def outputs(*names: str, **changes: Any) -> tuple[ModelOutput, ...]:
    fields = {"data_type": DataType.FP32, "dims": (2,), **changes}
    return tuple(ModelOutput(name=name, **fields) for name in names)


def step(model: str, reads: str | Mapping[str, str], writes: str | Mapping[str, str], version: int = -1) -> EnsembleStep:
    """A name alone is the tensor of IN or OUT."""
    return EnsembleStep(
        model_name=model,
        model_version=version,
        input_map={"IN": reads} if isinstance(reads, str) else reads,
        output_map={"OUT": writes} if isinstance(writes, str) else writes,
    )


def ensemble(name: str, *steps: EnsembleStep, inflight_max: int = 0, **changes: Any) -> ModelConfig:
    """IN and OUT, FP32 [2], batches up to 8."""
    scheduling = EnsembleScheduling(step=steps, max_inflight_requests=inflight_max)
    fields = {"backend": "", "platform": "ensemble", "ensemble_scheduling": scheduling, **changes}
    return config(name, **fields)


CHAIN = ensemble("e", step("a", "IN", "A"), step("b", "A", "OUT"))
"""a, then b."""


async def serve_all(rig: Rig, *configs: ModelConfig) -> None:
    for each in configs:
        await rig.serve(each)


class Stream:
    """Remembers responses in order; nothing may come after the final one."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.handle: RequestHandle | None = None
        self.pause_after = -1
        self.final = trio.Event()

    def deliver(self, response: InferenceResponse) -> None:
        assert not self.ended, "a response after the final one"
        self.responses.append(response)
        if response.final:
            self.final.set()
        if len(self.responses) == self.pause_after:
            assert self.handle is not None
            self.handle.pause()

    @property
    def ended(self) -> bool:
        return bool(self.responses) and self.responses[-1].final

    @property
    def values(self) -> list[float]:
        """The first element of each response that has any."""
        return [float(each.outputs[0].array.ravel()[0]) for each in self.responses if each.outputs]

    @property
    def errors(self) -> list[str]:
        return [each.error.reason() for each in self.responses if each.error is not None]


def submit(rig: Rig, model: str = "e", value: float = 1, **fields: Any) -> Stream:
    """Send a request with IN [1, 2]."""
    stream = Stream()
    given = fields.pop("inputs", (tensor(1, 2, value=value),))
    stream.handle = submit_to(rig.plane.inference, InferenceRequest(model_name=model, inputs=given, **fields), stream)
    return stream
