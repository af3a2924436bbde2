"""The reconciler's core: from what is desired and what is there to what is to be done now.

Level-triggered: it looks at what is, never at what happened, and may be asked at any time and any number of times; what it
answered before and is under way shows in `running`. It answers as long as something can be done *now*; what has to wait
(unloading the old copy until the new one is READY) is answered when it is asked again, after the next change.

Rules:
* A desired version in its generation that is not there is loaded, beside whatever is there.
* An older generation of a version is unloaded once the desired generation serves. If that one failed, the old one goes on.
* A version that is desired no more is unloaded at once when its model has no desired version left, else once every desired
  version serves: an update takes nothing away before it has succeeded.
* A failed load is not tried again until its generation changes.
* A serving version whose configuration has a newer revision in the same generation is resized; once per revision.
* An ended copy that is desired no more is forgotten when its load had failed, when its model is gone, or when another copy of
  its version stays; else it stays, to be seen as "unloaded". Of several that could, the newest does.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Iterator, Mapping

import msgspec

from tpy.ids import ModelId
from tpy.state import DesiredModel, DesiredVersion, ObservedKey


class Phase(enum.Enum):
    """The states of a copy of a version, as the plan needs them; the store and clients see a ModelState. The ones above FAILED
    have a task."""

    LOADING = "loading"
    SERVING = "serving"
    """It is switched in, even while none of its instances is alive."""
    WAITING = "waiting"
    """An ensemble that cannot be served for now, because of its members; it will be when they allow it."""
    STOPPING = "stopping"
    """It takes no new requests, answers the ones that it has, and is unloaded."""
    FAILED = "failed"
    """Its load failed; UNAVAILABLE in the store, like the next."""
    UNLOADED = "unloaded"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a version. `config_revision` is the one that was tried last, with or without success."""

    key: ObservedKey
    phase: Phase
    config_revision: int


class Load(msgspec.Struct, frozen=True):
    """Load this version in this generation."""

    model: DesiredModel
    version: DesiredVersion
    key: ObservedKey


class Resize(msgspec.Struct, frozen=True):
    """Apply the model's configuration, in which only instances differ, to a serving version."""

    model: DesiredModel
    key: ObservedKey


class Unload(msgspec.Struct, frozen=True):
    """Drain and unload; if it still loads, as soon as that is over."""

    key: ObservedKey


class Forget(msgspec.Struct, frozen=True):
    """Remove an ended copy from the store."""

    key: ObservedKey


Action = Load | Resize | Unload | Forget


def plan(desired: Mapping[ModelId, DesiredModel], running: Iterable[Running]) -> list[Action]:
    """The actions to take now, in order."""
    there: dict[ModelId, dict[ObservedKey, Running]] = {}
    for copy in running:
        there.setdefault(copy.key.model, {})[copy.key] = copy
    actions: list[Action] = []
    for model in sorted(desired.keys() | there.keys()):
        actions.extend(_plan_model(desired.get(model), there.get(model, {})))
    return actions


def _plan_model(model: DesiredModel | None, there: Mapping[ObservedKey, Running]) -> Iterator[Action]:
    wanted = _wanted(model)
    for key, version in wanted.items():
        copy = there.get(key)
        if model is not None and copy is None:
            yield Load(model, version, key)
        elif model is not None and _outdated(copy, model):
            yield Resize(model, key)
    all_serve = all((copy := there.get(key)) is not None and copy.phase is Phase.SERVING for key in wanted)
    for key, copy in there.items():
        if key in wanted:
            continue
        if copy.phase in (Phase.LOADING, Phase.WAITING, Phase.SERVING):
            if copy.phase is not Phase.SERVING or _may_go(key, wanted, there, all_serve=all_serve):
                yield Unload(key)
        elif copy.phase is Phase.FAILED or (copy.phase is Phase.UNLOADED and (model is None or _is_outlived(key, wanted, there))):
            yield Forget(key)


def _wanted(model: DesiredModel | None) -> dict[ObservedKey, DesiredVersion]:
    if model is None:
        return {}
    return {
        ObservedKey(model.id, version.version, version.generation): version
        for _, version in sorted(model.versions.items(), key=lambda item: item[0])
    }


def _outdated(copy: Running | None, model: DesiredModel) -> bool:
    return copy is not None and copy.phase is Phase.SERVING and copy.config_revision < model.config_revision


def _may_go(
    key: ObservedKey,
    wanted: Mapping[ObservedKey, DesiredVersion],
    there: Mapping[ObservedKey, Running],
    *,
    all_serve: bool,
) -> bool:
    successor = next((other for other in wanted if other.version == key.version), None)
    if successor is None:
        return all_serve
    copy = there.get(successor)
    return copy is not None and copy.phase is Phase.SERVING


def _is_outlived(key: ObservedKey, wanted: Container[ObservedKey], there: Mapping[ObservedKey, Running]) -> bool:
    """True when another copy of the same version is there that is not forgotten with this one."""
    return any(
        other in wanted
        or copy.phase not in (Phase.FAILED, Phase.UNLOADED)
        or (copy.phase is Phase.UNLOADED and other.generation > key.generation)
        for other, copy in there.items()
        if other.version == key.version and other != key
    )
