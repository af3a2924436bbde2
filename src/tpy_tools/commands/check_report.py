"""`tpy check`: the findings about a repository, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from glob import escape
from pathlib import Path

import msgspec
import orjson

from tpy.cli.serve import visible_gpus
from tpy.cli.serve_options import NO_ENVIRONMENT
from tpy.config import ModelConfig, Objection, Problem, Severity
from tpy.config.model_config import EXECUTION_ENVIRONMENT, MODEL_DIRECTORY
from tpy_control.check import ModelCheck, check_repository
from tpy_control.downloads import as_folders
from tpy_control.sources import parse_address
from tpy_data.engine.loading.support import without_effect
from tpy_data.registry import BackendRegistry, how_to_get, library_name
from tpy_tools.commands.deep_check import DeepCheck


def report(
    repositories: Sequence[str],
    *,
    as_json: bool,
    model_config_name: str,
    auto_complete: bool,
    namespacing: bool,
    backend_directory: Path,
    deep: bool = False,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> tuple[str, bool]:
    """The text to print, and whether every model is sound. `deep`: models are loaded, too. Repositories in the cloud are
    downloaded, with the credentials of `environment`. Raises Unavailable for a repository that cannot be read."""
    with as_folders([parse_address(text) for text in repositories], environment) as folders:
        checks = _checks(
            list(folders.values()),
            model_config_name=model_config_name,
            auto_complete=auto_complete,
            namespacing=namespacing,
            backend_directory=backend_directory,
            deep=deep,
        )
    checks = [_named(check, folders) for check in checks]
    sound = all(check.ok for check in checks)
    return (_json(checks) if as_json else _text(checks)), sound


def _checks(
    repositories: Sequence[Path],
    *,
    model_config_name: str,
    auto_complete: bool,
    namespacing: bool,
    backend_directory: Path,
    deep: bool,
) -> list[ModelCheck]:
    registry = BackendRegistry(
        backend_directory=backend_directory, repository_backend_directories=[path / "backends" for path in repositories]
    )
    backends = {backend.name for backend in registry.available()}

    def extra_check(config: ModelConfig) -> Iterable[Objection]:
        for field in without_effect(config):
            yield Objection(field, f"'{_leaf(field)}' has no effect in this server", Severity.WARNING)
        if config.backend and config.backend not in backends and not _has_library(repositories, config):
            message = f"unable to find backend library for backend '{config.backend}'"
            there = f"one of {', '.join(sorted(backends))}. {how_to_get(config.backend, backends)}"
            yield Objection("backend", message, expected=there)
        environment = config.parameter(EXECUTION_ENVIRONMENT)
        if environment and not _has_environment(repositories, config.name, environment):
            message = f"{EXECUTION_ENVIRONMENT}: no directory or archive at '{environment}'"
            yield Objection("parameters", message)

    try:
        return check_repository(
            repositories,
            model_config_name=model_config_name,
            auto_complete=auto_complete,
            namespacing=namespacing,
            extra_check=extra_check,
            try_load=DeepCheck(registry, visible_gpus()) if deep else None,
        )
    finally:
        registry.close()


def _named(check: ModelCheck, folders: Mapping[str, Path]) -> ModelCheck:
    """The findings with the addresses of repositories in place of the folders that stand for them."""

    def named(text: str) -> str:
        for address, folder in folders.items():
            text = text.replace(str(folder), address)
        return text

    problems = tuple(
        msgspec.structs.replace(problem, path=named(problem.path), message=named(problem.message)) for problem in check.problems
    )
    return msgspec.structs.replace(check, repository=named(check.repository), problems=problems)


def _has_library(repositories: Sequence[Path], config: ModelConfig) -> bool:
    """Returns whether a compiled backend is in the folder of the model, or of a version."""
    file = config.runtime or library_name(config.backend)
    patterns = (escape(file), f"*/{escape(file)}")
    folders = [repository / config.name for repository in repositories]
    return any(found.is_file() for folder in folders for pattern in patterns for found in folder.glob(pattern))


def _has_environment(repositories: Sequence[Path], model: str, environment: str) -> bool:
    """Returns whether a Python environment is where the configuration of the model says."""
    return any(Path(environment.replace(MODEL_DIRECTORY, str(folder / model))).exists() for folder in repositories)


def _leaf(field: str) -> str:
    return field.rpartition(".")[2].partition("[")[0]


def _text(checks: Sequence[ModelCheck]) -> str:
    lines = [str(problem) for check in checks for problem in check.problems]
    wrong = sum(1 for check in checks if not check.ok)
    models = "1 model" if len(checks) == 1 else f"{len(checks)} models"
    lines.append(f"{models} checked, {wrong} with errors")
    return "\n".join(lines)


def _json(checks: Sequence[ModelCheck]) -> str:
    document = {
        "ok": all(check.ok for check in checks),
        "models": [
            {
                "name": check.name,
                "repository": check.repository,
                "ok": check.ok,
                "problems": [_problem(problem) for problem in check.problems],
            }
            for check in checks
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _problem(problem: Problem) -> dict[str, object]:
    return {
        "severity": problem.severity.value,
        "file": None if problem.path is None else str(problem.path),
        "line": problem.line or None,  # of no line: a folder, a missing file
        "column": problem.column or None,
        "field": problem.field,
        "message": problem.message,
        "expected": problem.expected,
    }
