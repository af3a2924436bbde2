"""ControlCore: decides the desired state of every model.

The rule: a model's desired state is its newest good candidate. A version keeps its generation, and so stays loaded, as long as
nothing it was loaded from has changed: its own files, the files shared by all versions, its directory, and the configuration
except `instance_group` and `version_policy`. Otherwise, and when a load call asks again for a version that failed or whose files
were touched, it gets a new generation. A refused candidate sets the rejection and leaves the desired state as it was. The version
that answers while a newer one is rolled out is desired beside those of a policy of the latest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from tpy.config import ModelConfig, only_instances_differ
from tpy.ids import Generation, ModelId, Version
from tpy.state import DesiredModel, DesiredVersion
from tpy_control.core.candidate import Candidate, Override, Refused, components_of
from tpy_control.core.scan import CONFIG_FILENAME, CONFIGS_FOLDER, DirectoryFingerprint, VersionScan, version_of


class Put(msgspec.Struct, frozen=True):
    """Write a model's desired state and withdraw its rejection."""

    desired: DesiredModel


class Reject(msgspec.Struct, frozen=True):
    """Write the reason for which a model's newest files cannot be served."""

    id: ModelId
    reason: str
    message: str
    """The reason without its code, for the log."""


class Withdraw(msgspec.Struct, frozen=True):
    """Withdraw a rejection."""

    id: ModelId


class Remove(msgspec.Struct, frozen=True):
    """Forget a model."""

    id: ModelId


Action = Put | Reject | Withdraw | Remove


class _Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate behind a desired model."""

    desired: DesiredModel
    candidate: Candidate
    contents: Mapping[Version, frozenset[tuple[str | int, ...]]]
    by_name: bool
    """True if a load call (or --load-model) named this model; False for a member loaded with its ensemble."""

    def holds(self, version: Version, scan: VersionScan) -> bool:
        """Returns True if this version is desired, from files with the same content."""
        return version in self.desired.versions and self.contents.get(version) == scan.content


class ControlCore:
    """Returns actions that the driver performs at once, before it yields to the loop."""

    def __init__(self, *, next_generation: Callable[[ModelId], Generation], auto_complete: bool) -> None:
        """`next_generation` returns a number that a model never had."""
        self._next_generation = next_generation
        self._auto_complete = auto_complete
        self._applied: dict[ModelId, _Applied] = {}
        self._refused: dict[ModelId, Refused] = {}

    @property
    def refusals(self) -> Mapping[ModelId, Refused]:
        """The refusals in force."""
        return self._refused

    def desired(self, model: ModelId) -> DesiredModel | None:
        """The current desired state; None for a model that was never desired."""
        applied = self._applied.get(model)
        return None if applied is None else applied.desired

    def models(self) -> Collection[ModelId]:
        """All models that are desired or refused."""
        return self._applied.keys() | self._refused.keys()

    def is_wanted(self, model: ModelId) -> bool:
        """Returns True if some version of the model is desired."""
        applied = self._applied.get(model)
        return applied is not None and bool(applied.desired.versions)

    def kept_override(self, model: ModelId, fingerprint: DirectoryFingerprint) -> Override | None:
        """The configuration override that a plain load reuses: that of the last load, while the model is loaded and its directory
        has not been touched since. Files of an override are never reused."""
        applied = self._applied.get(model)
        override = None if applied is None else applied.candidate.override
        if applied is None or override is None or override.directory is not None:
            return None
        return override if applied.desired.versions and applied.candidate.fingerprint == fingerprint else None

    def apply(
        self,
        candidate: Candidate,
        *,
        why: str,
        by_name: bool = True,
        failed: Collection[Version] = (),
        apply_again: bool = False,
        reload_touched: bool = False,
        answering: Version | None = None,
    ) -> list[Action]:
        """Make a candidate the desired state. `failed` are versions whose desired generation has failed and is retried;
        `apply_again` retries a configuration that could not be applied, with a new revision. `reload_touched` also reloads
        versions whose files were rewritten with the same content: operators force a reload so. `answering` is the version that
        answers until another is promoted."""
        before, found, candidate = self._applied.get(candidate.id), candidate, candidate.with_answering(answering)
        if reload_touched and before is not None:
            failed = {*failed, *_touched(before, candidate)}
        desired = self._desire(candidate, before, why, failed, apply_again=apply_again)
        self._applied[candidate.id] = _Applied(
            desired=desired,
            candidate=found,
            contents={version: scan.content for version, scan in candidate.versions.items()},
            by_name=by_name or (before is not None and before.by_name and bool(before.desired.versions)),
        )
        refused = self._refused.pop(candidate.id, None)
        if before is not None and before.desired is desired and refused is None:
            return []
        return [Put(desired)]

    def keep_answering(self, model: ModelId, answering: Version | None) -> list[Action]:
        """Another version of a model answers now: desire it, and not the one before, as far as the policy leaves them out."""
        applied = self._applied.get(model)
        if applied is None or not applied.desired.versions:
            return []
        refused = self._refused.pop(model, None)
        actions = self.apply(applied.candidate, why="rollout", by_name=applied.by_name, answering=answering)
        if refused is None:
            return actions
        self._refused[model] = refused
        return [*actions, Reject(refused.id, refused.reason, refused.message)] if actions else []

    def refuse(self, refused: Refused) -> list[Action]:
        """Reject a model's newest files; the desired state stays."""
        if self._refused.get(refused.id) == refused:
            return []
        self._refused[refused.id] = refused
        return [Reject(refused.id, refused.reason, refused.message)]

    def unload(self, model: ModelId, *, why: str, components: bool) -> list[Action]:
        """Desire no version of a model. With `components`, also none of an ensemble's members, unless they were loaded by name or
        another loaded ensemble needs them. Unknown models are fine."""
        actions = self._unload_one(model, why)
        if components:
            for component in self._unneeded_components(model):
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
        for version, scan in candidate.versions.items():
            if before is not None and keeps and version not in failed and before.holds(version, scan):
                versions[version] = before.desired.versions[version]
                continue
            generation = self._next_generation(candidate.id)
            versions[version] = DesiredVersion(
                version=version, generation=generation, directory=scan.directory, content=scan.content
            )
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

    def _unneeded_components(self, model: ModelId) -> list[ModelId]:
        """The components of a model, at any depth, that were not loaded by name and that no other desired ensemble uses."""
        below = set(self._below(model))
        needed: set[ModelId] = set()
        for other, applied in self._applied.items():
            keeps = applied.desired.versions and (other not in below or applied.by_name) and other != model
            if keeps and components_of(applied.desired.config):
                needed.update(self._below(other))
        return [name for name in sorted(below - needed) if not self._applied[name].by_name]

    def _below(self, model: ModelId) -> Iterator[ModelId]:
        """The known components of an ensemble, at any depth."""
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
    """The versions whose files were written since, by their stat keys; all versions if shared files were. Configurations count
    only through `_keeps_loaded`, as in Triton."""
    paths = {str(key[0]) for key in {*before.candidate.fingerprint.stat_keys} ^ {*candidate.fingerprint.stat_keys}}
    folders = {path.partition("/")[0] if "/" in path else "" for path in paths - {CONFIG_FILENAME}} - {CONFIGS_FOLDER}
    if any(isinstance(version_of(folder), str) for folder in folders):
        return candidate.versions.keys()
    return [version for version in candidate.versions if str(version) in folders]


def _keeps_loaded(before: _Applied, candidate: Candidate) -> bool:
    """Returns True if versions with unchanged files may stay loaded."""
    return (
        before.desired.directory == candidate.directory
        and before.candidate.shared == candidate.shared
        and _same_weights(before.desired.config, candidate.config)
    )


def _same_weights(old: ModelConfig, new: ModelConfig) -> bool:
    return old == new or only_instances_differ(old, new)
