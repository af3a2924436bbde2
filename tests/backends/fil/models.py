"""Small trees, trained on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import xgboost

from tpy.config import ModelConfig

FEATURES = 6
_RANDOM = np.random.default_rng(5)
ROWS: Any = _RANDOM.standard_normal((400, FEATURES)).astype(np.float32)
ROWS[:, 5] = _RANDOM.integers(0, 8, 400)  # a category
ROWS[_RANDOM.random((400, FEATURES)) < 0.1] = np.nan
_FILLED = np.nan_to_num(ROWS)
VALUES = _FILLED[:, 0] * 2 + _FILLED[:, 1] + (_FILLED[:, 5] % 3)
BINARY = (VALUES > 1).astype(int)
CLASSES = np.digitize(VALUES, [0.0, 2.0])
CASES = ROWS[:40]


def xgboost_model(objective: str, labels: Any, **params: Any) -> Any:
    """A booster. The last feature is a category where `enable_categorical` is given."""
    categorical = params.pop("categorical", False)
    types = ["q"] * (FEATURES - 1) + ["c" if categorical else "q"]
    data = xgboost.DMatrix(ROWS, labels, feature_types=types, enable_categorical=True)
    return xgboost.train({"objective": objective, "max_depth": 4, "nthread": 1, "max_cat_to_onehot": 2, **params}, data, 12)


def save(booster: Any, path: Path) -> None:
    """Under a name that need not say the format: XGBoost's files are UBJSON then."""
    if isinstance(booster, xgboost.Booster) and path.suffix != ".json":
        path.write_bytes(booster.save_raw("ubj"))
    else:
        booster.save_model(path)


def xgboost_answer(booster: Any, rows: Any) -> Any:
    """Returns the predictions of XGBoost itself."""
    types = booster.feature_types
    return booster.predict(xgboost.DMatrix(rows, feature_types=types, enable_categorical=True))


def lightgbm_model(objective: str, labels: Any, **params: Any) -> Any:
    """A booster with the last feature as a category."""
    data = lightgbm.Dataset(ROWS, labels, categorical_feature=[FEATURES - 1], params={"verbose": -1})
    fixed = {"objective": objective, "num_leaves": 12, "min_data_in_leaf": 5, "num_threads": 1, "verbose": -1}
    return lightgbm.train({**fixed, **params}, data, 12)


def config(name: str = "m", **fields: Any) -> ModelConfig:
    """A configuration of this backend."""
    return ModelConfig(name=name, backend="fil", **fields)
