"""Questions to a server beside the load: metadata, configuration and statistics of a model, over the protocol of the load."""

from __future__ import annotations

import base64
import select
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from tpy.limits.loading import LOAD_ANSWER_S_MAX
from tpy.messages.statistics import Duration, InferenceStatistics
from tpy_tools.load.asking import NoReply, ask
from tpy_tools.load.calls import error_text, model_path
from tpy_tools.load.core.answers import AnswerPart, BrokenAnswer
from tpy_tools.load.links import Http2Link, Target, tls_context

_OK = 200
_SERVICE = "/inference.GRPCInferenceService/"


class ServerError(Exception):
    """The server could not be asked, or answered with an error. `status` 0: no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class TensorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output as the metadata describe it."""

    name: str
    datatype: str
    shape: tuple[int, ...] = ()


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    versions: tuple[str, ...] = ()
    inputs: tuple[TensorFacts, ...] = ()
    outputs: tuple[TensorFacts, ...] = ()


class _ConfigInput(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    optional: bool = False


class _Policy(msgspec.Struct, frozen=True, kw_only=True):
    decoupled: bool = False


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    max_batch_size: int = 0
    input: tuple[_ConfigInput, ...] = ()
    model_transaction_policy: _Policy = _Policy()
    sequence_batching: Mapping[str, Any] | None = None
    ensemble_scheduling: Mapping[str, Any] | None = None


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A model, as far as a client that loads it has to know it. Shapes are without the batch dimension."""

    name: str
    version: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    optional: frozenset[str]
    max_batch_size: int
    decoupled: bool
    sequences: bool
    members: tuple[str, ...] = ()
    """The models of an ensemble."""


class ServerStatistics(InferenceStatistics, frozen=True, kw_only=True):
    """The statistics of all versions of a model together: successes and failures, the parts of a request's time, and counts."""

    inferences: int = 0
    executions: int = 0

    def since(self, before: ServerStatistics) -> ServerStatistics:
        """The difference to an earlier value."""
        parts = {name: getattr(self, name).since(getattr(before, name)) for name in _PARTS}
        return ServerStatistics(
            **parts, inferences=self.inferences - before.inferences, executions=self.executions - before.executions
        )

    def plus(self, other: ServerStatistics) -> ServerStatistics:
        """Both together."""
        zero = ServerStatistics()
        return self.since(zero.since(other))


_PARTS = InferenceStatistics.__struct_fields__


class MeasuredServer:
    """One server. Every call is a new connection. Raises ServerError."""

    def __init__(self, target: Target, headers: Mapping[str, str] | None = None) -> None:
        self._target = target
        self._headers = dict(headers or {})

    @property
    def _grpc(self) -> bool:
        return self._target.protocol.startswith("grpc")

    def model(self, name: str, version: str = "") -> ModelFacts:
        """Metadata and configuration."""
        if self._grpc:
            metadata = self._call("ModelMetadata", "ModelMetadataRequest", name=name, version=version)
            config = self._call("ModelConfig", "ModelConfigRequest", name=name, version=version).get("config", {})
        else:
            metadata = self._get(model_path(name, version))
            config = self._get(f"{model_path(name, version)}/config")
        try:
            return _facts(
                msgspec.convert(metadata, _Metadata, strict=False), msgspec.convert(config, _Config, strict=False), version
            )
        except msgspec.ValidationError as error:
            raise ServerError(f"the metadata of {name} cannot be read: {error}") from error

    def statistics(self, name: str, version: str = "") -> ServerStatistics:
        """The statistics of a model."""
        if self._grpc:
            document = self._call("ModelStatistics", "ModelStatisticsRequest", name=name, version=version)
        else:
            document = self._get(f"{model_path(name, version)}/stats")
        total = ServerStatistics()
        for entry in document.get("model_stats", []):
            durations = {part: Duration(*_pair(entry.get("inference_stats", {}).get(part, {}))) for part in _PARTS}
            counts = ServerStatistics(
                **durations,
                inferences=int(entry.get("inference_count", 0)),
                executions=int(entry.get("execution_count", 0)),
            )
            total = total.plus(counts)
        return total

    def get(self, path: str) -> dict[str, Any]:
        """The document at a path of HTTP."""
        return self._get(path)

    def post(self, path: str, document: object) -> dict[str, Any]:
        """A document sent to a path of HTTP, and the answer."""
        return self._ask("POST", path, orjson.dumps(document))

    def register_system(self, name: str, key: str, size: int) -> None:
        """Register a region of system shared memory."""
        if self._grpc:
            kind = "SystemSharedMemoryRegisterRequest"
            self._call("SystemSharedMemoryRegister", kind, name=name, key=key, offset=0, byte_size=size)
        else:
            document = {"key": key, "offset": 0, "byte_size": size}
            self.post(f"/v2/systemsharedmemory/region/{name}/register", document)

    def unregister_system(self, name: str) -> None:
        """End the registration of a region."""
        if self._grpc:
            self._call("SystemSharedMemoryUnregister", "SystemSharedMemoryUnregisterRequest", name=name)
        else:
            self.post(f"/v2/systemsharedmemory/region/{name}/unregister", {})

    def register_cuda(self, name: str, handle: bytes, device: int, size: int) -> None:
        """Register a region of a GPU's memory, by the handle of its allocation."""
        if self._grpc:
            kind = "CudaSharedMemoryRegisterRequest"
            self._call("CudaSharedMemoryRegister", kind, name=name, raw_handle=handle, device_id=device, byte_size=size)
        else:
            document = {"raw_handle": {"b64": base64.b64encode(handle).decode()}, "device_id": device, "byte_size": size}
            self.post(f"/v2/cudasharedmemory/region/{name}/register", document)

    def unregister_cuda(self, name: str) -> None:
        """End the registration of a region."""
        if self._grpc:
            self._call("CudaSharedMemoryUnregister", "CudaSharedMemoryUnregisterRequest", name=name)
        else:
            self.post(f"/v2/cudasharedmemory/region/{name}/unregister", {})

    def set_tracing(self, model: str, settings: Mapping[str, Sequence[str]]) -> None:
        """Update trace settings of a model."""
        from tpy._proto import message_class

        if self._grpc:
            message: Any = message_class("inference.TraceSettingRequest")(model_name=model)
            for name, texts in settings.items():
                message.settings[name].value.extend(texts)
            self._call_with("TraceSetting", message)
        else:
            document = {name: list(texts) if name == "trace_level" else texts[0] for name, texts in settings.items()}
            self.post(f"{model_path(model)}/trace/setting", document)

    def _get(self, path: str) -> dict[str, Any]:
        return self._ask("GET", path, b"")

    def _ask(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        target = self._target
        context = None if target.tls is None else tls_context(target.tls, ["http/1.1"])
        address = (target.host, target.port)
        try:
            answer = ask(address, method, path, body, headers=self._headers, context=context, timeout_s=LOAD_ANSWER_S_MAX)
        except NoReply as error:
            raise ServerError(f"no server at {target.authority}: {error}") from error
        if answer.status != _OK:
            raise ServerError(f"HTTP {answer.status}: {error_text(answer)}", answer.status)
        try:
            document = orjson.loads(answer.body or b"{}")
        except orjson.JSONDecodeError as error:
            raise ServerError(f"the answer to {method} {path} is not JSON: {error}") from error
        return document if isinstance(document, dict) else {}

    def _call(self, method: str, request: str, **fields: object) -> dict[str, Any]:
        from tpy._proto import message_class

        return self._call_with(method, message_class(f"inference.{request}")(**fields))

    def _call_with(self, method: str, message: Any) -> dict[str, Any]:
        from google.protobuf.json_format import MessageToDict

        from tpy._proto import message_class

        answer = _unary(self._target, _SERVICE + method, message.SerializeToString())
        if answer.status:
            raise ServerError(f"gRPC status {answer.status}: {error_text(answer)}", answer.status)
        response = message_class(f"inference.{method}Response").FromString(answer.body)
        document: dict[str, Any] = MessageToDict(response, preserving_proto_field_name=True)
        return document


def _unary(target: Target, path: str, message: bytes) -> AnswerPart:
    """One call over a new connection."""
    from tpy_tools.load.core.http2 import frame_message

    link = None
    try:
        link = Http2Link(target, path)
        link.begin(0, frame_message(message))
        deadline_s = time.monotonic() + LOAD_ANSWER_S_MAX
        while time.monotonic() < deadline_s:
            write = [] if link.flush() else [link]
            select.select([link], write, [], 1.0)
            for _, answer in link.receive():
                return answer
        raise ServerError(f"no answer of {target.authority} in {LOAD_ANSWER_S_MAX:.0f} s")
    except OSError as error:
        raise ServerError(f"no server at {target.authority}: {error}") from error
    except BrokenAnswer as error:
        raise ServerError(f"no gRPC server at {target.authority}: {error}") from error
    finally:
        if link is not None:
            link.close()


def _pair(document: Mapping[str, Any]) -> tuple[int, int]:
    return int(document.get("count", 0)), int(document.get("ns", 0))


def _facts(metadata: _Metadata, config: _Config, version: str) -> ModelFacts:
    batched = config.max_batch_size > 0
    steps = (config.ensemble_scheduling or {}).get("step", [])
    return ModelFacts(
        name=metadata.name,
        version=version,
        inputs=tuple(_unbatched(tensor) if batched else tensor for tensor in metadata.inputs),
        outputs=metadata.outputs,
        optional=frozenset(tensor.name for tensor in config.input if tensor.optional),
        max_batch_size=config.max_batch_size,
        decoupled=config.model_transaction_policy.decoupled,
        sequences=config.sequence_batching is not None,
        members=tuple(dict.fromkeys(str(step.get("model_name", "")) for step in steps)),
    )


def _unbatched(tensor: TensorFacts) -> TensorFacts:
    return msgspec.structs.replace(tensor, shape=tensor.shape[1:])
