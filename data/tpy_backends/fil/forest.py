"""A file of trees: reads it, says what its tensors are, predicts. The one module that imports treelite."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import treelite

from tpy.config import ModelConfig
from tpy.errors import Internal, TpyError, Unsupported
from tpy.messages import DataType
from tpy_backends.contents import contents_of
from tpy_backends.fil.settings import FilModelSettings, type_of
from tpy_backends.file_backend import read_whole
from tpy_backends.named_tensors import Array
from tpy_backends.signature import VARIABLE, Signature, TensorInfo

_CUT_SHORT: Final = "the file is truncated"

_MISSING_TYPE_ZERO = 1
"""In bits 2 and 3 of a decision's type."""


def _check_text(path: Path, model: str) -> None:
    """Raises ValueError for a file that is shorter than its header says, Unsupported for zeros that count as missing: treelite
    takes them for numbers, and gives other answers than LightGBM."""
    text = read_whole(path, model)
    sizes = re.search(rb"^tree_sizes=([\d ]+)$", text, re.MULTILINE)
    trees = text.find(b"\nTree=0")
    if sizes is not None and len(text) - (trees + 1) < sum(map(int, sizes[1].split())):
        raise ValueError(_CUT_SHORT)
    for kinds in re.finditer(rb"^decision_type=([\d ]+)$", text, re.MULTILINE):
        if any((int(kind) >> 2) & 3 == _MISSING_TYPE_ZERO for kind in set(kinds[1].split())):
            raise Unsupported(
                f"'{path.name}' counts zeros as missing values (LightGBM's zero_as_missing), which treelite does not: "
                "its answers would be wrong; run it in a model.py (backend 'python')"
            )


VERSION: Final[str] = treelite.__version__
INPUT: Final = "input__0"
OUTPUT: Final = "output__0"

_VERSION_SIZE = 12
"""Bytes at the beginning of a checkpoint that hold the version of treelite."""

_BINARY, _MULTICLASS = 0, 2
"""treelite's task types of classifiers."""

_UNLOGGED = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda message: None)
"""Takes what treelite would print to stdout or stderr: parse errors, whose reason is in its exception."""


class Forest:
    """A `NamedProgram`, for any number of threads: a prediction changes nothing in it."""

    def __init__(self, path: Path, config: ModelConfig, settings: FilModelSettings) -> None:
        """Raises Internal for a file that is not a model, Unsupported for a model whose answer is not a row of numbers."""
        model_type = settings.model_type or type_of(path.name)
        treelite.core._LIB.TreeliteRegisterLogCallback(_UNLOGGED)  # for this thread
        try:
            self._model = _read(path, model_type, config.name, settings)
        except TpyError:
            raise
        except Exception as error:
            raise _unreadable(path, model_type, config, error) from error
        header = self._model.get_header_accessor()
        task = int(header.get_field("task_type")[0])
        classes = [int(count) for count in header.get_field("num_class")]
        if len(classes) > 1 and max(classes) > 1:
            raise Unsupported(
                f"model '{config.name}' has {len(classes)} targets of several classes each, which no output can hold"
            )
        self._settings = settings
        self.threads = self._usable_threads(settings.threads)
        """Fewer than the configuration says, if this machine has fewer."""
        self._class_count = max(classes)
        self._classifies = task in (_BINARY, _MULTICLASS) if settings.is_classifier is None else settings.is_classifier
        self._columns = self._column_count(len(classes), config)
        self.signature = Signature(
            inputs={INPUT: TensorInfo(INPUT, DataType.FP32, (VARIABLE, int(self._model.num_feature)))},
            outputs={OUTPUT: TensorInfo(OUTPUT, DataType.FP32, (VARIABLE, self._columns))},
        )

    def run(self, feed: Mapping[str, Array], names: Sequence[str]) -> Sequence[Array]:
        """As `NamedProgram`. An output of one column comes without its dimension, as from Triton's backend."""
        rows = feed[INPUT]
        try:
            raw = treelite.gtil.predict(self._model, rows, nthread=self.threads)
        except Exception as error:
            raise Internal(f"treelite execute failure: {_text_of(error)}") from error
        return [self._answer(raw.reshape(len(rows), raw.shape[1] * raw.shape[2]))]

    def close(self) -> None:
        """As `NamedProgram`: the trees are all instances'."""

    def _usable_threads(self, wanted: int) -> int:
        """treelite refuses to run with more threads than OpenMP would use. Raises Internal."""
        no_rows = np.zeros((0, int(self._model.num_feature)), np.float32)  # no tree is walked
        try:
            treelite.gtil.predict(self._model, no_rows, nthread=wanted)
        except Exception as error:
            most = re.search(r"nthread cannot exceed (\d+)", str(error))
            if most is None:
                raise Internal(f"treelite execute failure: {_text_of(error)}") from error
            return int(most[1])
        return wanted

    def _column_count(self, target_count: int, config: ModelConfig) -> int:
        """As Triton has them; the one probability of a binary classifier becomes two where the configuration does not say 1."""
        if not self._classifies:
            return target_count * self._class_count
        if not self._settings.predict_proba:
            return target_count
        if self._class_count > 1 or target_count > 1:
            return target_count * self._class_count
        return 1 if any(output.name == OUTPUT and output.dims == (1,) for output in config.output) else 2

    def _answer(self, raw: Array) -> Array:
        """From predictions, a row for each row: classes, or their probabilities, or values."""
        if self._classifies and not self._settings.predict_proba:
            raw = raw.argmax(axis=1) if self._class_count > 1 else raw > self._settings.threshold
        elif self._columns > raw.shape[1]:
            raw = np.concatenate([1 - raw, raw], axis=1)
        made: Array = np.asarray(raw, dtype=np.float32)
        return made.reshape(-1) if self._columns == 1 else made


def _read(path: Path, model_type: str, model: str, settings: FilModelSettings) -> Any:
    if model_type == "lightgbm":
        _check_text(path, model)
        return treelite.frontend.load_lightgbm_model(path)
    if model_type == "treelite_checkpoint":
        return _checkpoint(path)
    if model_type == "xgboost":
        model_type = _format_of(path)
    if model_type == "xgboost":
        return treelite.frontend.load_xgboost_model_legacy_binary(path)
    choice = "json" if model_type == "xgboost_json" else "ubjson"
    return treelite.frontend.load_xgboost_model(path, format_choice=choice, allow_unknown_field=settings.unknown_fields)


def _checkpoint(path: Path) -> Any:
    """treelite does not notice that the last few fields of a file are missing. Files of other versions may be shorter."""
    model = treelite.Model.deserialize(path)
    again = model.serialize_bytes()
    with path.open("rb") as file:
        same_version = file.read(_VERSION_SIZE) == again[:_VERSION_SIZE]
    if same_version and path.stat().st_size < len(again):
        raise ValueError(_CUT_SHORT)
    return model


def _format_of(path: Path) -> str:
    """The model type of a file `xgboost.model`: XGBoost 2.1 and later write UBJSON under that name, too."""
    with path.open("rb") as file:
        begin = file.read(2)
    if begin[:1] != b"{":
        return "xgboost"
    return "xgboost_json" if begin[1:] in b'" \t\r\n' else "xgboost_ubj"


def _unreadable(path: Path, model_type: str, config: ModelConfig, error: Exception) -> TpyError:
    return Internal(
        f"unable to load model '{config.name}': treelite {VERSION} cannot read '{path.name}' as model_type {model_type}: "
        f"{_text_of(error)}{contents_of(path, 'fil')}"
    )


def _text_of(error: Exception) -> str:
    """treelite's message without the time and the place in its source."""
    text = re.sub(r"(\[[\d:]+\] \S+?:\d+: )|(Check failed: [^\n]*?: (?=[A-Z]))", "", str(error)).strip()
    if "sax_parse" in text:
        return "it is not UBJSON, or is truncated"
    if "codec can't decode" in text or "basic_string" in text:
        return "it is not in that format"
    if "bad_alloc" in text:
        return "it is not in that format, or memory is short"
    return next(iter(text.splitlines()), "no reason")
