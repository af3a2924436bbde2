"""Every method of GRPCInferenceService but inference."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest
import trio
import trio.testing
from google.protobuf.message import Message
from grpclib.const import Status
from tritonclient.grpc import service_pb2 as pb

from tpy import limits
from tpy.errors import Internal, Unavailable
from tpy.messages import Duration, LoadRequest, ResponseStatistics

from .fakes import FakePort, port

Parameter = pb.ModelRepositoryParameter
T = TypeVar("T", bound=Message)
LogValue = pb.LogSettingsRequest.SettingValue


async def ask(server: FakePort, request: Message, response: type[T]) -> T:
    """The answer to `request`, whose type names its method."""
    call = await server.call(type(request).DESCRIPTOR.name.removesuffix("Request"), request.SerializeToString())
    assert (call.status, call.message) == (Status.OK, "")
    return response.FromString(call.reply_bytes)


async def refused(request: Message, status: Status, text: str) -> None:
    async with port() as server:
        call = await server.call(type(request).DESCRIPTOR.name.removesuffix("Request"), request.SerializeToString())
        assert (call.status, call.message) == (status, text)


async def test_health() -> None:
    async with port() as server:
        repository = server.services.repository
        assert (await ask(server, pb.ServerLiveRequest(), pb.ServerLiveResponse)).live
        for ready in (True, False):
            repository.ready = repository.model_is_ready = ready
            assert (await ask(server, pb.ServerReadyRequest(), pb.ServerReadyResponse)).ready is ready
            assert (await ask(server, pb.ModelReadyRequest(name="m", version="1"), pb.ModelReadyResponse)).ready is ready


async def test_descriptions() -> None:
    async with port() as server:
        metadata = await ask(server, pb.ServerMetadataRequest(), pb.ServerMetadataResponse)
        assert (metadata.name, metadata.version, list(metadata.extensions)) == ("triton", "1.2.3", ["statistics", "logging"])
        for version in ("", "1"):
            model = await ask(server, pb.ModelMetadataRequest(name="m", version=version), pb.ModelMetadataResponse)
            assert (model.name, list(model.versions), model.platform) == ("m", ["1"], "identity")
            [tensor] = model.inputs
            assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("INPUT0", "FP32", [-1, -1])
            assert model.outputs[0].name == "OUTPUT0"
        config = (await ask(server, pb.ModelConfigRequest(name="m"), pb.ModelConfigResponse)).config
        assert (config.name, config.backend, config.max_batch_size) == ("m", "identity", 8)


async def test_statistics() -> None:
    async with port() as server:
        [entry] = (await ask(server, pb.ModelStatisticsRequest(), pb.ModelStatisticsResponse)).model_stats
        counts = entry.name, entry.version, entry.last_inference, entry.inference_count, entry.execution_count
        assert counts == ("m", "1", 123, 3, 2)
        assert (entry.inference_stats.success.count, entry.inference_stats.success.ns) == (2, 7)
        assert entry.inference_stats.HasField("cache_miss")
        assert (entry.batch_stats[0].batch_size, entry.batch_stats[0].compute_infer.ns) == (2, 7)
        assert (entry.memory_usage[0].type, entry.memory_usage[0].byte_size) == ("CPU", 9)


async def test_statistics_of_responses() -> None:
    async with port() as server:
        [entry] = await server.services.diagnostics.statistics()
        row = ResponseStatistics(index=3, success=Duration(2, 7), cancel=Duration(1, 5))
        entry = msgspec.structs.replace(entry, responses=(row,))
        server.services.diagnostics.statistics = answering([entry])  # type: ignore[method-assign]  # one row more than the fake's
        [answered] = (await ask(server, pb.ModelStatisticsRequest(), pb.ModelStatisticsResponse)).model_stats
        assert list(answered.response_stats) == ["3"]
        found = answered.response_stats["3"]
        assert (found.success.count, found.success.ns, found.cancel.ns, found.fail.count) == (2, 7, 5, 0)


def answering(rows: list[Any]) -> Any:
    """A method of a service that answers `rows`."""

    async def answer(*_: object, **__: object) -> list[Any]:
        return rows

    return answer


async def test_a_thousand_models_do_not_hold_up_the_loop(loop_guard: object) -> None:
    async with port() as server:
        [entry], first = await server.services.diagnostics.statistics(), (await server.services.repository.index())[0]
        await ask(server, pb.ModelStatisticsRequest(), pb.ModelStatisticsResponse)  # what is made once is made now
        await ask(server, pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse)
        server.services.diagnostics.statistics = answering([entry] * 1000)  # type: ignore[method-assign]  # many of them
        server.services.repository.index = answering([first] * 1000)  # type: ignore[method-assign]
        assert len((await ask(server, pb.ModelStatisticsRequest(), pb.ModelStatisticsResponse)).model_stats) == 1000
        assert len((await ask(server, pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse)).models) == 1000


async def test_index() -> None:
    async with port() as server:
        index = await ask(server, pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse)
        rows = [(entry.name, entry.version, entry.state, entry.reason) for entry in index.models]
        assert rows == [("broken", "1", "UNAVAILABLE", "Internal: no"), ("m", "1", "READY", ""), ("never", "", "", "")]
        index = await ask(server, pb.RepositoryIndexRequest(ready=True), pb.RepositoryIndexResponse)
        assert [entry.name for entry in index.models] == ["m"]


async def test_load_and_unload() -> None:
    async with port() as server:
        repository = server.services.repository
        parameters = {"config": Parameter(string_param="{}"), "file:1/model.py": Parameter(bytes_param=b"\xff" * 300_000)}
        load = pb.RepositoryModelLoadRequest(model_name="m", parameters=parameters)
        await ask(server, load, pb.RepositoryModelLoadResponse)
        assert repository.loads == [LoadRequest(model_name="m", config_json="{}", files={"1/model.py": b"\xff" * 300_000})]
        await ask(server, pb.RepositoryModelUnloadRequest(model_name="m"), pb.RepositoryModelUnloadResponse)
        dependents = {"unload_dependents": Parameter(bool_param=True)}
        unload = pb.RepositoryModelUnloadRequest(model_name="m", parameters=dependents)
        await ask(server, unload, pb.RepositoryModelUnloadResponse)
        assert repository.unloads == [("m", False), ("m", True)]


async def test_a_cancelled_load_call_ends_its_task() -> None:
    async with port() as server:
        repository = server.services.repository
        repository.gate = trio.Event()
        call = server.begin("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m").SerializeToString())
        await repository.load_began.wait()
        assert server.nursery.child_tasks
        call.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not server.nursery.child_tasks
        assert not repository.loads


@pytest.mark.parametrize(("error", "status"), [(Unavailable("no"), Status.UNAVAILABLE), (Internal("no"), Status.INTERNAL)])
async def test_a_failed_load_is_answered_with_the_reason(error: Exception, status: Status) -> None:
    async with port() as server:
        server.services.repository.raises = error
        call = await server.call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m").SerializeToString())
        assert (call.status, call.message) == (status, "no")


async def test_a_bug_is_an_internal_error_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with port() as server:
        server.services.repository.raises = RuntimeError("a secret")
        call = await server.call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m").SerializeToString())
        assert (call.status, call.message) == (Status.INTERNAL, "unexpected error in the server, its log has the details")
        assert "a secret" in caplog.text


def _load(**parameters: Parameter) -> pb.RepositoryModelLoadRequest:
    return pb.RepositoryModelLoadRequest(model_name="m", parameters=parameters)


NO_REPOSITORY = "'repository_name' specification is not supported"
NO_SHARED_MEMORY = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (
            pb.ModelMetadataRequest(name="m", version="x"),
            Status.INVALID_ARGUMENT,
            (
                "failed to get model version from specified version string 'x' (details: stol), "
                "version should be an integral value > 0"
            ),
        ),
        (pb.ModelConfigRequest(name="x"), Status.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        (pb.ModelStatisticsRequest(name="x"), Status.INVALID_ARGUMENT, "requested model 'x' is not available"),
        (pb.RepositoryIndexRequest(repository_name="r"), Status.UNIMPLEMENTED, NO_REPOSITORY),
        (pb.RepositoryModelLoadRequest(repository_name="r"), Status.UNIMPLEMENTED, NO_REPOSITORY),
        (pb.RepositoryModelUnloadRequest(repository_name="r"), Status.UNIMPLEMENTED, NO_REPOSITORY),
        (_load(x=Parameter(string_param="1")), Status.INVALID_ARGUMENT, "unrecognized load parameter 'x'."),
        (
            _load(config=Parameter(int64_param=1)),
            Status.INVALID_ARGUMENT,
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            _load(**{"file:1/x": Parameter(string_param="1")}),
            Status.INVALID_ARGUMENT,
            "invalid value type for load parameter 'file:1/x', expected bytes_param.",
        ),
        (
            pb.RepositoryModelUnloadRequest(parameters={"unload_dependents": Parameter(int64_param=1)}),
            Status.INVALID_ARGUMENT,
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        ),
        (pb.TraceSettingRequest(model_name="x"), Status.INVALID_ARGUMENT, "Request for unknown model : x"),
        (
            pb.TraceSettingRequest(settings={"trace_level": pb.TraceSettingRequest.SettingValue(value=["TENSORS"])}),
            Status.INVALID_ARGUMENT,
            "Attempting to set invalid trace setting :trace file name is not given",
        ),
        *(
            (request, Status.UNIMPLEMENTED, NO_SHARED_MEMORY)
            for request in (
                pb.SystemSharedMemoryRegisterRequest(name="r", key="k", byte_size=1),
                pb.CudaSharedMemoryRegisterRequest(name="r"),
                pb.SystemSharedMemoryUnregisterRequest(),
                pb.CudaSharedMemoryUnregisterRequest(name="r"),
            )
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else None,
)
async def test_refusals(request_: Message, status: Status, text: str) -> None:
    await refused(request_, status, text)


@pytest.mark.parametrize(
    ("name", "value", "status", "text"),
    [
        ("log_info", LogValue(uint32_param=1), Status.INVALID_ARGUMENT, "expect boolean for 'log_info'"),
        ("log_error", LogValue(), Status.INVALID_ARGUMENT, "expect boolean for 'log_error'"),
        ("log_verbose_level", LogValue(bool_param=True), Status.INVALID_ARGUMENT, "expect int32 for 'log_verbose_level'"),
        ("log_format", LogValue(bool_param=True), Status.INVALID_ARGUMENT, "expect string for 'log_format'"),
        (
            "log_file",
            LogValue(string_param="x"),
            Status.UNIMPLEMENTED,
            "log file location can not be updated through network protocol",
        ),
    ],
)
async def test_wrong_log_settings(name: str, value: LogValue, status: Status, text: str) -> None:
    await refused(pb.LogSettingsRequest(settings={name: value}), status, text)


async def test_log_settings() -> None:
    async with port() as server:
        changes = {
            "log_info": LogValue(bool_param=False),
            "log_verbose_level": LogValue(uint32_param=2),
            "log_format": LogValue(string_param="ISO8601"),
            "nosuch": LogValue(),
        }
        for settings in (changes, {}):
            answer = (await ask(server, pb.LogSettingsRequest(settings=settings), pb.LogSettingsResponse)).settings
            assert {name: str(value).strip() for name, value in answer.items()} == {
                "log_file": 'string_param: ""',
                "log_info": "bool_param: false",
                "log_warning": "bool_param: true",
                "log_error": "bool_param: true",
                "log_verbose_level": "uint32_param: 2",
                "log_format": 'string_param: "ISO8601"',
            }


async def test_trace_settings_are_the_defaults() -> None:
    async with port() as server:
        for model in ("", "m"):
            settings = (await ask(server, pb.TraceSettingRequest(model_name=model), pb.TraceSettingResponse)).settings
            assert {name: list(value.value) for name, value in settings.items()} == {
                "trace_level": ["OFF"],
                "trace_rate": ["1000"],
                "trace_count": ["-1"],
                "log_frequency": ["0"],
                "trace_file": [""],
                "trace_mode": ["triton"],
            }


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\x05a", b"\x0a\x02\xff\xfe"])
async def test_bytes_that_are_no_request(garbage: bytes) -> None:
    async with port() as server:
        call = await server.call("ModelMetadata", garbage)
        assert (call.status, call.message) == (Status.INTERNAL, "Unable to parse request")


async def test_every_method_has_a_handler() -> None:
    [service] = pb.DESCRIPTOR.services_by_name.values()
    async with port() as server:
        for method in service.methods:
            assert f"/{service.full_name}/{method.name}" in server.handlers


async def test_requests_are_bounded_before_they_are_read() -> None:
    async with port() as server:
        most = limits.GRPC_CONTROL_BYTES_MAX
        too_long = await server.call("ModelReady", bytes(most + 1))
        text = f"a ModelReady request of {most + 1} bytes, at most {most} are accepted"
        assert (too_long.status, too_long.message) == (Status.INVALID_ARGUMENT, text)
        for method, field, most in (
            ("LogSettings", b"\x0a\x00", limits.GRPC_CONTROL_FIELDS_MAX),
            ("LogSettings", b"\x0a\x02\x12\x00", limits.GRPC_CONTROL_FIELDS_MAX),
            ("ModelReady", b"\x78\x00", limits.GRPC_CONTROL_FIELDS_MAX),
            ("RepositoryModelLoad", b"\x1a\x00", limits.GRPC_LOAD_FIELDS_MAX),
            ("RepositoryModelLoad", b"\x1a\x02\x12\x00", limits.GRPC_LOAD_FIELDS_MAX),
        ):
            call = await server.call(method, field * (most + 1))
            text = f"a {method} request with more than {most} fields, at most as many are accepted"
            assert (call.status, call.message) == (Status.INVALID_ARGUMENT, text)


async def test_the_worst_requests_do_not_hold_up_the_loop(loop_guard: object) -> None:
    settings = pb.LogSettingsRequest()
    for number in range(limits.GRPC_CONTROL_FIELDS_MAX // 4):
        settings.settings[f"{number}"].bool_param = True
    names = pb.ModelReadyRequest(name="x" * 60_000).SerializeToString()
    files = {f"file:1/{number}": Parameter(bytes_param=b"x") for number in range(limits.GRPC_LOAD_FIELDS_MAX // 4 - 1)}
    load = pb.RepositoryModelLoadRequest(model_name="m", parameters=files)
    await trio.lowlevel.checkpoint()
    async with port() as server:
        assert (await server.call("LogSettings", settings.SerializeToString())).status is Status.OK
        assert (await server.call("ModelReady", names)).status is Status.OK
        assert (await server.call("RepositoryModelLoad", load.SerializeToString())).status is Status.OK
        [loaded] = server.services.repository.loads
        assert len(loaded.files) == len(files)
