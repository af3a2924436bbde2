"""A configuration file's problems, found without loading the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from tpy.config.json_places import parse_located_json
from tpy.config.model_config import ModelConfig
from tpy.config.normalise import normalise
from tpy.config.pbtxt import parse_pbtxt
from tpy.config.problem import ConfigError, Problem, Severity, errors_of
from tpy.config.resolve import resolve_as_far_as_possible
from tpy.config.validation import validate


class Objection(NamedTuple):
    """A server's objection to a configuration that is valid in itself; `field` is its path, as in `Problem`."""

    field: str
    message: str
    severity: Severity = Severity.ERROR
    expected: str = ""


ExtraCheck = Callable[[ModelConfig], Iterable[Objection]]
"""Says what a server would object to in a resolved and normalised configuration."""


def _no_objection(config: ModelConfig) -> Iterable[Objection]:
    return ()


def _source_of(field: str, config: ModelConfig) -> str:
    """The field that said what was resolved to `field`: most backends are told by the platform."""
    return "platform" if field == "backend" and not config.backend and config.platform else field


def check_text(
    text: str,
    *,
    path: str,
    directory_name: str,
    version_files: Collection[str] | None,
    other_files: Collection[str] = (),
    complete: bool = False,
    extra_check: ExtraCheck = _no_objection,
    as_json: bool = False,
) -> list[Problem]:
    """Parse, resolve, normalise and validate one config.pbtxt, or with `as_json` a configuration of a load call; all problems in
    the order of the file.

    `path` names the file in problems; `directory_name`, `version_files` and `other_files` are as for `resolve`. `complete` says
    that no backend will fill anything in (--strict-model-config), so that every tensor must have its type and dims.
    `extra_check` knows the server that is to load the model.
    """
    try:
        parsed = parse_located_json(text, path=path) if as_json else parse_pbtxt(text, path=path)
    except ConfigError as error:
        return list(error.problems)
    config, problems = resolve_as_far_as_possible(
        parsed.config,
        directory_name=directory_name,
        version_files=version_files,
        other_files=other_files,
        source=parsed.source,
    )
    config = normalise(config)
    found = validate(config, source=parsed.source, complete=complete)
    known = {problem.field for problem in errors_of(found)}
    found.extend(
        parsed.source.problem(
            _source_of(objection.field, parsed.config),
            objection.message,
            expected=objection.expected,
            severity=objection.severity,
        )
        for objection in extra_check(config)
        if objection.field not in known
    )
    if any(problem.field == "backend" for problem in problems):
        # The rules for platform and backend would only say in other words what the resolver said.
        found = [problem for problem in found if problem.field not in ("platform", "backend")]
    return sorted([*problems, *found], key=lambda problem: (problem.line, problem.column))
