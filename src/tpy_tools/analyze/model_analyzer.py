"""Model Analyzer's YAML. Every key means what it means there; one that has no meaning here gives a warning with the reason, and
one that asks for what cannot be done is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import msgspec.yaml

from tpy_tools.analyze.model_analyzer_fields import MODEL, TOP, WITHOUT_EFFECT, Options, read_field, whole
from tpy_tools.analyze.plan import AnalysisError


class AnalyzedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the file, and the options that are for it alone."""

    name: str
    options: Options


class FileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The file as options of the command line, and lines about keys without effect."""

    options: Options
    models: tuple[AnalyzedModel, ...]
    warnings: tuple[str, ...] = ()


def read_file(path: Path) -> FileSettings:
    """Read a configuration file. Raises AnalysisError."""
    try:
        document = msgspec.yaml.decode(path.read_bytes())
    except ImportError:
        raise AnalysisError("a configuration file needs PyYAML: install pyyaml, or tpy with its extra analyze") from None
    except OSError as error:
        raise AnalysisError(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise AnalysisError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise AnalysisError(f"{path}: expected names and values")
    try:
        return read_settings(document)
    except AnalysisError as error:
        raise AnalysisError(f"{path}: {error}") from None


def read_settings(document: Mapping[str, Any]) -> FileSettings:
    """The options of a file's content. Raises AnalysisError with the field."""
    options: Options = {}
    search: dict[str, int] = {}
    models: tuple[AnalyzedModel, ...] = ()
    warnings: list[str] = []
    for name, value in document.items():
        if name == "profile_models":
            models = _models(value, warnings)
        elif name in _SEARCH:
            search[name] = whole(name, value)
        elif name in WITHOUT_EFFECT:
            warnings.append(f"{name} has no effect: {WITHOUT_EFFECT[name]}")
        else:
            read_field(TOP, str(name), value, options)
    _apply_search(search, options)
    warnings += options.pop("warnings", ())
    return FileSettings(options=options, models=models, warnings=tuple(warnings))


_DEFAULTS = {"concurrency": (1, 1024), "instance_count": (1, 5), "model_batch_size": (1, 128), "request_rate": (16, 8092)}
_TARGETS = {
    "concurrency": ("concurrency", ":*2"),
    "instance_count": ("instances", ""),
    "model_batch_size": ("batches", ":*2"),
    "request_rate": ("rate", ":*2"),
}
_SEARCH = {f"run_config_search_{end}_{what}" for end in ("min", "max") for what in _DEFAULTS}


def _apply_search(search: Mapping[str, int], options: Options) -> None:
    """The ranges of an automatic search; the end that is not given is Model Analyzer's."""
    by_rate = options.pop("search_rate", False)
    for what, (least, most) in _DEFAULTS.items():
        low, high = search.get(f"run_config_search_min_{what}"), search.get(f"run_config_search_max_{what}")
        option, step = _TARGETS[what]
        wanted = low is not None or high is not None or (by_rate and what == "request_rate")
        if wanted and option not in options:
            options[option] = f"{low if low is not None else least}:{high if high is not None else most}{step}"


def _models(value: Any, warnings: list[str]) -> tuple[AnalyzedModel, ...]:
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",")]
    if isinstance(value, dict):
        value = [{name: fields} for name, fields in value.items()]
    if not isinstance(value, list) or not value:
        raise AnalysisError("profile_models: expected names of models")
    found = []
    for entry in value:
        if isinstance(entry, str):
            found.append(AnalyzedModel(name=entry, options={}))
            continue
        if not isinstance(entry, dict) or len(entry) != 1:
            raise AnalysisError("profile_models: expected a name, or a name with its fields")
        ((name, fields),) = entry.items()
        options: Options = {}
        for field, given in (fields or {}).items():
            read_field(MODEL, str(field), given, options, f"profile_models.{name}.")
        warnings += options.pop("warnings", ())
        found.append(AnalyzedModel(name=str(name), options=options))
    return tuple(found)
