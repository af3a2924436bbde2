"""Every method of GRPCInferenceService but inference: from request to response, by asking the services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import trio
from google.protobuf.message import Message

from tpy import limits
from tpy._proto import messages
from tpy.config import ModelConfig, to_message
from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound, Unsupported
from tpy.frontends.documents import index_document, statistics_document, tensor_document
from tpy.frontends.grpc.codec import parse_version
from tpy.frontends.grpc.methods import Encoded, serialised
from tpy.frontends.threads import run_in_thread
from tpy.messages import (
    CudaRegistration,
    LoadRequest,
    LogSettings,
    RegionKind,
    SystemRegistration,
)
from tpy.regions import registered
from tpy.services import Services

pb = messages("grpc_service.proto")

_SERVICE = "/inference.GRPCInferenceService/"

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
_LOG_VALUES: Final = (
    ("log_info", "bool_param", "boolean"),
    ("log_warning", "bool_param", "boolean"),
    ("log_error", "bool_param", "boolean"),
    ("log_verbose_level", "uint32_param", "int32"),
    ("log_format", "string_param", "string"),
)
"""The settings that a call can change, the field that has the value, and Triton's word for its type."""


class ControlService:
    """The methods of one gRPC port. They raise TpyError; statuses are the caller's business."""

    def __init__(self, services: Services, threads: trio.CapacityLimiter) -> None:
        self._services = services
        self._threads = threads

    # Health

    async def server_live(self, message: Any) -> Message:
        return pb.ServerLiveResponse(live=self._services.repository.server_live())

    async def server_ready(self, message: Any) -> Message:
        return pb.ServerReadyResponse(ready=self._services.repository.server_ready())

    async def model_ready(self, message: Any) -> Message:
        version = parse_version(message.version)
        return pb.ModelReadyResponse(ready=await self._services.repository.model_ready(message.name, version))

    # Descriptions

    async def server_metadata(self, message: Any) -> Message:
        metadata = self._services.diagnostics.server_metadata()
        return pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=list(metadata.extensions))

    async def model_metadata(self, message: Any) -> Message:
        asked = parse_version(message.version)
        description = self._services.inference.resolve(message.name, asked).description
        versions = self._services.inference.ready_versions(message.name) if asked is None else (asked,)
        return await self._made(
            lambda: pb.ModelMetadataResponse(
                name=description.name,
                versions=[str(number) for number in versions],
                platform=description.platform,
                inputs=[tensor_document(tensor) for tensor in description.inputs],
                outputs=[tensor_document(tensor) for tensor in description.outputs],
            ),
            entries=len(versions) + len(description.inputs) + len(description.outputs),
        )

    async def model_config(self, message: Any) -> Encoded:
        forms = self._services.inference.config_forms(message.name, parse_version(message.version))
        return Encoded(await forms.encoded(_config_response))

    async def model_statistics(self, message: Any) -> Message:
        found = await self._services.diagnostics.statistics(message.name, parse_version(message.version))
        return await self._made(
            lambda: pb.ModelStatisticsResponse(model_stats=[statistics_document(entry) for entry in found]),
            entries=sum(1 + len(entry.batches) + len(entry.responses) for entry in found),
        )

    # Repository

    async def repository_index(self, message: Any) -> Message:
        _refuse_repository(message.repository_name)
        entries = await self._services.repository.index(ready_only=message.ready)
        return await self._made(
            lambda: pb.RepositoryIndexResponse(models=[index_document(entry) for entry in entries]), entries=len(entries)
        )

    async def repository_model_load(self, message: Any) -> Message:
        _refuse_repository(message.repository_name)
        if message.ByteSize() > limits.GRPC_INLINE_CONTROL_BYTES_MAX:
            asked = await run_in_thread(_load_request, message, limiter=self._threads)
        else:
            asked = _load_request(message)
        del message  # a load may take minutes: do not keep its files twice that long
        await self._services.repository.load(asked)
        return pb.RepositoryModelLoadResponse()

    async def repository_model_unload(self, message: Any) -> Message:
        _refuse_repository(message.repository_name)
        dependents = False
        if "unload_dependents" in message.parameters:
            parameter = message.parameters["unload_dependents"]
            if not parameter.HasField("bool_param"):
                raise InvalidArgument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
            dependents = parameter.bool_param
        await self._services.repository.unload(message.model_name, unload_dependents=dependents)
        return pb.RepositoryModelUnloadResponse()

    # Settings

    async def log_settings(self, message: Any) -> Message:
        diagnostics = self._services.diagnostics
        if message.settings:
            await diagnostics.update_log_settings(_changed(diagnostics.log_settings(), message.settings))
        settings = diagnostics.log_settings()
        values = {name: {field: getattr(settings, name)} for name, field, _ in _LOG_VALUES}
        return pb.LogSettingsResponse(settings={"log_file": {"string_param": settings.log_file}, **values})

    async def trace_setting(self, message: Any) -> Message:
        if message.model_name:
            try:
                self._services.inference.ready_versions(message.model_name)
            except NotFound:  # another code than elsewhere, as in Triton
                raise InvalidArgument(f"Request for unknown model : {echo(message.model_name)}") from None
        updates = {name: list(given.value) for name, given in message.settings.items()}
        settings = await self._services.diagnostics.trace_settings(message.model_name, updates or None)
        return pb.TraceSettingResponse(settings={name: {"value": texts} for name, texts in settings.items()})

    # Shared memory

    async def system_shared_memory_status(self, message: Any) -> Message:
        regions = registered(self._services.shared_memory.regions, RegionKind.SYSTEM, message.name)
        return await self._made(
            lambda: pb.SystemSharedMemoryStatusResponse(
                regions={
                    one.name: {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.byte_size}
                    for one in regions
                }
            ),
            entries=len(regions),
        )

    async def system_shared_memory_register(self, message: Any) -> Message:
        asked = SystemRegistration(name=message.name, key=message.key, offset=message.offset, byte_size=message.byte_size)
        await self._services.shared_memory.register(asked)
        return pb.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(self, message: Any) -> Message:
        await self._services.shared_memory.unregister(RegionKind.SYSTEM, message.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(self, message: Any) -> Message:
        regions = registered(self._services.shared_memory.regions, RegionKind.CUDA, message.name)
        return await self._made(
            lambda: pb.CudaSharedMemoryStatusResponse(
                regions={one.name: {"name": one.name, "device_id": one.device_id, "byte_size": one.byte_size} for one in regions}
            ),
            entries=len(regions),
        )

    async def cuda_shared_memory_register(self, message: Any) -> Message:
        asked = CudaRegistration(
            name=message.name, raw_handle=message.raw_handle, device_id=message.device_id, byte_size=message.byte_size
        )
        await self._services.shared_memory.register(asked)
        return pb.CudaSharedMemoryRegisterResponse()

    async def cuda_shared_memory_unregister(self, message: Any) -> Message:
        await self._services.shared_memory.unregister(RegionKind.CUDA, message.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    async def _made(self, make: Callable[[], Message], *, entries: int) -> Message | Encoded:
        """The response that `make` makes; one of many entries in a thread, which encodes it, too."""
        if entries <= limits.GRPC_INLINE_ENTRIES_MAX:
            return make()
        return Encoded(await run_in_thread(lambda: serialised(make()), limiter=self._threads))


def _config_response(config: ModelConfig) -> bytes:
    """The bytes of a ModelConfigResponse."""
    return serialised(pb.ModelConfigResponse(config=to_message(config)))


def _refuse_repository(repository: str) -> None:
    if repository:
        raise Unsupported("'repository_name' specification is not supported")


LARGE: Final = frozenset({f"{_SERVICE}RepositoryModelLoad"})
"""The methods whose requests may be large: with the files of a model."""


def _load_request(message: Any) -> LoadRequest:
    """The load call in `message`. Raises InvalidArgument for a parameter that is unknown or has another type."""
    config: str | None = None
    files: dict[str, bytes] = {}
    size = 0
    for key, parameter in message.parameters.items():
        if key == "config":
            if not parameter.HasField("string_param"):
                raise InvalidArgument("invalid value type for load parameter 'config', expected string_param.")
            config = parameter.string_param
        elif key.startswith(_FILE_PREFIX):
            if not parameter.HasField("bytes_param"):
                raise InvalidArgument(f"invalid value type for load parameter '{echo(key)}', expected bytes_param.")
            content = parameter.bytes_param  # reading it copies it
            size += len(content)
            if size > limits.LOAD_OVERRIDE_BYTES_MAX:
                raise InvalidArgument(f"file overrides exceed {limits.LOAD_OVERRIDE_BYTES_MAX} bytes")
            files[key.removeprefix(_FILE_PREFIX)] = content
        else:
            raise InvalidArgument(f"unrecognized load parameter '{echo(key)}'.")
    return LoadRequest(model_name=message.model_name, config_json=config, files=files)


def _changed(settings: LogSettings, changes: Mapping[str, Any]) -> LogSettings:
    """`settings` with `changes` applied; unknown ones change nothing, as in Triton. Raises Unsupported for a log file
    and InvalidArgument for a wrong type."""
    if "log_file" in changes:
        raise Unsupported("log file location can not be updated through network protocol")
    values: dict[str, Any] = {}
    for name, field, kind in _LOG_VALUES:
        if name in changes:
            if not changes[name].HasField(field):
                raise InvalidArgument(f"expect {kind} for '{name}'")
            values[name] = getattr(changes[name], field)
    return msgspec.structs.replace(settings, **values)
