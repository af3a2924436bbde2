"""The values in the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tpy.config import ModelConfig
from tpy.ids import Generation, ModelId, Version
from tpy.messages import ModelDescription, ModelState

UNLOADED = "unloaded"
"""The reason of a version that was unloaded on purpose, and of an ensemble that lost a member in that way; Triton's word."""


class DesiredVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version to serve. A new `generation` means: load anew beside the old one, switch, drain and unload the old one. The
    `content` of its files is equal exactly if the files are; empty if it is not known."""

    version: Version
    generation: Generation
    directory: Path
    content: frozenset[tuple[str | int, ...]] = frozenset()


class DesiredModel(msgspec.Struct, frozen=True, kw_only=True):
    """The desired state of one model.

    `config` is parsed, named, with its backend resolved, but not auto-completed (that needs the model file, so the data
    plane does it at load). `config_revision` grows with every change of the configuration; when only `instance_group` changed,
    generations stay and the data plane resizes. `auto_complete` is false under --disable-auto-complete-config. `versions` empty
    means: unload all. `why` says who wanted it ("startup", "load request", "file change", ...).
    """

    id: ModelId
    directory: Path
    config: ModelConfig
    config_revision: int
    versions: Mapping[Version, DesiredVersion]
    auto_complete: bool = True
    why: str = ""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a repository that never reaches the data plane as it stands (broken configuration, no versions, name in two
    repositories). If an older DesiredModel exists it stays in force beside the rejection."""

    id: ModelId
    reason: str
    since_ns: int


class ObservedKey(msgspec.Struct, frozen=True, order=True):
    """The old copy of a version can be READY while its replacement is LOADING: the generation tells them apart."""

    model: ModelId
    version: Version
    generation: Generation


class ObservedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version in one generation: what it is now, why, and since when (Clock nanoseconds).

    `config` (normalised, auto-completed) and `description` are there from READY until it is unloaded, so that an UNAVAILABLE
    version that has them was loaded and lost its instances. `config_revision` is the one last applied,
    so that an instance resize has converged when it equals the desired one. `applied_error` is the reason why `refused_revision`,
    the newest one that was tried, could not be applied (the old instances go on); "" when it could. `remark` is what its operator
    should know of a version that serves, such as instances that hang.
    """

    key: ObservedKey
    state: ModelState
    reason: str = ""
    since_ns: int = 0
    config: ModelConfig | None = None
    config_revision: int = 0
    description: ModelDescription | None = None
    applied_error: str = ""
    remark: str = ""
    refused_revision: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Both halves at one moment. `revision` grows with every change. `answering` is observed, too: of models with a plan for new
    versions, the version that answers requests without one until another is promoted."""

    revision: int
    desired: Mapping[ModelId, DesiredModel]
    rejections: Mapping[ModelId, Rejection]
    observed: Mapping[ObservedKey, ObservedVersion]
    answering: Mapping[ModelId, Version]

    def versions_of(self, model: ModelId) -> list[ObservedVersion]:
        """The observed versions of a model, by version, then generation."""
        return sorted((o for o in self.observed.values() if o.key.model == model), key=lambda o: o.key)

    def observed_of(self, desired: DesiredModel) -> dict[Version, ObservedVersion | None]:
        """The desired generation of each desired version, as observed; None where it is not there yet."""
        return {
            version: self.observed.get(ObservedKey(desired.id, version, wanted.generation))
            for version, wanted in desired.versions.items()
        }
