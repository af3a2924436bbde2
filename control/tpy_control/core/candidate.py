"""Turns a scan into a candidate for serving, or into a refusal.

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
from tpy.config.model_files import advice_for_folder
from tpy.errors import ErrorCode, Internal, InvalidArgument, TpyError
from tpy.ids import ModelDirectory, ModelId, Version
from tpy_control.core.scan import CONFIG_FILENAME, DirectoryFingerprint, ModelScan, VersionScan

DUPLICATE_TEXT = "model appears in two or more repositories"


class RefusalKind(enum.Enum):
    """The step at which a model was refused; Triton answers each differently."""

    POLL = "poll"
    """Its directory or configuration could not be read: Triton does not even know it then."""
    CONFIG = "config"
    """Its configuration contradicts itself."""
    NO_VERSIONS = "no versions"
    """No version is left under its version policy."""
    DUPLICATE = "duplicate"
    """Two repositories have a model of this name."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A model that cannot be served as it stands. `versions` are the versions it would have had (for CONFIG). `callers_fault` is
    true when the load call itself was wrong."""

    id: ModelId
    kind: RefusalKind
    message: str
    versions: tuple[Version, ...] = ()
    callers_fault: bool = False

    @property
    def reason(self) -> str:
        """The reason for the repository index."""
        if self.kind is RefusalKind.DUPLICATE:
            return self.message
        code = ErrorCode.INTERNAL if self.kind is RefusalKind.POLL else ErrorCode.INVALID_ARG
        return f"{code.value}: {self.message}"

    def error(self) -> TpyError:
        """The error of a load call: Triton's text followed by the reason, which Triton keeps for its log."""
        name = self.id.name
        if self.kind in (RefusalKind.POLL, RefusalKind.DUPLICATE):
            text = f"failed to load '{name}', failed to poll from model repository: {self.message}"
            return InvalidArgument(text) if self.callers_fault else Internal(text)
        if self.kind is RefusalKind.NO_VERSIONS:
            return InvalidArgument(f"load failed for model '{name}': {self.message}\n")
        return InvalidArgument(load_failure_text(self.id, [(version, "UNAVAILABLE", self.reason) for version in self.versions]))


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration, and with `directory` the files, that a load call puts in place of the repository's."""

    config_json: str
    directory: ModelDirectory | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A model that could be served. `config` is normalised. `versions` are the versions that the version policy selects, at least
    one; `older` are the versions that a policy of the latest ones leaves out. `shared` are the content keys of the files of all
    versions; `warnings` are for the log. `lifecycle` is the number of what its repository agents know of it, 0 without any;
    `origin` then the directory in the repository."""

    id: ModelId
    directory: ModelDirectory
    fingerprint: DirectoryFingerprint
    config: ModelConfig
    versions: Mapping[Version, VersionScan]
    older: Mapping[Version, VersionScan]
    shared: frozenset[tuple[str | int, ...]]
    override: Override | None = None
    warnings: tuple[str, ...] = ()
    lifecycle: int = 0
    origin: ModelDirectory | None = None

    @property
    def components(self) -> tuple[str, ...]:
        """The names of an ensemble's members; each once, in order."""
        return components_of(self.config)

    def with_answering(self, version: Version | None) -> Candidate:
        """The candidate with the version that answers until a newer one is promoted, if the policy leaves that out for newer
        ones: else a newer one would get all requests at once."""
        if version is None or version not in self.older:
            return self
        return msgspec.structs.replace(self, versions={version: self.older[version], **self.versions})


def load_failure_text(model: ModelId, versions: Iterable[tuple[Version, str, str]]) -> str:
    """Triton's text for a failed load; `versions` gives version, state and reason of the versions that are not READY."""
    parts = "".join(f"version {version} is at {state} state: {reason};\n" for version, state, reason in versions)
    return f"load failed for model '{model.name}': {parts}"


def components_of(config: ModelConfig) -> tuple[str, ...]:
    """The models that the steps of an ensemble name; () for all other models."""
    if config.ensemble_scheduling is None:
        return ()
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step if step.model_name))


def select_versions(policy: VersionPolicy | None, available: Iterable[Version]) -> tuple[Version, ...]:
    """The versions to serve, ascending. Without a policy the latest one; none for `latest { }`, whose number is 0: as Triton."""
    versions = sorted(available)
    if policy is not None and policy.all is not None:
        return tuple(versions)
    if policy is not None and policy.specific is not None:
        return tuple(version for version in versions if version in policy.specific.versions)
    count = 1 if policy is None or policy.latest is None else policy.latest.num_versions
    return tuple(versions[-count:]) if count > 0 else ()


def config_with_agents(scan: ModelScan, override: Override | None) -> ModelConfig | None:
    """The configuration as it is written, if it names repository agents. None for one that cannot be read: `interpret` says
    why."""
    text = scan.config_text if override is None else override.config_json
    if scan.error or text is None or "agents" not in text.lower():
        return None
    try:
        config = _parse(scan, auto_complete=True, override=override).config
    except ConfigError:
        return None
    return config if config.model_repository_agents is not None and config.model_repository_agents.agents else None


def interpret(scan: ModelScan, model: ModelId, *, auto_complete: bool, override: Override | None = None) -> Candidate | Refused:
    """Read the configuration of a scan, check it, and select its versions. Never raises for what is in the scan."""
    if scan.error:
        return Refused(id=model, kind=RefusalKind.POLL, message=scan.error)
    try:
        parsed = _parse(scan, auto_complete=auto_complete, override=override)
        config = resolve(
            msgspec.structs.replace(parsed.config, name="") if scan.has_given_name else parsed.config,
            directory_name=model.name,
            version_files=scan.first_version_names,
            other_files=scan.other_names,
            source=parsed.source,
        )
    except ConfigError as error:
        return Refused(id=model, kind=RefusalKind.POLL, message=error.message, callers_fault=override is not None)
    config = normalise(config)
    versions = select_versions(config.version_policy, [version.version for version in scan.versions])
    # Without a backend to complete the configuration it must be whole already.
    problems = validate(config, source=parsed.source, complete=not auto_complete)
    if errors_of(problems):
        message = ConfigError(problems).message
        if config.ensemble_scheduling is not None:  # Triton looks at these before it knows the model
            return Refused(id=model, kind=RefusalKind.POLL, message=message, callers_fault=override is not None)
        return Refused(id=model, kind=RefusalKind.CONFIG, message=message, versions=versions or (Version(1),))
    if not versions:
        text = f"at least one version must be available under the version policy of model '{model.name}'"
        if not scan.versions:
            text += f"; expected {advice_for_folder(None, scan.other_names, folder=model.name)}"
        return Refused(id=model, kind=RefusalKind.NO_VERSIONS, message=text)
    is_latest = config.version_policy is not None and config.version_policy.latest is not None
    return Candidate(
        id=model,
        directory=scan.directory,
        fingerprint=scan.fingerprint,
        config=config,
        versions={version.version: version for version in scan.versions if version.version in versions},
        older={version.version: version for version in scan.versions if is_latest and version.version < versions[0]},
        shared=frozenset(file.content for file in scan.shared),
        override=override,
        warnings=(*scan.warnings, *_warnings(config, scan, problems)),
    )


def _parse(scan: ModelScan, *, auto_complete: bool, override: Override | None) -> ParsedConfig:
    if override is not None:
        return ParsedConfig(config=parse_json(override.config_json), source=NO_SOURCE)
    if scan.config_text is None and not auto_complete:
        problem = Problem(
            path=f"{scan.directory}/{CONFIG_FILENAME}",
            message=f"failed to open text file for read {scan.directory}/{CONFIG_FILENAME}: No such file or directory; "
            "automatic completion is disabled",
            expected="a config.pbtxt, or a server without --disable-auto-complete-config",
        )
        raise ConfigError([problem])
    if scan.config_text is None:
        return ParsedConfig(config=ModelConfig(), source=Source(path=str(scan.directory)))
    return parse_pbtxt(scan.config_text, path=f"{scan.directory}/{scan.config_path}")


def _warnings(config: ModelConfig, scan: ModelScan, problems: Sequence[Problem]) -> list[str]:
    texts = [str(problem) for problem in problems if not problem.is_error]
    if config.version_policy is not None and config.version_policy.specific is not None:
        present = {version.version for version in scan.versions}
        missing = [version for version in config.version_policy.specific.versions if version not in present]
        texts.extend(f"version {version} of the version policy has no folder" for version in missing)
    return texts
