"""Descriptions whose size a configuration or a client decides are made and encoded in threads, on both protocols."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import trio
from tritonclient.grpc import service_pb2 as pb

from tests.pace import at_pace
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.config_forms import ConfigForms
from tpy.messages import IndexEntry, ModelDescription, ModelState, ModelStatistics, TensorDescription
from tpy.messages.statistics import BatchStatistics, Duration

from .grpc.fakes import port
from .http.fakes import FakeServices, describe
from .http.harness import get, post, running

_MANY = 20_000
_TRIES = 3
_STRETCH_S_MAX = 0.007
"""Of the loop's CPU time, in the best of three tries: a third of this, and 10 ms to a second where the loop does it."""


class Stretches(trio.abc.Instrument):
    """The longest CPU time that the loop's thread spends in one step of a task."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s = time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


@contextmanager
def stretched(found: list[float]) -> Iterator[None]:
    """Adds the longest stretch inside the block."""
    stretches = Stretches()
    trio.lowlevel.add_instrument(stretches)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(stretches)
        found.append(stretches.longest_s)


def _large_services() -> FakeServices:
    """The model m has many parameters, inputs and labels, and rows of statistics; the index is long."""
    services = FakeServices()
    parameters = {f"parameter{number}": ModelParameter(string_value="x") for number in range(_MANY)}
    forms = ConfigForms(ModelConfig(name="m", backend="identity", parameters=parameters))
    services.inference.config_forms = lambda model_name, version=None: forms  # type: ignore[method-assign]
    services.inference.models["m"] = _large_description()
    some = Duration(count=2, ns=7)
    batches = tuple(
        BatchStatistics(batch_size=number, compute_input=some, compute_infer=some, compute_output=some) for number in range(_MANY)
    )
    rows = [ModelStatistics(name="m", version=1, batches=batches)]

    async def statistics(model_name: str = "", version: int | None = None) -> list[ModelStatistics]:
        return rows

    services.diagnostics.statistics = statistics  # type: ignore[method-assign]
    services.repository.rows = [IndexEntry(name=f"m{number}", version=1, state=ModelState.READY) for number in range(_MANY)]
    return services


def _large_description() -> ModelDescription:
    description = describe("m")
    tensor = description.inputs[0]
    inputs = tuple(msgspec.structs.replace(tensor, name=f"INPUT{number}") for number in range(_MANY))
    labelled: TensorDescription = msgspec.structs.replace(
        description.outputs[0], labels=tuple(f"label {number}" for number in range(20 * _MANY))
    )
    return msgspec.structs.replace(description, inputs=inputs, outputs=(labelled,))


CALLS: dict[str, tuple[bytes, Callable[[bytes], int]]] = {
    "ModelConfig": (
        pb.ModelConfigRequest(name="m").SerializeToString(),
        lambda answer: len(pb.ModelConfigResponse.FromString(answer).config.parameters),
    ),
    "ModelMetadata": (
        pb.ModelMetadataRequest(name="m").SerializeToString(),
        lambda answer: len(pb.ModelMetadataResponse.FromString(answer).inputs),
    ),
    "ModelStatistics": (
        pb.ModelStatisticsRequest(name="m").SerializeToString(),
        lambda answer: len(pb.ModelStatisticsResponse.FromString(answer).model_stats[0].batch_stats),
    ),
    "RepositoryIndex": (b"", lambda answer: len(pb.RepositoryIndexResponse.FromString(answer).models)),
}
ROUTES: dict[str, tuple[bytes, Callable[[bytes], int]]] = {
    "config": (get("/v2/models/m/config"), lambda answer: len(json.loads(answer)["parameters"])),
    "metadata": (get("/v2/models/m"), lambda answer: len(json.loads(answer)["inputs"])),
    "statistics": (get("/v2/models/m/stats"), lambda answer: len(json.loads(answer)["model_stats"][0]["batch_stats"])),
    "labels": (get("/v2/models/m/labels"), lambda answer: len(json.loads(answer)["labels"]["OUTPUT0"]) // 20),
    "index": (post("/v2/repository/index", ""), lambda answer: len(json.loads(answer))),
}


@pytest.mark.parametrize("method", CALLS)
async def test_a_large_answer_over_grpc_is_made_in_a_thread(method: str) -> None:
    message, count = CALLS[method]
    stretches: list[float] = []
    for _ in range(_TRIES):
        async with port(services=_large_services()) as server:
            with stretched(stretches):
                call = await server.call(method, message)
        assert count(call.reply_bytes) == _MANY
    assert min(stretches) < at_pace(_STRETCH_S_MAX)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_large_answer_over_http_is_made_in_a_thread(route: str) -> None:
    message, count = ROUTES[route]
    stretches: list[float] = []
    for _ in range(_TRIES):
        async with running(_large_services()) as server:
            client = await server.connect()
            await client.ask(get("/v2/health/live"))
            with stretched(stretches):
                answer = await client.ask(message)
        assert count(answer.body) == _MANY
    assert min(stretches) < at_pace(_STRETCH_S_MAX)


async def test_many_regions_are_listed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    region = pb.SystemSharedMemoryStatusResponse.RegionStatus
    rows = [region(name=f"r{number}", key="/k", byte_size=8) for number in range(4096)]
    monkeypatch.setattr("tpy.frontends.grpc.control.registered", lambda *_: rows)
    stretches: list[float] = []
    async with port() as server:
        for _ in range(_TRIES):
            with stretched(stretches):
                call = await server.call("SystemSharedMemoryStatus")
    assert len(pb.SystemSharedMemoryStatusResponse.FromString(call.reply_bytes).regions) == 4096
    assert min(stretches) < at_pace(_STRETCH_S_MAX)


async def test_a_configuration_is_encoded_once_for_each_form() -> None:
    """Also when many ask at the same time."""
    encoded: list[str] = []

    def first(config: ModelConfig) -> bytes:
        encoded.append(config.name)
        return b"first"

    def second(config: ModelConfig) -> bytes:
        encoded.append(config.name)
        return b"second"

    forms = ConfigForms(ModelConfig(name="m"))
    answers: list[bytes] = []

    async def ask(encode: Callable[[ModelConfig], bytes]) -> None:
        answers.append(await forms.encoded(encode))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask, first)
            nursery.start_soon(ask, second)
    assert encoded == ["m", "m"]
    assert sorted(answers) == [b"first"] * 10 + [b"second"] * 10
