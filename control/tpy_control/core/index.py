"""Merges both halves of the store for callers: index entries, readiness, and the end of a load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from tpy.errors import ErrorCode, InvalidArgument, TpyError
from tpy.ids import ModelId, Version
from tpy.messages import IndexEntry, ModelState
from tpy.state import UNLOADED, DesiredModel, DesiredVersion, ObservedVersion, Snapshot
from tpy_control.core.candidate import DUPLICATE_TEXT, RefusalKind, Refused, load_failure_text
from tpy_control.core.scan import ModelLocation


class VersionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One version, all its generations merged: the state that requests meet, and the reason if something is wrong."""

    version: Version
    state: ModelState
    reason: str = ""


def model_id(location: ModelLocation, *, namespacing: bool) -> ModelId:
    """The identity of the model in a directory."""
    return ModelId(location.name, location.repository if namespacing else "")


def statuses(snapshot: Snapshot, model: ModelId) -> list[VersionStatus]:
    """The versions of a model that are desired or observed, ascending."""
    return _merge(snapshot.desired.get(model), snapshot.versions_of(model))


def _merge(desired: DesiredModel | None, entries: Iterable[ObservedVersion]) -> list[VersionStatus]:
    wanted = {} if desired is None else desired.versions
    observed: dict[Version, list[ObservedVersion]] = {}
    for entry in sorted(entries, key=lambda entry: entry.key):
        observed.setdefault(entry.key.version, []).append(entry)
    return [_status(version, wanted.get(version), observed.get(version, [])) for version in sorted(wanted.keys() | observed)]


def _observed_by_model(snapshot: Snapshot) -> dict[ModelId, list[ObservedVersion]]:
    groups: dict[ModelId, list[ObservedVersion]] = {}
    for key, entry in snapshot.observed.items():
        groups.setdefault(key.model, []).append(entry)
    return groups


def _status(version: Version, wanted: DesiredVersion | None, observed: Sequence[ObservedVersion]) -> VersionStatus:
    """READY as long as one generation serves; then its reason is what went wrong with the newest one, or the version's remark."""
    newest = observed[-1] if observed else None
    if wanted is not None:
        newest = next((entry for entry in observed if entry.key.generation == wanted.generation), None)
    serving = next((entry for entry in reversed(observed) if entry.state is ModelState.READY), None)
    if serving is not None:
        failed = newest is not None and newest.state is ModelState.UNAVAILABLE
        reason = newest.reason if newest is not None and failed else serving.applied_error or serving.remark
        return VersionStatus(version=version, state=ModelState.READY, reason=reason)
    if newest is not None:
        return VersionStatus(version=version, state=newest.state, reason=newest.reason)
    return VersionStatus(version=version, state=ModelState.UNKNOWN)


def index_entries(
    snapshot: Snapshot,
    *,
    locations: Iterable[ModelLocation],
    refusals: Mapping[ModelId, Refused],
    namespacing: bool,
) -> list[IndexEntry]:
    """The whole repository index, sorted by name, then version. A model that was never loaded has its name only."""
    seen: dict[ModelId, int] = {}
    for location in locations:
        model = model_id(location, namespacing=namespacing)
        seen[model] = seen.get(model, 0) + 1
    observed = _observed_by_model(snapshot)
    wanted = {model for model, desired in snapshot.desired.items() if desired.versions}
    entries: list[IndexEntry] = []
    for model in sorted(seen.keys() | wanted | refusals.keys() | observed.keys()):
        found = _merge(snapshot.desired.get(model), observed.get(model, ()))
        if model not in seen and model not in wanted:
            # Its directory is gone: shown only as long as something of it still runs.
            found = [status for status in found if status.state is not ModelState.UNAVAILABLE]
            if not found and model not in refusals:
                continue
        refused = refusals.get(model)
        reason = refused.reason if refused is not None else DUPLICATE_TEXT if seen.get(model, 0) > 1 else ""
        entries.extend(_entries(model, found, reason, refused))
    return entries


def _entries(model: ModelId, found: Sequence[VersionStatus], reason: str, refused: Refused | None) -> Iterator[IndexEntry]:
    for status in found:
        # What was refused is newer than what is served or was unloaded: a refusal ends with the next good load or unload.
        newest = reason if status.state in (ModelState.READY, ModelState.UNAVAILABLE) else ""
        yield IndexEntry(
            name=model.name,
            namespace=model.namespace,
            version=status.version,
            state=status.state,
            reason=newest or status.reason,
        )
    if found:
        return
    versions: Sequence[Version | None] = refused.versions if refused is not None and refused.versions else (None,)
    for version in versions:
        yield IndexEntry(
            name=model.name,
            namespace=model.namespace,
            version=version,
            state=ModelState.UNAVAILABLE if reason else None,
            reason=reason,
        )


def strictly_ready(snapshot: Snapshot, *, refusals: Iterable[Refused], failed_loads: Callable[[ModelId], bool]) -> bool:
    """Returns True if every desired version is READY. Versions that are being loaded or unloaded, or have lost their instances,
    count as not ready; those unloaded on purpose do not count. `failed_loads` tells for which models a failed load counts,
    `refusals` are the refusals that count."""
    ready: dict[ModelId, set[Version]] = {}
    for key, observed in snapshot.observed.items():
        if observed.state is ModelState.READY:
            ready.setdefault(key.model, set()).add(key.version)
    for model, desired in snapshot.desired.items():
        for version, entry in snapshot.observed_of(desired).items():
            if version in ready.get(model, ()):
                continue
            if entry is None or entry.state is not ModelState.UNAVAILABLE or entry.description is not None:
                return False
            # An ensemble that lost a member by an unload counts as unloaded itself.
            if entry.reason != UNLOADED and failed_loads(model):
                return False
    for key, observed in snapshot.observed.items():
        if observed.state is ModelState.UNLOADING and key.version not in ready.get(key.model, set()):
            return False
    return all(refused.id in ready for refused in refusals)


def is_settled(snapshot: Snapshot, desired: DesiredModel) -> bool:
    """Returns True if the data plane is done with everything in `desired`: each version is READY with this configuration, or
    failed; and unless one failed, no other version answers any more."""
    return _is_settled(snapshot, desired, snapshot.versions_of(desired.id))


def all_settled(snapshot: Snapshot) -> bool:
    """Returns True if the data plane is done with every desired model."""
    entries = _observed_by_model(snapshot)
    return all(_is_settled(snapshot, desired, entries.get(model, ())) for model, desired in snapshot.desired.items())


def _is_settled(snapshot: Snapshot, desired: DesiredModel, entries: Iterable[ObservedVersion]) -> bool:
    """`entries` are all that is observed of the model."""
    observed = snapshot.observed_of(desired).values()
    if not all(entry is not None and _has_settled(entry, desired.config_revision) for entry in observed):
        return False
    if failed_versions(snapshot, desired):
        return True
    wanted = {(version.version, version.generation) for version in desired.versions.values()}
    return not any(
        entry.state is ModelState.READY and (entry.key.version, entry.key.generation) not in wanted for entry in entries
    )


def _has_settled(entry: ObservedVersion, config_revision: int) -> bool:
    if entry.state is ModelState.READY:
        return max(entry.config_revision, entry.refused_revision) >= config_revision
    return entry.state is ModelState.UNAVAILABLE


def failed_versions(snapshot: Snapshot, desired: DesiredModel | None) -> dict[Version, str]:
    """The desired versions whose desired generation is UNAVAILABLE, with the reason."""
    observed = {} if desired is None else snapshot.observed_of(desired)
    return {v: entry.reason for v, entry in observed.items() if entry is not None and entry.state is ModelState.UNAVAILABLE}


def _not_applied(snapshot: Snapshot, desired: DesiredModel) -> dict[Version, str]:
    """The versions that serve with their old instances because the desired ones could not be created, with the reason."""
    observed = snapshot.observed_of(desired).items()
    return {v: e.applied_error for v, e in observed if e is not None and e.state is ModelState.READY and e.applied_error}


def is_refused(snapshot: Snapshot, desired: DesiredModel | None) -> bool:
    """Returns True if a version serves with its old instances because the desired ones could not be created."""
    return desired is not None and bool(_not_applied(snapshot, desired))


def load_error(snapshot: Snapshot, desired: DesiredModel) -> TpyError | None:
    """The error of a settled load, in Triton's words; None if it succeeded."""
    failures = [(version, "UNAVAILABLE", reason) for version, reason in failed_versions(snapshot, desired).items()]
    failures += [(version, "READY", reason) for version, reason in _not_applied(snapshot, desired).items()]
    if not failures:
        return None
    if desired.config.ensemble_scheduling is not None:
        # Triton has no version of an ensemble that does not fit its members, and says only why.
        message = failures[0][2].removeprefix(f"{ErrorCode.INVALID_ARG.value}: ")
        return InvalidArgument(f"load failed for model '{desired.id.name}': {message}\n")
    return InvalidArgument(load_failure_text(desired.id, sorted(failures)))


def is_served(snapshot: Snapshot, model: ModelId, version: int | None) -> bool:
    """Returns True if the version (None: any) is READY."""
    return any(status.state is ModelState.READY and version in (None, status.version) for status in statuses(snapshot, model))


def counts_for_readiness(refused: Refused, *, explicit: bool, at_start: Iterable[str]) -> bool:
    """Returns True if a refused model makes a server unready that waits for all models. In explicit mode a model that a load call
    named, and that was refused before it had versions, does not count: Triton does not know it either."""
    return not explicit or refused.kind in (RefusalKind.CONFIG, RefusalKind.NO_VERSIONS) or refused.id.name in set(at_start)
