"""Health and reflection."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from google.protobuf import descriptor_pb2
from grpclib.const import Status

from tpy import limits
from tpy._proto import message_class
from tpy.frontends.grpc.calls import OLDER_REFLECTION_PATH, REFLECTION_PATH

from .fakes import FakePort, FakeStreamCall, port

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
HealthRequest, HealthResponse = (message_class(f"grpc.health.v1.HealthCheck{kind}") for kind in ("Request", "Response"))
ReflectionRequest, ReflectionResponse = (
    message_class(f"grpc.reflection.v1.ServerReflection{kind}") for kind in ("Request", "Response")
)
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Readiness:
    """A ReadinessService that tells a change when the test does."""

    def __init__(self) -> None:
        self.revision = 0
        self._changed = trio.Event()

    def change(self) -> None:
        self.revision += 1
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self, seen: int) -> int:
        while seen == self.revision:
            await self._changed.wait()
        return self.revision


def named(service: str) -> bytes:
    return bytes(HealthRequest(service=service).SerializeToString())


def statuses(call: FakeStreamCall) -> list[int]:
    return [HealthResponse.FromString(response).status for response in call.responses]


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "m", "m/1"])
@pytest.mark.parametrize("ready", [True, False])
async def test_check(service: str, ready: bool) -> None:
    async with port() as server:
        server.services.repository.ready = server.services.repository.model_is_ready = ready
        call = await server.call(CHECK, named(service))
        assert HealthResponse.FromString(call.reply_bytes).status == (SERVING if ready else NOT_SERVING)


async def test_check_of_what_is_not_there() -> None:
    async with port() as server:
        for ready, status in ((True, SERVING), (False, NOT_SERVING)):
            server.services.repository.ready = ready
            for service in ("nosuch", "m/x", "/"):
                call = await server.call(CHECK, named(service))
                assert HealthResponse.FromString(call.reply_bytes).status == status, "the server's, as in Triton"
        call = await server.call(CHECK, named("broken"))  # known, but nothing of it is loaded
        assert HealthResponse.FromString(call.reply_bytes).status == NOT_SERVING


async def test_watch_sends_changes_only() -> None:
    async with port() as server:
        readiness = server.services.readiness = Readiness()
        calls = []
        for service in ("", "m", "nosuch"):
            calls.append(server.open(WATCH))
            calls[-1].request(named(service))
        await trio.testing.wait_all_tasks_blocked()
        readiness.change()
        await trio.testing.wait_all_tasks_blocked()
        assert [statuses(call) for call in calls] == [[SERVING], [SERVING], [SERVICE_UNKNOWN]]
        server.services.repository.ready = server.services.repository.model_is_ready = False
        readiness.change()
        await trio.testing.wait_all_tasks_blocked()
        assert [statuses(call) for call in calls] == [[SERVING, NOT_SERVING], [SERVING, NOT_SERVING], [SERVICE_UNKNOWN]]
        for call in calls:
            call.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not server.nursery.child_tasks


async def test_watch_polls_without_announced_changes(mock_clock: trio.testing.MockClock) -> None:
    async with port() as server:
        call = server.open(WATCH)
        call.request(named(""))
        await call.wait_responses(1)
        server.services.repository.ready = False
        began = trio.current_time()
        await call.wait_responses(2)
        assert statuses(call) == [SERVING, NOT_SERVING]
        assert trio.current_time() - began <= limits.GRPC_HEALTH_POLL_S
        call.cancel()


async def test_a_cancelled_watch_that_waits_for_its_reader_leaves_nothing() -> None:
    async with port() as server:
        server.services.readiness = Readiness()
        call = server.open(WATCH, window=0)
        call.request(named(""))
        await trio.testing.wait_all_tasks_blocked()
        call.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not server.nursery.child_tasks


async def test_a_shutdown_is_announced_and_ends_the_calls() -> None:
    async with port() as server:
        readiness = server.services.readiness = Readiness()
        watch, reflection = server.open(WATCH), server.open(REFLECTION_PATH)
        watch.request(named(""))
        await watch.wait_responses(1)
        server.stop.set()
        server.services.repository.ready = False
        readiness.change()
        for call in (watch, reflection):
            await call.ended.wait()
            assert call.status is Status.OK
        assert statuses(watch) == [SERVING, NOT_SERVING]


async def test_a_watch_without_request_is_refused() -> None:
    async with port() as server:
        call = server.open(WATCH)
        call.half_close()
        await call.ended.wait()
        assert (call.status, call.message) == (Status.UNIMPLEMENTED, "the call has no request message, expected one")


async def reflect(server: FakePort, path: str = REFLECTION_PATH, **asked: object) -> object:
    call = server.open(path)
    call.request(bytes(ReflectionRequest(host="h", **asked).SerializeToString()))
    call.half_close()
    await call.ended.wait()
    assert call.status is Status.OK
    [response] = call.responses
    answer = ReflectionResponse.FromString(response)
    assert (answer.valid_host, answer.original_request.host) == ("h", "h")
    return answer


@pytest.mark.parametrize("path", [REFLECTION_PATH, OLDER_REFLECTION_PATH])
async def test_reflection_lists_the_services(path: str) -> None:
    async with port() as server:
        answer = await reflect(server, path, list_services="")
        names = [service.name for service in answer.list_services_response.service]  # type: ignore[attr-defined]
        assert names == [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "inference.GRPCInferenceService",
            "tpy.rollout.v1.RolloutService",
        ]


@pytest.mark.parametrize(
    "asked",
    [
        {"file_containing_symbol": "inference.GRPCInferenceService"},
        {"file_containing_symbol": "inference.ModelInferRequest.InferInputTensor"},
        {"file_containing_symbol": "inference.GRPCInferenceService.ModelInfer"},
        {"file_containing_symbol": "inference.ModelInferRequest.raw_input_contents"},
        {"file_by_filename": "grpc_service.proto"},
    ],
)
async def test_reflection_gives_a_file_and_what_it_needs(asked: dict[str, str]) -> None:
    async with port() as server:
        answer = await reflect(server, **asked)
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(file).name
            for file in answer.file_descriptor_response.file_descriptor_proto  # type: ignore[attr-defined]
        ]
        assert files == ["grpc_service.proto", "model_config.proto"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"file_containing_symbol": "nosuch"}, Status.NOT_FOUND),
        ({"file_containing_symbol": "inference.GRPCInferenceService.NoSuch"}, Status.NOT_FOUND),
        ({"file_containing_symbol": "inference.DataType.NoSuch"}, Status.NOT_FOUND),
        ({"file_by_filename": "nosuch.proto"}, Status.NOT_FOUND),
        ({"all_extension_numbers_of_type": "nosuch"}, Status.NOT_FOUND),
        ({"file_containing_extension": {"containing_type": "x", "extension_number": 1}}, Status.NOT_FOUND),
        ({}, Status.INVALID_ARGUMENT),
    ],
)
async def test_reflection_reports_missing_names(asked: dict[str, object], status: Status) -> None:
    async with port() as server:
        answer = await reflect(server, **asked)
        assert answer.error_response.error_code == status.value  # type: ignore[attr-defined]
        assert answer.error_response.error_message  # type: ignore[attr-defined]


async def test_reflection_knows_no_extensions() -> None:
    async with port() as server:
        answer = await reflect(server, all_extension_numbers_of_type="inference.ModelConfig")
        assert answer.all_extension_numbers_response.base_type_name == "inference.ModelConfig"  # type: ignore[attr-defined]
