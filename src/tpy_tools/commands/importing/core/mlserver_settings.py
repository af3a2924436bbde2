"""Settings of MLServer, and what they become: batches, workers, caches, inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tpy.config.model_config import DynamicBatching, InstanceGroup, ModelInput, ModelOutput, ResponseCache
from tpy.messages import DataType
from tpy.messages.datatypes import BY_WORD
from tpy_tools.commands.importing.core.plan import Part, Unimportable, text_of

ROWS_MAX: Final = 1024
"""Rows of a request, and of a batch, of models that batch: MLServer bounds neither."""

_SIZE_MAX: Final = 2**31 - 1
_WORKERS_MAX: Final = 1024
_TENSORS_MAX: Final = 10_000

_SERVER: Final = {
    "cors_settings": "--allowed-origin of tpy serve",
    "debug": "--log-verbose of tpy serve",
    "environments_dir": "environments are unpacked in the server's temporary folder",
    "extensions": "metadata of the server are its own",
    "grpc_max_message_length": "tpy has its own limit for gRPC messages",
    "grpc_port": "--grpc-port of tpy serve (8001)",
    "gzip_enabled": "answers are compressed where a client asks for it",
    "host": "--http-address, --grpc-address and --metrics-address of tpy serve",
    "http_port": "--http-port of tpy serve (8000)",
    "kafka_enabled": "requests are not taken from Kafka",
    "kafka_servers": "requests are not taken from Kafka",
    "kafka_topic_input": "requests are not taken from Kafka",
    "kafka_topic_output": "requests are not taken from Kafka",
    "load_models_at_startup": "--model-control-mode=explicit of tpy serve, for models that are loaded on request",
    "logging_settings": "--log-format and --log-verbose of tpy serve",
    "metrics_dir": "workers need no folder for metrics",
    "metrics_endpoint": "metrics are at /metrics of --metrics-port",
    "metrics_port": "--metrics-port of tpy serve (8002)",
    "metrics_rest_server_prefix": "metrics have the names of Triton",
    "model_repository_implementation": "a repository is a folder",
    "model_repository_implementation_args": "a repository is a folder",
    "model_repository_root": "models are read from SOURCE",
    "parallel_workers_timeout": "--exit-timeout-secs of tpy serve",
    "root_path": "the paths of the HTTP port are fixed; a proxy can remove a prefix",
    "server_name": "metadata of the server are its own",
    "server_version": "metadata of the server are its own",
    "tracing_server": "--trace-config mode=opentelemetry of tpy serve",
    "use_structured_logging": "--log-format=json of tpy serve",
}
"""Keys of settings.json that are not carried over, and what to do."""

_MODEL: Final = {
    "platform": "metadata of a model name its backend",
    "versions": "free text",
    "warm_workers": "workers are always started before the first request",
}
"""Keys of model-settings.json that are not carried over."""

_READ_SERVER: Final = frozenset({"cache_enabled", "cache_size", "parallel_workers"})
_READ_MODEL: Final = frozenset(
    {
        *("name", "implementation", "inputs", "outputs", "parallel_workers", "max_batch_size", "max_batch_time"),
        *("parameters", "cache_enabled"),
    }
)
PARAMETERS: Final = frozenset({"uri", "version", "environment_path", "environment_tarball", "format", "content_type", "extra"})
"""Keys of `parameters` that are read, here or by the model."""

_POOLS: Final = ("inference_pool_gid", "autogenerate_inference_pool_gid")


class MLServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a model, as they are in its configuration, and the parts that they come from. `dynamic` None: MLServer does not
    batch it."""

    dynamic: DynamicBatching | None
    group: InstanceGroup
    cache: ResponseCache | None
    carried: tuple[Part, ...]
    lost: tuple[Part, ...]
    steps: tuple[str, ...]


def read_settings(model: Mapping[str, Any], server: Mapping[str, Any]) -> MLServerSettings:
    """Of a model-settings.json and the settings.json of its server. Raises Unimportable."""
    carried, lost, steps = [], _others(model, server), []
    size = _number(model, "max_batch_size", 0, 0, _SIZE_MAX)
    seconds = _seconds(model, "max_batch_time")
    dynamic = None
    if size > 1 and seconds > 0:
        rows = min(size, ROWS_MAX)
        delay_us = math.ceil(seconds * 1_000_000)
        dynamic = DynamicBatching(preferred_batch_size=(rows,), max_queue_delay_microseconds=delay_us)
        carried.append(Part("max_batch_size", f"preferred_batch_size: {rows}, counted in rows instead of requests"))
        carried.append(Part("max_batch_time", f"max_queue_delay_microseconds: {delay_us}"))
    elif size > 1 or seconds > 0:
        lost.append(Part("max_batch_size, max_batch_time", "without both, MLServer does not batch"))
    workers = _number(server, "parallel_workers", 1, 0, _WORKERS_MAX)
    if "parallel_workers" in server:
        note = "" if workers else ": without workers MLServer runs models in its own process"
        carried.append(Part("parallel_workers", f"instance_group: count {max(workers, 1)}{note}"))
    if model.get("parallel_workers") is not None:
        lost.append(Part("parallel_workers of the model", "MLServer has ended it; that of settings.json counts"))
    cache = None
    if _flag(server, "cache_enabled") and _flag(model, "cache_enabled"):
        cache = ResponseCache(enable=True)
        entries = _number(server, "cache_size", 100, 0, _SIZE_MAX)
        carried.append(Part("cache_enabled", "response_cache"))
        lost.append(Part("cache_size", f"{entries} answers; the cache is bounded by its bytes"))
        steps.append("start the server with --cache-config=local,size=BYTES: the model has a response cache")
    return MLServerSettings(
        dynamic=dynamic,
        group=InstanceGroup(count=max(workers, 1)),
        cache=cache,
        carried=tuple(carried),
        lost=tuple(lost),
        steps=tuple(steps),
    )


def _others(model: Mapping[str, Any], server: Mapping[str, Any]) -> list[Part]:
    found = [Part(str(key), _SERVER.get(key, "unknown")) for key in server if key not in _READ_SERVER]
    found += [
        Part(str(key), _MODEL.get(key, "unknown; MLServer ignores it, too"))
        for key, value in model.items()
        if key not in _READ_MODEL and value not in (None, "", [], False)
    ]
    parameters = parameters_of(model)
    found += [Part(f"parameters.{key}", "instances of a model are its own") for key in _POOLS if parameters.get(key)]
    return found


def parameters_of(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """`parameters` of a model-settings.json. Raises Unimportable."""
    found = model.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise Unimportable("parameters: expected an object of names and values")
    return found


def parameter(model: Mapping[str, Any], name: str) -> str:
    """A text in `parameters`, "" without it. Raises Unimportable."""
    value = parameters_of(model).get(name)
    if value is not None and not isinstance(value, str):
        raise Unimportable(f"parameters.{name}: expected text")
    return value or ""


def _number(document: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = document.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise Unimportable(f"{name}: expected a number between {low} and {high}, got {_shown(value)}")
    return value


def _seconds(document: Mapping[str, Any], name: str) -> float:
    value = document.get(name) or 0
    if type(value) not in (int, float) or not 0 <= value <= _SIZE_MAX / 1_000_000:
        raise Unimportable(f"{name}: expected seconds between 0 and {_SIZE_MAX // 1_000_000}, got {_shown(value)}")
    return float(value)


def _flag(document: Mapping[str, Any], name: str) -> bool:
    value = document.get(name)
    if value not in (None, True, False):
        raise Unimportable(f"{name}: expected true or false, got {_shown(value)}")
    return bool(value)


def _shown(value: object) -> str:
    """A value of a document; never all of what may be nested without end."""
    return repr(value)[:40] if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"


class TensorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output as settings describe it."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]


def tensors_of(model: Mapping[str, Any], side: str) -> tuple[TensorSettings, ...]:
    """The `inputs` or `outputs` of a model-settings.json. Raises Unimportable."""
    entries = model.get(side)
    if entries is None:
        return ()
    if not isinstance(entries, list) or len(entries) > _TENSORS_MAX:
        raise Unimportable(f"{side}: expected a list of tensors")
    found = tuple(_tensor(each, side) for each in entries)
    if len({each.name for each in found}) < len(found):
        raise Unimportable(f"{side}: two have the same name")
    return found


def _tensor(entry: object, side: str) -> TensorSettings:
    if not isinstance(entry, Mapping) or not text_of(entry.get("name")):
        raise Unimportable(f"{side}: expected tensors with name, datatype and shape")
    name = text_of(entry.get("name"))
    word = text_of(entry.get("datatype"))
    if word not in BY_WORD:
        raise Unimportable(f"{side}: '{name}': datatype '{word}' is not among {', '.join(BY_WORD)}")
    shape = entry.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(size) is int and (size == -1 or size > 0) for size in shape):
        raise Unimportable(f"{side}: '{name}': shape: expected a list of sizes, -1 for open ones")
    return TensorSettings(name=name, datatype=BY_WORD[word], shape=tuple(shape))


def inputs_of(tensors: tuple[TensorSettings, ...], *, batches: bool) -> tuple[ModelInput, ...]:
    """Inputs of the configuration."""
    return tuple(ModelInput(name=each.name, data_type=each.datatype, dims=_dims(each, batches=batches)) for each in tensors)


def outputs_of(tensors: tuple[TensorSettings, ...], *, batches: bool) -> tuple[ModelOutput, ...]:
    """Outputs of the configuration."""
    return tuple(ModelOutput(name=each.name, data_type=each.datatype, dims=_dims(each, batches=batches)) for each in tensors)


def _dims(tensor: TensorSettings, *, batches: bool) -> tuple[int, ...]:
    """The sizes; where a model batches, of a row: one number for a shape that has only rows."""
    return (tensor.shape[1:] or (1,)) if batches else tensor.shape
