"""Finds the members that an ensemble has now, or the reason why it lacks one. Pure: it reads the serving table and the store.

The texts are Triton's where it has one; a member's state is the one in the store.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpy.config import ModelConfig
from tpy.config.model_config import EnsembleStep
from tpy.errors import ErrorCode
from tpy.ids import ModelId
from tpy.messages import ModelState
from tpy.state import DesiredModel, ObservedKey, ObservedVersion, Snapshot
from tpy_data.engine.serving.serving_table import Answering, Served, ServingTable

LATEST = -1
"""The model_version of a step that takes the newest one."""


class Lack(enum.Enum):
    """The kinds of reasons why an ensemble does not have its members."""

    PENDING = "a member is being loaded"
    GONE = "a member is not served"
    DOWN = "a member is served but has no instance that lives"
    INVALID = "the ensemble cannot be served with these members"


class Unmet(NamedTuple):
    """The reason why an ensemble cannot be served now."""

    lack: Lack
    message: str


class EnsembleMember(NamedTuple):
    """The version that a step uses, and what takes the step's requests: its copy, or while a newer version is rolled out what
    chooses between the two."""

    served: Served
    answering: Answering


def find_members(config: ModelConfig, model: ModelId, table: ServingTable, snapshot: Snapshot) -> list[EnsembleMember] | Unmet:
    """The versions that the ensemble's steps use, in the steps' order; or the first thing that keeps it from having them."""
    steps = () if config.ensemble_scheduling is None else config.ensemble_scheduling.step
    found: list[EnsembleMember] = []
    unmet: tuple[EnsembleStep, ModelId] | None = None
    for step in steps:
        member = _identify(step, model, table, snapshot)
        if member is None:
            text = f"ensemble {config.name} contains models that are not available or ambiguous: {step.model_name}"
            return Unmet(Lack.GONE, text)
        chosen = _chosen(step, member, table)
        if chosen is not None and chosen.served.ready:
            found.append(chosen)
        elif unmet is None:
            unmet = step, member
    if unmet is None:
        return found
    circle = _circle(model, table, snapshot)
    return Unmet(Lack.INVALID, circle) if circle else _why_not(config.name, *unmet, table, snapshot)


def _identify(step: EnsembleStep, ensemble: ModelId, table: ServingTable, snapshot: Snapshot) -> ModelId | None:
    """The model that a step means: the one in the step's or the ensemble's namespace, else the only one of its name."""
    name = step.model_name
    preferred = ModelId(name, step.model_namespace or ensemble.namespace)
    if _is_known(preferred, table, snapshot):
        return preferred
    candidates = {model for model in (*snapshot.desired, *snapshot.rejections) if model.name == name}
    known = [model for model in candidates if _is_known(model, table, snapshot)]
    return known[0] if len(known) == 1 and not step.model_namespace else None


def _is_known(model: ModelId, table: ServingTable, snapshot: Snapshot) -> bool:
    desired = snapshot.desired.get(model)
    return (desired is not None and bool(desired.versions)) or model in snapshot.rejections or table.model(model) is not None


def accepting_members(config: ModelConfig, model: ModelId, table: ServingTable, snapshot: Snapshot) -> list[EnsembleMember]:
    """The versions that its steps use, if all of them take requests, whether they are ready or not; else none."""
    steps = () if config.ensemble_scheduling is None else config.ensemble_scheduling.step
    members = [(step, _identify(step, model, table, snapshot)) for step in steps]
    found = [None if member is None else _chosen(step, member, table) for step, member in members]
    accepting = [each for each in found if each is not None and each.served.accepts]
    return accepting if len(accepting) == len(found) else []


def _chosen(step: EnsembleStep, member: ModelId, table: ServingTable) -> EnsembleMember | None:
    model = table.model(member)
    if model is None:
        return None
    if step.model_version == LATEST:
        return None if model.newest is None else EnsembleMember(model.newest, model.resolved[None])
    served = model.versions.get(step.model_version)
    return None if served is None else EnsembleMember(served, served.served_copy)


def _why_not(ensemble: str, step: EnsembleStep, member: ModelId, table: ServingTable, snapshot: Snapshot) -> Unmet:
    desired = snapshot.desired.get(member)
    about = f"ensemble '{ensemble}' depends on '{step.model_name}'"
    wanted = {} if desired is None else desired.versions
    missing = [version for version in wanted.values() if step.model_version in (LATEST, version.version)]  # candidates
    observed = {
        version.version: snapshot.observed.get(ObservedKey(member, version.version, version.generation)) for version in missing
    }
    if any(seen is None or seen.state is ModelState.LOADING for seen in observed.values()):
        return Unmet(Lack.PENDING, f"{about} which is being loaded")
    model = table.model(member)
    if model is not None:
        if step.model_version in (LATEST, *model.versions):
            return Unmet(Lack.DOWN, f"{about} which is not at ready state")
        return Unmet(Lack.GONE, f"{about} whose required version {step.model_version} is not loaded.")
    if desired is not None and desired.config.ensemble_scheduling is not None:
        return _why_not_inside(about, step.model_name, desired, list(observed.values()), table, snapshot)
    failures = "".join(
        f"version {number} is at UNAVAILABLE state: {seen.reason};" for number, seen in observed.items() if seen is not None
    )
    if not failures and member in snapshot.rejections:
        failures = snapshot.rejections[member].reason
    text = f"{about} which has no loaded version."
    if failures:
        text += f" Model '{step.model_name}' loading failed with error: {failures}"
    return Unmet(Lack.GONE, text)


def _why_not_inside(
    about: str,
    name: str,
    desired: DesiredModel,
    observed: Sequence[ObservedVersion | None],
    table: ServingTable,
    snapshot: Snapshot,
) -> Unmet:
    """The reason why an ensemble within this one is not served. Asked anew, because the store's view may be about to change."""
    inside = find_members(desired.config, desired.id, table, snapshot)
    if isinstance(inside, Unmet):
        lack, message = inside.lack, inside.message
    else:
        lack, message = Lack.GONE, next((_message(seen.reason) for seen in observed if seen is not None), "it is not served")
    text = f"{about} which is not valid. Model '{name}' failed with error: {message}"
    return Unmet(lack if lack is Lack.PENDING else Lack.GONE, text)


def _message(reason: str) -> str:
    """A reason without the code in front."""
    code, _, message = reason.partition(": ")
    return message if code in {each.value for each in ErrorCode} else reason


def _circle(start: ModelId, table: ServingTable, snapshot: Snapshot) -> str:
    """Names the ensembles that need each other, when this one is among them; else ""."""
    seen: set[ModelId] = set()
    waiting = [start]
    while waiting:
        model = waiting.pop()
        for member in _members_of(model, table, snapshot):
            if member == start:
                return f"circular dependency between ensembles: {start.name} -> ... -> {model.name} -> {start.name}"
            if member not in seen:
                seen.add(member)
                waiting.append(member)
    return ""


def _members_of(model: ModelId, table: ServingTable, snapshot: Snapshot) -> Iterator[ModelId]:
    desired = snapshot.desired.get(model)
    scheduling = None if desired is None else desired.config.ensemble_scheduling
    for step in () if scheduling is None else scheduling.step:
        member = _identify(step, model, table, snapshot)
        if member is not None:
            yield member
