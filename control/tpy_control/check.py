"""Checks repositories without loading anything: what `tpy check` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tpy.config import (
    ConfigError,
    ExtraCheck,
    ModelConfig,
    Problem,
    Severity,
    check_text,
    errors_of,
    normalise,
    parse_pbtxt,
)
from tpy.config.validation.ensemble_members import check_members
from tpy.errors import InvalidArgument
from tpy.ids import Generation, ModelId
from tpy.state import DesiredModel, DesiredVersion
from tpy_control.core.agents import CHECKSUM_AGENT, mismatches, required_md5s
from tpy_control.core.candidate import DUPLICATE_TEXT, Refused, components_of, interpret, select_versions
from tpy_control.core.scan import CONFIG_FILENAME, ModelScan
from tpy_control.sources.disk import DiskRepositories


class ModelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The errors and warnings of one model directory, in the order of the file."""

    name: str
    repository: str
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """True without errors: the model can be loaded, as far as can be told without loading it."""
        return not any(problem.is_error for problem in self.problems)


class LoadTrial(NamedTuple):
    """The result of loading a model and letting it go again: the completed configuration, None where it did not load, and the
    findings."""

    config: ModelConfig | None
    findings: tuple[tuple[Severity, str], ...] = ()


class _Scanned(msgspec.Struct, frozen=True):
    """A scanned model directory; `config` is None where the configuration could not be read."""

    scan: ModelScan
    path: str
    config: ModelConfig | None


def check_repository(
    paths: Sequence[Path],
    *,
    model_config_name: str = "",
    auto_complete: bool = True,
    namespacing: bool = False,
    extra_check: ExtraCheck = lambda config: (),
    try_load: Callable[[DesiredModel], LoadTrial] | None = None,
) -> list[ModelCheck]:
    """Check every model of the repositories; one entry per model directory, sorted. Blocks: reads files. `extra_check` knows
    what the data plane would refuse; `try_load` loads a model, to find out what only loading shows.

    Raises Unavailable for a repository that cannot be read. Options mean what they mean for the server.
    """
    disk = DiskRepositories(paths)
    scanned: list[_Scanned] = []
    for location in disk.list_models():
        scan = disk.scan(location, model_config_name)
        if scan is not None:
            scanned.append(_read(scan))
    names = Counter(one.scan.location.name for one in scanned)
    configs = {one.scan.location.name: one.config for one in scanned if one.config is not None}
    found = {
        one.scan.location: _problems(
            disk, one, names, auto_complete=auto_complete, duplicate=not namespacing, extra_check=extra_check
        )
        for one in scanned
    }
    if try_load is not None:
        for one in scanned:
            if not errors_of(found[one.scan.location]) and not _is_ensemble(one):
                trial = _tried(one, try_load, auto_complete=auto_complete)
                found[one.scan.location] += [
                    Problem(path=str(one.scan.directory), message=text, severity=severity) for severity, text in trial.findings
                ]
                if trial.config is not None:
                    configs[one.scan.location.name] = trial.config
    return [
        ModelCheck(
            name=one.scan.location.name,
            repository=one.scan.location.repository,
            problems=(*found[one.scan.location], *_check_members(one, names, configs, must=try_load is not None)),
        )
        for one in scanned
    ]


def _is_ensemble(one: _Scanned) -> bool:
    return one.config is not None and one.config.ensemble_scheduling is not None


def _tried(one: _Scanned, try_load: Callable[[DesiredModel], LoadTrial], *, auto_complete: bool) -> LoadTrial:
    """The trial of a model whose configuration is sound."""
    model = ModelId(one.scan.location.name)
    candidate = interpret(one.scan, model, auto_complete=auto_complete)
    if isinstance(candidate, Refused):
        return LoadTrial(None, ((Severity.ERROR, candidate.message),))
    versions = {
        version: DesiredVersion(version=version, generation=Generation(1), directory=scan.directory)
        for version, scan in candidate.versions.items()
    }
    return try_load(
        DesiredModel(
            id=model,
            directory=candidate.directory,
            config=candidate.config,
            config_revision=1,
            versions=versions,
            auto_complete=auto_complete,
        )
    )


def _read(scan: ModelScan) -> _Scanned:
    path = f"{scan.directory}/{scan.config_path or CONFIG_FILENAME}"
    try:
        config = normalise(parse_pbtxt(scan.config_text or "", path=path).config)
    except ConfigError:
        return _Scanned(scan, path, None)
    return _Scanned(scan, path, config)


def _problems(
    disk: DiskRepositories, one: _Scanned, names: Counter[str], *, auto_complete: bool, duplicate: bool, extra_check: ExtraCheck
) -> list[Problem]:
    scan, path = one.scan, one.path
    name = scan.location.name
    if scan.error:
        return [Problem(path=str(scan.directory), message=scan.error)]
    problems: list[Problem] = []
    if duplicate and names[name] > 1:
        problems.append(Problem(path=str(scan.directory), message=DUPLICATE_TEXT, expected="one directory of this name"))
    problems.extend(Problem(path=str(scan.directory), message=text, severity=Severity.WARNING) for text in scan.warnings)
    if scan.config_text is None and not auto_complete:
        message = f"failed to open text file for read {path}: No such file or directory; automatic completion is disabled"
        return [*problems, Problem(path=path, message=message, expected=f"a {CONFIG_FILENAME}")]
    found = check_text(
        scan.config_text or "",
        path=path,
        directory_name=name,
        version_files=scan.first_version_names,
        other_files=scan.other_names,
        complete=not auto_complete,
        extra_check=extra_check,
    )
    if scan.config_text is None:  # there is no file that could have lines
        found = [msgspec.structs.replace(problem, path=str(scan.directory), line=0, column=0) for problem in found]
    problems.extend(found)
    if one.config is not None:
        problems.extend(_check_references(disk, one, one.config, names))
    return problems


def _check_references(disk: DiskRepositories, one: _Scanned, config: ModelConfig, names: Counter[str]) -> list[Problem]:
    """Checks the configuration against other files and models."""
    scan, path = one.scan, one.path
    name = scan.location.name
    problems: list[Problem] = []
    present = [version.version for version in scan.versions]
    if not select_versions(config.version_policy, present):
        found = ", ".join(map(str, present)) or "no version folder"
        message = f"at least one version must be available under the version policy of model '{name}'"
        expected = f"a folder named by a number that the policy selects, found {found}"
        problems.append(Problem(path=str(scan.directory), field="version_policy", message=message, expected=expected))
    for output in config.output:
        if output.label_filename and not (Path(scan.directory) / output.label_filename).is_file():
            message = f"output '{output.name}': there is no file '{output.label_filename}' in {scan.directory}"
            problems.append(Problem(path=path, field="output.label_filename", message=message))
    for component in components_of(config):
        if component not in names:
            message = f"ensemble '{name}' depends on '{component}', which no repository has"
            problems.append(Problem(path=path, field="ensemble_scheduling.step", message=message))
    return [*problems, *_check_agents(disk, one, config)]


def _check_agents(disk: DiskRepositories, one: _Scanned, config: ModelConfig) -> list[Problem]:
    """Checks what the agent `checksum` would; the others run when the model is loaded."""
    field = "model_repository_agents"
    agents = () if config.model_repository_agents is None else config.model_repository_agents.agents
    problems: list[Problem] = []
    for agent in agents:
        if agent.name != CHECKSUM_AGENT:
            text = f"what the repository agent '{agent.name}' does when the model is loaded is not checked"
            problems.append(Problem(path=one.path, field=field, message=text, severity=Severity.WARNING))
            return problems  # those behind it see what it leaves
        try:
            required = required_md5s(agent)
        except InvalidArgument as error:
            problems.append(Problem(path=one.path, field=field, message=error.message))
            continue
        found_md5s = {file: disk.md5(one.scan.location, file) for file in required}
        problems.extend(Problem(path=one.path, field=field, message=text) for text in mismatches(required, found_md5s))
    return problems


def _check_members(one: _Scanned, names: Counter[str], configs: Mapping[str, ModelConfig], *, must: bool) -> list[Problem]:
    """Checks an ensemble against the configurations of its members. Skipped where a member's configuration is still to be
    completed from its model, or where its name is not unique; a problem then, if the check `must` be made."""
    config = one.config
    if config is None or config.ensemble_scheduling is None:
        return []
    wanted = [step.model_name for step in config.ensemble_scheduling.step]
    members = [configs[name] for name in wanted if names[name] == 1 and name in configs]
    if len(members) < len(wanted) or not all(member.input and member.output for member in members):
        missing = [name for name in wanted if names[name] != 1 or name not in configs or not (configs[name].input)]
        text = f"its steps could not be checked: of {', '.join(dict.fromkeys(missing))} inputs and outputs are not known"
        return [Problem(path=one.path, field="ensemble_scheduling.step", message=text)] if must and missing else []
    try:
        check_members(msgspec.structs.replace(config, name=one.scan.location.name), members)
    except InvalidArgument as error:
        return [Problem(path=one.path, field="ensemble_scheduling.step", message=error.message)]
    return []
