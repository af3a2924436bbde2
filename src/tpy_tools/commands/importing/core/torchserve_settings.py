"""Settings of a model in TorchServe, and what they become: workers, batches, time-outs, devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tpy.config.model_config import DynamicBatching, InstanceGroup, InstanceKind, ModelParameter, QueuePolicy
from tpy_tools.commands.importing.core.plan import Part, Unimportable, text_of

_SIZE_MAX: Final = 2**31 - 1
_WORKERS_MAX: Final = 1024

_DELAY_MS: Final = 100
"""`maxBatchDelay` where nobody says it."""

_LOST: Final = {
    "asyncCommunication": "the handler is called, and does not read requests itself",
    "maxRetryTimeoutInSec": "an instance that ended is started again for as long as the model is loaded",
    "parallelLevel": "an instance is one process; give an engine that runs on several GPUs its own model",
    "parallelType": "an instance is one process; give an engine that runs on several GPUs its own model",
    "retryAttempts": "a request is not tried again: a client can do that",
    "startupTimeout": "start the server with --backend-config=python,initialize-timeout-seconds=N, of all models",
    "torchrun": "an instance is one process; give an engine that runs on several GPUs its own model",
    "useJobTicket": "requests wait in the queue of the model: see max_queue_size",
    "useVenv": "the environment is EXECUTION_ENV_PATH of config.pbtxt",
}
"""Settings that are not carried over, where they are set."""

_NEEDED: Final = {
    "continuousBatching": "its handler answers in pieces over many calls",
    "sequenceBatching": "its handler keeps sequences, which it is told of by TorchServe",
}
"""Settings without which a handler does not work."""

_READ: Final = frozenset(
    {
        *("batchSize", "clientTimeoutInMills", "deviceIds", "deviceType", "jobQueueSize", "maxBatchDelay", "maxWorkers"),
        *("minWorkers", "responseTimeout", "defaultVersion", "marName", "runtimeType"),
    }
)
_OF_SEQUENCES: Final = ("sequenceMaxIdleMSec", "sequenceTimeoutMSec", "maxNumSequence", "maxSequenceJobQueueSize")


class TorchServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a model, as they are in its configuration, and the parts that they come from."""

    max_batch_size: int
    dynamic: DynamicBatching
    group: InstanceGroup
    parameters: Mapping[str, ModelParameter]
    carried: tuple[Part, ...]
    lost: tuple[Part, ...]


def read_settings(config: Mapping[str, Any], server: Mapping[str, Any], properties: Mapping[str, str]) -> TorchServeSettings:
    """Of a model-config.yaml, of the model's entry in config.properties, and of all models there: the first that says something
    counts, as in TorchServe. Raises Unimportable."""
    reader = _Reader(config, server)
    for name, why in _NEEDED.items():
        if config.get(name) is True:
            raise Unimportable(f"{name}: {why}; rewrite it as a Python model")
    rows = reader.number("batchSize", 1, 1)
    delay_ms = reader.number("maxBatchDelay", _DELAY_MS, 0, _SIZE_MAX // 1000)
    workers = reader.number("minWorkers", _text_number(properties, "default_workers_per_model", 1), 1, _WORKERS_MAX)
    most = reader.number("maxWorkers", workers, 1, _WORKERS_MAX)
    answer_s = reader.number("responseTimeout", _text_number(properties, "default_response_timeout", 120), 1)
    waits_ms = reader.number("clientTimeoutInMills", 0, 0, _SIZE_MAX // 1000)
    waiting = reader.number("jobQueueSize", _text_number(properties, "job_queue_size", 100), 1)
    policy = QueuePolicy(max_queue_size=waiting, default_timeout_microseconds=waits_ms * 1000)
    carried = [
        Part("batchSize", f"max_batch_size: {rows}"),
        Part("minWorkers", f"instance_group: count {workers}"),
        Part("responseTimeout", f"TPY_EXECUTE_TIMEOUT_SECONDS: {answer_s}"),
        Part("jobQueueSize", f"max_queue_size: {waiting}"),
    ]
    if rows > 1:
        carried.insert(1, Part("maxBatchDelay", f"max_queue_delay_microseconds: {delay_ms * 1000}"))
    lost = reader.lost()
    if waits_ms:
        carried.append(Part("clientTimeoutInMills", f"default_timeout_microseconds: {waits_ms * 1000}, in the queue"))
    if most != workers:
        lost.append(Part("maxWorkers", f"the number of instances does not change under load; {workers} are started"))
    group, part = _group(config, workers)
    return TorchServeSettings(
        max_batch_size=rows,
        dynamic=DynamicBatching(max_queue_delay_microseconds=delay_ms * 1000 if rows > 1 else 0, default_queue_policy=policy),
        group=group,
        parameters={"TPY_EXECUTE_TIMEOUT_SECONDS": ModelParameter(string_value=str(answer_s))},
        carried=(*carried, *part),
        lost=tuple(lost),
    )


def _group(config: Mapping[str, Any], workers: int) -> tuple[InstanceGroup, list[Part]]:
    device, ids = text_of(config.get("deviceType")), config.get("deviceIds")
    if device == "cpu":
        return InstanceGroup(count=workers, kind=InstanceKind.KIND_CPU), [Part("deviceType", "instance_group: kind KIND_CPU")]
    if isinstance(ids, list) and ids:
        if not all(type(each) is int and 0 <= each <= _WORKERS_MAX for each in ids):
            raise Unimportable("deviceIds: expected numbers of GPUs")
        gpus = tuple(ids)
        # TorchServe deals workers out to GPUs; the count of a group is that on each.
        each_has = -(-workers // len(gpus))
        text = f"instance_group: gpus {list(gpus)}, {each_has} instances on each"
        return InstanceGroup(count=each_has, kind=InstanceKind.KIND_GPU, gpus=gpus), [Part("deviceIds", text)]
    if device == "gpu":
        return InstanceGroup(count=workers, kind=InstanceKind.KIND_GPU), [
            Part("deviceType", f"instance_group: kind KIND_GPU, {workers} instances on each GPU")
        ]
    return InstanceGroup(count=workers), []


class _Reader:
    """Reads numbers of two documents, the first before the second."""

    def __init__(self, config: Mapping[str, Any], server: Mapping[str, Any]) -> None:
        self._config, self._server = config, server

    def number(self, name: str, default: int, low: int, high: int = _SIZE_MAX) -> int:
        for document in (self._config, self._server):
            value = document.get(name)
            if value is not None and value != 0:
                if type(value) is not int or not low <= value <= high:
                    raise Unimportable(f"{name}: expected a number between {low} and {high}")
                return value
        return default

    def lost(self) -> list[Part]:
        found = [Part(name, why) for name, why in _LOST.items() if self._config.get(name) or self._server.get(name)]
        found += [Part(name, "the handler keeps no sequences") for name in _OF_SEQUENCES if self._config.get(name)]
        known = {*_READ, *_LOST, *_NEEDED, *_OF_SEQUENCES}
        # What else is in model-config.yaml is the handler's own, which reads it there.
        return found + [Part(name, "unknown") for name in self._server if name not in known]


def _text_number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, "")
    if not text:
        return default
    if (
        not text.isascii()
        or not text.isdigit()
        or not 1 <= len(text) <= len(str(_SIZE_MAX))
        or not 1 <= int(text) <= _WORKERS_MAX * 1024
    ):
        raise Unimportable(f"config.properties: {name}: expected a number, got '{text[:40]}'")
    return int(text)
