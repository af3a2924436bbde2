"""Programs written for Triton's in-process API: its documentation's examples, and what they rely on."""

from __future__ import annotations

import asyncio
import enum
import gc
import json
import logging
import queue
import re
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

import tritonserver
from tests.e2e.repositories import ModelFolder
from tests.e2e.waiting import wait_until
from tpy.limits import EMBEDDED_RESPONSES_MAX
from tpy_native import building

TEST = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = [pb_utils.Tensor(each.name().replace("input", "output"), each.as_numpy()) for each in request.inputs()]
            outputs.append(pb_utils.Tensor("parameters", np.array([request.parameters()], dtype=np.object_)))
            if not self.decoupled:
                responses.append(pb_utils.InferenceResponse(outputs))
                continue
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
            for _ in range(int(text)):
                if request.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None if self.decoupled else responses
"""
CONFIG = """
backend: "python"
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "fp16_input" data_type: TYPE_FP16 dims: [ -1, 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "fp16_output" data_type: TYPE_FP16 dims: [ -1, 1 ] },
  { name: "parameters" data_type: TYPE_STRING dims: [ 1 ] }
]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("tritonserver") / "models"
    ModelFolder(models, "test").python(TEST).config(CONFIG)
    ModelFolder(models, "many").python(TEST).config(CONFIG + "model_transaction_policy { decoupled: true }")
    ModelFolder(models, "other").identity()
    return models


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[tritonserver.Server]:
    options = tritonserver.Options()
    options.model_control_mode = tritonserver.ModelControlMode.EXPLICIT
    options.model_repository = str(repository)
    options.startup_models = ["test", "many"]
    started = tritonserver.Server(options).start(wait_until_ready=True)
    yield started
    started.stop()


def test_the_examples_of_a_server(server: tritonserver.Server) -> None:
    assert (server.live(), server.ready()) == (True, True)
    assert server.metadata()["name"] == "triton"
    assert "statistics" in server.metadata()["extensions"]
    assert repr(server.model("test")) == "{'name': 'test', 'version': -1, 'state': None}"
    models = server.models()
    assert models["test"].version == -1
    assert (models["test", 1].state, models["other", -1].state) == ("READY", None)
    with pytest.raises(KeyError, match="Unknown Model: nobody"):
        models["nobody"]
    server.load("other")
    assert server.models(exclude_not_ready=True).keys() == {("test", 1), ("many", 1), ("other", 1)}
    server.unload("other", wait_until_unloaded=True)
    assert server.models()["other", 1].state == "UNAVAILABLE"
    assert 'nv_inference_count{model="test",version="1"}' in server.metrics()


def test_the_examples_of_a_model(server: tritonserver.Server) -> None:
    model = server.model("test")
    assert model.metadata()["inputs"][0] == {"name": "text_input", "datatype": "BYTES", "shape": [-1]}
    assert model.ready()
    assert not server.model("nobody").ready()
    assert model.batch_properties() is tritonserver.ModelBatchFlag.UNKNOWN
    assert model.transaction_properties() is tritonserver.ModelTxnPropertyFlag.ONE_TO_ONE
    assert server.model("many").transaction_properties() is tritonserver.ModelTxnPropertyFlag.DECOUPLED
    assert model.config()["backend"] == "python"
    assert [each["name"] for each in model.statistics()["model_stats"]] == ["test"]


def test_the_examples_of_inference(server: tritonserver.Server) -> None:
    responses = list(server.model("test").infer(inputs={"text_input": ["hello"]}))
    assert responses[0].outputs["text_output"].to_bytes_array().tolist() == [b"hello"]
    assert (responses[0].model.version, responses[0].final, len(responses)) == (1, True, 1)
    request = server.model("test").create_request(request_id="seven", parameters={"a": 1, "b": "x", "c": 0.5, "d": True})
    request.inputs["fp16_input"] = numpy.array([[1.0]]).astype(numpy.float16)
    for response in server.model("test").infer(request):
        assert numpy.from_dlpack(response.outputs["fp16_output"]).tolist() == [[1.0]]
        assert response.request_id == "seven"
        assert json.loads(response.outputs["parameters"].to_string_array()[0]) == {"a": 1, "b": "x", "c": 0.5, "d": True}


def test_the_examples_of_tensors() -> None:
    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    tensor = tritonserver.Tensor.from_dlpack(array)
    assert (tensor.data_type, tensor.shape, tensor.size) == (tritonserver.DataType.FP32, [2, 3], 24)
    assert tensor.data_ptr == array.ctypes.data
    assert numpy.shares_memory(numpy.from_dlpack(tensor), array)
    assert tensor.to_device("cpu:0") is tensor.to_host() is tensor
    with pytest.raises(tritonserver.UnsupportedError, match="not supported"):
        tensor.to_device("gpu")
    strings = tritonserver.Tensor.from_string_array(numpy.array([["a", "bc"]]))
    assert strings.to_string_array().tolist() == [["a", "bc"]]
    assert tritonserver.MemoryBuffer.from_dlpack(array).size == 24
    for wrong in (object(), numpy.array([1j]), numpy.zeros((3, 3))[:, 1]):
        with pytest.raises(tritonserver.InvalidArgumentError):
            tritonserver.Tensor.from_dlpack(wrong)
    with pytest.raises(tritonserver.InvalidArgumentError, match="not"):
        tensor.to_bytes_array()


def test_a_tensor_keeps_its_memory_and_nothing_else() -> None:
    array = numpy.from_dlpack(tritonserver.Tensor.from_dlpack(numpy.arange(1000)))
    gc.collect()
    assert array.sum() == 499_500
    del array
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is tritonserver.Tensor]


def test_responses_of_a_decoupled_model(server: tritonserver.Server) -> None:
    """The last one says only that it is the last one."""
    wanted = 2 * EMBEDDED_RESPONSES_MAX
    responses = list(server.model("many").infer(inputs={"text_input": [str(wanted)]}))
    assert [response.final for response in responses] == [False] * wanted + [True]
    assert responses[-1].outputs == {}


def test_a_request_is_cancelled(server: tritonserver.Server) -> None:
    responses = server.model("many").infer(inputs={"text_input": ["1000000"]}, raise_on_error=False)
    next(responses)
    responses.cancel()
    *_, last = responses
    assert last.final
    assert "cancelled" in str(last.error)


def test_responses_are_put_into_queues(server: tritonserver.Server) -> None:
    taken: queue.SimpleQueue[tritonserver.InferenceResponse] = queue.SimpleQueue()
    iterators = [server.model("many").infer(inputs={"text_input": ["2"]}, response_queue=taken) for _ in range(2)]
    assert sum(taken.get(timeout=60).final for _ in range(6)) == 2
    assert [len(list(each)) for each in iterators] == [3, 3]
    assert taken.empty()

    async def main() -> None:
        taken: asyncio.Queue[tritonserver.InferenceResponse] = asyncio.Queue()
        iterator = server.model("many").async_infer(inputs={"text_input": ["2"]}, response_queue=taken)
        assert [(await taken.get()).final for _ in range(3)] == [False, False, True]
        assert [response.final async for response in iterator] == [False, False, True]

    asyncio.run(main())


def test_tasks_of_asyncio(server: tritonserver.Server) -> None:
    async def ask(number: int) -> str:
        responses = server.model("test").async_infer(inputs={"text_input": [str(number)]})
        [found] = [response.outputs["text_output"].to_string_array()[0] async for response in responses]
        return str(found)

    async def main() -> None:
        assert await asyncio.gather(*map(ask, range(20))) == [str(number) for number in range(20)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"inputs": {"nothing": [1]}}, "unexpected inference input 'nothing'"),
        ({"inputs": {"text_input": object()}}, "Input type"),
        ({"inputs": {"text_input": [1, [2]]}}, "Conversion from"),
        ({"inputs": {"text_input": ["\ud800"]}}, "no form in UTF-8"),
        ({"parameters": {"invalid": None}}, "option 'parameters'"),
        ({"parameters": {"invalid": {"test": 1}}}, "option 'parameters'"),
        ({"output_memory_type": "unsupported"}, "Unsupported Memory Type String"),
        ({"output_memory_type": "cpu:x"}, "Invalid memory type"),
        ({"flags": 8}, "flags: expected"),
        ({"timeout": -1}, "option 'timeout_us'"),
        ({"response_queue": asyncio.Queue()}, "use async_infer"),
    ],
)
def test_wrong_requests_are_refused_at_once(server: tritonserver.Server, fields: dict[str, object], problem: str) -> None:
    with pytest.raises(tritonserver.InvalidArgumentError, match=problem):
        server.model("test").infer(**fields)


def test_unknown_models_and_versions(server: tritonserver.Server) -> None:
    with pytest.raises(tritonserver.NotFoundError, match="unknown model: 'nobody'"):
        server.model("nobody").infer(inputs={})
    with pytest.raises(tritonserver.NotFoundError, match="version 7 is not found"):
        server.model("test", 7).infer(inputs={})
    with pytest.raises(tritonserver.TritonError, match="failed to load 'nobody'"):
        server.load("nobody")


def test_a_model_is_loaded_with_a_configuration_of_its_own(server: tritonserver.Server) -> None:
    config = {
        "backend": "identity",
        "max_batch_size": 4,
        "input": [_FP32 | {"name": "INPUT0"}],
        "output": [_FP32 | {"name": "OUTPUT0"}],
    }
    model = server.load("other", {"config": json.dumps(config), "file:1/model": b""})
    [response] = model.infer(inputs={"INPUT0": numpy.array([[5]], numpy.float32)})
    assert numpy.from_dlpack(response.outputs["OUTPUT0"]).tolist() == [[5]]
    assert model.batch_properties() is tritonserver.ModelBatchFlag.FIRST_DIM
    with pytest.raises(tritonserver.InvalidArgumentError, match="load parameter 'configuration'"):
        server.load("other", {"configuration": "{}"})


_FP32 = {"data_type": "TYPE_FP32", "dims": [1]}


def test_repositories_come_and_go(server: tritonserver.Server, tmp_path: Path) -> None:
    ModelFolder(tmp_path, "folder").identity()
    with pytest.raises(tritonserver.InvalidArgumentError, match="repository not found"):
        server.register_model_repository(str(tmp_path / "nothing"))
    with pytest.raises(TypeError, match="name_mapping: expected names by folders"):
        server.register_model_repository(str(tmp_path), {"folder": 5})
    server.register_model_repository(str(tmp_path), {"folder": "called"})
    with pytest.raises(tritonserver.AlreadyExistsError, match="has already been registered"):
        server.register_model_repository(str(tmp_path))
    [response] = server.load("called").infer(inputs={"INPUT0": numpy.array([[5]], numpy.int32)})
    assert numpy.from_dlpack(response.outputs["OUTPUT0"]).tolist() == [[5]]
    server.unregister_model_repository(str(tmp_path))
    assert server.model("called").ready()
    server.unload("called", wait_until_unloaded=True)
    with pytest.raises(tritonserver.TritonError, match="failed to load 'called'"):
        server.load("called")
    with pytest.raises(tritonserver.InvalidArgumentError, match="repository not found"):
        server.unregister_model_repository(str(tmp_path))


def test_metrics_of_the_program(server: tritonserver.Server) -> None:
    family = tritonserver.MetricFamily(tritonserver.MetricKind.GAUGE, "program_gauge", "of a test")
    metric = tritonserver.Metric(family, {"where": "here"})
    metric.set_value(3)
    metric.increment(1.5)
    assert (metric.value, metric.kind) == (4.5, tritonserver.MetricKind.GAUGE)
    assert 'program_gauge{where="here"} 4.5' in server.metrics()
    with pytest.raises(tritonserver.AlreadyExistsError):
        tritonserver.MetricFamily(tritonserver.MetricKind.COUNTER, "program_gauge", "another")
    del metric, family
    gc.collect()
    assert "program_gauge" not in server.metrics()


def test_the_life_of_a_server(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(tritonserver.InvalidArgumentError, match="Server not started"):
        tritonserver.Server().ready()
    for wrong in ({"server_id": 1}, {"model_repository": 1}, {"model_repository": str(tmp_path), "exit_timeout": "1"}):
        with pytest.raises(TypeError):
            tritonserver.Server(**wrong).start()
    for options, kind in (
        ({"model_repository": None}, tritonserver.InvalidArgumentError),
        ({"model_repository": "foo"}, tritonserver.InternalError),
    ):
        with pytest.raises(kind):
            tritonserver.Server(**options).start()
    log = tmp_path / "log"
    server = tritonserver.Server(
        model_repository=str(repository), log_file=str(log), log_verbose=1, metrics=False, server_id="mine"
    )
    server.start()
    assert server.metadata()["name"] == "mine"
    with pytest.raises(tritonserver.InvalidArgumentError, match="Server already started"):
        server.start()
    with pytest.raises(tritonserver.UnsupportedError, match="metrics=False"):
        server.metrics()
    with pytest.raises(tritonserver.UnsupportedError, match="registration is not allowed if model control mode is not EXPLICIT"):
        server.register_model_repository(str(tmp_path))
    with pytest.raises(tritonserver.UnavailableError, match="polling is disabled"):
        server.poll_model_repository()
    model = server.model("other")
    server.stop()
    with pytest.raises(tritonserver.InvalidArgumentError, match="Server not started"):
        server.stop()
    with pytest.raises(tritonserver.UnavailableError, match="has stopped"):
        model.infer(inputs={})
    assert "stopping" in log.read_text()
    assert logging.getLogger("tpy_data").level == logging.NOTSET


def test_requests_leave_nothing_for_the_collector(repository: Path, tmp_path: Path) -> None:
    """With the verbose log, too, which observes them."""
    server = tritonserver.Server(model_repository=str(repository), log_file=str(tmp_path / "log"), log_verbose=1).start()

    def ask() -> None:
        for response in server.model("test").infer(inputs={"fp16_input": numpy.ones((1, 1), numpy.float16)}):
            numpy.from_dlpack(response.outputs["fp16_output"])

    def calls() -> int:
        return len([each for each in gc.get_objects() if type(each).__name__ == "EmbeddedCall"])

    ask()
    gc.collect()
    gc.disable()
    try:
        others = calls()  # of tests that ran before
        for _ in range(20):
            ask()
        wait_until(lambda: calls() <= others + 1)
    finally:
        gc.enable()
        server.stop()


def test_memory_does_not_grow_with_requests(repository: Path, tmp_path: Path) -> None:
    """With the verbose log, whose lines no port of such a server shows, and whatever Python keeps for later."""
    server = tritonserver.Server(model_repository=str(repository), log_file=str(tmp_path / "log"), log_verbose=6).start()
    model = server.model("test")

    def ask(times: int) -> int:
        for _ in range(times):
            inputs = {"fp16_input": numpy.ones((50, 1), numpy.float16), "text_input": ["a", "b"]}
            for response in model.infer(inputs=inputs):
                assert numpy.from_dlpack(response.outputs["fp16_output"]).shape == (50, 1)
        return tracemalloc.get_traced_memory()[0]

    ask(100)
    tracemalloc.start()
    try:
        counts = [ask(300)]  # what has a bound is full by then
        while len(counts) < 4 and (len(counts) < 2 or counts[-1] - counts[-2] >= 600 * 32):
            counts.append(ask(600))  # what is kept for later comes and goes, a leak grows each time
        assert counts[-1] - counts[-2] < 600 * 32, counts
    finally:
        tracemalloc.stop()
        server.stop()


def test_a_callback_takes_the_log(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[tuple[tritonserver.LogLevel, str, int, float, str]] = []

    def take(level: tritonserver.LogLevel, file: str, line: int, seconds: float, message: str) -> None:
        lines.append((level, file, line, seconds, message))

    begun_s = time.time()
    server = tritonserver.Server(model_repository=str(repository), log_info=True, log_callback=take).start(wait_until_ready=True)
    server.stop()
    loaded = next(line for line in lines if "successfully loaded" in line[4])
    assert (loaded[0], Path(loaded[1]).is_file(), loaded[2] > 0, loaded[3] >= begun_s) == (
        tritonserver.LogLevel.INFO,
        True,
        True,
        True,
    )
    assert capfd.readouterr().err == ""


def test_a_server_that_is_dropped_stops(repository: Path) -> None:
    server = tritonserver.Server(
        model_repository=[str(repository)], model_control_mode=tritonserver.ModelControlMode.EXPLICIT
    ).start()
    threads = threading.active_count()
    del server
    gc.collect()
    wait_until(lambda: threading.active_count() < threads)


def test_options_are_flags(repository: Path) -> None:
    """All that have a meaning reach the server, which checks them."""
    server = tritonserver.Server(
        model_repository=str(repository),
        model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
        strict_model_config=True,
        rate_limiter_mode=tritonserver.RateLimitMode.EXEC_COUNT,
        rate_limiter_resources=[tritonserver.RateLimiterResource("R", 4, 0)],
        cuda_memory_pool_sizes={0: 1 << 20},
        cache_config={"local": {"size": 1 << 20}},
        backend_configuration={"python": {"shm-region-prefix-name": "x"}, "": {"default-max-batch-size": "4"}},
        host_policies={"cpu_0": {"numa-node": "0"}},
        model_load_device_limits=[tritonserver.ModelLoadDeviceLimit(tritonserver.InstanceGroupKind.GPU, 0, 0.5)],
        metrics_configuration={"": {"counter_latencies": True}},
        exit_timeout=5,
    ).start()
    assert server.models()["test", -1].state is None
    server.stop()
    with pytest.raises(tritonserver.InvalidArgumentError, match="cache-config: size"):
        tritonserver.Server(model_repository=str(repository), cache_config={"local": {"size": "much"}}).start()


@pytest.mark.parametrize(
    ("numbers", "prefix"),
    [
        (tritonserver.DataType, "TYPE_"),
        (tritonserver.MemoryType, "MEMORY_"),
        (tritonserver.ModelControlMode, "MODEL_CONTROL_"),
        (tritonserver.RateLimitMode, "RATE_LIMIT_"),
        (tritonserver.InstanceGroupKind, "INSTANCEGROUPKIND_"),
        (tritonserver.LogLevel, "LOG_"),
        (tritonserver.LogFormat, "LOG_"),
        (tritonserver.MetricKind, "METRIC_KIND_"),
        (tritonserver.MetricFormat, "METRIC_"),
        (tritonserver.ModelBatchFlag, "BATCH_"),
        (tritonserver.ModelTxnPropertyFlag, "TXN_"),
    ],
)
def test_numbers_are_those_of_the_c_interface(numbers: type[enum.IntEnum], prefix: str) -> None:
    header = (building.INCLUDE / "triton" / "core" / "tritonserver.h").read_text()
    for body in re.findall(r"typedef enum \w+ \{(.*?)\}", header, re.DOTALL):
        found, number = {}, 0
        for name, given in re.findall(r"TRITONSERVER_(\w+)(?: = (\d+))?", body):
            number = int(given) if given else number
            found[name.removeprefix(prefix)] = number
            number += 1
        if set(numbers.__members__) <= set(found):
            assert {name: member.value for name, member in numbers.__members__.items()} == {
                name: found[name] for name in numbers.__members__
            }
            return
    raise AssertionError(f"the header has no such enumeration as {numbers}")


def test_names_that_mean_nothing_here_say_so() -> None:
    for name, why in (("default_memory_allocators", "no allocator is asked"), ("_c", "no binding"), ("nonsense", "nonsense")):
        with pytest.raises(AttributeError, match=why):
            getattr(tritonserver, name)
