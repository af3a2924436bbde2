"""Reads what TensorFlow Serving is started with: models.config and batching_parameters.txt, or the base path of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tpy.files import UnusableFile, read_file
from tpy_tools.commands.importing.core.plan import ImportPlan, Part, Unimportable
from tpy_tools.commands.importing.core.tensorflow_serving import (
    BasePath,
    ConfiguredModel,
    plan_serving,
    read_batching,
    read_models,
)

_CONFIG_BYTES_MAX: Final = 1024 * 1024
"""A models.config of thousands of models has some 100 KB."""

MODELS: Final = "models.config"
BATCHING: Final = "batching_parameters.txt"
MONITORING: Final = "monitoring.config"

_VERSION_DIGITS_MAX: Final = 19


def is_serving_source(source: Path) -> bool:
    """Returns True for a models.config, a folder with one, and the base path of a model."""
    if source.is_file():
        return source.suffix == ".config"
    return (source / MODELS).is_file() or any(
        names & {"saved_model.pb", "saved_model.pbtxt"} for names in _versions(source).values()
    )


def plan_of_serving(source: Path) -> ImportPlan:
    """The plan. Raises Unimportable."""
    if source.is_dir() and not (source / MODELS).is_file():
        folder = str(source.resolve())
        return plan_serving(
            [ConfiguredModel(name=source.resolve().name, base_path=folder)], {folder: base_path_of(folder, source)}, None
        )
    config = source if source.is_file() else source / MODELS
    models = read_models(_text(config), str(config))
    if not models:
        raise Unimportable(f"{config}: model_config_list has no models")
    batching = config.with_name(BATCHING)
    others = [Part(MONITORING, "metrics are on port 8002, /metrics")] if config.with_name(MONITORING).exists() else []
    return plan_serving(
        models,
        {model.base_path: base_path_of(model.base_path, config.parent) for model in models},
        read_batching(_text(batching), str(batching)) if batching.exists() else None,
        others,
    )


def _text(path: Path) -> str:
    try:
        return read_file(path, bytes_max=_CONFIG_BYTES_MAX).decode()
    except (UnusableFile, UnicodeDecodeError) as error:
        raise Unimportable(f"{path}: {error}") from None


def base_path_of(text: str, beside: Path) -> BasePath:
    """Looks for a base path: there, or, as it is often a container's, by its last name in the folder `beside`."""
    if not text or "://" in text or "\0" in text:
        return BasePath(folder="")
    for folder in (beside / text, beside / Path(text).name):
        if folder.is_dir():
            return BasePath(folder=str(folder.resolve()), versions=_versions(folder))
    return BasePath(folder="")


def _versions(folder: Path) -> dict[str, frozenset[str]]:
    """The names in each version's folder, as TensorFlow Serving tells them: all digits."""
    return {
        path.name: frozenset(each.name for each in path.iterdir())
        for path in folder.iterdir()
        if path.name.isascii() and path.name.isdigit() and len(path.name) <= _VERSION_DIGITS_MAX and path.is_dir()
    }
