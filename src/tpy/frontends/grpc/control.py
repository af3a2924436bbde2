"""Every method of GRPCInferenceService but inference: from request to response, by asking the services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, cast

import betterproto2
import trio

from tpy import limits
from tpy._proto import message_class
from tpy._proto.messages import inference as pb
from tpy.config import ModelConfig, to_message
from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound, Unsupported
from tpy.frontends.grpc.codec import parse_version
from tpy.frontends.grpc.service_adapter import Encoded
from tpy.frontends.threads import run_in_thread
from tpy.messages import (
    CudaRegistration,
    IndexEntry,
    LoadRequest,
    LogSettings,
    ModelStatistics,
    RegionKind,
    SystemRegistration,
    TensorDescription,
)
from tpy.messages.statistics import Duration
from tpy.regions import registered
from tpy.services import Services

_CONFIG_RESPONSE = message_class("inference.ModelConfigResponse")
Response = TypeVar("Response", bound=betterproto2.Message)

_SERVICE = "/inference.GRPCInferenceService/"
INFER_PATH: Final = f"{_SERVICE}ModelInfer"
STREAM_INFER_PATH: Final = f"{_SERVICE}ModelStreamInfer"

APIS: Final = {
    f"{_SERVICE}{method}": api
    for api, methods in {
        "health": ("ServerLive", "ServerReady", "ModelReady"),
        "metadata": ("ServerMetadata", "ModelMetadata"),
        "shared-memory": (
            "SystemSharedMemoryStatus",
            "SystemSharedMemoryRegister",
            "SystemSharedMemoryUnregister",
            "CudaSharedMemoryStatus",
            "CudaSharedMemoryRegister",
            "CudaSharedMemoryUnregister",
        ),
        "model-config": ("ModelConfig",),
        "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
        "statistics": ("ModelStatistics",),
        "trace": ("TraceSetting",),
        "logging": ("LogSettings",),
    }.items()
    for method in methods
}
"""The restricted protocol of each method."""

CHANGING: Final = frozenset(
    f"{_SERVICE}{method}"
    for method in (
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    )
)
"""The methods that may change something."""

_FILE_PREFIX: Final = "file:"
_LOG_FLAGS: Final = ("log_info", "log_warning", "log_error")


class ControlService(pb.GrpcInferenceServiceBase):
    """The methods of one gRPC port. They raise TpyError; statuses are the caller's business."""

    def __init__(self, services: Services, threads: trio.CapacityLimiter) -> None:
        self._services = services
        self._threads = threads

    # Health

    async def server_live(self, message: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._services.repository.server_live())

    async def server_ready(self, message: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._services.repository.server_ready())

    async def model_ready(self, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        version = parse_version(message.version)
        return pb.ModelReadyResponse(ready=await self._services.repository.model_ready(message.name, version))

    # Descriptions

    async def server_metadata(self, message: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        metadata = self._services.diagnostics.server_metadata()
        return pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=list(metadata.extensions))

    async def model_metadata(self, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        asked = parse_version(message.version)
        description = self._services.inference.resolve(message.name, asked).description
        versions = self._services.inference.ready_versions(message.name) if asked is None else (asked,)
        return await self._made(
            lambda: pb.ModelMetadataResponse(
                name=description.name,
                versions=[str(number) for number in versions],
                platform=description.platform,
                inputs=[_tensor(tensor) for tensor in description.inputs],
                outputs=[_tensor(tensor) for tensor in description.outputs],
            ),
            entries=len(versions) + len(description.inputs) + len(description.outputs),
        )

    async def model_config(self, message: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        forms = self._services.inference.config_forms(message.name, parse_version(message.version))
        return cast(pb.ModelConfigResponse, Encoded(await forms.encoded(_config_response)))

    async def model_statistics(self, message: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        found = await self._services.diagnostics.statistics(message.name, parse_version(message.version))
        return await self._made(
            lambda: pb.ModelStatisticsResponse(model_stats=[_statistics(entry) for entry in found]),
            entries=sum(1 + len(entry.batches) + len(entry.responses) for entry in found),
        )

    # Repository

    async def repository_index(self, message: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        _refuse_repository(message.repository_name)
        entries = await self._services.repository.index(ready_only=message.ready)
        return await self._made(
            lambda: pb.RepositoryIndexResponse(models=[_index_entry(entry) for entry in entries]), entries=len(entries)
        )

    async def repository_model_load(self, message: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        _refuse_repository(message.repository_name)
        await self._services.repository.load(_load_request(message))
        return pb.RepositoryModelLoadResponse()

    async def repository_model_unload(self, message: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        _refuse_repository(message.repository_name)
        dependents = False
        parameter = message.parameters.get("unload_dependents")
        if parameter is not None:
            if parameter.bool_param is None:
                raise InvalidArgument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
            dependents = parameter.bool_param
        await self._services.repository.unload(message.model_name, unload_dependents=dependents)
        return pb.RepositoryModelUnloadResponse()

    # Settings

    async def log_settings(self, message: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        diagnostics = self._services.diagnostics
        if message.settings:
            await diagnostics.update_log_settings(_changed(diagnostics.log_settings(), message.settings))
        settings = diagnostics.log_settings()
        value = pb.LogSettingsResponseSettingValue
        return pb.LogSettingsResponse(
            settings={
                "log_file": value(string_param=settings.log_file),
                "log_info": value(bool_param=settings.log_info),
                "log_warning": value(bool_param=settings.log_warning),
                "log_error": value(bool_param=settings.log_error),
                "log_verbose_level": value(uint32_param=settings.log_verbose_level),
                "log_format": value(string_param=settings.log_format),
            }
        )

    async def trace_setting(self, message: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        if message.model_name:
            try:
                self._services.inference.ready_versions(message.model_name)
            except NotFound:  # another code than elsewhere, as in Triton
                raise InvalidArgument(f"Request for unknown model : {echo(message.model_name)}") from None
        updates = {name: given.value for name, given in message.settings.items()}
        settings = await self._services.diagnostics.trace_settings(message.model_name, updates or None)
        return pb.TraceSettingResponse(
            settings={name: pb.TraceSettingResponseSettingValue(value=list(texts)) for name, texts in settings.items()}
        )

    # Shared memory

    async def system_shared_memory_status(
        self, message: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        regions = registered(self._services.shared_memory.regions, RegionKind.SYSTEM, message.name)
        shown = pb.SystemSharedMemoryStatusResponseRegionStatus
        return await self._made(
            lambda: pb.SystemSharedMemoryStatusResponse(
                regions={
                    one.name: shown(name=one.name, key=one.key, offset=one.offset, byte_size=one.byte_size) for one in regions
                }
            ),
            entries=len(regions),
        )

    async def system_shared_memory_register(
        self, message: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        asked = SystemRegistration(name=message.name, key=message.key, offset=message.offset, byte_size=message.byte_size)
        await self._services.shared_memory.register(asked)
        return pb.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(
        self, message: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        await self._services.shared_memory.unregister(RegionKind.SYSTEM, message.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(self, message: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
        regions = registered(self._services.shared_memory.regions, RegionKind.CUDA, message.name)
        shown = pb.CudaSharedMemoryStatusResponseRegionStatus
        return await self._made(
            lambda: pb.CudaSharedMemoryStatusResponse(
                regions={one.name: shown(name=one.name, device_id=one.device_id, byte_size=one.byte_size) for one in regions}
            ),
            entries=len(regions),
        )

    async def cuda_shared_memory_register(
        self, message: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        asked = CudaRegistration(
            name=message.name, raw_handle=message.raw_handle, device_id=message.device_id, byte_size=message.byte_size
        )
        await self._services.shared_memory.register(asked)
        return pb.CudaSharedMemoryRegisterResponse()

    async def cuda_shared_memory_unregister(
        self, message: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        await self._services.shared_memory.unregister(RegionKind.CUDA, message.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    async def _made(self, make: Callable[[], Response], *, entries: int) -> Response:
        """The response that `make` makes; one of many entries in a thread, which encodes it, too."""
        if entries <= limits.GRPC_INLINE_ENTRIES_MAX:
            return make()
        return cast(Response, Encoded(await run_in_thread(lambda: bytes(make()), limiter=self._threads)))


def _config_response(config: ModelConfig) -> bytes:
    """The bytes of a ModelConfigResponse."""
    response = _CONFIG_RESPONSE(config=to_message(config))
    content: bytes = response.SerializeToString(deterministic=True)
    return content


def _tensor(tensor: TensorDescription) -> pb.ModelMetadataResponseTensorMetadata:
    return pb.ModelMetadataResponseTensorMetadata(name=tensor.name, datatype=tensor.datatype.value, shape=list(tensor.shape))


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


def _statistics(entry: ModelStatistics) -> pb.ModelStatistics:
    inference = entry.inference
    return pb.ModelStatistics(
        name=entry.name,
        version=str(entry.version),
        last_inference=entry.last_inference_ms,
        inference_count=entry.inference_count,
        execution_count=entry.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(inference.success),
            fail=_duration(inference.fail),
            queue=_duration(inference.queue),
            compute_input=_duration(inference.compute_input),
            compute_infer=_duration(inference.compute_infer),
            compute_output=_duration(inference.compute_output),
            cache_hit=_duration(inference.cache_hit),
            cache_miss=_duration(inference.cache_miss),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=batch.batch_size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for batch in entry.batches
        ],
        response_stats={
            str(row.index): pb.InferResponseStatistics(
                compute_infer=_duration(row.compute_infer),
                compute_output=_duration(row.compute_output),
                success=_duration(row.success),
                fail=_duration(row.fail),
                empty_response=_duration(row.empty_response),
                cancel=_duration(row.cancel),
            )
            for row in entry.responses
        },
        memory_usage=[pb.MemoryUsage(type=usage.kind, id=usage.id, byte_size=usage.byte_size) for usage in entry.memory_usage],
    )


def _index_entry(entry: IndexEntry) -> pb.RepositoryIndexResponseModelIndex:
    return pb.RepositoryIndexResponseModelIndex(
        name=entry.name,
        version="" if entry.version is None else str(entry.version),
        state="" if entry.state is None else entry.state.value,
        reason=entry.reason,
    )


def _refuse_repository(repository: str) -> None:
    if repository:
        raise Unsupported("'repository_name' specification is not supported")


LARGE: Final = frozenset({f"{_SERVICE}RepositoryModelLoad"})
"""The methods whose requests may be large: with the files of a model."""


def _load_request(message: pb.RepositoryModelLoadRequest) -> LoadRequest:
    """The load call in `message`. Raises InvalidArgument for a parameter that is none or has another type."""
    config: str | None = None
    files: dict[str, bytes] = {}
    size = 0
    for key, parameter in message.parameters.items():
        if key == "config":
            if parameter.string_param is None:
                raise InvalidArgument("invalid value type for load parameter 'config', expected string_param.")
            config = parameter.string_param
        elif key.startswith(_FILE_PREFIX):
            if parameter.bytes_param is None:
                raise InvalidArgument(f"invalid value type for load parameter '{echo(key)}', expected bytes_param.")
            size += len(parameter.bytes_param)
            if size > limits.LOAD_OVERRIDE_BYTES_MAX:
                raise InvalidArgument(f"file overrides exceed {limits.LOAD_OVERRIDE_BYTES_MAX} bytes")
            files[key.removeprefix(_FILE_PREFIX)] = parameter.bytes_param
        else:
            raise InvalidArgument(f"unrecognized load parameter '{echo(key)}'.")
    return LoadRequest(model_name=message.model_name, config_json=config, files=files)


def _changed(settings: LogSettings, changes: dict[str, pb.LogSettingsRequestSettingValue]) -> LogSettings:
    """`settings` with `changes` applied; unknown ones change nothing, as in Triton. Raises Unsupported for a log file
    and InvalidArgument for a wrong type."""
    if "log_file" in changes:
        raise Unsupported("log file location can not be updated through network protocol")
    flags = {name: getattr(settings, name) for name in _LOG_FLAGS}
    for name in _LOG_FLAGS:
        if name in changes:
            flag = changes[name].bool_param
            if flag is None:
                raise InvalidArgument(f"expect boolean for '{name}'")
            flags[name] = flag
    level: int | None = settings.log_verbose_level
    if "log_verbose_level" in changes:
        level = changes["log_verbose_level"].uint32_param
    if level is None:
        raise InvalidArgument("expect int32 for 'log_verbose_level'")
    log_format: str | None = settings.log_format
    if "log_format" in changes:
        log_format = changes["log_format"].string_param
    if log_format is None:
        raise InvalidArgument("expect string for 'log_format'")
    return LogSettings(log_file=settings.log_file, log_verbose_level=level, log_format=log_format, **flags)
