"""A model is updated while the body of a request is decoded: the request is run, and its answer written, by the copy that it was
decoded for, and the update waits for it. Over HTTP and gRPC, in the server's process and in a frontend process."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
from tritonclient.grpc import service_pb2 as pb

from tests.engine.fakes import Rig, ScriptedBackend, ScriptedInstance, ScriptedModel, config, rig
from tests.frontends.grpc import fakes as grpc_fakes
from tests.frontends.http import harness as http
from tests.frontends.http.fakes import FakeServices
from tests.remote.sides import both_sides
from tpy.backend import ExecutionBatch, ExecutionResult, InstancePlacement, ModelContext, ModelInstance
from tpy.config.model_config import ModelInput, ModelOutput, SequenceBatching
from tpy.frontends.grpc import codec as grpc_codec
from tpy.frontends.http import codec as http_codec
from tpy.frontends.http import generate
from tpy.messages import DataType, IndexEntry, ModelState, Tensor
from tpy.services import Services

LARGE = 300_000
"""Bytes that have a request decoded in a thread, in spaces or values."""

UNLOADED = (ModelState.UNAVAILABLE.value, "unloaded")

Ask = Callable[[Services, int], Awaitable[str]]


class CountingBackend(ScriptedBackend):
    """The copy of generation g answers g, at a place of its own, so that each copy's answer has a label of its own."""

    def load(self, context: ModelContext) -> ScriptedModel:
        self.on_load(context)
        return _Model(self, (context.name, context.version, context.generation))


class _Model(ScriptedModel):
    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return _Instance(self.backend, placement.name, self.identity[2])


class _Instance(ScriptedInstance):
    def __init__(self, backend: ScriptedBackend, name: str, generation: int) -> None:
        super().__init__(backend, name)
        self.generation = generation

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        array = np.zeros((1, 2), np.float32)
        array[0, self.generation - 1] = self.generation
        return [ExecutionResult([Tensor("OUT", DataType.FP32, array)]) for _ in batch.requests]


class Gate:
    """Stands before a function that is called in a thread of Trio's: the first call waits for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
        self.reached = trio.Event()
        self._pass = threading.Event()
        function = getattr(module, name)

        def gated(*arguments: object, **named: object) -> object:
            if not self.reached.is_set():
                trio.from_thread.run_sync(self.reached.set)
                self._pass.wait(30)
            return function(*arguments, **named)

        monkeypatch.setattr(module, name, gated)

    def open(self) -> None:
        self._pass.set()


async def http_infer(services: Services, padding: int) -> str:
    body = {
        "inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}],
        "outputs": [{"name": "OUT", "parameters": {"classification": 1}}],
    }
    async with http.running(services) as server:
        answer = await (await server.connect()).ask(http.post(http.INFER, json.dumps(body) + " " * padding))
    assert answer.status == 200, answer.body
    return str(json.loads(answer.body)["outputs"][0]["data"][0])


async def http_generate(services: Services, padding: int) -> str:
    async with http.running(services) as server:
        answer = await (await server.connect()).ask(http.post("/v2/models/m/generate", '{"IN": [1, 2]}' + " " * padding))
    assert answer.status == 200, answer.body
    return str(json.loads(answer.body)["OUT"])


def grpc_request(padding: int) -> bytes:
    request = pb.ModelInferRequest(model_name="m")
    count = 2 + padding // 4
    request.inputs.add(name="IN", datatype="FP32", shape=[1, count]).contents.fp32_contents.extend([1] * count)
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 1
    return request.SerializeToString()


def label_of(response: pb.ModelInferResponse) -> str:
    [content] = response.raw_output_contents
    return content[4:].decode()


async def grpc_unary(services: Services, padding: int) -> str:
    async with grpc_fakes.port(services=services) as server:
        call = await server.call("ModelInfer", grpc_request(padding))
    assert not call.message
    return label_of(pb.ModelInferResponse.FromString(call.reply_bytes))


async def grpc_stream(services: Services, padding: int) -> str:
    async with grpc_fakes.port(services=services) as server:
        call = server.open()
        call.request(grpc_request(padding))
        call.half_close()
        await call.ended.wait()
    [message] = [pb.ModelStreamInferResponse.FromString(message) for message in call.responses]
    assert not message.error_message
    return label_of(message.infer_response)


@asynccontextmanager
async def in_this_process(inference: object) -> AsyncIterator[tuple[Services, Callable[[], Awaitable[None]]]]:
    async def tell() -> None:
        await trio.lowlevel.checkpoint()

    services = FakeServices()
    services.inference = inference  # type: ignore[assignment]  # a real one
    yield services, tell


@asynccontextmanager
async def in_a_frontend_process(inference: object) -> AsyncIterator[tuple[Services, Callable[[], Awaitable[None]]]]:
    async with in_this_process(inference) as (services, _):
        assert isinstance(services, FakeServices)
        services.repository.rows = [IndexEntry(name="m", version=1, state=ModelState.READY)]
        async with both_sides(services) as sides:
            yield sides.services, sides.publisher.publish


async def serve(r: Rig, directory: Path, labels: str, **changes: object) -> None:
    (directory / "labels.txt").write_text(labels)
    output = ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,), label_filename="labels.txt")
    given = ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,))
    await r.serve(config(input=(given,), output=(output,), **changes), directory=directory)


@pytest.mark.parametrize("where", [in_this_process, in_a_frontend_process])
@pytest.mark.parametrize(
    ("ask", "module", "decode", "before", "after"),
    [
        (http_infer, http_codec, "parse_infer", "1.000000:0:cat", "2.000000:1:green"),
        (http_generate, generate, "parse_generate", "[1.0, 0.0]", "[0.0, 2.0]"),
        (grpc_unary, grpc_codec, "decode_request", "1.000000:0:cat", "2.000000:1:green"),
        (grpc_stream, grpc_codec, "decode_request", "1.000000:0:cat", "2.000000:1:green"),
    ],
)
async def test_a_request_is_run_and_answered_by_the_copy_that_it_was_decoded_for(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    where: Callable[..., object],
    ask: Ask,
    module: object,
    decode: str,
    before: str,
    after: str,
) -> None:
    gate = Gate(monkeypatch, module, decode)
    answers: dict[str, str] = {}
    with trio.fail_after(30):
        async with rig(backend=CountingBackend()) as r:
            await serve(r, tmp_path, "cat\ndog\n")
            async with where(r.plane.inference) as (services, tell), trio.open_nursery() as nursery:  # type: ignore[attr-defined]

                async def ask_large() -> None:
                    answers["large"] = await ask(services, LARGE)

                nursery.start_soon(ask_large)
                try:
                    await gate.reached.wait()
                    await serve(r, tmp_path, "red\ngreen\n")
                    await tell()
                    answers["small"] = await ask(services, 0)
                    assert ("m", 1, 1) in r.backend.loaded
                finally:
                    gate.open()
            assert answers == {"large": before, "small": after}
            await r.store.wait_for(lambda _: r.states().get((1, 1), UNLOADED) == UNLOADED)
            assert r.backend.loaded == [("m", 1, 2)]


async def http_sequence(services: Services, *, start: bool) -> str:
    position = {"sequence_id": 7, "sequence_start": start}
    body = {
        "parameters": position,
        "inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}],
        "outputs": [{"name": "OUT", "parameters": {"classification": 1}}],
    }
    async with http.running(services) as server:
        answer = await (await server.connect()).ask(http.post(http.INFER, json.dumps(body)))
    assert answer.status == 200, answer.body
    return str(json.loads(answer.body)["outputs"][0]["data"][0])


def grpc_sequence_request(*, start: bool) -> bytes:
    request = pb.ModelInferRequest.FromString(grpc_request(0))
    request.parameters["sequence_id"].int64_param = 7
    request.parameters["sequence_start"].bool_param = start
    return request.SerializeToString()


async def grpc_sequence(services: Services, *, start: bool) -> str:
    async with grpc_fakes.port(services=services) as server:
        call = await server.call("ModelInfer", grpc_sequence_request(start=start))
    assert not call.message
    return label_of(pb.ModelInferResponse.FromString(call.reply_bytes))


async def grpc_stream_sequence(services: Services, *, start: bool) -> str:
    async with grpc_fakes.port(services=services) as server:
        call = server.open()
        call.request(grpc_sequence_request(start=start))
        call.half_close()
        await call.ended.wait()
    [message] = [pb.ModelStreamInferResponse.FromString(message) for message in call.responses]
    assert not message.error_message
    return label_of(message.infer_response)


@pytest.mark.parametrize("where", [in_this_process, in_a_frontend_process])
@pytest.mark.parametrize("ask", [http_sequence, grpc_sequence, grpc_stream_sequence])
@pytest.mark.parametrize("after", ["an update", "an unload"])
async def test_a_request_of_a_live_sequence_has_the_labels_of_the_copy_that_runs_it(
    tmp_path: Path, where: Callable[..., object], ask: Callable[..., Awaitable[str]], after: str
) -> None:
    sequences = SequenceBatching(max_sequence_idle_microseconds=600_000_000)
    with trio.fail_after(30):
        async with rig(backend=CountingBackend()) as r:
            await serve(r, tmp_path, "cat\ndog\n", sequence_batching=sequences)
            async with where(r.plane.inference) as (services, tell):  # type: ignore[attr-defined]
                assert await ask(services, start=True) == "1.000000:0:cat"
                await serve(r, tmp_path, "red\ngreen\n", sequence_batching=sequences)
                if after == "an unload":
                    r.want(config(), ())
                await tell()
                assert await ask(services, start=False) == "1.000000:0:cat"
