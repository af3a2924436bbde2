"""A backend that copies INPUT0 to OUTPUT0 until it is told to misbehave: by the model's parameter `<step>` while it is loaded or
closed, by a request's parameter `execute`. Knows `tpy.backend` and what that stands on only, as a stranger's would."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from tpy.backend import (
    AnswerLater,
    Backend,
    BackendCapabilities,
    BackendSettings,
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    ResponseSender,
)
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument, Unavailable
from tpy.messages import Tensor
from tpy.telemetry.exposition import MetricKind

LEAK_BYTES = 32 * 1024 * 1024
LEAKED: list[bytearray] = []


def misbehave(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "exit":
        os._exit(3)
    elif how == "sys.exit":
        sys.exit(3)
    elif how == "out of memory":
        os.kill(os.getpid(), 9)  # as the kernel does it
    elif how == "hang":
        threading.Event().wait()
    elif how == "leak":
        LEAKED.append(bytearray(b"x") * LEAK_BYTES)
    elif how == "raise":
        raise ValueError("told to raise")
    elif how == "refuse":
        raise InvalidArgument("told to refuse")
    elif how == "lose":
        raise InstanceFailure("the device is gone")


def create(settings: BackendSettings) -> Backend:
    misbehave(settings.config.get("create", ""))
    return HostileBackend(settings)


class HostileBackend:
    def __init__(self, settings: BackendSettings) -> None:
        self._name = settings.name

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(name=self._name, default_model_filename="", decoupled=True, default_count=2)

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        misbehave(context.config.parameter("auto_complete"))
        return msgspec.structs.replace(context.config, max_batch_size=context.config.max_batch_size or 4)

    def load(self, context: ModelContext) -> LoadedModel:
        misbehave(context.config.parameter("load"))
        context.log("info", f"{context.name} {context.version} of {context.model_directory.name} in {os.getpid()}")
        return HostileModel(context)

    def close(self) -> None:
        pass


class HostileModel:
    def __init__(self, context: ModelContext) -> None:
        self._context = context

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        misbehave(self._context.config.parameter("create_instance"))
        return HostileInstance(self._context, placement)

    def unload(self) -> None:
        misbehave(self._context.config.parameter("unload"))


class HostileInstance:
    has_readiness_check = True

    def __init__(self, context: ModelContext, placement: InstancePlacement) -> None:
        self._config = context.config
        family = context.metrics.family("hostile_requests", "Requests that were executed.", MetricKind.COUNTER)
        self._executed = family.metric({"instance": placement.name})
        self._ready = True
        self._end = os.eventfd(0)
        self.end_reason = "told to end"

    def end_fileno(self) -> int:
        return self._end

    def check_ready(self, timeout_s: float) -> bool:
        return self._ready

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        batch.times.inputs_ready()
        self._executed.increment(len(batch.requests))
        for request in batch.requests:
            if request.parameters.get("execute") == "end":
                os.eventfd_write(self._end, 1)
                misbehave("hang")
            misbehave(str(request.parameters.get("execute", "")))
        batch.times.outputs_begin()
        if self._config.decoupled:
            for request in batch.requests:
                self._stream(request)
            return []
        return [self._answer(request) for request in batch.requests]

    def close(self) -> None:
        misbehave(self._config.parameter("close"))

    def _answer(self, request: ExecutionRequest) -> ExecutionResult:
        how = request.parameters.get("answer")
        if how == "error":
            return ExecutionResult(error=Unavailable("told to be away"))
        if how == "later":
            return AnswerLater(begin=lambda sender: self._start(sender, request))
        if how == "wrong":
            return ExecutionResult([Tensor("OUTPUT0", request.inputs["INPUT0"].datatype, np.zeros(1, np.complex64))])
        if how == "parameters":
            return ExecutionResult([], parameters=request.parameters)
        if how == "unready":
            self._ready = False
        return self._copied(request)

    def _start(self, sender: ResponseSender, request: ExecutionRequest) -> None:
        def send() -> None:
            time.sleep(0.01)
            sender.send(self._copied(request), final=True)

        threading.Thread(target=send).start()

    def _stream(self, request: ExecutionRequest) -> None:
        """As many responses as the first element says, numbered."""
        assert request.sender is not None
        given = request.inputs["INPUT0"]
        for number in range(int(given.array.flat[0])):
            output = Tensor("OUTPUT0", given.datatype, np.full_like(given.array, number))
            request.sender.send(ExecutionResult([output]), final=False)
        request.sender.send(None, final=True)

    @staticmethod
    def _copied(request: ExecutionRequest) -> ExecutionResult:
        """With what it sees of the request as parameters."""
        given = request.inputs["INPUT0"]
        sequence = request.sequence
        seen = {
            "id": request.id,
            "timeout_us": request.timeout_us,
            "batch_size": request.batch_size,
            "requested": ",".join(request.requested_outputs),
            "sequence": "" if sequence is None else f"{sequence.correlation_id} {sequence.start} {sequence.end}",
            "writable": given.array.flags.writeable,
            "cancelled": request.is_cancelled(),
            "pid": os.getpid(),
        }
        return ExecutionResult([Tensor("OUTPUT0", given.datatype, given.array)], parameters=seen)
