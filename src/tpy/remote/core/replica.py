"""A frontend process's replica of the serving table, for the look-ups that frontends make with every request.

The engine sends the results of its own InferenceService, errors included, and sends them again when they change: texts are never
made here. Where a text names what was asked for, it was asked with a placeholder, which is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.config import ModelConfig
from tpy.config.aliases import aliased
from tpy.config_forms import ConfigForms
from tpy.errors import ERROR_OF_CODE, ErrorCode, TpyError
from tpy.messages import LogSettings, ModelDescription, RegionFacts, ServerMetadata

ANY_NAME = "\0"
"""Stands for a model's name: no model can have it."""

ANY_VERSION = 2**63 - 2
"""Stands for a version: one that no text names by chance."""


class RemoteError(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An error of the engine's, for a frontend process to raise."""

    code: ErrorCode
    message: str

    def error(self, name: str, version: int | None) -> TpyError:
        """The error for this name and version."""
        text = self.message.replace(ANY_NAME, name).replace(str(ANY_VERSION), str(version))
        return ERROR_OF_CODE[self.code](text)


class VersionEntry(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A version that can be resolved, with the `copy` and `description` of its ResolvedModel. `config` may be `refused` all the
    same: of one that only live sequences still use."""

    copy: int
    description: ModelDescription
    config: ModelConfig | None
    refused: RemoteError | None


class ModelEntry(msgspec.Struct, frozen=True, array_like=True):
    """A name. `newest` answers requests without version, `other` those for a version that is not in `versions`."""

    newest: VersionEntry | RemoteError
    versions: Mapping[int, VersionEntry | RemoteError]
    other: RemoteError
    ready_versions: tuple[int, ...] | None
    not_known: RemoteError | None
    """The error that `ready_versions` raises if it is None."""


class ServerState(msgspec.Struct, frozen=True, array_like=True):
    """The state of the server as a whole. `revision` is ReadinessService's number; `shared_memory` the error of
    `require_enabled`; `observed`: somebody in the engine observes requests."""

    revision: int
    live: bool
    ready: bool
    metadata: ServerMetadata
    log: LogSettings
    shared_memory: RemoteError | None
    unknown: RemoteError
    observed: bool = False


class RegionEntry(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A registered region. Its segment is the one that the process `pid` has open as `descriptor`: the name may be gone, or be
    that of another by now."""

    facts: RegionFacts
    pid: int
    descriptor: int
    identity: tuple[int, int]


class DeviceRegionEntry(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A registered region in a GPU's memory, which only the engine has open."""

    facts: RegionFacts
    number: int


AnyRegionEntry = RegionEntry | DeviceRegionEntry


class ReplicaUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A change of the replica: models and regions by name, None for a name that is unknown now."""

    server: ServerState
    models: Mapping[str, ModelEntry | None]
    regions: Mapping[str, AnyRegionEntry | None] = {}


class Replica:
    """The answers as of the last update."""

    def __init__(self, first: ReplicaUpdate) -> None:
        self.server = first.server
        self._models: dict[str, ModelEntry] = {}
        self._forms: dict[str, dict[int, ConfigForms]] = {}
        self.regions: dict[str, AnyRegionEntry] = {}
        self.update(first)

    def update(self, update: ReplicaUpdate) -> None:
        """Take what has changed."""
        self.server = update.server
        for name, entry in update.models.items():
            self._forms.pop(name, None)
            if entry is None:
                self._models.pop(name, None)
            else:
                self._models[name] = entry
        for name, region in update.regions.items():
            if region is None:
                self.regions.pop(name, None)
            else:
                self.regions[name] = region

    def resolve(self, model_name: str, version: int | None) -> VersionEntry:
        """As InferenceService.resolve."""
        entry = self._models.get(model_name)
        if entry is None:
            if (found_as := self._of_alias(model_name, version)) is not None:
                return self.resolve(*found_as)
            raise self.server.unknown.error(model_name, version)
        found = entry.newest if version is None else entry.versions.get(version, entry.other)
        if isinstance(found, RemoteError):
            raise found.error(model_name, version)
        return found

    def _of_alias(self, model_name: str, version: int | None) -> tuple[str, int] | None:
        """As EngineInference's."""
        return None if version is not None else aliased(model_name, self._config_of)

    def _config_of(self, model_name: str) -> ModelConfig | None:
        entry = self._models.get(model_name)
        found = () if entry is None else (entry.newest, *entry.versions.values())
        return next((each.config for each in found if isinstance(each, VersionEntry)), None)

    def config_forms(self, model_name: str, version: int | None) -> ConfigForms:
        """As InferenceService.config_forms."""
        entry = self.resolve(model_name, version)
        if entry.config is None:
            raise (entry.refused or self.server.unknown).error(model_name, version)
        forms = self._forms.setdefault(model_name, {})
        if entry.copy not in forms:
            forms[entry.copy] = ConfigForms(entry.config)
        return forms[entry.copy]

    def ready_versions(self, model_name: str) -> tuple[int, ...]:
        """As InferenceService.ready_versions."""
        entry = self._models.get(model_name)
        if entry is None:
            if (found_as := self._of_alias(model_name, None)) is not None:
                return tuple(each for each in self.ready_versions(found_as[0]) if each == found_as[1])
            raise self.server.unknown.error(model_name, None)
        if entry.ready_versions is None:
            raise (entry.not_known or self.server.unknown).error(model_name, None)
        return entry.ready_versions
