"""Resolves the backend of a configuration from its platform, its file name, the model's files, or the model's name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from tpy.config.known_backends import KNOWN_BACKENDS, KnownBackend
from tpy.config.model_config import ModelConfig
from tpy.config.model_files import advice_for_folder
from tpy.config.problem import NO_SOURCE, ConfigError, Problem, Source

ENSEMBLE_PLATFORM: Final = "ensemble"


def resolve(
    config: ModelConfig,
    *,
    directory_name: str,
    version_files: Collection[str] | None,
    other_files: Collection[str] = (),
    source: Source = NO_SOURCE,
) -> ModelConfig:
    """Fill in name, backend, platform and, for the backends that Triton knows, default_model_filename.

    `directory_name` is that of the model's directory. `version_files` are the names in the first version directory (sorted as
    text), folders with a "/" at the end; None when there is no version directory. `other_files` are those beside it, for the
    message. Raises ConfigError when the configuration's name is not the directory's or when no backend can be told.
    """
    resolved, problems = resolve_as_far_as_possible(
        config, directory_name=directory_name, version_files=version_files, other_files=other_files, source=source
    )
    if problems:
        raise ConfigError(problems)
    return resolved


def resolve_as_far_as_possible(
    config: ModelConfig,
    *,
    directory_name: str,
    version_files: Collection[str] | None,
    other_files: Collection[str] = (),
    source: Source = NO_SOURCE,
) -> tuple[ModelConfig, list[Problem]]:
    """As `resolve`, but hands out the problems, so that a check of the rest can go on with the directory's name."""
    problems: list[Problem] = []
    if config.name and config.name != directory_name:
        message = f"unexpected directory name '{directory_name}' for model '{config.name}', directory name must equal model name"
        problems.append(source.problem("name", message))
    config = msgspec.structs.replace(config, name=directory_name)
    if config.platform == ENSEMBLE_PLATFORM or config.ensemble_scheduling is not None:
        return config, problems
    known = _find_known(config, frozenset(version_files or ()))
    if known is not None:
        return _filled(config, known), problems
    if config.backend or config.platform or config.default_model_filename:
        return config, problems
    _, dot, backend = config.name.partition(".")
    if dot:
        return msgspec.structs.replace(config, backend=backend, default_model_filename=f"model.{backend}"), problems
    message = (
        f"Invalid model name: Could not determine backend for model '{config.name}' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )
    expected = advice_for_folder(version_files, other_files, folder=config.name)
    problems.append(source.problem("backend", message, expected=expected))
    return config, problems


def _find_known(config: ModelConfig, files: frozenset[str]) -> KnownBackend | None:
    """The known backend that the configuration means, or None for any other."""
    if config.backend:
        candidates = [known for known in KNOWN_BACKENDS if known.backend == config.backend]
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        given = [known for known in candidates if _is_given(known, config)]
        present = [known for known in candidates if _is_present(known, files)]
        return next(iter([*given, *present]), None if config.platform else _first_choice(config.backend, candidates))
    if config.platform or config.default_model_filename:
        return next((known for known in KNOWN_BACKENDS if _is_given(known, config)), None)
    return next((known for known in KNOWN_BACKENDS if _is_present(known, files)), None)


def _first_choice(backend: str, candidates: list[KnownBackend]) -> KnownBackend | None:
    """The default format of a backend with several: TorchScript for PyTorch; TensorFlow has no default."""
    return candidates[0] if backend == "pytorch" else None


def _is_given(known: KnownBackend, config: ModelConfig) -> bool:
    if config.platform:
        return config.platform in known.platforms
    return config.default_model_filename == known.filename


def _is_present(known: KnownBackend, files: frozenset[str]) -> bool:
    return (known.is_folder is not True and known.filename in files) or (
        known.is_folder is not False and f"{known.filename}/" in files
    )


def _filled(config: ModelConfig, known: KnownBackend) -> ModelConfig:
    return msgspec.structs.replace(
        config,
        backend=config.backend or known.backend,
        platform=config.platform or (known.platforms[0] if known.platforms else ""),
        default_model_filename=config.default_model_filename or known.filename,
    )
