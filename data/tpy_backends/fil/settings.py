"""Settings: parameters of a model, with the names and values of Triton's backend."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

import msgspec

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument, Unsupported
from tpy_backends.parameter_values import parse_integer

FILENAMES: Final[Mapping[str, str]] = {
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "xgboost": "xgboost.model",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
"""The usual file of each `model_type`."""

_TYPE_OF_SUFFIX: Final = {PurePosixPath(filename).suffix: model_type for model_type, filename in FILENAMES.items()}

_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "algo": ("ALGO_AUTO", "NAIVE", "TREE_REORG", "BATCH_TREE_REORG"),
    "layout": ("depth_first", "breadth_first", "layered"),
    "storage_type": ("AUTO", "DENSE", "SPARSE", "SPARSE8"),
    "use_experimental_optimizations": ("true", "false"),
}
_COUNTS: Final = ("blocks_per_sm", "chunk_size", "threads_per_tree", "transfer_threshold")
"""With those above: parameters that choose how GPUs, or other implementations, run trees. They change no answer."""

SHAP_OUTPUT: Final = "treeshap_output"


class FilModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One model's parameters. `model_type` "" leaves it to the name of the file, `is_classifier` None to what is in it."""

    model_type: str = ""
    is_classifier: bool | None = None
    predict_proba: bool = False
    threshold: float = 0.5
    threads: int = 1
    unknown_fields: bool = False
    without_effect: tuple[str, ...] = ()


def model_settings(config: ModelConfig) -> FilModelSettings:
    """Parse a model's `parameters`. Raises InvalidArgument for a wrong value, Unsupported for Shapley values."""
    if any(output.name == SHAP_OUTPUT for output in config.output):
        raise Unsupported(
            f"model '{config.name}': output '{SHAP_OUTPUT}' is not supported: Shapley values are not calculated on the CPU; "
            "a model.py (backend 'python') can, with pred_contribs of XGBoost or pred_contrib of LightGBM"
        )
    model_type = config.parameter("model_type")
    if model_type:
        _one_of(config, "model_type", tuple(FILENAMES))
    for key, words in _WORDS.items():
        _one_of(config, key, words)
    for key in _COUNTS:
        _integer(config, key, 0)
    return FilModelSettings(
        model_type=model_type,
        is_classifier=_is_classifier(config),
        predict_proba=_boolean(config, "predict_proba") or False,
        threshold=_threshold(config),
        threads=_integer(config, "cpu_nthread", 1),
        unknown_fields=_boolean(config, "xgboost_allow_unknown_field") or False,
        without_effect=tuple(key for key in sorted((*_WORDS, *_COUNTS)) if config.parameter(key)),
    )


def type_of(filename: str) -> str:
    """The `model_type` that a file is by its name. Raises InvalidArgument."""
    found = _TYPE_OF_SUFFIX.get(PurePosixPath(filename).suffix)
    if found is None:
        raise InvalidArgument(
            f"the name '{filename}' does not say what the file is: set model_type to one of {_listed(FILENAMES)}"
        )
    return found


def _is_classifier(config: ModelConfig) -> bool | None:
    """By its name of now or by that before Triton 25.09."""
    now, before = _boolean(config, "is_classifier"), _boolean(config, "output_class")
    if now is not None and before is not None and now is not before:
        raise InvalidArgument(
            f"parameters of model '{config.name}' contradict each other: is_classifier {config.parameter('is_classifier')}, "
            f"output_class {config.parameter('output_class')}"
        )
    return before if now is None else now


def _boolean(config: ModelConfig, key: str) -> bool | None:
    return config.parameter(key) == "true" if _one_of(config, key, ("true", "false")) else None


def _threshold(config: ModelConfig) -> float:
    text = config.parameter("threshold") or "0.5"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise InvalidArgument(f"parameter 'threshold' of model '{config.name}' must be a number, got '{text}'")
    return number


def _integer(config: ModelConfig, key: str, default: int) -> int:
    text = config.parameter(key)
    try:
        return parse_integer(text, bits=32) if text else default
    except InvalidArgument:
        raise InvalidArgument(f"parameter '{key}' of model '{config.name}' must be a whole number, got '{text}'") from None


def _one_of(config: ModelConfig, key: str, words: tuple[str, ...]) -> bool:
    """True if the parameter is given, with an allowed value. Raises InvalidArgument."""
    text = config.parameter(key)
    if text and text not in words:
        raise InvalidArgument(f"parameter '{key}' of model '{config.name}' must be one of {_listed(words)}, got '{text}'")
    return bool(text)


def _listed(words: object) -> str:
    assert isinstance(words, tuple | Mapping)
    return ", ".join(words)
