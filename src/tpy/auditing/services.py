"""The services with the audit log around what changes something: no frontend, model or program that uses them can change
anything without a line. Where a frontend has begun an action, the change is noted in that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tpy.auditing.log import AuditLog, present_action
from tpy.echo import echo
from tpy.limits import AUDIT_NAMES_MAX
from tpy.messages import (
    CudaRegistration,
    LoadRequest,
    LogSettings,
    RecordingOptions,
    RecordingStatus,
    RegionKind,
    Registration,
    RolloutStatus,
)
from tpy.services import LoadingService, RegistrationService, Services, TraceTexts, TraceUpdates

PROGRAM = "program"
"""The protocol of calls by the program that has the server in it, and by frontends of other packages."""


class _Around:
    """`inner`, but for the methods that are given."""

    def __init__(self, inner: object, **methods: object) -> None:
        self.__dict__.update(methods)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def audited_services(services: Services, log: AuditLog) -> Services:
    """The same services, with their changes in the log."""
    found = services.copy()
    found.audit = log
    found.repository = _repository(services.repository, log, PROGRAM)
    found.diagnostics = _diagnostics(services, log)
    found.recordings = _recordings(services, log)
    found.shared_memory = _shared_memory(services, log)
    if services.registration is not None:
        found.registration = _registration(services.registration, log)
    return found


def audited_loading(repository: LoadingService, log: AuditLog) -> LoadingService:
    """The repository for calls of models."""
    found: LoadingService = _repository(repository, log, "model")
    return found


@asynccontextmanager
async def _change(log: AuditLog, protocol: str, action: str, model: str, **details: object) -> AsyncIterator[None]:
    """Notes a change in the present action; without one, a separate action."""
    present = present_action()
    if present is not None:
        present.changes(action, **details)
        yield
        return
    with log.action(protocol, action, model=echo(model)) as made:
        made.changes(action, **details)
        await made.begin()
        yield


def _repository(inner: LoadingService, log: AuditLog, protocol: str) -> Any:
    async def load(request: LoadRequest) -> None:
        facts: dict[str, object] = {"target": echo(request.model_name)}
        if request.config_json is not None:
            facts["config_bytes"] = len(request.config_json)
        if request.files:
            facts["files"] = [echo(name) for name in list(request.files)[:AUDIT_NAMES_MAX]]
            facts["files_count"] = len(request.files)
        async with _change(log, protocol, "load", request.model_name, **facts):
            await inner.load(request)

    async def unload(model_name: str, *, unload_dependents: bool = False) -> None:
        facts = {"target": echo(model_name), "unload_dependents": unload_dependents}
        async with _change(log, protocol, "unload", model_name, **facts):
            await inner.unload(model_name, unload_dependents=unload_dependents)

    return _Around(inner, load=load, unload=unload)


def _registration(inner: RegistrationService, log: AuditLog) -> Any:
    async def register(path: str, names: Mapping[str, str]) -> None:
        async with _change(log, PROGRAM, "register repository", "", repository=echo(path)):
            await inner.register(path, names)

    def unregister(path: str) -> None:
        present = present_action()
        if present is None:
            log.note(PROGRAM, "unregister repository", {"repository": echo(path)})
        inner.unregister(path)

    return _Around(inner, register=register, unregister=unregister)


def _diagnostics(services: Services, log: AuditLog) -> Any:
    inner = services.diagnostics

    async def rollout(model_name: str, action: str = "", plan: str = "") -> RolloutStatus:
        if not action:
            return await inner.rollout(model_name, plan=plan)  # refused: that is said by whoever knows the actions
        given = {"plan": echo(plan)} if plan else {}
        async with _change(log, PROGRAM, "rollout", model_name, target=echo(model_name), step=echo(action), **given):
            return await inner.rollout(model_name, action, plan)

    async def update_log_settings(settings: LogSettings) -> None:
        before, after = msgspec.structs.asdict(inner.log_settings()), msgspec.structs.asdict(settings)
        changed = {name: _shown(value) for name, value in after.items() if value != before[name]}
        async with _change(log, PROGRAM, "log settings", "", **changed):
            await inner.update_log_settings(settings)

    async def trace_settings(model_name: str = "", updates: TraceUpdates | None = None) -> TraceTexts:
        if updates is None:
            return await inner.trace_settings(model_name)
        changed = {echo(name): [echo(text) for text in texts[:AUDIT_NAMES_MAX]] for name, texts in updates.items()}
        async with _change(log, PROGRAM, "trace settings", model_name, target=echo(model_name), settings=changed):
            return await inner.trace_settings(model_name, updates)

    return _Around(inner, rollout=rollout, update_log_settings=update_log_settings, trace_settings=trace_settings)


def _recordings(services: Services, log: AuditLog) -> Any:
    inner = services.recordings

    async def change(options: RecordingOptions | None) -> RecordingStatus:
        facts: dict[str, object] = {}
        if options is not None:
            facts = {
                "models": [echo(name) for name in options.models[:AUDIT_NAMES_MAX]],
                "inputs": options.inputs.value,
                "outputs": options.outputs.value,
            }
        async with _change(log, PROGRAM, "stop recording" if options is None else "start recording", "", **facts):
            return await inner.change(options)

    return _Around(inner, change=change)


def _shared_memory(services: Services, log: AuditLog) -> Any:
    inner = services.shared_memory

    async def register(registration: Registration) -> None:
        facts: dict[str, object] = {"region": echo(registration.name), "bytes": registration.byte_size}
        if isinstance(registration, CudaRegistration):
            facts |= {"kind": RegionKind.CUDA.value, "device": registration.device_id}
        else:
            facts |= {"kind": RegionKind.SYSTEM.value, "key": echo(registration.key), "offset": registration.offset}
        async with _change(log, PROGRAM, "register region", "", **facts):
            await inner.register(registration)

    async def unregister(kind: RegionKind, name: str = "") -> None:
        async with _change(log, PROGRAM, "unregister region", "", region=echo(name) or "all", kind=kind.value):
            await inner.unregister(kind, name)

    return _Around(inner, register=register, unregister=unregister)


def _shown(value: object) -> object:
    return echo(value) if isinstance(value, str) else value
