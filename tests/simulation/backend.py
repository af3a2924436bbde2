"""Models that do what the seed says: slow and failing loads, errors, crashes and hangs of executions, streams of responses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import trio

from tests.simulation.journal import Journal
from tpy.backend import (
    Backend,
    BackendCapabilities,
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
)
from tpy.config import ModelConfig
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType, Tensor
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.engine.channels.channel import BatchJob
from tpy_data.executors.executor import Job

BACKEND = "simulated"

HANG_NS = 45 * NS_PER_S
"""Longer than the exit time-out of the simulated server."""


class Faults:
    """The probabilities of faults. Changed while the run goes on; `calm` ends all of it."""

    def __init__(self) -> None:
        self.load = 0.0
        self.create = 0.0
        self.error = 0.0
        self.crash = 0.0
        self.hang = 0.0

    def calm(self) -> None:
        self.load = self.create = self.error = self.crash = self.hang = 0.0

    def draw(self, chance: random.Random) -> str:
        """Change one of them."""
        name = chance.choice(("load", "create", "error", "crash", "hang"))
        value = chance.choice((0.0, 0.0, 0.1, 0.3, 0.7)) * (0.1 if name == "hang" else 1.0)
        setattr(self, name, value)
        return f"{name}={value}"


class SimulatedBackend:
    """The backend and its own registry. `loaded` and `instances` are what is alive now."""

    capabilities = BackendCapabilities(name=BACKEND, default_model_filename="model.sim", decoupled=True)

    def __init__(self, seed: int, journal: Journal, nursery: trio.Nursery) -> None:
        self.faults = Faults()
        self.loaded: list[tuple[str, int, int]] = []
        self.instances: list[str] = []
        self._chance = random.Random(f"{seed}/backend")
        self._journal = journal
        self._nursery = nursery

    def folders_of(self, backend: str) -> tuple[Path, ...]:
        return ()

    def for_model(self, config: ModelConfig, folders: Sequence[Path] = ()) -> Backend:
        if config.backend != BACKEND:
            raise InvalidArgument(f"unable to find backend library for backend '{config.backend}'")
        return self

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return context.config

    def load(self, context: ModelContext) -> LoadedModel:
        identity = (context.name, context.version, context.generation)
        if self.happens(self.faults.load):
            self._journal.note("load-fails", *identity)
            if self._chance.random() < 0.2:
                raise ValueError("a bug of the backend")
            raise Internal("the load was made to fail")
        self._journal.note("load", *identity)
        return _Model(self, identity, context.config.decoupled)

    def close(self) -> None:
        pass

    def latency_ns(self, worker: str, job: Job) -> int:
        """The time that a job takes."""
        if isinstance(job, BatchJob):
            if self.happens(self.faults.hang):
                self._journal.note("hang", worker)
                return HANG_NS
            return self._chance.choice((0, 0, 1, 1, 5, 20)) * NS_PER_MS
        return self._chance.choice((0, 1, 1, 50, 500, 3000)) * NS_PER_MS

    def happens(self, probability: float) -> bool:
        return probability > 0 and self._chance.random() < probability

    def note(self, kind: str, *fields: object) -> None:
        self._journal.note(kind, *fields)

    def pick(self, *choices: int) -> int:
        return self._chance.choice(choices)

    def start_stream(self, name: str, request: ExecutionRequest) -> None:
        """Stream the answer of one request, as a thread of the model would."""
        self._nursery.start_soon(self._stream, name, request)

    async def _stream(self, name: str, request: ExecutionRequest) -> None:
        sender = request.sender
        assert sender is not None
        credit = trio.Semaphore(8)
        gone = trio.Event()

        def taken(count: int) -> None:
            for _ in range(count):
                credit.release()

        sender.watch(taken, gone.set)
        count = self.pick(0, 1, 2, 3, 3, 20)
        for index in range(count):
            await trio.sleep(self.pick(0, 0, 1, 10) / 1000)
            with trio.move_on_after(300):
                await credit.acquire()
            if gone.is_set():
                self.note("stream-gone", name, request.id, index)
                break
            sender.send(ExecutionResult(_echo(request)), final=False, wait=False)
        await trio.sleep(self.pick(0, 0, 5) / 1000)
        sender.send(None, final=True, wait=False)


class _Model:
    def __init__(self, backend: SimulatedBackend, identity: tuple[str, int, int], decoupled: bool) -> None:
        self._backend = backend
        self._identity = identity
        self._decoupled = decoupled
        backend.loaded.append(identity)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        if self._backend.happens(self._backend.faults.create):
            raise Internal("the instance was made to fail")
        return _Instance(self._backend, f"{placement.name}.{self._identity[2]}", self._decoupled)

    def unload(self) -> None:
        self._backend.note("unload", *self._identity)
        self._backend.loaded.remove(self._identity)


class _Instance:
    def __init__(self, backend: SimulatedBackend, name: str, decoupled: bool) -> None:
        self._backend = backend
        self._name = name
        self._decoupled = decoupled
        self._open = True
        self._sums: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
        backend.instances.append(name)
        backend.note("create", name)

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        backend = self._backend
        assert self._open, "executed after it was closed"
        backend.note("execute", self._name, ",".join(request.id for request in batch.requests))
        if backend.happens(backend.faults.crash):
            backend.note("crash", self._name)
            raise InstanceFailure(f"instance {self._name} was made to crash")
        if backend.happens(backend.faults.error):
            if backend.pick(0, 1):
                raise ValueError("the execution was made to fail")
            raise Internal("the execution was made to fail")
        if "START" in batch.requests[0].inputs:
            return [self._add(request) for request in batch.requests]
        if self._decoupled:
            for request in batch.requests:
                backend.start_stream(self._name, request)
            return ()
        return [ExecutionResult(_echo(request)) for request in batch.requests]

    def _add(self, request: ExecutionRequest) -> ExecutionResult:
        """One request of a sequence: the sum of all its inputs so far, kept here, so that it shows who strays."""
        inputs = request.inputs
        if not inputs["READY"].array.item():
            return ExecutionResult((Tensor("OUT", DataType.FP32, np.zeros((1, 2), np.float32)),))
        sequence = int(inputs["CORRID"].array.item())
        if inputs["START"].array.item():
            self._sums[sequence] = np.zeros((1, 2), np.float32)
        if sequence not in self._sums:
            raise Internal(f"sequence {sequence} strayed to instance {self._name}")
        self._sums[sequence] = total = self._sums[sequence] + inputs["IN"].array
        if inputs["END"].array.item():
            del self._sums[sequence]
        return ExecutionResult((Tensor("OUT", DataType.FP32, total),))

    def close(self) -> None:
        assert self._open, "closed twice"
        self._open = False
        self._backend.instances.remove(self._name)


def _echo(request: ExecutionRequest) -> tuple[Tensor, ...]:
    given = request.inputs["IN"].array
    return (Tensor("OUT", DataType.FP32, np.array(given, np.float32)),)
