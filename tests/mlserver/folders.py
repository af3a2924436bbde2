"""Models as MLServer serves them: of its runtimes, with random trees and weights, and of classes of one's own. Run by the Python
of the environment with MLServer: `python folders.py REPOSITORY`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NUMBERS = """
import numpy as np
from mlserver import MLModel
from mlserver.codecs import decode_args
from mlserver.errors import InferenceError


class Numbers(MLModel):
    async def load(self) -> bool:
        self.scale = self.settings.parameters.extra["scale"]
        return True

    @decode_args
    async def predict(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.max() > 1000:
            raise InferenceError("too large")
        if a.min() < -1000:
            raise ValueError("too small")
        return (a + b) * self.scale
"""

FRAMES = """
import pandas as pd
from mlserver import MLModel
from mlserver.codecs import PandasCodec


class Frames(MLModel):
    async def predict(self, payload):
        frame = self.decode_request(payload, default_codec=PandasCodec)
        result = pd.DataFrame(
            {
                "total": frame["price"] * frame["count"],
                "label": [f"{name}: {count}" for name, count in zip(frame["name"], frame["count"])],
                "parts": [{"name": name, "n": [count]} for name, count in zip(frame["name"], frame["count"].tolist())],
            }
        )
        return self.encode_response(result, default_codec=PandasCodec)
"""

ARGUMENTS = """
from typing import List, Tuple

import numpy as np
import pandas as pd
from mlserver import MLModel
from mlserver.codecs import decode_args


class Arguments(MLModel):
    @decode_args
    async def predict(self, weights: np.ndarray, rest: pd.DataFrame) -> Tuple[np.ndarray, List[str]]:
        return rest.to_numpy() @ weights.reshape(-1), list(rest.columns)
"""

TEXTS = """
from datetime import timedelta
from mlserver import MLModel
from mlserver.codecs import Base64Codec, DatetimeCodec, StringCodec
from mlserver.types import InferenceResponse


class Texts(MLModel):
    async def predict(self, payload):
        given = {each.name: self.decode(each, default_codec=StringCodec) for each in payload.inputs}
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                StringCodec.encode_output("upper", [text.upper() for text in given["text"]]),
                Base64Codec.encode_output("reversed", [each[::-1] for each in given["content"]]),
                DatetimeCodec.encode_output("tomorrow", [each + timedelta(days=1) for each in given["day"]]),
            ],
        )
"""


def tensor(name: str, datatype: str, *shape: int, content_type: str = "") -> dict[str, Any]:
    """An input or output of a model-settings.json."""
    about: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
    return {**about, "parameters": {"content_type": content_type}} if content_type else about


FEATURES = [tensor("predict", "FP32", -1, 4)]
COLUMNS = [tensor(name, "FP64", -1, 1) for name in ("length", "width")]
SETTINGS: dict[str, dict[str, Any]] = {
    "classes": {
        "implementation": "mlserver_sklearn.SKLearnModel",
        "inputs": FEATURES,
        "outputs": [tensor("predict", "INT64", -1, 1), tensor("predict_proba", "FP32", -1, 3)],
    },
    "columns": {
        "implementation": "mlserver_sklearn.SKLearnModel",
        "inputs": COLUMNS,
        "outputs": [tensor("predict", "FP64", -1, 1)],
        "parameters": {"uri": "./model.joblib", "content_type": "pd"},
    },
    "boosted": {
        "implementation": "mlserver_xgboost.XGBoostModel",
        "inputs": FEATURES,
        "outputs": [tensor("predict", "INT64", -1, 1), tensor("predict_proba", "FP32", -1, 3)],
        "parameters": {"uri": "./model.json"},
    },
    "grown": {
        "implementation": "mlserver_lightgbm.LightGBMModel",
        "inputs": FEATURES,
        "outputs": [tensor("predict", "FP64", -1, 1)],
        "parameters": {"uri": "./model.bst"},
    },
    "numbers": {
        "implementation": "models.Numbers",
        "inputs": [tensor("a", "FP32", -1, 3), tensor("b", "FP32", -1, 3)],
        "outputs": [tensor("output-0", "FP32", -1, 3)],
        "parameters": {"extra": {"scale": 2}},
    },
    "batched": {
        "implementation": "models.Numbers",
        "inputs": [tensor("a", "FP32", -1, 3), tensor("b", "FP32", -1, 3)],
        "outputs": [tensor("output-0", "FP32", -1, 3)],
        "parameters": {"extra": {"scale": 2}},
        "max_batch_size": 8,
        "max_batch_time": 0.002,
    },
    "frames": {
        "implementation": "models.Frames",
        "inputs": [
            tensor("price", "FP64", -1, 1),
            tensor("count", "INT64", -1, 1),
            tensor("name", "BYTES", -1, 1, content_type="str"),
        ],
        "outputs": [
            tensor("total", "FP64", -1, 1),
            tensor("label", "BYTES", -1, 1),
            tensor("parts", "BYTES", -1, 1),
        ],
        "parameters": {"content_type": "pd"},
    },
    "arguments": {
        "implementation": "models.Arguments",
        "inputs": [tensor("weights", "FP64", 2), *COLUMNS],
        "outputs": [tensor("output-0", "FP64", -1, 1), tensor("output-1", "BYTES", -1, 1)],
    },
    "texts": {
        "implementation": "models.Texts",
        "inputs": [
            tensor("text", "BYTES", -1, 1),
            tensor("content", "BYTES", -1, 1, content_type="base64"),
            tensor("day", "BYTES", -1, 1),
        ],
        "outputs": [tensor(name, "BYTES", -1, 1) for name in ("upper", "reversed", "tomorrow")],
    },
}
SOURCES = {"numbers": NUMBERS, "batched": NUMBERS, "frames": FRAMES, "arguments": ARGUMENTS, "texts": TEXTS}


def write(repository: Path) -> None:
    """Write all models to a new folder."""
    import joblib
    import lightgbm
    import numpy as np
    import pandas as pd
    import xgboost
    from sklearn.linear_model import LinearRegression, LogisticRegression

    random = np.random.default_rng(1)
    rows = random.normal(size=(300, 4)).astype(np.float32)
    classes = (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 0)
    for name, settings in SETTINGS.items():
        (repository / name).mkdir(parents=True)
        (repository / name / "model-settings.json").write_text(json.dumps({"name": name, **settings}))
    for name, text in SOURCES.items():
        (repository / name / "models.py").write_text(text)
    joblib.dump(LogisticRegression().fit(rows, classes), repository / "classes" / "model.joblib")
    frame = pd.DataFrame({"length": rows[:, 0], "width": rows[:, 1]})
    joblib.dump(LinearRegression().fit(frame, rows[:, 2]), repository / "columns" / "model.joblib")
    xgboost.XGBClassifier(n_estimators=10).fit(rows, classes).save_model(repository / "boosted" / "model.json")
    grown = lightgbm.LGBMRegressor(n_estimators=10, verbosity=-1).fit(rows, rows[:, 3])
    grown.booster_.save_model(repository / "grown" / "model.bst")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
