"""Calls of the gRPC port over fake services: what observers see, restricted protocols, metadata, calls that end early."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import trio
import trio.testing
from grpclib.const import Status

from tests.frontends.grpc.fakes import FakePort, FakeUnaryCall
from tests.frontends.http.fakes import FakeChecks, FakeServices, describe
from tests.frontends.observing import Finished
from tpy.clock import SystemClock
from tpy.frontends.grpc import GrpcServiceOptions
from tpy.frontends.grpc.access import MetadataPolicy
from tpy.frontends.grpc.calls import CallParts
from tpy.frontends.restrictions import RestrictedApi
from tpy.limits import GRPC_CONTROL_BYTES_MAX, GRPC_REQUEST_FIELDS_MAX
from tpy.limits.tensorflow_serving import EXAMPLES_MAX
from tpy.messages import DataType, Tensor, TensorDescription
from tpy_platforms.tensorflow_serving.calls import ServingCalls
from tpy_platforms.tensorflow_serving.protos import pb, tf
from tpy_platforms.tensorflow_serving.tensors import read_tensor, write_tensor

MULTI = "/tensorflow.serving.PredictionService/MultiInference"
CLASSIFY = "/tensorflow.serving.PredictionService/Classify"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
EVERYTHING_AWAY = pb.ReloadConfigRequest(config={"model_config_list": {}})
_TEXT = TensorDescription(name="inputs", datatype=DataType.BYTES, shape=(-1, -1))
_LABELS = TensorDescription(name="classes", datatype=DataType.BYTES, shape=(-1, -1))
CLASSIFIER = msgspec.structs.replace(describe("texts"), inputs=(_TEXT,), outputs=(_LABELS,))
ROWS = np.array([[1, 2], [3, 4]], np.float32)


class Port(FakePort):
    """A port that takes messages of ours."""

    def start(self, path: str, message: Any, *metadata: tuple[str, str]) -> FakeUnaryCall:
        return self.begin(path, message if isinstance(message, bytes) else message.SerializeToString(), metadata)

    async def ask(self, path: str, message: Any, *metadata: tuple[str, str]) -> FakeUnaryCall:
        call = self.start(path, message, *metadata)
        await call.ended.wait()
        return call


@asynccontextmanager
async def port(**options: Any) -> AsyncIterator[Port]:
    services = FakeServices()
    async with trio.open_nursery() as nursery:
        policy = MetadataPolicy(GrpcServiceOptions(**options))
        stop = trio.Event()
        parts = CallParts(services, SystemClock(), policy, nursery=nursery, stop=stop)
        yield Port(services, ServingCalls(parts).handlers(), nursery, stop)
        nursery.cancel_scope.cancel()
    assert not +services.inference.holds, "models that are still held"


def request(model: str = "m", array: Any = ROWS, **spec: Any) -> Any:
    message = pb.PredictRequest(model_spec={"name": model, **spec})
    written = b"".join(write_tensor(Tensor("INPUT0", DataType.FP32, array)))
    message.inputs["INPUT0"].CopyFrom(tf.TensorProto.FromString(written))
    return message


async def test_observers_see_inference() -> None:
    watcher = Finished()
    async with port() as server:
        server.services.observers.add(watcher)
        message = request()
        call = await server.ask(PREDICT, message)
        answer = pb.PredictResponse.FromString(call.reply_bytes)
        assert read_tensor(memoryview(answer.outputs["OUTPUT0"].SerializeToString()), "")[1].tolist() == ROWS.tolist()
        assert (await server.ask(PREDICT, request("x"))).status is Status.NOT_FOUND
        assert (await server.ask(PREDICT, b"\xff")).status is Status.INTERNAL
        server.services.inference.immediate = False
        late = server.start(PREDICT, message)
        await trio.testing.wait_all_tasks_blocked()
        late.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert server.services.inference.submitted[-1].cancelled
    first = watcher.records[0]
    assert (first.protocol, first.model, first.request_bytes) == ("tensorflow-serving", "m", len(message.SerializeToString()))
    assert first.response_bytes == len(call.reply_bytes)
    assert [record.status for record in watcher.records] == ["", "Not found", "Internal", "Cancelled"]
    assert server.services.refusals.counts["NOT_FOUND"] == 1


async def test_large_requests_are_read_and_answered_in_threads() -> None:
    async with port() as server:
        array = np.arange(60_000, dtype=np.float32).reshape(2, -1)
        call = await server.ask(PREDICT, request(array=array))
        answer = pb.PredictResponse.FromString(call.reply_bytes)
        assert read_tensor(memoryview(answer.outputs["OUTPUT0"].SerializeToString()), "")[1].tolist() == array.tolist()
        filled = pb.PredictRequest(model_spec={"name": "m"})
        filled.inputs["INPUT0"].CopyFrom(
            tf.TensorProto(dtype="DT_FLOAT", tensor_shape={"dim": [{"size": 2}, {"size": 100_000}]}, float_val=[1])
        )
        await server.ask(PREDICT, filled)
        assert server.services.inference.submitted[-1].request.inputs[0].array.shape == (2, 100_000)


async def test_what_is_too_much_is_refused() -> None:
    async with port() as server:
        for message, told in (
            (b"\x18\x00" * (GRPC_REQUEST_FIELDS_MAX + 1), f"more than {GRPC_REQUEST_FIELDS_MAX} fields"),
            (pb.PredictRequest(model_spec={"name": "m" * GRPC_CONTROL_BYTES_MAX}), "a ModelSpec of"),
            (b"\x0a\x82\x08" + b"\x78\x00" * 513, "a ModelSpec with more than 256 fields"),
            (b"\x12\xc0\x3e" + b"\x18\x00" * 4000 + b"\x12\xc0\x3e" + b"\x18\x00" * 4000 + b"\x18\x00" * 200, "fields"),
        ):
            call = await server.ask(PREDICT, message)
            assert (call.status, told in call.message) == (Status.INVALID_ARGUMENT, True), call.message
        call = await server.ask(PREDICT, request("flow"))
        assert (call.status, "more than once" in call.message) == (Status.UNIMPLEMENTED, True)


async def test_a_bug_is_an_answer_too() -> None:
    async with port() as server:
        server.services.inference.raises = ZeroDivisionError("a bug")
        assert (await server.ask(PREDICT, request())).status is Status.INTERNAL


async def test_restricted_protocols_need_their_key() -> None:
    closed = RestrictedApi(apis=frozenset({"inference", "model-repository"}), header="k", value="v")
    key = ("triton-grpc-protocol-k", "v")
    async with port(restricted=(closed,)) as server:
        status = pb.GetModelStatusRequest(model_spec={"name": "m"})
        assert (await server.ask(STATUS, status)).status is not Status.UNAVAILABLE
        for path, message in ((PREDICT, request()), (RELOAD, EVERYTHING_AWAY)):
            assert (await server.ask(path, message)).status is Status.UNAVAILABLE
            assert (await server.ask(path, message, key)).status is Status.OK


async def test_pages_of_others_reload_nothing() -> None:
    async with port() as server:
        call = await server.ask(RELOAD, EVERYTHING_AWAY, ("origin", "https://example.com"))
        assert call.status is not Status.OK
        assert not server.services.repository.unloads


async def test_a_reload_that_fails_fails_the_call() -> None:
    async with port() as server:
        call = await server.ask(RELOAD, pb.ReloadConfigRequest())
        assert (call.status, call.message) == (Status.INVALID_ARGUMENT, "config: expected model_config_list")
        server.services.repository.rows = []
        call = await server.ask(RELOAD, EVERYTHING_AWAY)
        answer = pb.ReloadConfigResponse.FromString(call.reply_bytes)
        assert (call.status, answer.status.error_code) == (Status.OK, 0)


async def test_reloads_are_one_at_a_time() -> None:
    async with port() as server:
        repository = server.services.repository
        repository.gate = trio.Event()
        server.services.checks = FakeChecks()
        load = pb.ReloadConfigRequest(config={"model_config_list": {"config": [{"name": "new"}]}})
        first = server.start(RELOAD, load)
        await repository.load_began.wait()
        second = server.start(RELOAD, EVERYTHING_AWAY)
        await trio.testing.wait_all_tasks_blocked()
        assert not repository.unloads
        repository.gate.set()
        await first.ended.wait()
        await second.ended.wait()
        assert (first.status, second.status) == (Status.OK, Status.OK)


def classification(*inputs: Any, specs: int = 1) -> bytes:
    """A request that says its input, and its model, in several fields."""
    parts = [pb.ClassificationRequest(model_spec={"name": "texts"})] * specs
    parts += [pb.ClassificationRequest(input=each) for each in inputs]
    return b"".join(part.SerializeToString() for part in parts)


def examples(count: int) -> Any:
    return pb.Input(example_list={"examples": [tf.Example()] * count})


async def test_inputs_of_several_fields_are_merged_and_read_once() -> None:
    async with port() as server:
        server.services.inference.models["texts"] = CLASSIFIER
        for message, count in (
            (classification(examples(2), examples(3), specs=3), 5),
            (classification(*[examples(2)] * 700), 1400),  # more fields than are read on the loop
        ):
            await server.ask(CLASSIFY, message)
            [tensor] = server.services.inference.submitted[-1].request.inputs
            assert len(tensor.array) == count
        many = examples(EXAMPLES_MAX // 2)
        for message, told in (
            (classification(many, many), f"more than {EXAMPLES_MAX} examples"),
            (classification(*[examples(0)] * (GRPC_REQUEST_FIELDS_MAX + 1)), "fields around them"),
            (classification(specs=GRPC_CONTROL_BYTES_MAX // 7 + 1), "fields around them"),
            (classification(specs=GRPC_REQUEST_FIELDS_MAX - 1), "a ModelSpec with more than 256 fields"),
        ):
            call = await server.ask(CLASSIFY, message)
            assert (call.status, told in call.message) == (Status.INVALID_ARGUMENT, True), call.message


async def test_a_spec_in_many_fields_is_bounded_before_it_is_joined() -> None:
    part = pb.ClassificationRequest(model_spec={"name": "m" * 100}).SerializeToString()
    async with port() as server:
        for path in (PREDICT, CLASSIFY):
            call = await server.ask(path, part * 1000)
            assert (call.status, "a ModelSpec of 102000 bytes" in call.message) == (Status.INVALID_ARGUMENT, True), call.message


async def test_each_task_has_its_record() -> None:
    watcher = Finished()
    async with port() as server:
        server.services.observers.add(watcher)
        models = server.services.inference.models
        models["texts"] = CLASSIFIER
        task = {"model_spec": {"name": "texts"}, "method_name": "tensorflow/serving/classify"}
        message = pb.MultiInferenceRequest(tasks=[task, {**task, "model_spec": {"name": "none"}}], input=examples(1))
        server.services.inference.outputs = (Tensor("classes", DataType.BYTES, np.array([[b"a"]], object)),)
        assert (await server.ask(MULTI, message)).status is Status.NOT_FOUND
        message = pb.MultiInferenceRequest(tasks=[task, task], input=examples(1))
        call = await server.ask(MULTI, message)
        assert call.status is Status.OK, call.message
    seen = [(record.model, record.status, record.request_bytes > 0) for record in watcher.records]
    assert seen == [("texts", "", True), ("none", "Not found", False), ("texts", "", True), ("texts", "", False)]
    assert [record.response_bytes for record in watcher.records] == [0, 0, len(call.reply_bytes), 0]


async def test_metadata_become_parameters() -> None:
    async with port(header_forward_pattern="x-.*") as server:
        await server.ask(PREDICT, request(), ("x-user", "ann"), ("other", "y"))
        assert dict(server.services.inference.submitted[-1].request.parameters) == {"x-user": "ann"}
