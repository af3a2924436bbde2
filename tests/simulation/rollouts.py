"""One rollout: a real data plane in virtual time, a new version that is good, or crashes at or fails 5 % of its requests, clients
that ask for the model, for a version of it and for an ensemble, half of the time under a memory budget with a model too many.
The plan is the model's, or comes with a call."""

from __future__ import annotations

import json
import random
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import numpy as np
import trio
import trio.testing

from tests.engine.ensembles import ensemble, step
from tests.engine.fakes import (
    RecordingSink,
    Rig,
    ScriptedBackend,
    ScriptedInstance,
    ScriptedModel,
    config,
    instances,
    request,
    rig,
)
from tests.simulation.journal import Journal
from tests.simulation.run import Report, tell
from tpy.backend import (
    ExecutionBatch,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
)
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.errors import Internal, Unavailable
from tpy.messages import DataType, ModelState, Tensor
from tpy_data.engine import MemoryBudgetOptions

OLD, NEW = 1, 2
MIN_REQUESTS = 200
STEP_S = 5.0
FAILING_SHARE = 0.05
PATIENCE_S = 600.0
"""Time until which there must be a decision."""

UNIT = 1 << 30
"""Files are sparse, and so large that what this process grows by does not matter."""


class _Backend(ScriptedBackend):
    """Answers with the number of the version. What is wrong with the new one is its `fault`."""

    def __init__(self, fault: str, chance: random.Random) -> None:
        super().__init__()
        self.fault = fault
        self.chance = chance

    def load(self, context: ModelContext) -> LoadedModel:
        return _Model(self, (context.name, context.version, context.generation))


class _Model(ScriptedModel):
    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return _Instance(self.backend, f"{placement.name}.{self.identity[1]}", self.identity[1])


class _Instance(ScriptedInstance):
    def __init__(self, backend: ScriptedBackend, name: str, version: int) -> None:
        super().__init__(backend, name)
        self._version = version

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        backend = self.backend
        assert isinstance(backend, _Backend)
        if self._version == NEW and backend.chance.random() < FAILING_SHARE:
            if backend.fault == "fails":
                raise Internal("made to fail")
            if backend.fault == "crashes":
                raise InstanceFailure("made to crash")
        answer = np.full((1, 2), self._version, np.float32)
        return [ExecutionResult([Tensor("OUT", DataType.FP32, answer)]) for _ in batch.requests]


class _Client:
    """All clients. `decision` is the one that ended the rollout. Of the last step before it `answered` counts the requests that
    the new version has ended, of which some `failed`; `late_failed` are requests on their way then, with the one that
    decided."""

    def __init__(self, r: Rig, journal: Journal, chance: random.Random, *, sticky: bool) -> None:
        self._rig = r
        self._journal = journal
        self._chance = chance
        self.sticky = sticky
        self._arrived = 0
        self._versions: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.answered = self.failed = self.late_failed = 0
        self.decision: Mapping[str, object] | None = None
        self._has_other = bool(r.states("other"))

    def decided(self, facts: Mapping[str, object]) -> None:
        """Told of each decision of the rollout."""
        self._journal.note("decision", facts["state"], facts["reason"])
        if facts["state"] == "running":
            self.answered = self.failed = 0
        else:
            self.decision = facts

    async def run(self, per_second: float) -> None:
        """Requests, until some time after the decision."""
        over_s = trio.current_time() + PATIENCE_S
        async with trio.open_nursery() as nursery:
            while self.decision is None and trio.current_time() < over_s:
                await trio.sleep(self._chance.expovariate(per_second))
                nursery.start_soon(self._ask)
            for _ in range(50):
                await trio.sleep(self._chance.expovariate(per_second))
                nursery.start_soon(self._ask)

    async def _ask(self) -> None:
        chance, number, decision = self._chance, self._arrived, self.decision
        self._arrived += 1
        if self._has_other and chance.random() < 0.01:
            await self._rig.submit(request(model="other")).wait()
            return
        version = chance.choice((OLD, NEW)) if chance.random() < 0.05 else None
        door = "chain" if version is None and chance.random() < 0.3 else "m"
        user = f"user {chance.randrange(200)}"
        try:
            sink = self._rig.submit(request(model=door, model_version=version, parameters={"user": user}))
        except Unavailable as error:  # its only instance is started again
            if version is None:
                self._journal.broken(f"a request without a version was refused: {error.message}")
            return
        await sink.wait()
        if version is None:
            self._note(sink, number, user, decision)
        elif sink.response.error is None and _version(sink) != version:
            self._journal.broken(f"version {version} was asked for, {_version(sink)} answered")

    def _note(self, sink: RecordingSink, number: int, user: str, decision: Mapping[str, object] | None) -> None:
        self._journal.count("requests in a rollout")
        if sink.response.error is not None:
            self._journal.count("of those failed")
            self._journal.note("failed", number, sink.error)
            if decision is not None and decision["state"] == "rolled back":
                self._journal.broken("a request that came after the rollback has failed")
            elif self.decision is None:
                self.answered += 1
                self.failed += 1
            else:
                self.late_failed += 1
            return
        version = _version(sink)
        self.answered += version == NEW and self.decision is None
        if decision is None:
            self._versions[user].append((number, version))
        elif version != (OLD if decision["state"] == "rolled back" else NEW):
            self._journal.broken(f"version {version} has answered a request that came after: {decision}")

    def check_sticky(self) -> None:
        """No user has gone back to the old version before the decision."""
        for user, seen in self._versions.items() if self.sticky else ():
            versions = [version for _, version in sorted(seen)]
            if versions != sorted(versions):
                self._journal.broken(f"{user} got the versions {versions}")


def _version(sink: RecordingSink) -> int:
    return int(sink.response.outputs[0].array.flat[0])


def simulate_rollout(seed: int) -> Report:
    """Run the rollout of a seed. Takes half a second."""
    return tell(_story, seed)


def _plan(chance: random.Random, *, sticky: bool) -> str:
    return json.dumps(
        {
            "steps": [{"percent": percent, "seconds": STEP_S} for percent in chance.choice(((10, 50), (20,), (25, 100)))],
            "min_requests": MIN_REQUESTS,
            "sticky": "parameter:user" if sticky else "",
        }
    )


def _write(folder: Path) -> None:
    for name, version in (("m", OLD), ("m", NEW), ("other", 1)):
        (folder / name / str(version)).mkdir(parents=True)
        with open(folder / name / str(version) / "model.fake", "wb") as file:
            file.truncate(4 * UNIT)


@asynccontextmanager
async def _serving(model: ModelConfig, backend: _Backend, folder: Path | None) -> AsyncIterator[Rig]:
    """A data plane with version 1 of `model`, an ensemble of it, and with a folder under a memory budget that both versions fill,
    another model."""
    budget = None
    if folder is not None:
        budget = MemoryBudgetOptions(bytes=9 * UNIT, all_on_demand=True)
        _write(folder)

    async with rig(
        backend=backend, latency_ms=lambda worker: backend.chance.choice((1, 1, 5)), load_ms=20, memory_budget=budget
    ) as r:
        r.want(model, (OLD,), directory=(folder or Path("repository")) / "m")
        if folder is not None:
            r.want(config("other", instance_group=instances(1)), directory=folder / "other")
        r.want(ensemble("chain", step("m", "IN", "OUT"), max_batch_size=1))
        for name in ("m", "chain", *(["other"] if folder is not None else [])):
            await r.wait_state(1, 1, ModelState.READY, name)
        yield r


async def _story(seed: int, journal: Journal, clock: trio.testing.MockClock) -> None:
    chance = random.Random(f"{seed}/rollout")
    fault = chance.choice(("none", "fails", "crashes"))
    sticky, has_budget = chance.random() < 0.5, chance.random() < 0.5
    backend = _Backend(fault, random.Random(f"{seed}/backend"))
    plan = ModelParameter(string_value=_plan(chance, sticky=sticky))
    by_call = random.Random(f"{seed}/call").random() < 0.3
    parameters = {} if by_call else {"rollout": plan}
    model = config(parameters=parameters, instance_group=instances(chance.choice((1, 2))), max_batch_size=1)
    source = "of a call" if by_call else "of the parameter"
    journal.note("rollout", fault, plan.string_value, source, "budget" if has_budget else "all loaded")
    with tempfile.TemporaryDirectory() if has_budget else nullcontext() as folder:
        async with _serving(model, backend, None if folder is None else Path(folder)) as r:
            client = _Client(r, journal, chance, sticky=sticky)
            r.plane.rollouts.on_decision = client.decided
            r.want(model, {OLD: 1, NEW: 2}, directory=Path(folder or "repository") / "m")
            await r.wait_state(NEW, 2, ModelState.READY)
            if by_call:
                r.plane.rollouts.start("m", plan.string_value)
            began_s = trio.current_time()
            await client.run(chance.choice((40.0, 150.0)))
            if fault != "crashes":  # while the new version has no live instance the old one answers
                client.check_sticky()
            _check(client, journal, fault, trio.current_time() - began_s)


def _check(client: _Client, journal: Journal, fault: str, seconds: float) -> None:
    """A good version is promoted, every other one is rolled back, after no more errors than its share."""
    decision = client.decision
    journal.count(f"a version with the fault '{fault}': {'nothing decided' if decision is None else decision['state']}")
    if decision is None:
        journal.broken(f"nothing was decided in {seconds:.0f} s")
        return
    if decision["state"] != ("promoted" if fault == "none" else "rolled back"):
        journal.broken(f"a version with the fault '{fault}' is {decision['state']}: {decision['reason']}")
    if client.failed * 100 > max(client.answered, MIN_REQUESTS):
        journal.broken(f"{client.failed} of {client.answered} requests had failed before the decision")
    if fault == "none" and client.failed + client.late_failed:
        journal.broken(f"{client.failed + client.late_failed} requests failed, and nothing made them")
