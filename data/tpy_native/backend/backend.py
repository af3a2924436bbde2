"""A compiled backend, its loaded models and their instances."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from tpy.backend import (
    BackendCapabilities,
    BackendSettings,
    ExecutionBatch,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    state_specs,
)
from tpy.config import ModelConfig
from tpy.config.json_form import parse_json, to_json
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, TpyError
from tpy_data.backends.states import ImplicitState, StatefulInstance
from tpy_native import Host, host
from tpy_native.backend.calls import PluginCalls
from tpy_native.backend.python_side import callables
from tpy_native.library import answer
from tpy_native.surroundings import surroundings


class _NativeInstance:
    """A `ModelInstance`. The library runs without the interpreter lock."""

    def __init__(self, native: Host, handle: int, name: str, context: ModelContext) -> None:
        self._host = native
        self._handle = handle
        self._name = name
        self._log = context.log
        self._run = native.function("tpy_instance_executor")(handle)
        self.has_readiness_check: bool = bool(native.function("tpy_instance_has_ready")(handle))

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """As `ModelInstance.execute`. Requests that the library keeps are answered later. Raises InstanceFailure when it has
        written beyond a buffer: nothing of this process's memory can be relied upon then."""
        results: Sequence[ExecutionResult] | None = self._run(batch.requests, batch.times)
        if results is None:
            raise InstanceFailure(f"instance '{self._name}' has written beyond the buffer of an output")
        return results

    def check_ready(self, timeout_s: float) -> bool:
        """As `tpy.backend.ChecksReadiness`; the time is the server's to watch."""
        try:
            answer(self._host.function("tpy_instance_ready")(self._handle))
        except TpyError as error:
            self._log("warning", f"instance '{self._name}' is not ready: {error}")
            return False
        return True

    def close(self) -> None:
        """Raises what the library's ModelInstanceFinalize returns."""
        held = self._host.function("tpy_instance_held")(self._handle)
        try:
            answer(self._host.function("tpy_instance_close")(self._handle))
        finally:
            if held:
                self._log("warning", f"instance '{self._name}' ended with {held} requests that its backend never released")


_KINDS: Final = (InstanceKind.KIND_AUTO, InstanceKind.KIND_CPU, InstanceKind.KIND_GPU, InstanceKind.KIND_MODEL)
"""In the order of TRITONSERVER_InstanceGroupKind."""

_CPU: Final = _KINDS.index(InstanceKind.KIND_CPU)
_WITHOUT_GPU: Final = (_CPU, _KINDS.index(InstanceKind.KIND_MODEL))


class NativeBackend:
    """A `Backend`: the library is loaded and initialised as long as this is there."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises InvalidArgument, NotFound or Unsupported for a library that cannot be loaded, what its Initialize returns, and
        Unavailable where the host library cannot be built."""
        if settings.library is None:
            raise Internal(f"backend '{settings.name}' has no library")
        self._host: Host = host()
        self._host.start_batches(callables)
        self._host.prepare(settings.library)
        self._handle: int = answer(
            self._host.function("tpy_backend_open")(
                settings.name.encode(),
                bytes(settings.library),
                bytes(settings.backend_directory or settings.library.parent),
                orjson.dumps({"cmdline": _command_line(settings)}),
            )
        )
        try:
            groups: list[tuple[int, int, list[int]]] = answer(self._host.function("tpy_backend_attribute")(self._handle))
        except TpyError:
            self.close()
            raise
        kind, count = next(((kind, count) for kind, count, _ in groups if kind in _WITHOUT_GPU), (_CPU, 1))
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename="",
            devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_GPU, InstanceKind.KIND_MODEL}),
            default_kind=_KINDS[kind],
            default_count=max(1, count),
            decoupled=True,
            implicit_state=True,
            ragged=True,
            batch_io=True,
            secondary_devices=True,
            version=settings.library.name,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        """All that a library may do: which of it this one does, it says when it loads a model."""
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """The configuration as the library's ModelInitialize leaves it. Raises what that returns."""
        model = _open(self._host, self._handle, context, auto_complete=True)
        try:
            completed: str | None = answer(self._host.function("tpy_model_completed")(model.handle))
        finally:
            model.unload()
        return context.config if completed is None else parse_json(completed)

    def load(self, context: ModelContext) -> LoadedModel:
        """Raises what the library's ModelInitialize returns."""
        return _open(self._host, self._handle, context, auto_complete=False)

    def close(self) -> None:
        """Finalize. Raises what the library returns."""
        answer(self._host.function("tpy_backend_close")(self._handle))


class NativeModel:
    """A `LoadedModel`."""

    def __init__(self, native: Host, handle: int, context: ModelContext, calls: PluginCalls) -> None:
        self.handle = handle
        self._host = native
        self._context = context
        self._calls = calls

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Raises what the library's ModelInstanceInitialize returns."""
        context = self._context
        surroundings.enter(context.log, context.metrics)
        name = placement.host_policy or _policy_name(placement)
        policy = {name: _policy_settings(placement)}
        handle: int = answer(
            self._host.function("tpy_instance_open")(
                self.handle,
                placement.name.encode(),
                _KINDS.index(placement.kind),
                placement.device_id,
                name.encode(),
                orjson.dumps(policy),
                placement.profiles,
                tuple(device.kind.name for device in placement.secondary_devices),
                tuple(device.device_id for device in placement.secondary_devices),
            )
        )
        instance = _NativeInstance(self._host, handle, placement.name, context)
        states = state_specs(context.config)
        if not states:
            return instance
        return StatefulInstance(instance, ImplicitState(states, batching=context.config.max_batch_size > 0))

    def unload(self) -> None:
        """Raises what the library's ModelFinalize returns."""
        try:
            answer(self._host.function("tpy_model_close")(self.handle))
        finally:
            self._calls.close()


def _open(native: Host, backend: int, context: ModelContext, *, auto_complete: bool) -> NativeModel:
    surroundings.enter(context.log, context.metrics)
    config = context.config
    calls = PluginCalls(context.server, context.name, native.function("tpy_call_answer"))
    arguments: tuple[Any, ...] = (
        backend,
        context.name.encode(),
        context.version,
        bytes(Path(context.model_directory).absolute()),
        orjson.dumps(to_json(config)),
        auto_complete,
        config.decoupled,
        tuple(output.name for output in config.output),
        calls,
    )
    handle: int = answer(native.function("tpy_model_open")(*arguments))
    return NativeModel(native, handle, context, calls)


def _command_line(settings: BackendSettings) -> dict[str, str]:
    """The settings as libraries read them, with the ones that Triton adds."""
    directory = settings.backend_directory
    return {
        "auto-complete-config": "true",
        "backend-directory": "" if directory is None else str(directory.parent),
        "min-compute-capability": "6.000000",
        "default-max-batch-size": "4",
        **settings.config,
    }


def _policy_name(placement: InstancePlacement) -> str:
    """Triton's name for the default policy of a device."""
    if placement.kind is InstanceKind.KIND_GPU:
        return f"gpu_{placement.device_id}"
    return "model" if placement.kind is InstanceKind.KIND_MODEL else "cpu"


def _policy_settings(placement: InstancePlacement) -> dict[str, str]:
    settings = {}
    if placement.host.numa_node is not None:
        settings["numa-node"] = str(placement.host.numa_node)
    if placement.host.cpu_cores:
        settings["cpu-cores"] = ",".join(f"{core}-{core}" for core in placement.host.cpu_cores)
    return settings
