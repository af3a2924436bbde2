"""The audit log in the engine's process: around the services, and told of what changes without a call: signals, files that have
changed, steps of a rollout. Imported only where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tpy import __version__
from tpy.auditing import AuditLog, audit_log, audited_loading, audited_services
from tpy.clock import Clock
from tpy.ids import ModelId
from tpy.messages import AuditLogOptions, ModelState
from tpy.services import LoadingService, Services
from tpy.state import DesiredModel, ModelStateStore, Rejection, Snapshot
from tpy.units import NS_PER_MS

_BY_CALLS = frozenset(("load request", "unload request"))
"""Reasons of changes that a call has made, which has a line."""


@contextmanager
def auditing(options: AuditLogOptions, clock: Clock) -> Iterator[Auditing | None]:
    """The audit log for the length of the block. Raises InvalidArgument as `audit_log`."""
    with audit_log(options, clock, reports_reloads=True) as log:
        yield None if log is None else Auditing(log, clock)


class Auditing:
    """The log as the assembly uses it."""

    def __init__(self, log: AuditLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        log.note("server", "start", {"version": __version__})

    @property
    def dropped(self) -> int:
        """The number of lines that could not be written."""
        return self._log.dropped

    def around(self, services: Services) -> Services:
        """The services for the ports of this process, and for the program that it is in."""
        return audited_services(services, self._log)

    def loading(self, repository: LoadingService) -> LoadingService:
        """The repository for calls of models."""
        return audited_loading(repository, self._log)

    def note_stop(self, reason: str) -> None:
        """The server stops."""
        self._log.note("signal" if reason.startswith("SIG") else "server", "stop", route=reason)

    def note_rollout(self, facts: Mapping[str, object]) -> None:
        """The share of a version was changed: by its gates, its time, or as somebody asked."""
        details = {name: value for name, value in facts.items() if name != "model"}
        self._log.note("rollout", "rollout", details, model=str(facts["model"]))

    async def follow(self, store: ModelStateStore, *, rejections: bool) -> None:
        """Write a line for each change of what is to be served that no call has asked for, for ever. `rejections`: also for
        models that cannot be served, which calls are told of where models are loaded by calls."""
        changes = RepositoryChanges(rejections=rejections)
        async for snapshot in store.watch():
            for change in changes.look(snapshot, self._clock.now_ns()):
                details: dict[str, object] = {}
                if change.versions:
                    details["versions"] = list(change.versions)
                if change.ns is not None:
                    details["load_ms"] = round(change.ns / NS_PER_MS, 3)
                about = {"route": change.why, "model": str(change.model), "error": change.error}
                self._log.note("repository", change.action, details, **about)


class RepositoryChange(NamedTuple):
    """A model that is served otherwise than before, or could not be. `ns` is the time that its loading took."""

    action: str
    model: ModelId
    why: str
    versions: tuple[int, ...] = ()
    error: str = ""
    ns: int | None = None


class RepositoryChanges:
    """Compares snapshots of the store. Time is an argument."""

    def __init__(self, *, rejections: bool = True) -> None:
        self._tells_rejections = rejections
        self._desired: dict[ModelId, DesiredModel] = {}
        self._rejections: dict[ModelId, Rejection] = {}
        self._begun: dict[ModelId, int] = {}
        """The time at which models were desired that have neither loaded nor failed yet."""

    def look(self, snapshot: Snapshot, now_ns: int) -> Iterator[RepositoryChange]:
        """The changes since the last snapshot; of models that load, when they have loaded or failed."""
        for model, desired in snapshot.desired.items():
            before = self._desired.get(model)
            if desired is before:
                continue
            if model in self._begun:
                yield _change(before or desired, error="another change came before it was loaded")
            self._desired[model] = desired
            self._begun.pop(model, None)
            if desired.why in _BY_CALLS:
                continue
            if desired.versions:
                self._begun[model] = now_ns
            else:
                yield RepositoryChange("unload", model, desired.why)
        for model in [model for model in self._desired if model not in snapshot.desired]:
            gone = self._desired.pop(model)
            self._begun.pop(model, None)
            if gone.versions:
                yield RepositoryChange("unload", model, "its directory is gone")
        yield from self._rejected(snapshot)
        for model, begun_ns in tuple(self._begun.items()):
            error = _outcome(snapshot, self._desired[model])
            if error is not None:
                del self._begun[model]
                yield _change(self._desired[model], error=error, ns=now_ns - begun_ns)

    def _rejected(self, snapshot: Snapshot) -> Iterator[RepositoryChange]:
        for model, rejection in snapshot.rejections.items():
            if self._tells_rejections and self._rejections.get(model) is not rejection:
                yield RepositoryChange("load", model, "its files were read", error=rejection.reason)
        self._rejections = dict(snapshot.rejections)


def _change(desired: DesiredModel, *, error: str, ns: int | None = None) -> RepositoryChange:
    return RepositoryChange("load", desired.id, desired.why, tuple(sorted(desired.versions)), error, ns)


def _outcome(snapshot: Snapshot, desired: DesiredModel) -> str | None:
    """The reason why versions could not be loaded, "" when all are READY; None while some still load."""
    failures: list[str] = []
    for version, seen in sorted(snapshot.observed_of(desired).items()):
        if seen is None or seen.state in (ModelState.LOADING, ModelState.UNLOADING):
            return None
        if seen.state is ModelState.UNAVAILABLE:
            failures.append(f"version {version}: {seen.reason}")
        elif desired.config_revision not in (seen.config_revision, seen.refused_revision):
            return None
        elif seen.refused_revision == desired.config_revision:
            failures.append(f"version {version}: {seen.applied_error}")
    return "; ".join(failures)
