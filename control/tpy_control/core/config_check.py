"""Checks a configuration against the scan of its model's directory, with the rules of a load. Pure, and as slow as a load."""

from __future__ import annotations

import orjson

from tpy.config import ConfigError, ModelConfig, Problem, Severity, check_text, normalise, parse_json, parse_pbtxt, to_json
from tpy.messages import ConfigCheck, ConfigProblem
from tpy_control.core.candidate import components_of, select_versions
from tpy_control.core.scan import ModelScan


def check_config(scan: ModelScan, given: str | None, *, auto_complete: bool, known: frozenset[str]) -> ConfigCheck:
    """Check `given`, or without it what the directory has. `known` are the names of all models, for ensembles."""
    file = scan.config_path if given is None and scan.config_text is not None else ""
    text = (scan.config_text or "") if given is None else given
    as_json = given is not None and given.lstrip().startswith("{")
    name = scan.location.name
    problems = [Problem(message=scan.error)] if scan.error else []
    problems += [Problem(message=warning, severity=Severity.WARNING) for warning in scan.warnings]
    problems += check_text(
        text,
        path="",
        directory_name=name,
        version_files=scan.first_version_names,
        other_files=scan.other_names,
        complete=not auto_complete,
        as_json=as_json,
    )
    versions = [version.version for version in scan.versions]
    config = _read(text, as_json=as_json)
    selected: tuple[int, ...] = ()
    if config is not None:
        selected = select_versions(config.version_policy, versions)
        if not selected:
            found = ", ".join(map(str, versions)) or "no version folder"
            message = f"at least one version must be available under the version policy of model '{name}'"
            expected = f"a folder named by a number that the policy selects, found {found}"
            problems.append(Problem(field="version_policy", message=message, expected=expected))
        problems += [
            Problem(field="ensemble_scheduling.step", message=f"ensemble '{name}' depends on '{member}', which no repository has")
            for member in components_of(config)
            if member not in known
        ]
    return ConfigCheck(
        problems=tuple(map(_shown, problems)),
        text=text,
        file=file,
        config_json="" if config is None else orjson.dumps(to_json(config)).decode(),
        versions=tuple(versions),
        selected=selected,
    )


def _read(text: str, *, as_json: bool) -> ModelConfig | None:
    try:
        return normalise(parse_json(text) if as_json else parse_pbtxt(text).config)
    except ConfigError:
        return None


def _shown(problem: Problem) -> ConfigProblem:
    return ConfigProblem(
        severity=problem.severity.value,
        message=problem.message,
        field=problem.field,
        line=problem.line,
        column=problem.column,
        expected=problem.expected,
    )
