"""What is desired: the core of the control plane.

The rule: a model's desired state is its newest good candidate. A version keeps its generation, and so stays loaded, as long as
nothing it was loaded from has changed: its own files, the files shared by all versions, its directory, and the configuration
except `instance_group` and `version_policy`. Otherwise, and when a call asks again for what has failed or was touched, it gets a
new one.
A refused candidate changes nothing but the rejection: what was desired before stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from tpy.config import ModelConfig, only_instances_differ
from tpy.ids import Generation, ModelId, Version
from tpy.state import DesiredModel, DesiredVersion
from tpy_control.core.candidate import Candidate, Override, Refused, components_of
from tpy_control.core.picture import CONFIG_FILENAME, Glance, VersionPicture, version_of


class Put(msgspec.Struct, frozen=True):
    """Write what is desired of a model; takes its rejection back."""

    desired: DesiredModel


class Reject(msgspec.Struct, frozen=True):
    """Write why a model's newest files cannot be served."""

    id: ModelId
    reason: str


class Withdraw(msgspec.Struct, frozen=True):
    """Take a rejection back."""

    id: ModelId


class Remove(msgspec.Struct, frozen=True):
    """Forget a model."""

    id: ModelId


Action = Put | Reject | Withdraw | Remove


class _Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate behind a desired model."""

    desired: DesiredModel
    glance: Glance
    override: Override | None
    contents: Mapping[Version, frozenset[tuple[str | int, ...]]]
    shared: frozenset[tuple[str | int, ...]]
    by_name: bool
    """Whether a call (or --load-model) named this model; false for one that came along as part of an ensemble."""

    def holds(self, version: Version, picture: VersionPicture) -> bool:
        """Whether this version is desired, and from files with the same content."""
        return version in self.desired.versions and self.contents.get(version) == picture.content


class ControlCore:
    """Decides; returns actions that the driver performs at once, before it yields to the loop."""

    def __init__(self, *, next_generation: Callable[[ModelId], Generation], auto_complete: bool) -> None:
        """`next_generation` hands out numbers that a model never had."""
        self._next_generation = next_generation
        self._auto_complete = auto_complete
        self._applied: dict[ModelId, _Applied] = {}
        self._refused: dict[ModelId, Refused] = {}

    @property
    def refusals(self) -> Mapping[ModelId, Refused]:
        """The refusals in force."""
        return self._refused

    def desired(self, model: ModelId) -> DesiredModel | None:
        """What is desired now; None for a model that was never served."""
        applied = self._applied.get(model)
        return None if applied is None else applied.desired

    def models(self) -> Collection[ModelId]:
        """All models that are desired or refused."""
        return self._applied.keys() | self._refused.keys()

    def is_wanted(self, model: ModelId) -> bool:
        """Whether some version of the model is desired."""
        applied = self._applied.get(model)
        return applied is not None and bool(applied.desired.versions)

    def kept_override(self, model: ModelId, glance: Glance) -> Override | None:
        """The configuration override that a plain load goes on with: that of the last load, while the model is loaded and
        nobody has touched its directory since. Files of an override are never kept."""
        applied = self._applied.get(model)
        if applied is None or applied.override is None or applied.override.directory is not None:
            return None
        return applied.override if applied.desired.versions and applied.glance == glance else None

    def apply(
        self,
        candidate: Candidate,
        *,
        why: str,
        by_name: bool = True,
        failed: Collection[Version] = (),
        apply_again: bool = False,
        reload_touched: bool = False,
    ) -> list[Action]:
        """Desire a candidate. `failed` are versions whose desired generation has failed and is to be tried again;
        `apply_again` has a configuration that could not be applied tried again, with a new revision. With `reload_touched`,
        versions are loaded anew whose files were written or touched, whatever is in them: people force a reload so."""
        before = self._applied.get(candidate.id)
        if reload_touched and before is not None:
            failed = {*failed, *_touched(before, candidate)}
        desired = self._desire(candidate, before, why, failed, apply_again=apply_again)
        self._applied[candidate.id] = _Applied(
            desired=desired,
            glance=candidate.glance,
            override=candidate.override,
            contents={version: picture.content for version, picture in candidate.versions.items()},
            shared=candidate.shared,
            by_name=by_name or (before is not None and before.by_name and bool(before.desired.versions)),
        )
        refused = self._refused.pop(candidate.id, None)
        if before is not None and before.desired is desired and refused is None:
            return []
        return [Put(desired)]

    def refuse(self, refused: Refused) -> list[Action]:
        """Reject what was found; what was desired before stays."""
        if self._refused.get(refused.id) == refused:
            return []
        self._refused[refused.id] = refused
        return [Reject(refused.id, refused.reason)]

    def unload(self, model: ModelId, *, why: str, components: bool) -> list[Action]:
        """Desire no version of a model. With `components`, also of the models that it is made of, unless they were loaded by
        name or another loaded ensemble needs them. Unknown models are fine."""
        actions = self._unload_one(model, why)
        if components:
            for component in self._spared_by_nobody(model):
                actions.extend(self._unload_one(component, why))
        return actions

    def forget(self, model: ModelId) -> list[Action]:
        """Drop a model whose directory is gone."""
        known = self._applied.pop(model, None) is not None
        known = (self._refused.pop(model, None) is not None) or known
        return [Remove(model)] if known else []

    def _desire(
        self, candidate: Candidate, before: _Applied | None, why: str, failed: Collection[Version], *, apply_again: bool
    ) -> DesiredModel:
        old = None if before is None else before.desired
        same_config = old is not None and old.config == candidate.config and not apply_again
        keeps = before is not None and _keeps_loaded(before, candidate)
        versions: dict[Version, DesiredVersion] = {}
        for version, picture in candidate.versions.items():
            if before is not None and keeps and version not in failed and before.holds(version, picture):
                versions[version] = before.desired.versions[version]
                continue
            generation = self._next_generation(candidate.id)
            versions[version] = DesiredVersion(version=version, generation=generation, directory=picture.directory)
        revision = 1 if old is None else old.config_revision + (0 if same_config else 1)
        desired = DesiredModel(
            id=candidate.id,
            directory=candidate.directory,
            config=candidate.config,
            config_revision=revision,
            versions=versions,
            auto_complete=self._auto_complete,
            why=why,
        )
        if old is not None and msgspec.structs.replace(desired, why=old.why) == old:
            return old
        return desired

    def _unload_one(self, model: ModelId, why: str) -> list[Action]:
        refused = self._refused.pop(model, None)
        applied = self._applied.get(model)
        if applied is None or not applied.desired.versions:
            return [Withdraw(model)] if refused is not None else []
        desired = msgspec.structs.replace(applied.desired, versions={}, why=why)
        self._applied[model] = msgspec.structs.replace(applied, desired=desired, by_name=False)
        return [Put(desired)]

    def _spared_by_nobody(self, model: ModelId) -> list[ModelId]:
        """The components of a model, and theirs, that were not loaded by name and that no other wanted ensemble uses."""
        below = set(self._below(model))
        needed: set[ModelId] = set()
        for other, applied in self._applied.items():
            keeps = applied.desired.versions and (other not in below or applied.by_name) and other != model
            if keeps and components_of(applied.desired.config):
                needed.update(self._below(other))
        return [name for name in sorted(below - needed) if not self._applied[name].by_name]

    def _below(self, model: ModelId) -> Iterator[ModelId]:
        """The known models that an ensemble is made of, at any depth."""
        open_models, seen = [model], {model}
        while open_models:
            applied = self._applied.get(open_models.pop())
            for component in () if applied is None else components_of(applied.desired.config):
                for known in self._applied:
                    if known.name == component and known not in seen:
                        seen.add(known)
                        open_models.append(known)
                        yield known


def _touched(before: _Applied, candidate: Candidate) -> Collection[Version]:
    """The versions whose files are not those of before, by their traces; all, when files of all versions are not. A configuration
    that has changed in what needs no reload is none of them."""
    paths = {str(trace[0]) for trace in {*before.glance.traces} ^ {*candidate.glance.traces}}
    if before.desired.config != candidate.config:
        paths.discard(CONFIG_FILENAME)
    folders = {path.partition("/")[0] if "/" in path else "" for path in paths}
    if any(isinstance(version_of(folder), str) for folder in folders):
        return candidate.versions.keys()
    return [version for version in candidate.versions if str(version) in folders]


def _keeps_loaded(before: _Applied, candidate: Candidate) -> bool:
    """Whether versions with unchanged files may stay loaded."""
    return (
        before.desired.directory == candidate.directory
        and before.shared == candidate.shared
        and _same_weights(before.desired.config, candidate.config)
    )


def _same_weights(old: ModelConfig, new: ModelConfig) -> bool:
    return old == new or only_instances_differ(old, new)
