"""From a picture to what could be served of it: a candidate, or why there is none.

Pure but not free: parsing a configuration takes milliseconds, so drivers do it off the loop.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tpy.config import (
    NO_SOURCE,
    ConfigError,
    ModelConfig,
    ParsedConfig,
    Problem,
    Source,
    errors_of,
    normalise,
    parse_json,
    parse_pbtxt,
    resolve,
    validate,
)
from tpy.config.model_config import VersionPolicy
from tpy.errors import ErrorCode, Internal, InvalidArgument, TpyError
from tpy.ids import ModelDirectory, ModelId, Version
from tpy_control.core.picture import CONFIG_FILENAME, Glance, ModelPicture, VersionPicture

DUPLICATE_TEXT = "model appears in two or more repositories"


class RefusalKind(enum.Enum):
    """How far a model came; Triton answers each differently."""

    POLL = "poll"
    """Its directory or configuration could not be read: Triton does not even know it then."""
    CONFIG = "config"
    """Its configuration contradicts itself."""
    NO_VERSIONS = "no versions"
    """No version is left under its version policy."""
    DUPLICATE = "duplicate"
    """Two repositories have a model of this name."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Why a model cannot be served as it stands. `versions` are those that would have been (for CONFIG). `callers_fault` is true
    when the load call itself was wrong."""

    id: ModelId
    kind: RefusalKind
    message: str
    versions: tuple[Version, ...] = ()
    callers_fault: bool = False

    @property
    def reason(self) -> str:
        """What the repository index says."""
        if self.kind is RefusalKind.DUPLICATE:
            return self.message
        code = ErrorCode.INTERNAL if self.kind is RefusalKind.POLL else ErrorCode.INVALID_ARG
        return f"{code.value}: {self.message}"

    def error(self) -> TpyError:
        """What a load call raises: Triton's text, and behind it the reason, which Triton keeps for its log."""
        name = self.id.name
        if self.kind in (RefusalKind.POLL, RefusalKind.DUPLICATE):
            text = f"failed to load '{name}', failed to poll from model repository: {self.message}"
            return InvalidArgument(text) if self.callers_fault else Internal(text)
        if self.kind is RefusalKind.NO_VERSIONS:
            return InvalidArgument(f"load failed for model '{name}': {self.message}\n")
        return InvalidArgument(load_failure_text(self.id, [(version, "UNAVAILABLE", self.reason) for version in self.versions]))


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """What a load call put in place of the repository's files. `directory` is set when it brought files of its own."""

    config_json: str
    directory: ModelDirectory | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What could be served of a model. `config` is normalised. `versions` are those that the version policy selects, never
    none. `shared` is what belongs to all versions; `warnings` are for the log."""

    id: ModelId
    directory: ModelDirectory
    glance: Glance
    config: ModelConfig
    versions: Mapping[Version, VersionPicture]
    shared: frozenset[tuple[str | int, ...]]
    override: Override | None = None
    warnings: tuple[str, ...] = ()

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the models that an ensemble is made of; each once, in order."""
        return components_of(self.config)


def load_failure_text(model: ModelId, versions: Iterable[tuple[Version, str, str]]) -> str:
    """Triton's text for a failed load; `versions` gives version, state and reason of those that are not READY."""
    parts = "".join(f"version {version} is at {state} state: {reason};\n" for version, state, reason in versions)
    return f"load failed for model '{model.name}': {parts}"


def components_of(config: ModelConfig) -> tuple[str, ...]:
    """The models that the steps of an ensemble name; () for all other models."""
    if config.ensemble_scheduling is None:
        return ()
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step if step.model_name))


def select_versions(policy: VersionPolicy | None, available: Iterable[Version]) -> tuple[Version, ...]:
    """The versions to serve, ascending. Latest 1 where nothing is said; none for `latest { }`, whose number is 0: as Triton."""
    versions = sorted(available)
    if policy is not None and policy.all is not None:
        return tuple(versions)
    if policy is not None and policy.specific is not None:
        return tuple(version for version in versions if version in policy.specific.versions)
    count = 1 if policy is None or policy.latest is None else policy.latest.num_versions
    return tuple(versions[-count:]) if count > 0 else ()


def interpret(
    picture: ModelPicture, model: ModelId, *, auto_complete: bool, override: Override | None = None
) -> Candidate | Refused:
    """Read the configuration of a picture, check it, and select its versions. Never raises for what is in the picture."""
    if picture.error:
        return Refused(id=model, kind=RefusalKind.POLL, message=picture.error)
    try:
        parsed = _parse(picture, auto_complete=auto_complete, override=override)
        config = resolve(
            parsed.config, directory_name=model.name, version_files=picture.first_version_names, source=parsed.source
        )
    except ConfigError as error:
        return Refused(id=model, kind=RefusalKind.POLL, message=error.message, callers_fault=override is not None)
    config = normalise(config)
    versions = select_versions(config.version_policy, [version.version for version in picture.versions])
    # Without a backend to complete the configuration it must be whole already.
    problems = validate(config, source=parsed.source, complete=not auto_complete)
    if errors_of(problems):
        message = ConfigError(problems).message
        if config.ensemble_scheduling is not None:  # Triton looks at these before it knows the model
            return Refused(id=model, kind=RefusalKind.POLL, message=message, callers_fault=override is not None)
        return Refused(id=model, kind=RefusalKind.CONFIG, message=message, versions=versions or (Version(1),))
    if not versions:
        text = f"at least one version must be available under the version policy of model '{model.name}'"
        return Refused(id=model, kind=RefusalKind.NO_VERSIONS, message=text)
    return Candidate(
        id=model,
        directory=picture.directory,
        glance=picture.glance,
        config=config,
        versions={version.version: version for version in picture.versions if version.version in versions},
        shared=frozenset(file.content for file in picture.shared),
        override=override,
        warnings=(*picture.warnings, *_warnings(config, picture, problems)),
    )


def _parse(picture: ModelPicture, *, auto_complete: bool, override: Override | None) -> ParsedConfig:
    if override is not None:
        return ParsedConfig(config=parse_json(override.config_json), source=NO_SOURCE)
    if picture.config_text is None and not auto_complete:
        problem = Problem(
            path=f"{picture.directory}/{CONFIG_FILENAME}",
            message=f"failed to open text file for read {picture.directory}/{CONFIG_FILENAME}: No such file or directory; "
            "automatic completion is disabled",
            expected="a config.pbtxt, or a server without --disable-auto-complete-config",
        )
        raise ConfigError([problem])
    if picture.config_text is None:
        return ParsedConfig(config=ModelConfig(), source=Source(path=str(picture.directory)))
    return parse_pbtxt(picture.config_text, path=f"{picture.directory}/{picture.config_path}")


def _warnings(config: ModelConfig, picture: ModelPicture, problems: Sequence[Problem]) -> list[str]:
    texts = [str(problem) for problem in problems if not problem.is_error]
    if config.version_policy is not None and config.version_policy.specific is not None:
        present = {version.version for version in picture.versions}
        missing = [version for version in config.version_policy.specific.versions if version not in present]
        texts.extend(f"version {version} of the version policy has no folder" for version in missing)
    return texts
